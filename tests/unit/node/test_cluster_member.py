"""Nodes with coordination of their own that become members; their engines have no data."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import ConditionError, UsageError
from millstream.node.engine import Engine
from millstream.node.settings import Address, Credential, Settings
from support.cluster.engine_double import EngineDouble
from support.coordination.coordinators import until

FREE = Address("127.0.0.1", 0)
Make = Callable[..., Settings]


@pytest.fixture
async def start(
    make_settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[..., Any]]:
    running: list[Engine] = []
    engines: dict[str, EngineDouble] = {}
    monkeypatch.setattr(Engine, "_managed_engine", lambda one: EngineDouble(one.uuid, engines))

    async def started(name: str, **others: Any) -> Engine:
        settings = make_settings(
            data=str(tmp_path / name), coord=FREE, peer=FREE, roles=("data", "coord"), **others
        )
        running.append(await Engine.start(settings))
        return running[-1]

    yield started
    for engine in reversed(running):
        await engine.stop()


async def test_a_node_joins_another_and_is_a_member_at_its_next_start(
    start: Callable[..., Any],
) -> None:
    first = await start("one")
    await first.cluster.init("flights", 1)
    second = await start("two")
    before = second.addresses()
    place = first.addresses()["http"]
    joined = await second.cluster.join(place, zone="", roles=())
    assert (joined["node"], joined["state"]) == ("n2", "in")
    assert second.addresses() == before
    assert [one.name for one in second.bucket_statuses()] == []
    status = await second.cluster.status()
    assert {node["name"] for node in status["nodes"]} == {"n1", "n2"}
    again = await second.cluster.join(place, zone="", roles=())
    assert again["id"] == second.uuid
    with pytest.raises(ConditionError) as caught:
        await second.cluster.init("other", 1)
    assert caught.value.code == "other_cluster"
    await second.stop()
    kept = dataclasses.replace(
        second.settings,
        **{
            name: Address("127.0.0.1", int(before[name].rpartition(":")[2]))
            for name in ("kv", "http", "coord", "peer")
        },
    )
    third = await Engine.start(kept)
    try:
        assert third.cluster.is_managed
        assert third.bucket_statuses() == []
        await until(lambda: not third.cluster.problem)
    finally:
        await third.stop()


async def test_nodes_with_users_need_a_secret_of_the_cluster(make_settings: Make) -> None:
    ada = Credential("ada", "a long password")
    engine = await Engine.start(make_settings(users=(ada,), coord=FREE, peer=FREE))
    try:
        with pytest.raises(ConditionError) as caught:
            await engine.cluster.init("flights", 1)
        assert caught.value.code == "no_cluster_secret"
    finally:
        await engine.stop()


async def test_a_node_without_coordination_makes_no_cluster(make_settings: Make) -> None:
    engine = await Engine.start(make_settings())
    try:
        with pytest.raises(UsageError) as caught:
            await engine.cluster.init("flights", 1)
        assert caught.value.code == "no_coord"
        assert not engine.cluster.is_managed
    finally:
        await engine.stop()
