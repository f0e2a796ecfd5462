"""The group that coordinates, changed on real nodes of a pool."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from millstream.cluster.aio.coordination_group import CoordinationGroup, _pool_ids, read_group
from millstream.cluster.core.elements import ClusterState, Live, NodeRecord
from millstream.coordination.aio.client.async_client import AsyncClient
from support.coordination.coordinators import WAIT_S, Nodes, until


def state_of(nodes: Nodes, *numbers: int) -> ClusterState:
    records = {
        f"n{number}": NodeRecord(
            f"n{number}", "127.0.0.1", {"coord": nodes.coord_ports[number]}, ("coord",), "", "in"
        )
        for number in numbers
    }
    return ClusterState(nodes=records, live=dict.fromkeys(records, Live("i", {}, 1)))


async def test_the_group_grows_to_three_and_gives_way_to_who_takes_a_place(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 4)
    try:
        for number in range(4):
            await nodes.start(number)
        await until(lambda: len(nodes.running[0].pool.pool.tables.others()) == 3)
        await until(lambda: nodes.group(0).replica.leading)

        def connect() -> AsyncClient:
            return AsyncClient([f"127.0.0.1:{nodes.coord_ports[0]}"], deadline_s=WAIT_S)

        group = CoordinationGroup(connect)

        async def becomes(state: ClusterState, *names: str) -> None:
            async with asyncio.timeout(WAIT_S):
                while True:
                    await group.tend(state)
                    async with connect() as client:
                        found = await read_group(client, state)
                    if set(found.members) == set(names):
                        return

        await becomes(state_of(nodes, 0, 1), "n0")
        assert not await group.tend(state_of(nodes, 0, 1))
        assert group.members == {"n0"}
        await becomes(state_of(nodes, 0, 1, 2), "n0", "n1", "n2")
        unknown = state_of(nodes, 0, 1, 3)
        await becomes(unknown, "n0", "n1", "n3")
        assert group.members == {"n0", "n1", "n3"}
        assert not group.problem
    finally:
        for number in list(nodes.running):
            await nodes.stop(number)


def test_an_address_that_a_lost_node_had_is_that_of_the_node_which_has_it_now() -> None:
    def row(node: bytes, heard_ms: int | None) -> dict[bytes, object]:
        return {b"node": node, b"coord": b"h:1", b"heard_ms": heard_ms, b"is_here": False}

    old = NodeRecord("old", "h", {"coord": 1}, ("coord",), state="out")
    new = msgspec.structs.replace(old, name="new", state="in")
    for nodes in ({"a": old, "b": new}, {"b": new, "a": old}):
        for rows in ([row(b"x", None), row(b"y", 100)], [row(b"y", 100), row(b"x", 9000)]):
            assert _pool_ids(rows, ClusterState(nodes=nodes)) == {"b": "y"}


async def test_why_the_group_stays_is_told(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 1)
    await nodes.start(0)
    address = f"127.0.0.1:{nodes.coord_ports[0]}"
    state = state_of(nodes, 0)
    await nodes.stop(0)
    group = CoordinationGroup(lambda: AsyncClient([address], deadline_s=0.2))
    assert not await group.tend(state)
    assert "was not done" in group.problem
