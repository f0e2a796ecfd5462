"""The state of the cluster, read from a real node of coordination."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cluster.aio.state_reader import (
    execute,
    make_namespace,
    maps_of,
    read_elements,
    read_state,
)
from millstream.cluster.core.elements import FAILOVERS, ORCHESTRATOR, ROOT, Leader, to_json
from millstream.cluster.core.settings import Settings
from millstream.cluster.core.writes import put_settings
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.errors import ConditionError
from millstream.vsr.core.versions import NEVER
from support.cluster.agents_in_loop import BUCKET, CLUSTER, KEY, members
from support.coordination.namespace_node import namespace_client, one_node


async def test_without_a_cluster_there_is_no_state(tmp_path: Path) -> None:
    async with one_node(tmp_path) as address, namespace_client(address) as client:
        with pytest.raises(ConditionError) as caught:
            await read_state(client)
        assert caught.value.code == "not_managed"
        await make_namespace(client)
        await make_namespace(client)
        acl = await client.get_acl(ROOT)
        assert (acl["mode"], acl["default_mode"]) == (b"0700", b"0700")
        assert (await read_state(client)).cluster is None


async def test_the_state_has_the_token_and_the_data_of_whoever_leads(tmp_path: Path) -> None:
    async with members(tmp_path, {0: ("a", "b")}) as here:
        state = await here.state()
        assert (state.token, state.leader) == (NEVER, None)
        assert set(state.nodes) == {"a", "b"}
        leader = Leader("a", "a:1")
        async with AsyncClient([here.address]) as other:
            election = other.election(ORCHESTRATOR, to_json(leader))
            await election.acquire()
            for client in (here.client, other):
                state = await read_state(client)
                assert (state.leader, state.token) == (leader, election.token)
        assert FAILOVERS in (await read_elements(here.client))[1]


async def test_a_change_is_done_once_by_who_has_read_the_present_state(tmp_path: Path) -> None:
    async with members(tmp_path, {0: ("a", "b")}) as here:
        before = maps_of(await here.state())
        txn = put_settings(await here.state(), Settings(moves=3))
        assert await execute(here.client, txn)
        assert not await execute(here.client, txn)
        maps = maps_of(await here.state())
        assert (maps.cluster, maps.settings.moves) == (CLUSTER, 3)
        assert maps.data[BUCKET].key == KEY
        assert maps.version > before.version, "maps of an earlier read are known as such"
