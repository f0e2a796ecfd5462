"""`coordination.core.pool.pool_commands`: joining, leaving, removing and listing nodes."""

from __future__ import annotations

import pytest

from millstream.coordination.core.pool import admin_arguments
from millstream.coordination.core.pool.effects import (
    GroupChanged,
    Heard,
    Say,
    Stray,
)
from millstream.coordination.core.pool.messages import Hello, NodeInfo, PoolEnvelope
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.effects import Timer
from millstream.vsr.core.messages import Envelope, GetEpoch
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.values import OK, bulk, integer, items
from support.coordination.pool_driver import Node, World, asked, group_of, joined, led


def others(world: World, node: Node) -> list[bytes]:
    return [one.id for one in world.nodes if one is not node]


def cut(world: World, nodes: list[Node]) -> None:
    """Have these hear one another only, and the others neither."""
    inside = {node.address for node in nodes}
    ids = {node.id for node in nodes}

    def send(say: Say) -> None:
        if (say.address in inside) is (say.envelope.sender in ids):
            World._send(world, say)

    world._send = send  # type: ignore[method-assign]


def fields(value: bytes) -> dict[bytes, bytes]:
    parts = items(value)
    return {name[1:]: part for name, part in zip(parts[::2], parts[1::2], strict=True)}


def test_nodes_are_listed_with_their_groups() -> None:
    world = joined(2)
    led(world, 1)
    table = asked(world, world.nodes[1], "nodes")
    assert table is not None
    rows = [fields(row) for row in items(table)]
    assert [row[b"node"] for row in rows] == [bulk(b"01" * 16), bulk(b"02" * 16)]
    assert [items(row[b"groups"]) for row in rows] == [[integer(1)], []]
    assert rows[1][b"is_here"] == b"#t"


def test_a_node_of_a_group_may_not_leave() -> None:
    world = joined(1)
    answer = asked(world, world.nodes[0], "LEAVE")
    assert answer is not None
    assert answer.startswith(b"-CONFLICT this node is in group 1")


def test_who_was_invited_to_a_group_and_is_no_member_may_leave() -> None:
    world = joined(2)
    one, two = world.nodes
    led(world, 1)
    group_id = group_of(world, 1)
    world.step(two, Stray(Envelope(group_id, one.id, 1, 1, 1, GetEpoch())))
    world.run(world.now_ms + 100)
    assert group_id in two.open
    early = asked(world, two, "LEAVE", for_ms=10)
    assert early is not None
    assert early.startswith(b"-CONFLICT")  # its replica has not said what it is
    nobody = Configuration(0, ())
    world.step(two, GroupChanged(group_id, Status.INITIALIZATION, nobody, 0, leads=False))
    members = Configuration(1, (one.id, two.id))
    world.step(one, GroupChanged(group_id, Status.NORMAL, members, 0, leads=True))
    world.run(world.now_ms + 1000)
    became = asked(world, two, "LEAVE", for_ms=10)
    assert became is not None
    assert became.startswith(b"-CONFLICT")  # the group says that it is one
    alone = Configuration(2, (one.id,))
    world.step(one, GroupChanged(group_id, Status.NORMAL, alone, 0, leads=True))
    world.run(world.now_ms + 1000)
    assert asked(world, two, "LEAVE", for_ms=10) == OK


def test_joining_the_pool_one_is_in_is_no_fault() -> None:
    world = joined(2)
    assert asked(world, world.nodes[1], "JOIN node1 7000") == OK


def test_a_node_that_hears_too_little_removes_nobody() -> None:
    """It may not know that the one it takes for dead has become a member."""
    world = joined(4)
    one, two, three, four = world.nodes
    assert asked(world, two, "GROUP CREATE 2 0101 0202 0404") == OK
    led(world, 2)
    group_id = group_of(world, 2)
    led(world, 1)
    cut(world, [one])
    world.views[group_id] = (1, (two.id, three.id, four.id), 1)
    answer = asked(world, one, "LEAVE 0303", for_ms=9000)
    assert answer is not None
    assert answer.startswith(b"-CONFLICT this node hears too little of the pool (most nodes")
    assert three.id not in one.running.tables.tombstones


def test_a_node_that_hears_most_nodes_but_not_a_groups_members_removes_nobody() -> None:
    world = joined(6)
    one, two, three, *_ = world.nodes
    assert asked(world, one, "GROUP CREATE 2 0101 0202 0303") == OK
    led(world, 2)
    led(world, 1)
    world.crash(world.nodes[5])
    cut(world, [one, world.nodes[3], world.nodes[4]])
    answer = asked(world, one, "LEAVE 0606", for_ms=4000)
    assert answer is not None
    assert b"hears too little of the pool" in answer
    del world._send
    led(world, 2)
    assert asked(world, one, "LEAVE 0606", for_ms=4000) == OK
    for node in (two, three):
        world.crash(node)
    world.crash(world.nodes[4])
    world.run(world.now_ms + 6000)
    answer = asked(world, one, "LEAVE 0505", for_ms=4000)
    assert answer is not None
    assert b"hears too little of the pool" in answer


def test_a_node_that_stood_still_takes_nobody_for_silent() -> None:
    world = joined(3)
    led(world, 1)
    one, _, three = world.nodes
    ticket = world.admin(one, "LEAVE 0303")
    world.now_ms += 3100
    one.timer_ms = None
    world.step(one, Timer())
    assert ticket not in world.answers
    world.run(world.now_ms + 1000)
    assert world.answers[ticket].startswith(b"-CONFLICT the node is alive")
    assert three.id not in one.running.tables.tombstones


def test_an_answer_that_waits_for_the_disk_is_an_answer() -> None:
    world = joined(3)
    led(world, 1)
    one, two, three = world.nodes
    ticket = world.admin(one, "LEAVE 0303")
    heard = world.now_ms
    world.write = lambda _: None  # type: ignore[method-assign]
    news = Hello(NodeInfo(two.id, 9, 0, two.address, two.coord), one.id)
    world.step(one, Heard(PoolEnvelope(two.id, 9, news)))
    assert one.disk
    one.timer_ms = None
    world.step(one, Timer())  # before the answer, which is on its way
    world.run(heard + 3600)
    assert three.id not in one.running.tables.tombstones
    del world.write
    world.run(world.now_ms + 1000)
    assert world.answers[ticket].startswith(b"-CONFLICT the node is alive")


def test_a_removal_for_which_there_is_no_room_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    world = joined(3)
    led(world, 1)
    world.crash(world.nodes[2])
    ticket = world.admin(world.nodes[0], "LEAVE 0303")
    monkeypatch.setattr(admin_arguments, "TOMBSTONES_MAX", 0)
    world.run(world.now_ms + 4000)
    assert world.answers[ticket].startswith(b"-QUOTA")


def test_only_dead_nodes_that_are_in_no_group_are_removed() -> None:
    world = joined(3)
    led(world, 1)
    one, two, three = world.nodes
    alive = asked(world, one, "LEAVE 0303", for_ms=100)
    assert alive is not None
    assert alive.startswith(b"-CONFLICT the node is alive")
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
