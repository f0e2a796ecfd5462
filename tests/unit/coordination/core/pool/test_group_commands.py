"""`coordination.core.pool.group_commands`: founding, changing and deleting groups."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.coordination.core.pool.effects import (
    Answered,
    AskGroup,
    AskRestore,
    Refusal,
)
from millstream.coordination.core.pool.group_commands import GroupCommands
from millstream.coordination.core.pool.messages import TOMBSTONES_MAX, Founding
from millstream.vsr.core.effects import (
    Code,
    Read,
    Reconfigure,
)
from millstream.vsr.core.values import OK
from support.coordination.pool_driver import Node, World, asked, group_of, joined, led

assert GroupCommands


def event_of(world: World, words: str, node: Node) -> Any:
    world.questions.clear()
    refused = asked(world, node, words, for_ms=0)
    assert refused is None, refused
    (question,) = world.questions
    assert isinstance(question[1], AskGroup)
    return question[1].event


def test_a_second_creation_with_other_members_is_refused() -> None:
    world = joined(3)
    assert asked(world, world.nodes[0], "GROUP CREATE 7 0101 0202 0303") == OK
    answer = asked(world, world.nodes[1], "GROUP CREATE 7 0101")
    assert answer == b"-EXISTS there is another group 7"
    answer = asked(world, world.nodes[1], "GROUP CREATE 7 0101 0202 0303 JOURNAL none")
    assert answer == b"-EXISTS there is another group 7"


def test_a_creation_that_a_member_refuses_says_so() -> None:
    world = joined(2)
    one, two = world.nodes
    world.loss = 1.0
    assert asked(world, two, "GROUP CREATE 7 0202", for_ms=100) == OK
    ticket = world.admin(one, "GROUP CREATE 7 0101 0202 0303".replace(" 0303", "")[:-5])
    world.run(world.now_ms + 100)
    assert world.answers[ticket] == OK
    world.loss = 0.0
    for group_id in (*one.open, *two.open):
        world.tell(group_id)
    world.run(world.now_ms + 5000)
    answer = asked(world, one, "SNAPSHOT 7")
    assert answer is not None
    assert answer.startswith(b"-CONFLICT 2 groups")


def test_a_creation_says_who_has_not_done_it_in_time() -> None:
    world = joined(3)
    world.crash(world.nodes[2])
    answer = asked(world, world.nodes[0], "GROUP CREATE 7 0101 0202 0303", for_ms=12_000)
    assert answer == b"-NOTREADY " + b"03" * 16 + b": repeat the command to continue"
    world.start(world.nodes[2])
    assert asked(world, world.nodes[0], "GROUP CREATE 7 0101 0202 0303") == OK


def test_a_group_without_a_journal_is_remembered_as_one() -> None:
    world = joined(3)
    node = world.nodes[0]
    assert asked(world, node, "GROUP CREATE 7 0101 0202 0303 JOURNAL none") == OK
    assert not node.running.tables.foundings[group_of(world, 7)].has_journal
    assert not node.folders[group_of(world, 7)].configuration.journalled
    answer = asked(world, node, "GROUP CREATE 8 0101 JOURNAL sometimes")
    assert answer is not None
    assert answer.startswith(b"-BADARG")


def test_a_group_of_one_without_a_journal_is_refused_with_advice() -> None:
    world = joined(1)
    answer = asked(world, world.nodes[0], "GROUP CREATE 7 0101 JOURNAL none")
    assert answer is not None
    assert answer.startswith(b"-BADCONFIG")
    assert b"JOURNAL fsync" in answer
    assert not world.nodes[0].running.tables.numbered(7)


def test_members_are_changed_in_one_step_from_the_epoch_that_was_seen() -> None:
    world = joined(5)
    one, two, three, four, five = (node.id for node in world.nodes)
    leader = led(world, 1)
    assert event_of(world, "GROUP ADD 1 0202 0303", leader).members == (one, two, three)
    world.answer_questions(value=b"1")
    leader = led(world, 1)
    for words, members in [
        ("GROUP REPLACE 1 0202 0404", (one, three, four)),
        ("GROUP ADD 1 0404 0505", (one, two, three, four, five)),
        ("GROUP REMOVE 1 0202 0303", (one,)),
        ("GROUP RECONFIG 1 0505 0303 0404", (three, four, five)),
        ("GROUP RECONFIG 1 0505 0303 0404 EPOCH 1", (three, four, five)),
    ]:
        event = event_of(world, words, leader)
        assert isinstance(event, Reconfigure)
        assert (event.members, event.expected_epoch) == (members, 1)
    refused = asked(world, leader, "GROUP RECONFIG 1 0505 0303 0404 EPOCH 0")
    assert refused == b"-CONFLICT it is in epoch 1"
    refused = asked(world, leader, "GROUP REPLACE 1 0505 0404")
    assert refused is not None
    assert refused.startswith(b"-BADCONFIG")
    refused = asked(world, leader, "GROUP REPLACE 1 0101 0202")
    assert refused is not None
    assert refused.startswith(b"-BADCONFIG")


def test_a_change_of_members_that_is_done_is_done_again() -> None:
    world = joined(5)
    leader = led(world, 1)
    event_of(world, "GROUP ADD 1 0202 0303", leader)
    world.answer_questions(value=b"1")
    leader = led(world, 1)
    event_of(world, "GROUP REPLACE 1 0303 0404", leader)
    world.answer_questions(value=b"2")
    leader = led(world, 1)
    now = tuple(world.nodes[at].id for at in (0, 1, 3))
    for words in (
        "GROUP REPLACE 1 0303 0404", "GROUP ADD 1 0202 0404", "GROUP REMOVE 1 0303",
        "GROUP RECONFIG 1 0404 0101 0202 EPOCH 2", "GROUP RECONFIG 1 0404 0101 0202",
    ):  # fmt: skip
        event = event_of(world, words, leader)
        assert isinstance(event, Reconfigure)
        assert event.members == now
    for epoch in (0, 1, 3, 99):  # whichever members are asked for
        refused = asked(world, leader, f"GROUP RECONFIG 1 0404 0101 0202 EPOCH {epoch}")
        assert refused == b"-CONFLICT it is in epoch 2"
    refused = asked(world, leader, "GROUP REMOVE 1 0505")
    assert refused == b"-BADCONFIG " + b"05" * 16 + b" is no member of this group"
    lost = world.nodes[2]
    world.crash(lost)
    assert asked(world, leader, "LEAVE 0303", for_ms=4000) == OK
    assert event_of(world, "GROUP REPLACE 1 0303 0404", leader).members == now
    refused = asked(world, leader, "GROUP REMOVE 1 9999")
    assert refused == b"-BADCONFIG 9999 is no member of this group"


def test_a_creation_said_again_after_the_members_have_changed() -> None:
    world = joined(4)
    one = world.nodes[0]
    assert asked(world, one, "GROUP CREATE 7 0101 0202 0303") == OK
    leader = led(world, 7)
    event_of(world, "GROUP REPLACE 7 0303 0404", leader)
    world.answer_questions(value=b"1")
    led(world, 7)
    world.crash(world.nodes[2])
    del one.running.groups.formed[group_of(world, 7)]
    assert asked(world, one, "GROUP CREATE 7 0101 0202 0303") == OK


def test_a_member_that_is_nowhere_can_be_replaced() -> None:
    world = joined(4)
    led(world, 1)
    event_of(world, "GROUP ADD 1 0202 0303", world.nodes[0])
    world.answer_questions(value=b"1")
    leader = led(world, 1)
    lost = next(node for node in world.nodes[:3] if node is not leader)
    world.crash(lost)
    del leader.running.tables.nodes[lost.id]
    event = event_of(world, f"GROUP REPLACE 1 {lost.id.hex()} 0404", leader)
    assert world.nodes[3].id in event.members
    assert lost.id not in event.members


def test_only_the_primary_changes_its_group_and_others_say_where_it_is() -> None:
    world = joined(3)
    leader = led(world, 1)
    where = b"-NOTPRIMARY 1 0:1 " + leader.coord.text.encode()
    for words in ("GROUP ADD 1 0202 0303", "SNAPSHOT 1", "GROUP DELETE 1 CONFIRM 1", "LOG 1 1 9"):
        assert asked(world, world.nodes[2], words) == where


def test_a_group_is_deleted_only_with_a_quorum_behind_it() -> None:
    world = joined(3)
    leader = led(world, 1)
    refused = asked(world, leader, "GROUP DELETE 1 CONFIRM 2")
    assert refused is not None
    assert refused.startswith(b"-BADARG")
    ticket = world.admin(leader, "GROUP DELETE 1 CONFIRM 1")
    (question,) = world.questions
    assert isinstance(question[1], AskGroup)
    assert isinstance(question[1].event, Read)
    world.answer_questions(Code.NOQUORUM)
    assert world.answers[ticket] == b"-NOQUORUM it was not deleted"
    assert leader.running.tables.numbered(1)


def test_deleting_is_told_when_a_quorum_of_members_has() -> None:
    world = joined(3)
    assert asked(world, world.nodes[0], "GROUP CREATE 7 0101 0202 0303") == OK
    leader = led(world, 7)
    for node in world.nodes:
        if node is not leader:
            world.crash(node)
    tickets = [world.admin(leader, "GROUP DELETE 7 CONFIRM 7") for _ in range(2)]
    world.answer_questions()
    world.run(world.now_ms + 3000)
    assert tickets[0] not in world.answers
    assert world.answers[tickets[1]].startswith(b"-ERROR_DOES_NOT_EXISTS")
    world.run(world.now_ms + 9000)
    assert world.answers[tickets[0]].startswith(b"-UNKNOWN")


def test_tombstones_are_bounded() -> None:
    world = joined(1)
    leader = led(world, 1)
    for number in range(TOMBSTONES_MAX):
        leader.running.tables.add_tombstone(number.to_bytes(16, "big"))
    refused = asked(world, leader, "GROUP DELETE 1 CONFIRM 1", for_ms=0)
    assert refused is not None
    assert refused.startswith(b"-QUOTA")


def test_a_restored_group_is_one_of_this_node_alone() -> None:
    world = joined(1)
    (node,) = world.nodes
    ticket = world.admin(node, "RESTORE 9 /backup")
    (_, question) = world.questions.pop()
    assert isinstance(question, AskRestore)
    assert question.file == "/backup"
    node.folders[question.founding.group_id] = question.hard_state
    node.formatted_ever[question.founding.group_id] = 1
    world.step(node, Answered(question.ticket, 12))
    world.run(world.now_ms + 1000)
    assert world.answers[ticket] == b":12"
    assert question.founding.group_id in node.open
    refused = world.admin(node, "RESTORE 10 /nothing")
    (_, question) = world.questions.pop()
    assert isinstance(question, AskRestore)
    world.step(node, Answered(question.ticket, Refusal("ERR", "the file does not exist")))
    assert world.answers[refused] == b"-ERR the file does not exist"
    assert node.running.tables.numbered(10) == []


@pytest.mark.parametrize("has_twin", [True, False])
def test_what_was_restored_and_has_no_place_meanwhile_is_dropped(*, has_twin: bool) -> None:
    world = joined(1)
    (node,) = world.nodes
    ticket = world.admin(node, "RESTORE 9 /backup")
    (_, question) = world.questions.pop()
    assert isinstance(question, AskRestore)
    node.folders[question.founding.group_id] = question.hard_state
    tables, number = node.running.tables, 9 if has_twin else 100
    while tables.note_founding(Founding(number, (b"q" * 16,), True, 1)) and not has_twin:
        number += 1
    world.step(node, Answered(question.ticket, 12))
    world.run(world.now_ms + 3000)
    assert world.answers[ticket].startswith(b"-CONFLICT")
    assert question.founding.group_id not in node.folders
    assert question.founding.group_id not in node.running.hosted


def test_whom_to_remove_from_a_group_has_to_be_said() -> None:
    world = joined(1)
    leader = led(world, 1)
    answer = asked(world, leader, "GROUP REMOVE 1")
    assert answer is not None
    assert answer.startswith(b"-BADARG ADMIN GROUP REMOVE")
