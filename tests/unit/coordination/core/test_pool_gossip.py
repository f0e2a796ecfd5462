"""`coordination.core.pool_gossip`: joining, leaving, learning of one another."""

from __future__ import annotations

from millstream.coordination.core.values import OK
from pool_world import Node, World, asked, group_of, joined, led


def known(node: Node) -> list[bytes]:
    return [info.node_id for info in node.running.tables.others()]


def others(world: World, node: Node) -> list[bytes]:
    return [one.id for one in world.nodes if one is not node]


def test_all_learn_of_all_though_each_joined_one() -> None:
    world = World(3, 5, is_calm=True)
    for node, before in zip(world.nodes, [None, *world.nodes], strict=False):
        world.start(node, join=() if before is None else (before.address,))
    world.run(10_000)
    for node in world.nodes:
        assert known(node) == others(world, node)
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


def test_two_that_join_each_other_are_one_pool() -> None:
    world = World(1, 2, is_calm=True)
    one, two = world.nodes
    world.start(one, join=(two.address,))
    world.start(two, join=(one.address,))
    world.run(5000)
    assert one.running.tables.pool_ids == two.running.tables.pool_ids
    assert known(one) == [two.id]
    assert known(two) == [one.id]


def test_three_that_join_in_a_ring_are_one_pool() -> None:
    world = World(1, 3, is_calm=True)
    for at, node in enumerate(world.nodes):
        world.start(node, join=(world.nodes[at - 1].address,))
    world.run(5000)
    assert len({node.running.tables.pool_ids for node in world.nodes}) == 1
    assert [known(node) for node in world.nodes] == [others(world, one) for one in world.nodes]


def test_who_has_a_group_of_the_same_number_is_not_let_in() -> None:
    world = World(1, 2, is_calm=True)
    for node in world.nodes:
        world.start(node)
    world.run(2000)
    answer = asked(world, world.nodes[0], "JOIN node2 7000")
    assert answer is not None
    assert answer.startswith(b"-CONFLICT both have a group 1")
    assert known(world.nodes[0]) == known(world.nodes[1]) == []


def test_a_node_that_joins_brings_its_pool_along() -> None:
    world = World(1, 4, is_calm=True)
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
