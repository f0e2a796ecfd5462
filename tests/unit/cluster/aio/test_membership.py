"""A node and its cluster: status, requests, orders, and its next start."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from millstream.cluster.aio.joining import Told
from millstream.cluster.core.orders import Order
from millstream.cluster.core.reports import from_peer
from millstream.errors import ConditionError, UsageError
from millstream.vsr.core.versions import NEVER
from support.cluster.own_node_double import member_of, world
from support.coordination.coordinators import WAIT_S, until

DATA = ("data", "coord")
PLACE = "127.0.0.1:1000"


async def test_a_node_of_no_cluster_says_so(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        member = member_of(here.node())
        assert not member.is_managed
        for call in (
            member.status,
            member.reign,
            member.member,
            partial(member.orders, b""),
            partial(member.request, "reset", {}, "me", timeout_s=1),
        ):
            with pytest.raises(ConditionError) as caught:
                await call()
            assert caught.value.code == "not_managed"


async def test_members_tell_the_same_status_and_do_what_is_asked_for(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        first, second = here.node(roles=DATA), here.node(held=[], roles=DATA)
        made = await member_of(first).init("flights", 1)
        assert (made["name"], made["node"], made["state"]) == ("flights", "n1", "in")
        joined = await member_of(second).join(PLACE, zone="x", roles=())
        assert (joined["node"], joined["state"]) == ("n2", "in")
        answer = await member_of(second).request("rebalance", {}, "me", timeout_s=WAIT_S)
        assert answer["changed"]
        async with asyncio.timeout(WAIT_S):
            while (await member_of(second).status())["plan"]:
                pass
        told = from_peer(
            await second.ask("127.0.0.1", 1000, "GET", "/_millstream/cluster/member"), Told
        )
        assert {node.name: node.zone for node in told.nodes.values()} == {"n1": "", "n2": "x"}
        assert told.peer == "127.0.0.1:1001"
        taken = here.engines[second.uuid].taken
        await until(lambda: {
            record.active for one in taken.values() for record in one.records
        } == {first.uuid, second.uuid})  # fmt: skip


async def test_a_member_opens_its_session_at_its_next_start_by_itself(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        node = here.node()
        await member_of(node).init("flights", 1)
        await member_of(node).stop()
        again = node.begin()
        assert again.is_managed
        await until(lambda: not again.problem)
        assert (await again.init("flights", 1))["cluster"] == node.identity.cluster  # type: ignore[union-attr]
        with pytest.raises(ConditionError) as caught:
            await again.init("other", 1)
        assert caught.value.code == "other_cluster"


async def test_an_order_that_is_none_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        node = here.node()
        await member_of(node).init("flights", 1)
        with pytest.raises(Exception, match="sent no OrdersRequest"):
            await member_of(node).orders(b"{}}")
        assert Order("report", "", "", NEVER).place.bucket == ""


async def test_arguments_that_cannot_be_are_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        member = member_of(here.node())
        with pytest.raises(UsageError):
            await member.init("flights", 2)
        with pytest.raises(UsageError):
            await member.join(PLACE, zone="", roles=("king",))
        assert not member.is_managed
