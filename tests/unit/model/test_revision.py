"""Revision ids of documents of one line."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.lineage import as_of, born, with_run
from millstream.model.revision import Revisions

UUID = "0123456789abcdef0123456789abcdef"
NUMBERS = st.integers(1, 2**53)


def test_ids_have_the_form_of_couchdb_and_stay_as_they_are() -> None:
    rev = Revisions(UUID).of(b"key", born(1 << 50, 7), 3)
    assert re.fullmatch(r"3-[0-9a-f]{32}", rev)
    # Stored by readers: a change of this value breaks what they keep.
    assert rev == "3-9d920b2ae8b1d410e16d6ce946113d29"


@given(st.binary(max_size=20), NUMBERS, NUMBERS, st.integers(1, 50))
def test_an_id_is_that_of_all_later_lineages(
    key: bytes, branch: int, seqno: int, gen: int
) -> None:
    revisions = Revisions(UUID)
    lineage = born(branch, seqno)
    rev = revisions.of(key, lineage, gen)
    later = with_run(with_run(lineage, branch + 1, gen + 1), branch + 2, gen + 4)
    assert revisions.of(key, later, gen) == rev
    assert revisions.of(key, as_of(later, gen + 2), gen + 2) == revisions.of(key, later, gen + 2)


def test_everything_that_tells_histories_apart_counts() -> None:
    first = born(5, 9)
    ids = [
        Revisions(uuid).of(key, lineage, generation).partition("-")[2]
        for uuid, key, lineage, generation in [
            (UUID, b"key", first, 2), ("f" * 32, b"key", first, 2), (UUID, b"kez", first, 2),
            (UUID, b"key", born(6, 9), 2), (UUID, b"key", born(5, 8), 2), (UUID, b"key", first, 3),
            (UUID, b"key", with_run(first, 6, 2), 2), (UUID, b"key", with_run(first, 7, 2), 2),
            (UUID, b"key", with_run(with_run(first, 6, 2), 7, 3), 3),
        ]
    ]  # fmt: skip
    assert len({*ids}) == len(ids)


@pytest.mark.parametrize("lineage", [b"", b"\1", b"\1\1\1", b"\x81"])
def test_what_is_no_lineage_is_refused(lineage: bytes) -> None:
    with pytest.raises(ValueError):
        Revisions(UUID).of(b"key", lineage, 1)
