"""`coordination.core.pool.gossip`: joining, leaving, learning of one another."""

from __future__ import annotations

import pytest

from millstream.coordination.core.pool.effects import Posted
from millstream.coordination.core.pool.gossip import REMOVED
from millstream.coordination.core.pool.messages import Board
from millstream.vsr.core.values import OK, items
from simulators.pool_world import Node, World, asked, group_of, joined, led


def known(node: Node) -> list[bytes]:
    return [info.node_id for info in node.running.tables.others()]


def fields(value: bytes) -> dict[bytes, bytes]:
    parts = items(value)
    return {name[1:]: part for name, part in zip(parts[::2], parts[1::2], strict=True)}


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


@pytest.mark.parametrize(("interval", "rounds"), [
    (None, 20), (b"100 ms", 100), (b"500 ms", 20), (b"700 ms", 14), (b"2000 ms", 5), (b"??", 20),
])  # fmt: skip
def test_rounds_are_as_often_as_is_set_for_all_groups(
    monkeypatch: pytest.MonkeyPatch, interval: bytes | None, rounds: int
) -> None:
    world = joined(2)
    settings = () if interval is None else ((b"GLOBAL.VDS.INTERVAL", interval),)
    board = Board(group_of(world, 1), 5, (), settings)
    for node in world.nodes:
        world.step(node, Posted(board, {}))
    world.run(world.now_ms + 4000)
    pings: list[bool] = []

    def ping(receiver: bytes, *, is_answer: bool = False) -> None:
        pings.append(is_answer)

    monkeypatch.setattr(world.nodes[0].running, "ping", ping)
    world.run(world.now_ms + 10_000)
    assert rounds - 2 <= pings.count(False) <= rounds + 1


def test_a_node_is_removed_as_soon_though_rounds_are_rare() -> None:
    world = joined(4)
    board = Board(group_of(world, 1), 5, (), ((b"GLOBAL.VDS.INTERVAL", b"60000 ms"),))
    for node in world.nodes:
        world.step(node, Posted(board, {}))
    led(world, 1)
    world.run(world.now_ms + 10_000)
    world.crash(world.nodes[3])
    assert asked(world, world.nodes[2], "LEAVE 0404", for_ms=4000) == OK


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


def test_who_asked_two_pools_is_in_one_and_the_other_is_told_so() -> None:
    world = World(1, 3, is_calm=True)
    one, two, new = world.nodes
    world.start(one)
    world.start(two)
    world.run(2000)
    world.start(new, join=(one.address, two.address))
    world.run(world.now_ms + 10_000)
    assert sorted([known(one), known(two)]) == [[], [new.id]]


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


def test_only_dead_nodes_that_are_in_no_group_are_removed() -> None:
    world = joined(3)
    led(world, 1)
    one, two, three = world.nodes
    alive = asked(world, one, "LEAVE 0303", for_ms=100)
    assert alive is not None
    assert alive.startswith(b"-CONFLICT it is alive")
    itself = asked(world, one, "LEAVE 0101")
    assert itself is not None
    assert itself.startswith(b"-CONFLICT this node is in group 1")
    world.crash(one)
    member = asked(world, two, "LEAVE 0101")
    assert member == b"-CONFLICT it is in group 1: GROUP REPLACE or REMOVE it first"
    assert asked(world, three, "LEAVE 0303") == OK


def test_a_node_that_joined_a_group_meanwhile_is_not_removed() -> None:
    world = joined(3)
    world.crash(world.nodes[2])
    ticket = world.admin(world.nodes[0], "LEAVE 0303")
    world.admin(world.nodes[1], "GROUP CREATE 7 0101 0202 0303")
    world.run(world.now_ms + 4000)
    assert world.answers[ticket] == b"-CONFLICT it is in group 7 now"


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
