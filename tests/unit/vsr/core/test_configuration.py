"""An epoch's end names the next epoch's members and who leads them first."""

import pytest

from millstream.vsr.core.configuration import Configuration, closing_body, successor
from millstream.vsr.core.entries import GENESIS, Kind, chain
from support.coordination.coordination_logs import GROUP

A, B, C, D = (letter * 16 for letter in (b"a", b"b", b"c", b"d"))


@pytest.mark.parametrize(("size", "quorum"), [(1, 1), (3, 2), (5, 3), (7, 4)])
def test_two_quorums_meet(size: int, quorum: int) -> None:
    members = tuple(bytes([number]) * 16 for number in range(size))
    assert Configuration(0, members).quorum == quorum


def test_views_go_round() -> None:
    configuration = Configuration(0, (A, B, C))
    assert [configuration.primary(view) for view in range(4)] == [A, B, C, A]


@pytest.mark.parametrize(("leader", "first_view"), [(B, 0), (D, 2), (A, 0)])
def test_the_next_epoch_follows_from_the_entry_that_ends_this_one(
    leader: bytes, first_view: int
) -> None:
    entry = chain(
        GENESIS, group_id=GROUP, epoch=4, view=2, kind=Kind.RECONFIG, ts_ms=0,
        body=closing_body((B, C, D), leader),
    )  # fmt: skip
    later = successor(Configuration(4, (A, B, C)), entry)
    assert later == Configuration(5, (B, C, D), first_view, (A, B, C), 1, entry.header.hash)
    assert later.everybody == (A, B, C, D)
