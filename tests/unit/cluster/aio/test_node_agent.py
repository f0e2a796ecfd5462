"""The session of a node: opening it, its lease, its end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from millstream.cluster.aio.node_agent import monotonic_ms
from millstream.cluster.aio.state_reader import execute
from millstream.cluster.core.elements import ORCHESTRATOR, live_path, to_json
from millstream.cluster.core.settings import SESSION_TTL_MS, Settings
from millstream.cluster.core.writes import end_session, put_members, put_settings
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.coordination.core.client.replies import Versioned
from support.cluster.agents_in_loop import WAIT_S, members, record
from support.coordination.coordinators import until

ROWS = {0: ("a", "b")}


async def test_a_node_in_step_has_maps_and_a_lease_that_is_renewed(tmp_path: Path) -> None:
    async with members(tmp_path, ROWS) as here:
        await here.start("a")
        engine, agent = here.engines["a"], here.agents["a"]
        assert (agent.taker.boots, agent.problem, engine.is_admitted) == (1, "", False)
        assert engine.maps is not None
        first = await until(lambda: engine.lease_ms)
        assert first <= monotonic_ms() + SESSION_TTL_MS
        await until(lambda: (engine.lease_ms or 0) > first)
        state = await here.state()
        assert state.live["a"].boots == 1
        assert state.nodes["a"].version == "0"
        await here.stop("a")
        assert engine.lease_ms is None
        assert "a" not in (await here.state()).live


async def test_a_session_that_is_marked_as_ending_is_closed_and_another_opened(
    tmp_path: Path,
) -> None:
    async with members(tmp_path, ROWS) as here:
        await here.start("a", "b")
        leader = await until(here.leader)
        other = "b" if leader == "a" else "a"
        state = await here.until(lambda state: other in state.live)
        client = here.agents[leader].client
        assert client is not None
        before = state.live[other].boots
        assert await execute(client, end_session(await here.state(), other))
        await here.until(lambda state: other in state.live and state.live[other].boots > before)


async def test_a_changed_element_of_the_session_ends_the_lease(tmp_path: Path) -> None:
    async with members(tmp_path, ROWS) as here:
        await here.start("a")
        live = (await here.state()).live["a"]
        other = msgspec.structs.replace(live, incarnation="other")
        await here.client.put(live_path("a"), to_json(other))
        await until(lambda: "ended the session" in here.agents["a"].problem)
        await until(lambda: here.agents["a"].taker.boots == 2)


async def test_without_coordination_the_node_is_out_of_step_before_its_session_ends(
    tmp_path: Path,
) -> None:
    async with members(tmp_path, ROWS) as here:
        await here.start("a")
        engine = here.engines["a"]
        lease_ms = await until(lambda: engine.lease_ms)
        client = here.agents["a"].client
        assert client is not None
        client.raw._disconnect()  # and no other connection is made
        client.raw._connecting = asyncio.get_running_loop().create_task(asyncio.sleep(WAIT_S))
        client.raw._step = lambda _: None  # type: ignore[method-assign]
        await until(lambda: engine.lease_ms is None)
        assert monotonic_ms() < lease_ms + SESSION_TTL_MS
        assert "a" in (await here.state()).live


async def test_a_session_that_has_outlasted_a_gap_of_beats_goes_on_and_is_admitted_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with members(tmp_path, {0: ("a",)}) as here:
        await here.start("a")
        engine, agent = here.engines["a"], here.agents["a"]
        await until(lambda: engine.is_admitted)
        client, may_go = agent.client, asyncio.Event()
        assert client is not None
        read = client.get

        async def wait(path: str) -> Versioned:
            await may_go.wait()
            return await read(path)

        monkeypatch.setattr(client, "get", wait)
        await until(lambda: "in time" in agent.problem)
        assert (engine.lease_ms, engine.is_admitted, agent.taker.boots) == (None, False, 0)
        may_go.set()
        await until(lambda: engine.is_admitted)
        assert (agent.taker.boots, agent.problem) == (1, "")
        assert (await here.state()).live["a"].boots == 1


async def test_a_second_process_of_a_node_waits_for_the_end_of_the_first(tmp_path: Path) -> None:
    async with members(tmp_path, ROWS) as here:
        await here.start("a")
        first = here.agents["a"]
        second = here.add("a")
        second.start()
        await until(lambda: "another process" in second.problem)
        await first.stop()
        await asyncio.wait_for(second.until_in_step(), WAIT_S)
        assert second.taker.boots == 2


async def test_who_is_no_member_any_more_says_so(tmp_path: Path) -> None:
    async with members(tmp_path, ROWS) as here:
        stranger = here.add("x")
        stranger.start()
        await until(lambda: "not finished joining" in stranger.problem)
        async with AsyncClient([here.address]) as client:
            election = client.election(ORCHESTRATOR)
            await election.acquire()
            out = {"a": record("a", "out")}
            assert await execute(client, put_members(await here.state(), None, out, "out"))
        gone = here.add("a")
        gone.start()
        await until(lambda: "was removed" in gone.problem)


async def test_a_node_opens_its_session_with_the_time_out_of_the_settings(tmp_path: Path) -> None:
    async with members(tmp_path, ROWS) as here:
        change = put_settings(await here.state(), Settings(session_ttl_ms=5000))
        assert await execute(here.client, change)
        await here.start("a")
        client, engine = here.agents["a"].client, here.engines["a"]
        assert client is not None
        assert client.raw.time_out_ms == 5000
        assert engine.lease_ms is not None
        assert engine.lease_ms > monotonic_ms() + 3000
