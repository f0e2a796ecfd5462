"""Statements of PostgreSQL: names. What they do is tested where they run (`test_sql_target`)."""

from __future__ import annotations

import pytest

from millstream.errors import UsageError
from millstream.pipelines.sinks.keyed_table import TABLE_SCHEMA
from millstream.pipelines.sinks.sql_text import _TYPES, NAME_CHARS_MAX, STAGED_COLUMNS, Statements


@pytest.mark.parametrize("wrong", ["", "A", "a b", "1a", 'a"', "a.b", "a" * 37])
def test_a_name_that_needs_quotes_or_would_be_cut_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="cannot be named") as refused:
        Statements(wrong)
    assert refused.value.code == "bad_option"


def test_no_name_is_longer_than_a_name_may_be() -> None:
    statements = Statements("a" * NAME_CHARS_MAX)
    names = [*(f"{statements.staged_prefix}{'f' * 16}",), statements.positions.strip('"')]
    assert max(map(len, names)) <= 63


def test_the_columns_are_those_of_the_source_in_their_order() -> None:
    assert list(_TYPES) == TABLE_SCHEMA.names
    assert (*STAGED_COLUMNS, "load") == tuple(_TYPES)
