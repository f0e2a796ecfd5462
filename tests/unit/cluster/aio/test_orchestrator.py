"""The orchestrator among members with real sessions: fail-over, return, ended sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.cluster.aio import orchestrator
from millstream.cluster.aio.node_agent import monotonic_ms
from millstream.cluster.aio.orchestrator import NOTES_LOGGED_MAX, PROMOTING_MS, Late, Reign
from millstream.cluster.core.elements import ClusterState
from millstream.cluster.core.orders import Place
from millstream.cluster.core.settings import HAND_OVER_MS, REPORT_INTERVAL_MS, STARTING_MS
from millstream.cluster.core.step import Decision
from millstream.coordination.aio.client.async_client import AsyncClient
from millstream.runtime.tasks import Tasks
from millstream.vsr.core.versions import Version
from support.cluster.agents_in_loop import BUCKET, members
from support.coordination.coordinators import until

ROWS = {0: ("a", "b", "c"), 1: ("b", "c", "a"), 2: ("c", "a", "b")}


def actives(state: ClusterState) -> list[str | None]:
    return [record.active for record in state.data[BUCKET].records]


async def test_partitions_of_a_node_that_dies_are_promoted(tmp_path: Path) -> None:
    async with members(tmp_path, ROWS) as here:
        await here.start(*"abc")
        await until(lambda: all(
            here.engines[row[0]].serves(Place(BUCKET, number)) for number, row in ROWS.items()
        ))  # fmt: skip
        leader = await until(here.leader)
        await here.until(lambda state: all(one.branch > 1 for one in state.data[BUCKET].records))
        lost = next(name for name in "abc" if name != leader)
        await here.stop(lost)
        state = await here.until(lambda state: lost not in actives(state))
        assert state.nodes[lost].state == "failed"
        assert state.failover_count == 1
        for partition, active in enumerate(actives(state)):
            assert active is not None
            place = Place(BUCKET, partition)
            await until(lambda name=active, at=place: here.engines[name].serves(at))


async def test_what_concerns_every_partition_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def send(*_: object) -> bytes:
        raise AssertionError("nothing is sent")

    reign = Reign("a", Version(1, 1, 1), AsyncClient(["127.0.0.1:1"]), send, Late(0, dict))
    notes = [f"{partition}: nobody answers" for partition in range(64)]
    reign._note(Decision(notes=notes))
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == "orchestrator: 0: nobody answers"
    assert told[NOTES_LOGGED_MAX:] == ["orchestrator: 59 more; the status has all"]
    assert reign.notes == tuple(notes)
    caplog.clear()
    reign._note(Decision(notes=notes))
    assert not caplog.records


async def test_members_that_start_one_after_the_other_are_not_failed_over(tmp_path: Path) -> None:
    async with members(tmp_path, ROWS) as here:
        here.started_ms = None
        await here.start("a", "b")
        leader = await until(here.leader)
        await until(lambda: any(
            "just started" in note for note in here.orchestrators[leader].reign.notes
        ))  # fmt: skip
        await here.start("c")
        state = await here.until(
            lambda state: all(one.branch > 1 for one in state.data[BUCKET].records)
        )
        assert state.failover_count == 0
        assert {node.state for node in state.nodes.values()} == {"in"}


async def test_another_node_leads_once_the_orchestrator_is_gone(tmp_path: Path) -> None:
    async with members(tmp_path, ROWS) as here:
        await here.start(*"abc")
        leader = await until(here.leader)
        await here.stop(leader)
        state = await here.until(lambda state: leader not in actives(state))
        assert state.leader is not None
        assert state.leader.node != leader


def test_the_loop_looks_often_while_a_take_over_is_under_way() -> None:
    async def send(*_: object) -> bytes:
        raise AssertionError("nothing is sent")

    reign = Reign("a", Version(1, 1, 1), AsyncClient(["127.0.0.1:1"]), send, Late(0, dict))
    assert reign._interval_ms() == REPORT_INTERVAL_MS
    reign.memory.handed[Place(BUCKET, 0)] = monotonic_ms()
    assert reign._interval_ms() == PROMOTING_MS
    reign.memory.handed[Place(BUCKET, 0)] = monotonic_ms() - HAND_OVER_MS
    assert reign._interval_ms() == REPORT_INTERVAL_MS


def test_a_node_that_was_heard_since_the_start_is_not_starting() -> None:
    late = Late(monotonic_ms(), dict)
    assert late.among("abc") == {*"abc"}
    late.hear("ab")
    assert late.among("abc") == {"c"}
    assert Late(monotonic_ms() - STARTING_MS, dict).among("abc") == frozenset()


async def test_nodes_that_are_heard_on_streams_are_not_starting() -> None:
    late = Late(monotonic_ms(), lambda: {"a": True, "b": False})
    tasks = Tasks()
    tasks.start(late.watch(), name="who is heard")
    try:
        await until(lambda: late.among("ab") == {"a"})
    finally:
        await tasks.stop()


async def test_a_node_that_dies_soon_after_the_start_of_another_is_failed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orchestrator, "STARTING_MS", 600_000)
    async with members(tmp_path, ROWS) as here:
        here.started_ms = None
        await here.start(*"abc")
        leader = await until(here.leader)
        await here.until(lambda state: all(one.branch > 1 for one in state.data[BUCKET].records))
        lost = next(name for name in "abc" if name != leader)
        await here.stop(lost)
        state = await here.until(lambda state: state.nodes[lost].state == "failed")
        assert lost not in state.live
