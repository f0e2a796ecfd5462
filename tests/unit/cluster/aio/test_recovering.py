"""A cluster whose coordination has lost everything is rebuilt by one node from what all hold."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.cluster.aio.recovering import HeldRequest, kept_log
from millstream.cluster.core.recovery import Held
from millstream.errors import MillstreamError
from support.cluster.own_node_double import OwnNodeDouble, World, member_of, world
from support.coordination.coordinators import WAIT_S, until
from support.coordination.namespace_node import one_node

DATA = ("data", "coord")
PLACE = "127.0.0.1:1000"


@asynccontextmanager
async def lost(path: Path) -> AsyncIterator[tuple[World, list[OwnNodeDouble]]]:
    """Make a cluster of two nodes with a spread bucket; then coordination begins anew, empty."""
    (path / "old").mkdir()
    (path / "new").mkdir()
    async with world(path / "old") as here, one_node(path / "new") as empty:
        nodes = [here.node(roles=DATA), here.node(held=[], roles=DATA)]
        await member_of(nodes[0]).init("flights", 1)
        await member_of(nodes[1]).join(PLACE, zone="", roles=())
        await member_of(nodes[1]).request("rebalance", {}, "me", timeout_s=WAIT_S)
        taken = here.engines[nodes[1].uuid].taken
        await until(
            lambda: any(nodes[1].uuid == r.active for m in taken.values() for r in m.records)
        )
        for node in nodes:
            await member_of(node).stop()
        here.address = empty
        for node in nodes:
            node.begin()
        yield here, nodes


async def recover(node: OwnNodeDouble, *without: str, **others: bool) -> Any:
    wanted = {"from_nodes": True, "is_trial": False} | others
    return await member_of(node).recover(without=without, **wanted)


async def refused(node: OwnNodeDouble, *without: str, **others: bool) -> str:
    with pytest.raises(MillstreamError) as caught:
        await recover(node, *without, **others)
    return caught.value.code


async def test_maps_members_and_generation_come_back_from_the_nodes(tmp_path: Path) -> None:
    async with lost(tmp_path) as (here, nodes):
        before = dict(here.engines[nodes[1].uuid].taken)
        trial = await recover(nodes[1], is_trial=True)
        assert not trial["is_done"]
        assert await refused(nodes[1], from_nodes=False) == "no_state"
        told = await recover(nodes[1])
        assert told["is_done"]
        assert told["generation"] == trial["generation"]
        for node in nodes:
            await until(lambda at=node: not member_of(at).problem)
        assert nodes[0].pools[-1:] == ["127.0.0.1:2001"]  # it follows to where it was recovered
        for uuid, old in before.items():
            new = here.engines[nodes[0].uuid].taken[uuid]
            assert new.key.generation == old.key.generation + 1
            assert [one.rows for one in new.records] == [one.rows for one in old.records]
        status = await member_of(nodes[0]).status()
        assert {one["state"] for one in status["nodes"]} == {"in"}
        await member_of(nodes[0]).request("rebalance", {}, "me", timeout_s=WAIT_S)
        assert await refused(nodes[0]) == "not_lost"
        assert await refused(nodes[0], from_nodes=False) == "not_lost"


async def test_a_node_that_is_away_is_waited_for_or_given_up_by_name(tmp_path: Path) -> None:
    async with lost(tmp_path) as (_, nodes):
        await member_of(nodes[0]).stop()
        assert await refused(nodes[1]) == "node_failed"
        assert await refused(nodes[1], "n9") == "unknown_node"
        told = await recover(nodes[1], PLACE)
        assert [one["id"] for one in told["nodes"] if one["is_given_up"]] == [nodes[0].uuid]
        assert any("default" in text for text in told["may_be_lost"])


async def test_a_node_that_answers_is_not_given_up(tmp_path: Path) -> None:
    async with lost(tmp_path) as (_, nodes):
        assert await refused(nodes[1], PLACE) == "node_answers"


async def test_a_node_tells_what_it_holds_to_its_own_cluster_only(tmp_path: Path) -> None:
    async with lost(tmp_path) as (_, nodes):
        member, identity = member_of(nodes[0]), nodes[0].identity
        assert identity is not None
        content = msgspec.json.encode(HeldRequest(identity.cluster))
        held = msgspec.json.decode(await member.held(content), type=Held)
        assert held.node == nodes[0].uuid
        assert [one.name for one in held.buckets.values()] == ["default"]
        with pytest.raises(MillstreamError) as caught:
            await member.held(msgspec.json.encode(HeldRequest("other")))
        assert caught.value.code == "other_cluster"


async def test_a_bucket_that_a_node_does_not_serve_is_not_taken_for_a_dropped_one(
    tmp_path: Path,
) -> None:
    async with lost(tmp_path) as (_, nodes):
        nodes[0].held = [nodes[0].held[0]._replace(problem="its disk failed")]
        assert await refused(nodes[1]) == "bucket_failed"


async def test_a_group_of_one_is_never_forced(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        node = here.node()
        await member_of(node).init("flights", 1)  # then the group has begun
        assert await kept_log(node) == (None, "conflict")
