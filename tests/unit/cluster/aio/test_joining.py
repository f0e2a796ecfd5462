"""Making a cluster and joining one: what is refused, what is kept, what is gone on with."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from millstream.cluster.aio.joining import CLOCK_MS_MAX, CLOCK_MS_WARNED, Told
from millstream.cluster.aio.state_reader import read_state
from millstream.cluster.core.identity import CLUSTER_NAME
from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.model.partitions import PartitionState
from support.cluster.own_node_double import World, bucket, member_of, world
from support.coordination.coordinators import until

PLACE = "127.0.0.1:1000"


async def state_of(here: World):  # type: ignore[no-untyped-def]
    async with here.nodes[0].connect(5.0) as client:
        return await read_state(client)


async def test_a_new_cluster_has_the_buckets_of_its_first_node_as_they_are(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        orders = bucket("orders", 3, changes=9)
        node = here.node(held=[bucket(), orders._replace(map_revision=4)])
        await member_of(node).init("flights", 1)
        state = await state_of(here)
        assert {one.name: one.partitions for one in state.buckets.values()} == {
            "default": 2, "orders": 3,
        }  # fmt: skip
        assert state.cluster.generation == 6, "SDKs see no smaller one than before"
        records = state.data[orders.uuid].records
        assert {(one.active, one.branch, one.rows) for one in records} == {
            (node.uuid, 7, ((node.uuid,),))
        }
        assert {one.owner for one in state.index[orders.uuid].records} == {node.uuid}


async def test_a_bucket_that_is_not_all_here_cannot_become_one_of_a_cluster(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as here:
        whole = bucket()
        away = [one._replace(state=PartitionState.REPLICA) for one in whole.standings]
        node = here.node(held=[whole._replace(standings=away)])
        with pytest.raises(ConditionError) as caught:
            await member_of(node).init("flights", 1)
        assert caught.value.code == "has_map"
        assert node.identity is None


async def test_a_cluster_has_a_name_and_a_number_of_nodes_that_coordinate(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        node = here.node()
        with pytest.raises(UsageError, match="letters, digits"):
            await member_of(node).init("two words", 3)
        made = await member_of(node).init("", 5)
        assert made["name"] == CLUSTER_NAME
        assert (await state_of(here)).settings.coordinators == 5
        assert (await member_of(node).init("", 3))["cluster"] == made["cluster"]


async def test_what_was_begun_is_gone_on_with(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        node, other = here.node(), here.node(held=[])
        here.disk_is_full = True
        with pytest.raises(UnavailableError):
            await member_of(node).init("flights", 1)
        assert not member_of(node).is_managed
        here.disk_is_full = False
        node.held.append(bucket("later"))
        await member_of(node).init("flights", 1)
        assert {one.name for one in (await state_of(here)).buckets.values()} == {
            "default", "later",
        }  # fmt: skip
        await member_of(other).join(PLACE, zone="", roles=("data",))
        again = await member_of(other).join(PLACE, zone="", roles=())
        assert (again["node"], again["has_nothing"]) == ("n2", True)
        state = await state_of(here)
        assert state.nodes[other.uuid].roles == ("data",)
        assert other.pools == ["127.0.0.1:1001"] * 2


async def test_a_node_of_the_pool_makes_no_second_cluster(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        first, second = here.node(), here.node()
        await member_of(first).init("flights", 1)
        for name in ("flights", "other"):
            with pytest.raises(ConditionError) as caught:
                await member_of(second).init(name, 1)
            assert caught.value.code == "other_cluster"


async def test_a_node_brings_no_data_and_loses_none(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        first = here.node()
        await member_of(first).init("flights", 1)
        for held in ([bucket(changes=1)], [bucket("orders")], [bucket()._replace(problem="why")]):
            node = here.node(held=held)
            with pytest.raises(ConditionError) as caught:
                await member_of(node).join(PLACE, zone="", roles=())
            assert caught.value.code == "has_data"
            assert (node.held, node.identity, node.pools) == (held, None, [])
        empty = here.node()
        await member_of(empty).join(PLACE, zone="", roles=())
        assert empty.held == []


async def test_clocks_that_differ_a_little_are_warned_of(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await member_of(here.node()).init("flights", 1)
        joined = await member_of(here.node(held=[])).join(PLACE, zone="", roles=())
        assert joined["warnings"] == []

        def told(content: bytes) -> bytes:
            said = msgspec.json.decode(content, type=Told)
            later = msgspec.structs.replace(said, unix_ms=said.unix_ms + 5 * CLOCK_MS_WARNED)
            return msgspec.json.encode(later)

        here.told = told
        joined = await member_of(here.node(held=[])).join(PLACE, zone="", roles=())
        (warning,) = joined["warnings"]
        assert "clocks" in warning


@pytest.mark.parametrize("code", ["clock", "version", "address_taken", "other_cluster"])
async def test_a_refused_join_changes_nothing(tmp_path: Path, code: str) -> None:
    async with world(tmp_path) as here:
        first, second = here.node(), here.node(held=[])
        await member_of(first).init("flights", 1)
        if code == "other_cluster":
            await member_of(second).join(PLACE, zone="", roles=())

        def told(content: bytes) -> bytes:
            said = msgspec.json.decode(content, type=Told)
            if code == "clock":
                said = msgspec.structs.replace(said, unix_ms=said.unix_ms + 2 * CLOCK_MS_MAX)
            elif code == "version":
                said = msgspec.structs.replace(said, version="another")
            elif code == "other_cluster":
                said = msgspec.structs.replace(said, cluster="another")
            else:
                second.port = first.port
            return msgspec.json.encode(said)

        here.told = told
        before = second.identity
        with pytest.raises(ConditionError) as caught:
            await member_of(second).join(PLACE, zone="", roles=())
        assert caught.value.code == code
        assert second.identity == before
        second.port = 2000


async def test_who_does_not_answer_is_named(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        node = here.node(held=[])
        with pytest.raises(UnavailableError, match="nobody listens"):
            await member_of(node).join("127.0.0.1:9", zone="", roles=())


async def test_a_node_is_in_the_zone_that_it_was_started_with_else_in_that_it_joins_with(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as here:
        first = here.node(zone="m1")
        await member_of(first).init("", 1)
        second, third = here.node(held=[], zone="m2"), here.node(held=[])
        with pytest.raises(UsageError, match="'m2'"):
            await member_of(second).join(PLACE, zone="rack", roles=())
        await member_of(second).join(PLACE, zone="m2", roles=())
        await member_of(third).join(PLACE, zone="rack", roles=())
        told = msgspec.convert(await member_of(first).member(), Told)
        assert sorted(node.zone for node in told.nodes.values()) == ["m1", "m2", "rack"]
        await member_of(third).stop()
        third.zone = "m3"
        third.begin()
        await until(lambda: not member_of(third).problem)
        told = msgspec.convert(await member_of(first).member(), Told)
        assert told.nodes[third.uuid].zone == "m3"
