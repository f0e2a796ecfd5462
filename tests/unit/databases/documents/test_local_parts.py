"""What a node says of its own partitions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.gateway.core.bucket_parts import (
    Changed,
    Failed,
    PartCutter,
    Reached,
    WantedChanges,
    WantedHistories,
    WantedPart,
)
from millstream.model.partitions import PartitionState
from millstream.model.position import Position
from millstream.wire.frames import seqno_of
from support.views.spread_nodes import BUCKET, Node, SpreadNodes

NOWHERE = Position()


@pytest.fixture
def node() -> Node:
    nodes = SpreadNodes.false("aab")
    nodes.write(0, "ab")
    nodes.write(1, "abc")
    return nodes["a"]


async def read(node: Node, partitions: list[int], *positions: Position) -> list[Any]:
    wanted = WantedChanges("u1", partitions, list(positions), restarts=False)
    cutter = PartCutter()
    return [
        message
        async for data in node.parts.changes(BUCKET, wanted)
        for message in cutter.receive(data)
    ]


async def test_changes_of_partitions_from_where_a_reader_stands(node: Node) -> None:
    *pieces, end = await read(node, [1, 0], NOWHERE, Position(0xA001, 1, 1, 1))
    assert all(isinstance(piece, Changed) for piece in pieces)
    found = {piece.partition: [seqno_of(frame) for frame in piece.frames] for piece in pieces}
    assert found == {0: [2], 1: [1, 2, 3]}
    assert isinstance(end, Reached)
    ends = dict(end.positions)
    assert (ends[0].seqno, ends[1].seqno) == (2, 3)
    assert not len(node.changes.of(BUCKET))


async def test_a_reader_is_judged_by_the_history_here(node: Node) -> None:
    [end] = await read(node, [0], Position(0xA001, 2, 2, 2))
    assert dict(end.positions)[0].seqno == 2
    *_, end = await read(node, [0], Position(0xBAD, 7, 7, 7))
    assert dict(end.positions)[0].seqno == 2
    node.bucket.partitions[0].fail_over(1)
    [end] = await read(node, [0], Position(0xA001, 2, 2, 2))
    assert dict(end.positions)[0].seqno == 1


async def test_a_partition_that_goes_in_the_middle(node: Node) -> None:
    node.bucket.partitions[1].forget_memory(3)
    wanted = WantedChanges("u1", [1], [NOWHERE], restarts=False)
    cutter, found = PartCutter(), list[Any]()
    async for data in node.parts.changes(BUCKET, wanted):
        found += cutter.receive(data)
        node.bucket.partitions[1].state = PartitionState.DEAD
        node.bucket.partitions[1].lose_holds()
    assert isinstance(found[0], Changed)
    assert isinstance(found[-1], Failed)
    assert found[-1].code == "not_my_partition"


async def test_how_partitions_stand_at_once_or_once_there_is_more(node: Node) -> None:
    said = await node.parts.histories(BUCKET, WantedHistories("u1", [1, 0]))
    assert [(one.partition, one.high_seqno, one.mark) for one in said.partitions] == [
        (1, 3, 3), (0, 2, 2),
    ]  # fmt: skip
    assert said.purges == "0.1"
    at = Position(0xA001, 2, 2, 2)
    wanted = WantedHistories("u1", [0], [at], 60.0)
    waiting = asyncio.ensure_future(node.parts.histories(BUCKET, wanted))
    await node.bucket.until_read()
    assert not waiting.done()
    node.bucket.write(0, "x")
    assert (await waiting).partitions[0].mark == 3
    wanted.wait_s = 0.001
    wanted.positions = [Position(0xA001, 3, 3, 3)]
    assert (await node.parts.histories(BUCKET, wanted)).partitions[0].mark == 3
    assert not node.bucket.durable_callbacks


async def test_what_is_refused(node: Node) -> None:
    parts = node.parts
    with pytest.raises(ConditionError):
        await parts.histories(BUCKET, WantedHistories("other", [0]))
    with pytest.raises(ConditionError):
        await parts.count_purge(BUCKET, "other", is_made=False)
    with pytest.raises(UnavailableError, match="partition 2"):
        await parts.figures(BUCKET, WantedPart("u1", [0, 2]))
    for partitions in ([], [3], [-1], [0, 0]):
        with pytest.raises(UsageError):
            await parts.histories(BUCKET, WantedHistories("u1", partitions))
    none = Position(1, 3, 2, 2), Position(1, 1, 2, 2), Position(-1)
    for positions in ([], [NOWHERE, NOWHERE], *([position] for position in none)):
        with pytest.raises(UsageError):
            await read(node, [0], *positions)


async def test_a_purge_is_counted_twice(node: Node) -> None:
    await node.parts.count_purge(BUCKET, "u1", is_made=False)
    await node.parts.count_purge(BUCKET, "u1", is_made=True)
    said = await node.parts.histories(BUCKET, WantedHistories("u1", [0]))
    assert said.purges == "2.1"
