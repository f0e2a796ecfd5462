"""`coordination.core.pool.membership`: joining and leaving a pool, and being removed from it."""

from __future__ import annotations

import pytest

from millstream.coordination.core.pool.membership import REMOVED
from millstream.vsr.core.values import OK, items
from support.coordination.pool_driver import Node, World, asked, joined, led


def known(node: Node) -> list[bytes]:
    return [info.node_id for info in node.running.tables.others()]


def fields(value: bytes) -> dict[bytes, bytes]:
    parts = items(value)
    return {name[1:]: part for name, part in zip(parts[::2], parts[1::2], strict=True)}


def others(world: World, node: Node) -> list[bytes]:
    return [one.id for one in world.nodes if one is not node]


def removed(loss: float = 0.0, seed: int = 1) -> tuple[World, Node]:
    """Return a world whose last node was down when it was removed, at the first one."""
    world = joined(4)
    led(world, 1)
    world.chance.seed(seed)
    lost = world.nodes[-1]
    world.crash(lost)
    world.loss = loss
    assert asked(world, world.nodes[0], "LEAVE 0404", for_ms=4000) == OK
    return world, lost


def test_two_that_join_each_other_are_one_pool() -> None:
    world = World(1, 2)
    one, two = world.nodes
    world.start(one, join=(two.address,))
    world.start(two, join=(one.address,))
    world.run(5000)
    assert one.running.tables.pool_ids == two.running.tables.pool_ids
    assert known(one) == [two.id]
    assert known(two) == [one.id]


def test_three_that_join_in_a_ring_are_one_pool() -> None:
    world = World(1, 3)
    for at, node in enumerate(world.nodes):
        world.start(node, join=(world.nodes[at - 1].address,))
    world.run(5000)
    assert len({node.running.tables.pool_ids for node in world.nodes}) == 1
    assert [known(node) for node in world.nodes] == [others(world, one) for one in world.nodes]


def test_who_asked_two_pools_is_in_one_and_the_other_is_told_so() -> None:
    world = World(1, 3)
    one, two, new = world.nodes
    world.start(one)
    world.start(two)
    world.run(2000)
    world.start(new, join=(one.address, two.address))
    world.run(world.now_ms + 10_000)
    assert sorted([known(one), known(two)]) == [[], [new.id]]


def test_who_has_a_group_of_the_same_number_is_not_let_in() -> None:
    world = World(1, 2)
    for node in world.nodes:
        world.start(node)
    world.run(2000)
    answer = asked(world, world.nodes[0], "JOIN node2 7000")
    assert answer is not None
    assert answer.startswith(b"-CONFLICT both have a group 1")
    assert known(world.nodes[0]) == known(world.nodes[1]) == []


def test_a_node_that_joins_brings_its_pool_along() -> None:
    world = World(1, 4)
    one, two, three, four = world.nodes
    world.start(one, join=(two.address,))
    world.start(two, join=(one.address,))
    world.start(three, join=(four.address,))
    world.start(four, join=(three.address,))
    world.run(3000)
    assert known(one) == [two.id]
    assert asked(world, one, "JOIN node3 7000") == OK
    world.run(world.now_ms + 5000)
    assert [known(node) for node in world.nodes] == [others(world, one) for one in world.nodes]


def test_who_leaves_is_forgotten_and_may_come_back() -> None:
    world = joined(3)
    one, two, three = world.nodes
    assert asked(world, three, "LEAVE") == OK
    assert known(one) == [two.id]
    assert known(three) == []
    assert asked(world, three, "JOIN node1 7000") == OK
    world.run(world.now_ms + 3000)
    assert known(two) == [one.id, three.id]


def test_who_was_not_told_of_a_leave_is_told_when_it_asks() -> None:
    world = joined(2)
    one, two = world.nodes
    world.loss = 1.0
    assert asked(world, two, "LEAVE", for_ms=10) == OK
    assert known(one) == [two.id]
    world.loss = 0.0
    world.run(world.now_ms + 3000)
    assert known(one) == []


def test_a_dead_node_is_removed_everywhere() -> None:
    world, lost = removed()
    world.run(world.now_ms + 1000)
    for node in world.nodes[:3]:
        assert lost.id not in [node.id, *known(node)]
        assert node.running.address_of(lost.id) is None
    assert asked(world, world.nodes[1], "LEAVE 0404") == OK


@pytest.mark.parametrize("seed", range(5))
def test_a_removed_node_is_brought_back_by_nobody(seed: int) -> None:
    world, lost = removed(0.5, seed)
    away = world.nodes[2]
    if seed % 2:
        world.crash(away)
        world.run(world.now_ms + 1000)
        world.start(away)  # and speaks of it, as it does not know better
    world.run(world.now_ms + 3000)
    world.start(lost)
    world.loss = 0.0
    world.run(world.now_ms + 10_000)
    for node in world.nodes[:3]:
        assert lost.id not in known(node)
        assert known(node) == [one.id for one in world.nodes[:3] if one is not node]


def test_a_removed_node_that_comes_back_says_so_and_is_alone() -> None:
    world, lost = removed()
    world.start(lost)
    world.run(world.now_ms + 3000)
    assert lost.warnings == [REMOVED]
    assert known(lost) == []
    for words in ("JOIN node1 7000", "JOIN node2 7000"):
        assert asked(world, lost, words) == b"-CONFLICT " + REMOVED.encode()
    status = asked(world, lost, "STATUS", for_ms=0)
    assert status is not None
    assert fields(status)[b"is_removed"] == b"#t"
    world.crash(lost)
    world.start(lost)
    world.run(world.now_ms + 3000)
    assert lost.warnings == [REMOVED, REMOVED]
    assert known(lost) == []
    stranger = Node(5)
    world.nodes.append(stranger)
    world.start(stranger)
    refused = asked(world, stranger, "JOIN node4 7000")
    assert refused is not None
    assert refused.startswith(b"-CONFLICT the node there was removed")


def test_a_node_that_is_told_while_it_joins_again_says_so() -> None:
    world, lost = removed()
    lost.content = None  # all of its files but its id
    world.start(lost)
    assert asked(world, lost, "JOIN node1 7000") == b"-CONFLICT " + REMOVED.encode()
