from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.client.measuring import Piece
from millstream.pipelines.change_stream.batch_sizes import BatchSizes, Limits
from millstream.pipelines.change_stream.offsets import OffsetEntry

Rows = Mapping[int, list[int]]
"""Bytes of each row by partition; 0 for a superseded change. The seqno is the index plus 1."""


class Source:
    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.asked: list[tuple[int, dict[int, int], int, int]] = []
        self.lost: set[int] = set()

    def measure(
        self, lease_id: int, after: Mapping[int, int], rows_max: int, bytes_max: int
    ) -> dict[int, list[Piece]]:
        self.asked.append((lease_id, dict(after), rows_max, bytes_max))
        found: dict[int, list[Piece]] = {}
        for p in after.keys() - self.lost:
            pieces = [Piece(0, 0, 0)]
            for seqno, size in enumerate(self.rows[p][after[p] :], after[p] + 1):
                _, rows, total = pieces[-1]
                if size and rows and (rows == rows_max or total + size > bytes_max):
                    pieces.append(Piece(seqno, 1, size))
                else:
                    pieces[-1] = Piece(seqno, rows + bool(size), total + size)
            found[p] = pieces[:3]  # a node does not return all of very many
        return found


def moving(rows: Rows, at: Mapping[int, int]) -> dict[int, OffsetEntry]:
    return {
        p: OffsetEntry(seqno=at.get(p, 0), snap_end=len(sizes), lease_id=100 + p)
        for p, sizes in rows.items()
        if at.get(p, 0) < len(sizes)
    }


SIZES = st.lists(st.sampled_from((0, 0, 1, 5, 60)), max_size=30).map(lambda found: [*found, 1])
ROWS = st.dictionaries(st.integers(0, 9), SIZES, min_size=1, max_size=5)
LIMIT = st.none() | st.integers(1, 50)


@given(ROWS, LIMIT, LIMIT)
def test_batches_keep_to_their_limits_and_end(
    rows: dict[int, list[int]], rows_max: int | None, bytes_max: int | None
) -> None:
    sizes, at = BatchSizes(Source(rows).measure), dict[int, int]()
    while entries := moving(rows, at):
        ends = sizes.ends(entries, Limits(rows_max, bytes_max))
        batch = [size for p, end in ends.items() for size in rows[p][at.get(p, 0) : end] if size]
        assert batch  # no batch is empty
        assert rows_max is None or len(batch) <= rows_max
        assert bytes_max is None or sum(batch) <= bytes_max or len(batch) == 1
        at |= ends


def test_nothing_is_measured_that_cannot_exceed_the_limit() -> None:
    rows = {0: [1] * 5, 1: [1] * 4}
    source = Source(rows)
    sizes = BatchSizes(source.measure)
    assert sizes.ends(moving(rows, {}), Limits()) == {0: 5, 1: 4}
    assert sizes.ends(moving(rows, {}), Limits(9)) == {0: 5, 1: 4}
    assert sizes.ends({}, Limits(9, 10)) == {}
    assert not source.asked
    sizes.ends(moving(rows, {}), Limits(9, 10**9))
    assert source.asked


def test_a_snapshot_is_measured_once_and_again_for_what_was_left_out() -> None:
    rows = {0: [1] * 8}
    source = Source(rows)
    sizes, at = BatchSizes(source.measure), {0: 0}
    while entries := moving(rows, at):
        at = sizes.ends(entries, Limits(2, 50))
        assert sizes.ends(entries, Limits(2, 50)) == at  # Spark may ask again
    assert [after for _, after, *_ in source.asked] == [{0: 0}, {0: 6}]


@pytest.mark.parametrize(
    "entry",
    [OffsetEntry(seqno=2, snap_end=8, lease_id=7), OffsetEntry(seqno=0, snap_end=8, lease_id=100)],
)
def test_another_snapshot_or_limit_is_measured_anew(entry: OffsetEntry) -> None:
    source = Source({0: [1] * 8})
    sizes = BatchSizes(source.measure)
    sizes.ends({0: OffsetEntry(seqno=2, snap_end=8, lease_id=100)}, Limits(2, 50))
    sizes.ends({0: entry}, Limits(2, 50))
    sizes.ends({0: entry}, Limits(3, 50))
    assert len(source.asked) == 3


def test_what_cannot_be_measured_goes_by_seqnos() -> None:
    rows = {0: [1] * 8, 1: [1] * 8}
    source = Source(rows)
    source.lost = {0}
    assert BatchSizes(source.measure).ends(moving(rows, {}), Limits(6)) == {0: 3, 1: 3}
    assert BatchSizes(source.measure).ends(moving(rows, {}), Limits(None, 2)) == {0: 1, 1: 2}
