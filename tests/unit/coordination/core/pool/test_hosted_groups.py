"""`coordination.core.pool.hosted_groups`: founding once, opening, invitations, deleting."""

from __future__ import annotations

import pytest

from millstream.coordination.core.pool.effects import Heard, Say, Stray
from millstream.coordination.core.pool.file_format import Phase
from millstream.coordination.core.pool.hosted_groups import MOVES
from millstream.coordination.core.pool.messages import Deleted, Found, Founding, PoolEnvelope
from millstream.vsr.core.messages import Envelope, GetEpoch
from millstream.vsr.core.values import OK
from support.coordination.pool_driver import Node, World, asked, group_of, joined, led


def create(world: World, number: int, *nodes: Node) -> bytes | None:
    ids = " ".join(node.id.hex() for node in nodes)
    return asked(world, world.nodes[0], f"GROUP CREATE {number} {ids}")


def test_a_group_opens_once_a_quorum_has_formatted_it_and_not_before() -> None:
    world = joined(3)
    one, two, three = world.nodes
    world.crash(two)
    world.crash(three)
    ticket = world.admin(one, f"GROUP CREATE 7 {one.id.hex()} {two.id.hex()} {three.id.hex()}")
    world.run(world.now_ms + 3000)
    group_id = group_of(world, 7)
    assert group_id in one.folders
    assert group_id not in one.open
    world.start(two)
    world.run(world.now_ms + 3000)
    assert group_id in one.open
    assert group_id in two.open
    assert ticket not in world.answers
    world.start(three)
    world.run(world.now_ms + 3000)
    assert world.answers[ticket] == OK


def test_a_member_that_was_away_founds_the_group_when_it_hears_of_it() -> None:
    world = joined(3)
    world.crash(world.nodes[2])
    refused = create(world, 7, *world.nodes)
    assert refused is None
    world.start(world.nodes[2])
    world.run(world.now_ms + 15_000)
    group_id = group_of(world, 7)
    assert [group_id in node.open for node in world.nodes] == [True] * 3


def test_saying_it_twice_founds_nothing_twice() -> None:
    world = joined(3)
    assert create(world, 7, *world.nodes) == OK
    assert create(world, 7, *world.nodes) == OK
    group_id = group_of(world, 7)
    assert [node.formatted_ever[group_id] for node in world.nodes] == [1] * 3
    found = Found(world.nodes[0].running.tables.foundings[group_id])
    world.step(world.nodes[1], Heard(PoolEnvelope(world.nodes[2].id, 1, found)))
    world.run(world.now_ms + 1000)
    assert world.nodes[1].formatted_ever[group_id] == 1


def test_who_is_spoken_to_by_a_group_it_knows_opens_it_without_being_a_member() -> None:
    world = joined(4)
    assert create(world, 7, *world.nodes[:3]) == OK
    group_id, outside = group_of(world, 7), world.nodes[3]
    strange = Envelope(b"?" * 16, world.nodes[0].id, 1, 0, 1, GetEpoch())
    world.step(outside, Stray(strange))
    world.step(outside, Stray(strange._replace(group_id=group_id, sender=b"?" * 16)))
    world.run(world.now_ms + 1000)
    assert list(outside.open) == []
    world.step(outside, Stray(strange._replace(group_id=group_id)))
    world.run(world.now_ms + 1000)
    assert list(outside.open) == [group_id]
    assert outside.folders[group_id].configuration.members == ()


def test_a_deleted_group_is_gone_everywhere_and_refused_for_ever() -> None:
    world = joined(3)
    assert create(world, 7, *world.nodes) == OK
    group_id, leader = group_of(world, 7), led(world, 7)
    record = leader.running.tables.foundings[group_id]
    ticket = world.admin(leader, "GROUP DELETE 7 CONFIRM 7")
    world.answer_questions()
    world.run(world.now_ms + 3000)
    assert world.answers[ticket] == OK
    for node in world.nodes:
        assert group_id not in node.folders
        other = next(one for one in world.nodes if one is not node)
        world.step(node, Heard(PoolEnvelope(other.id, 1, Found(record))))
        world.step(node, Stray(Envelope(group_id, other.id, 1, 0, 1, GetEpoch())))
    world.run(world.now_ms + 3000)
    assert [group_id in node.folders for node in world.nodes] == [False] * 3


