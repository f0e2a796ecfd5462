"""`coordination.core.pool.gossip`: joining, leaving, learning of one another."""

from __future__ import annotations

import pytest

from millstream.vsr.core.values import items
from support.coordination.pool_driver import Node, World, group_of, joined, led


def known(node: Node) -> list[bytes]:
    return [info.node_id for info in node.running.tables.others()]


def fields(value: bytes) -> dict[bytes, bytes]:
    parts = items(value)
    return {name[1:]: part for name, part in zip(parts[::2], parts[1::2], strict=True)}


def others(world: World, node: Node) -> list[bytes]:
    return [one.id for one in world.nodes if one is not node]


@pytest.mark.parametrize("seed", range(1, 13))
def test_nodes_that_join_in_a_chain_at_once_become_one_pool(seed: int) -> None:
    world = World(seed, 5)
    for node, before in zip(world.nodes, [None, *world.nodes], strict=False):
        world.start(node, join=() if before is None else (before.address,))
    world.run(10_000)
    for node in world.nodes:
        assert sorted(known(node)) == sorted(others(world, node))
        assert list(node.running.directory.sightings(0)) == []
    led(world, 1)
    assert all(node.running.directory.get(group_of(world, 1)) for node in world.nodes)


def test_a_node_is_known_under_its_new_address_after_a_restart() -> None:
    world = joined(3)
    moved = world.nodes[2]
    world.crash(moved)
    moved.address = moved.address._replace(host="elsewhere")
    world.start(moved)
    world.run(world.now_ms + 3000)
    for node in world.nodes[:2]:
        assert node.running.address_of(moved.id) == moved.address


def test_a_backup_makes_no_word_younger() -> None:
    world = joined(3)
    leader = led(world, 1)
    (other, *_) = [node for node in world.nodes if node is not leader]
    group_id = group_of(world, 1)
    world.crash(leader)
    world.run(world.now_ms + 8000)
    seen = other.running.directory.get(group_id)
    assert seen is not None
    assert world.now_ms - seen.said_ms >= 8000
