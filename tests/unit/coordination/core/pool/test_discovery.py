"""`coordination.core.pool.discovery`: where groups are, and which is meant."""

from __future__ import annotations

from millstream.coordination.core.pool.directory import GroupStatus
from millstream.coordination.core.pool.messages import Founding
from millstream.vsr.core.values import NULL, bulk, integer, items
from support.coordination.pool_driver import asked, group_of, joined, led


def test_discovery_tells_of_every_group_on_every_node() -> None:
    world = joined(3)
    leader = led(world, 1)
    for node in world.nodes:
        name, entry = items(node.running.discovery.vds((b"VDS",)))
        assert name == bulk(b"1")
        found = dict(zip(items(entry)[::2], items(entry)[1::2], strict=True))
        assert found[bulk(b"primary")] == bulk(leader.coord.text.encode())
        assert found[bulk(b"view")] == integer(1)
    assert leader.running.discovery.vds((b"VDS", b"2")).startswith(b"-ERROR_DOES_NOT_EXISTS")
    text = leader.running.discovery.where_text(group_of(world, 1))
    assert text == f"1 0:1 {leader.coord.text}"


def test_a_group_that_nobody_has_seen_yet_is_nowhere() -> None:
    world = joined(1)
    (node,) = world.nodes
    entry = items(node.running.discovery.vds((b"VDS", b"1")))[1]
    found = dict(zip(items(entry)[::2], items(entry)[1::2], strict=True))
    assert found[bulk(b"primary")] == NULL
    assert node.running.discovery.where_text(group_of(world, 1)) == "1 0:0 ?"


def test_two_groups_of_one_number_are_told_apart_by_their_ids() -> None:
    world = joined(1)
    (node,) = world.nodes
    other = Founding(1, (b"x" * 16,), True, 1)
    node.running.tables.note_founding(other)
    node.running.directory.note(other.group_id, GroupStatus(0, 1, other.members, 0.0))
    answer = asked(world, node, "SNAPSHOT 1")
    assert answer is not None
    assert answer.startswith(b"-CONFLICT 2 groups")
    assert other.group_id.hex().encode() in answer
    named = asked(world, node, f"SNAPSHOT {other.group_id.hex()}")
    assert named == b"-NOTPRIMARY 1 0:1 ?"
