"""From stored documents to the answer of a query."""

from __future__ import annotations

import pytest

from millstream.errors import UsageError
from millstream.pipelines.view_reading import ViewRows, _sort, _StoredRow
from millstream.views.core.design import parse_design
from millstream.views.core.query import Query

DESIGN = parse_design(
    {
        "views": {
            "listed": {"map": "d => 1"},
            "own": {"map": "d => 1", "reduce": "(k, v, r) => v.join('+')"},
            "summed": {"map": "d => 1", "reduce": "_sum"},
        }
    },
    "d",
)
LISTED, OWN, SUMMED = range(3)


def stored(key, value=None, signature=DESIGN.named_signature, **members):
    return _StoredRow("d", "v", signature, key, value, **members)


def rows_of(number, *documents):
    rows = ViewRows({}, DESIGN, number)
    _sort(rows, documents)
    return rows


def test_reduced_rows_are_sorted_grouped_and_merged():
    rows = rows_of(SUMMED, stored("b", 2), stored("a", 1), stored("B", 4))
    assert rows.answer(Query())["rows"] == [{"key": None, "value": 7}]
    assert [row["key"] for row in rows.answer(Query(group=True))["rows"]] == ["a", "b", "B"]


def test_keys_that_are_equal_under_collation_are_one_group():
    rows = rows_of(SUMMED, stored("a", 1), stored("\x00a", 2))
    assert [row["value"] for row in rows.answer(Query(group=True))["rows"]] == [3]


def test_rows_of_another_version_are_left_out():
    rows = rows_of(SUMMED, stored("a", 1), stored("a", 100, signature="old"))
    assert rows.answer(Query())["rows"] == [{"key": None, "value": 1}]


def test_rows_of_a_map_only_view():
    rows = rows_of(LISTED, stored(1, id="b", rows=["x", "y"]), stored(1, id="a", rows=[None]))
    answer = rows.answer(Query())
    assert answer["total_rows"] == 3
    assert [(row["id"], row["value"]) for row in answer["rows"]] == [
        ("a", None), ("b", "x"), ("b", "y"),
    ]  # fmt: skip


def test_own_reduces_merge_in_the_sandbox():
    rows = rows_of(OWN, stored("b", "2"), stored("a", "1"))
    assert rows.answer(Query())["rows"] == [{"key": None, "value": "1+2"}]


def test_map_rows_of_a_reduced_view_are_not_kept():
    with pytest.raises(UsageError, match="only the reduced rows"):
        rows_of(SUMMED, stored("a", 1)).answer(Query(reduce=False))
    with pytest.raises(UsageError, match="no reduce"):
        rows_of(LISTED).answer(Query(reduce=True))


@pytest.mark.parametrize(
    "options", [{"include_docs": True, "reduce": False}, {"update_seq": True}, {"at": {}}]
)
def test_rows_that_a_pipeline_keeps_have_no_documents_and_positions(options):
    with pytest.raises(UsageError, match="put the design document into the bucket"):
        rows_of(SUMMED, stored("a", 1)).answer(Query(**options))
