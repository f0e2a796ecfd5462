"""`coordination.core.pool.incarnations`: older and other copies of a directory are refused."""

from __future__ import annotations

from millstream.coordination.core.pool.boot_stamps import next_incarnation, next_mark
from millstream.coordination.core.pool.effects import Heard, Marked
from millstream.coordination.core.pool.incarnations import IDLE, PROBE_MS
from millstream.coordination.core.pool.messages import Address, Hello, PoolEnvelope
from millstream.vsr.core.entries import NOBODY
from support.coordination.pool_driver import PORT, Node, World, asked, joined


def start(world: World, node: Node, incarnation: int) -> None:
    """Start a process of this number."""
    node.incarnation = incarnation - 1
    world.start(node)
    node.open = dict.fromkeys(node.folders)


def greet(world: World, speaker: Node, hearer: Node) -> str:
    """Have one connect to another; return why its connection is closed, if it is."""
    me = speaker.running.me
    world.step(hearer, Heard(PoolEnvelope(me.node_id, me.incarnation, Hello(me, NOBODY))))
    return hearer.running.incarnations.refusal_of_node(me)


def pool(starts: int = 3) -> World:
    """Three nodes whose second one has been started once more, so many times."""
    world = joined(3)
    incarnation = world.nodes[1].incarnation
    for _ in range(starts):
        world.crash(world.nodes[1])
        incarnation = next_incarnation(incarnation, 7)
        start(world, world.nodes[1], incarnation)
        world.run(world.now_ms + 3000)
    return world


def copy_of(world: World, node: Node, incarnation: int) -> Node:
    """Start a copy of a node's directory at another address."""
    copy = Node(node.number)
    copy.content, copy.address = node.content, Address("elsewhere", PORT)
    world.nodes.append(copy)
    start(world, copy, incarnation)
    return copy


def test_a_directory_that_was_set_back_is_refused_and_takes_no_part_any_more() -> None:
    """Also at its next starts; and others show it."""
    world = pool()
    first, node, _ = world.nodes
    world.crash(node)
    start(world, node, next_incarnation(1, 7))
    assert "set back" in greet(world, node, first)
    world.run(world.now_ms + 1000)
    assert "set back" in node.running.incarnations.own_refusal
    assert node.open == {}
    assert any(IDLE in text for text in node.warnings)
    assert sum("is refused" in text for text in first.warnings) == 1
    for words in ("GROUP CREATE 7 " + node.id.hex(), "JOIN node1 7000", "BACKUP 1 /b"):
        answer = asked(world, node, f"ADMIN {words}".removeprefix("ADMIN "))
        assert answer is not None
        assert answer.startswith(b"-CONFLICT"), words
    status = asked(world, node, "STATUS")
    assert status is not None
    assert b"set back" in status
    rows = asked(world, first, "NODES")
    assert rows is not None
    assert b"set back" in rows
    world.crash(node)
    world.start(node)
    assert node.running.incarnations.own_refusal == node.refusal != ""


def test_as_many_starts_of_another_copy_are_no_better() -> None:
    """The directory was copied before its last start, and is started once from there."""
    world = pool(3)
    first, node, _ = world.nodes
    world.crash(node)
    start(world, node, next_incarnation(next_incarnation(next_incarnation(1, 7), 7), 8))
    assert "another start number 4" in greet(world, node, first)
    world.run(world.now_ms + 1000)
    assert node.running.incarnations.own_refusal


def test_the_right_directory_comes_back_by_itself_once_the_wrong_one_is_gone() -> None:
    world = pool(3)
    first, node, _ = world.nodes
    right, content = node.running.me.incarnation, node.content
    world.crash(node)
    start(world, node, next_incarnation(1, 7))
    greet(world, node, first)
    world.run(world.now_ms + 1000)
    assert node.running.incarnations.own_refusal
    world.crash(node)
    node.refusal, node.content = "", content
    start(world, node, next_incarnation(right, 3))
    assert greet(world, node, first) == ""
    world.run(world.now_ms + 5000)
    assert not node.running.incarnations.own_refusal
    assert first.running.tables.node(node.id) == node.running.me
    assert first.running.incarnations.refused == {}


