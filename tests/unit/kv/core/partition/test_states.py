from __future__ import annotations

import itertools

import pytest

from millstream.kv.core.partition.states import (
    FOLLOWING,
    MOVES,
    STREAMED,
    Move,
    move_between,
    refusal_in,
)
from millstream.model.partitions import PartitionState
from millstream.wire.mcbp import Status

RIGHT = """
            absent   active     replica     pending  dead
    absent  none     activate   rename      rename   -
    active  -        none       stand_down  -        stand_down
    replica -        activate   none        rename   rename
    pending -        activate   rename      none     rename
    dead    remove   activate   rename      rename   none
"""


def test_every_move_is_what_the_table_says() -> None:
    names, *rows = [line.split() for line in RIGHT.strip().splitlines()]
    for row in rows:
        before = PartitionState[row[0].upper()]
        for name, right in zip(names, row[1:], strict=True):
            found = move_between(before, PartitionState[name.upper()])
            assert (found.name.lower() if found else "-") == right, (row[0], name)
    assert set(MOVES) == set(PartitionState)


def test_a_copy_gets_from_every_state_to_every_other() -> None:
    reached = {(before, after) for before in MOVES for after in MOVES[before]}
    for _ in PartitionState:
        reached |= {(a, d) for (a, b), (c, d) in itertools.product(reached, reached) if b == c}
    assert len(reached) == len(PartitionState) ** 2


@pytest.mark.parametrize("state", PartitionState)
def test_only_an_active_copy_serves_documents(state: PartitionState) -> None:
    right = {
        PartitionState.ACTIVE: None,
        PartitionState.PENDING: Status.ETMPFAIL,
    }.get(state, Status.NOT_MY_VBUCKET)
    assert refusal_in(state) == right


def test_nobody_reads_where_nothing_is_complete_nor_follows_where_documents_are_written() -> None:
    assert {s for s in PartitionState if s in STREAMED} == {
        PartitionState.ACTIVE,
        PartitionState.REPLICA,
    }
    assert PartitionState.ACTIVE not in FOLLOWING
    for state in FOLLOWING:
        assert move_between(state, PartitionState.ACTIVE) is Move.ACTIVATE