def test_a_number_may_be_used_again_once_its_group_is_deleted() -> None:
    world = joined(3)
    assert create(world, 7, *world.nodes) == OK
    old, leader = group_of(world, 7), led(world, 7)
    world.admin(leader, "GROUP DELETE 7 CONFIRM 7")
    world.answer_questions()
    world.run(world.now_ms + 3000)
    assert create(world, 7, *world.nodes) == OK
    assert group_of(world, 7) != old


def test_who_has_deleted_a_group_says_so_again() -> None:
    world = joined(2)
    one, two = world.nodes
    gone = Founding(9, (one.id,), True, 5).group_id
    ask = Heard(PoolEnvelope(one.id, 1, Deleted(gone, is_answer=False)))
    world.step(two, ask)
    world.run(world.now_ms + 100)
    (answer,) = two.running.step(world.now_ms, ask)
    assert isinstance(answer, Say)
    assert answer.envelope.payload == Deleted(gone, is_answer=True)


def test_who_is_asked_to_found_the_same_group_twice_in_two_places_founds_one() -> None:
    world = joined(3)
    ids = " ".join(node.id.hex() for node in world.nodes)
    tickets = [world.admin(node, f"GROUP CREATE 5 {ids}") for node in world.nodes[:2]]
    world.run(world.now_ms + 3000)
    assert [world.answers[ticket] for ticket in tickets] == [OK, OK]
    (group_id,) = world.nodes[2].running.tables.numbered(5)
    assert all(group_id in node.open for node in world.nodes)


def test_a_number_of_a_deleted_group_is_another_groups() -> None:
    world = joined(1)
    (node,) = world.nodes
    assert asked(world, node, "GROUP CREATE 5 0101") == OK
    before = group_of(world, 5)
    led(world, 5)
    ticket = world.admin(node, "GROUP DELETE 5 CONFIRM 5")
    world.answer_questions()
    world.run(world.now_ms + 100)
    assert world.answers[ticket] == OK
    assert asked(world, node, "GROUP CREATE 5 0101") == OK
    assert group_of(world, 5) != before


def test_of_two_groups_of_one_number_with_the_same_members_one_begins() -> None:
    world = joined(3)
    ids = " ".join(node.id.hex() for node in world.nodes)
    tickets = [
        world.admin(node, f"GROUP CREATE 5 {ids} JOURNAL {journal}")
        for node, journal in zip(world.nodes, ("fsync", "none"), strict=False)
    ]
    world.run(world.now_ms + 20_000)
    assert [world.answers[ticket][:7] for ticket in tickets] == [b"-EXISTS"] * 2
    both = world.nodes[2].running.tables.numbered(5)
    begun = {group_id for node in world.nodes for group_id in both if group_id in node.open}
    assert len(both) == 2
    assert len(begun) == 1
    (other,) = set(both) - begun
    assert sum(node.formatted_ever.get(other, 0) for node in world.nodes) == 1
    for node in world.nodes:
        assert node.running.discovery.called(5) == list(begun) or not begun & set(node.open)
    deletion = f"GROUP DELETE {other.hex()} CONFIRM {other.hex()}"
    assert asked(world, world.nodes[2], deletion) == OK
    assert [node.running.tables.numbered(5) for node in world.nodes] == [list(begun)] * 3


def test_who_has_left_founds_and_deletes_nothing_for_its_former_pool() -> None:
    world = joined(3)
    one, two, three = world.nodes
    assert asked(world, three, "LEAVE", for_ms=10) == OK
    founding = Founding(7, tuple(sorted((one.id, two.id, three.id))), True, 5)
    other = Founding(9, (one.id,), True, 5).group_id
    for payload in (Found(founding), Deleted(other, is_answer=False)):
        world.step(three, Heard(PoolEnvelope(one.id, 1, payload)))
    world.run(world.now_ms + 100)
    assert founding.group_id not in three.folders
    assert three.running.tables.numbered(7) == []
    assert other not in three.running.tables.tombstones


@pytest.mark.parametrize("phase", Phase)
def test_an_open_group_goes_to_no_other_phase(phase: Phase) -> None:
    world = joined(1)
    (node,) = world.nodes
    group_id = group_of(world, 1)
    assert node.running.hosted[group_id].phase is Phase.OPEN
    with pytest.raises(AssertionError, match=f"goes from .* to {phase.name}"):
        node.running.groups._enter(group_id, phase, is_founder=True)


def test_every_phase_has_its_moves_and_only_forward_ones() -> None:
    assert set(MOVES) == {None, *Phase}
    for before, after in MOVES.items():
        assert all(before is None or phase >= before for phase in after)