def test_a_copy_beside_its_original_is_refused_and_the_original_is_told_and_continues() -> None:
    world = pool(2)
    first, node, third = world.nodes
    copy = copy_of(world, node, next_incarnation(node.running.me.incarnation, 1))
    for _ in range(8):
        for hearer in (first, third):
            assert greet(world, copy, hearer) != ""
        world.run(world.now_ms + 500)
    assert "copied" in copy.running.incarnations.own_refusal
    assert copy.refusal
    assert not node.running.incarnations.own_refusal
    told = node.running.incarnations.refused[node.id]
    assert told.incarnation == copy.running.me.incarnation
    assert copy.address.text in told.reason
    assert b"copied" in (asked(world, node, "NODES", for_ms=0) or b"")
    assert sum("another process claims" in line for line in node.warnings) == 1
    for hearer in (first, third):
        known = hearer.running.tables.node(node.id)
        assert known is not None
        assert (known.incarnation, known.peer) == (node.running.me.incarnation, node.address)
        assert hearer.running.incarnations.refused[node.id].address == copy.address
    world.crash(node)
    world.run(world.now_ms + 2 * PROBE_MS)
    assert greet(world, copy, first) != "", "it is no better for the original's end"
    start(world, node, next_incarnation(node.incarnation, 4))
    assert greet(world, node, first) == ""
    world.run(world.now_ms + 1000)
    assert not node.running.incarnations.own_refusal


def test_a_directory_that_was_moved_is_believed_once_its_old_address_is_silent() -> None:
    world = pool(2)
    first, node, third = world.nodes
    world.crash(node)
    moved = copy_of(world, node, next_incarnation(node.incarnation, 1))
    began_ms = world.now_ms
    while greet(world, moved, first):
        world.run(world.now_ms + 100)
    assert PROBE_MS <= world.now_ms - began_ms < 2 * PROBE_MS
    assert not moved.running.incarnations.own_refusal
    known = first.running.tables.node(node.id)
    assert known is not None
    assert known.peer == moved.address
    assert first.running.incarnations.refused == {}
    assert third is not None


def test_a_moved_node_is_believed_as_soon_if_it_works_meanwhile() -> None:
    """It says marks as often as its old address is asked, and so would be asked about for ever."""
    world = pool(2)
    first, node, _ = world.nodes
    world.crash(node)
    moved = copy_of(world, node, next_incarnation(node.incarnation, 1))
    began_ms = world.now_ms
    while greet(world, moved, first):
        assert world.now_ms - began_ms < 2 * PROBE_MS
        mark = next_mark(moved.running.me.incarnation, 1)
        world.step(moved, Marked(mark))
        world.run(world.now_ms + 400)
    assert world.now_ms - began_ms >= PROBE_MS
    known = first.running.tables.node(node.id)
    assert known is not None
    assert known.peer == moved.address
    assert not moved.running.incarnations.own_refusal


def test_who_hears_of_a_later_start_of_itself_takes_no_part() -> None:
    """From nodes, too, of a version that refuses nobody: their tables say it."""
    world = pool(3)
    first, node, _ = world.nodes
    tables = first.running.tables.message()
    world.crash(node)
    start(world, node, next_incarnation(1, 7))
    me = first.running.me
    world.step(node, Heard(PoolEnvelope(me.node_id, me.incarnation, tables)))
    assert "others know of start 4" in node.running.incarnations.own_refusal


def test_what_comes_late_from_a_process_that_is_over_accuses_nobody() -> None:
    world = pool(2)
    first, node, _ = world.nodes
    old = node.running.me
    late = PoolEnvelope(old.node_id, old.incarnation, node.running.heartbeats.message())
    world.crash(node)
    start(world, node, next_incarnation(old.incarnation, 1))
    assert greet(world, node, first) == ""
    world.step(first, Heard(late))
    world.run(world.now_ms + 1000)
    assert first.running.incarnations.refused == {}
    assert not node.running.incarnations.own_refusal
