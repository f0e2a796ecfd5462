"""`millstream coord pool init`, `join`, `status` over a pool on a false network."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from millstream.cli.coordination import pool
from support.coordination.pool_driver import World, joined, led
from support.coordination.pool_over_resp import FalseCoordination

Call = Callable[..., Any]


@pytest.fixture
def world() -> World:
    made = joined(3)
    led(made, 1)
    return made


@pytest.fixture(autouse=True)
def here(world: World, monkeypatch: pytest.MonkeyPatch) -> FalseCoordination:
    node = FalseCoordination(world, world.nodes[1])
    monkeypatch.setattr(pool, "coordination_at", lambda *_: node)
    return node


def test_a_group_spans_all_nodes_of_the_pool(call: Call, world: World) -> None:
    ended = call("coord", "pool", "init")
    assert ended.out == b"group 1, epoch 1: 3 members, 1 may fail\n"
    again = call("coord", "pool", "init", "--json")
    world.run(world.now_ms + 1000)
    assert json.loads(again.out)["members"] == ["01" * 16, "02" * 16, "03" * 16]


def test_members_are_named_by_how_their_ids_begin(call: Call, world: World) -> None:
    ended = call("coord", "pool", "init", "0101", "0202", "0303", "--json")
    assert json.loads(ended.out) == {
        "group": 1, "epoch": 1, "members": [node.id.hex() for node in world.nodes]
    }  # fmt: skip
    for words, said in ((["0101", "0202"], "not 2"), (["ff"], "does not begin")):
        refused = call("coord", "pool", "init", *words)
        assert refused.code == 2
        assert said in refused.err


def test_a_node_joins(call: Call, here: FalseCoordination) -> None:
    ended = call("coord", "pool", "join", "node1:7000")
    assert ended.out == b"3 nodes are in the pool\n"
    assert here.asked[0] == ("ADMIN", "JOIN", "node1", "7000")


def test_a_status_shows_nodes_and_groups(
    call: Call, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")  # nothing is left out where there is little room
    ended = call("coord", "pool", "status")
    assert ended.code == 0
    lines = [line.split() for line in ended.out.decode().splitlines()]
    assert ["02" * 16, "node2:7001", "node2:7000", "here"] in lines
    group = next(line for line in lines if line[0] == "1")
    assert group[:5] == ["1", "0", "1", "node1:7001", "node1:7001"]
    found = json.loads(call("coord", "pool", "status", "--json").out)
    assert [row["groups"] for row in found["nodes"]] == [[1], [], []]
    assert found["groups"]["1"]["primary"] == "node1:7001"


def test_a_group_that_nobody_leads_is_a_failure(call: Call, world: World) -> None:
    world.crash(world.nodes[0])
    world.run(world.now_ms + 8000)
    ended = call("coord", "pool", "status")
    assert ended.code == 1
    assert "nobody is known to lead group 1" in ended.err
