"""`coordination.core.pool.replica_commands`: what replicas are asked for administrators."""

from __future__ import annotations

import pytest

from millstream.coordination.core.pool.effects import (
    Answered,
    AskBackup,
    AskGroup,
    AskLog,
    AskReport,
    GroupReplied,
    Refusal,
)
from millstream.coordination.core.pool.replica_commands import LOG_ROWS_MAX
from millstream.vsr.core.effects import (
    Code,
    MovePrimary,
    Reply,
    TakeSnapshot,
)
from millstream.vsr.core.entries import GENESIS, Kind, chain
from millstream.vsr.core.report import Report
from millstream.vsr.core.values import OK, bulk, integer, items
from support.coordination.pool_driver import World, asked, group_of, joined, led

REPORT = Report(
    "primary", "NORMAL", 0, 1, (b"m" * 16,), b"m" * 16, 9, 9, 9, ((b"x" * 16, 3),), 0, True, 0, 1,
    0, 100.0, "start", 0, False, False,
)  # fmt: skip


def fields(value: bytes) -> dict[bytes, bytes]:
    parts = items(value)
    return {name[1:]: part for name, part in zip(parts[::2], parts[1::2], strict=True)}


def question(world: World) -> AskReport | AskLog | AskBackup:
    (_, found) = world.questions.pop()
    assert isinstance(found, AskReport | AskLog | AskBackup)
    return found


def test_a_status_is_the_replicas_report_with_addresses() -> None:
    world = joined(1)
    node = led(world, 1)
    ticket = world.admin(node, "STATUS 1")
    asked_for = question(world)
    assert isinstance(asked_for, AskReport)
    world.step(node, Answered(asked_for.ticket, REPORT))
    shown = fields(world.answers[ticket])
    assert shown[b"role"] == bulk(b"primary")
    assert shown[b"commit_lsn"] == integer(9)
    assert fields(shown[b"lags"]) == {b"78" * 16: integer(3)}
    assert shown[b"primary"] == bulk(node.coord.text.encode())
    assert shown[b"view_changed_ms"] == integer(100)


def test_the_status_of_a_group_that_is_deleted_meanwhile() -> None:
    world = joined(1)
    node = led(world, 1)
    ticket = world.admin(node, "STATUS 1")
    asked_for = question(world)
    node.running.groups.delete(asked_for.group_id)
    world.step(node, Answered(asked_for.ticket, REPORT))
    world.run(world.now_ms + 1000)
    assert world.answers[ticket].startswith(b"-ERROR_DOES_NOT_EXISTS")


def test_the_status_of_a_node_has_all_groups_also_those_elsewhere() -> None:
    world = joined(2)
    two = world.nodes[1]
    assert asked(world, two, "GROUP CREATE 7 0202") == OK
    led(world, 7)
    ticket = world.admin(two, "STATUS")
    asked_for = question(world)
    world.step(two, Answered(asked_for.ticket, Refusal("ERR", "it is being closed")))
    shown = fields(world.answers[ticket])
    assert shown[b"node"] == bulk(two.id.hex().encode())
    assert shown[b"nodes"] == integer(2)
    groups = fields(shown[b"groups"])
    assert list(groups) == [b"1", b"7"]
    assert fields(groups[b"1"])[b"role"] == bulk(b"none here")


def test_a_group_deleted_while_its_report_is_awaited_is_left_out() -> None:
    world = joined(1)
    node = led(world, 1)
    ticket = world.admin(node, "STATUS")
    asked_for = question(world)
    node.running.groups.delete(group_of(world, 1))
    world.step(node, Answered(asked_for.ticket, REPORT))
    world.run(world.now_ms + 100)
    assert fields(fields(world.answers[ticket])[b"groups"]) == {}


def test_a_log_is_shown_entry_by_entry() -> None:
    world = joined(1)
    node = led(world, 1)
    ticket = world.admin(node, "LOG 1 1 9999999")
    asked_for = question(world)
    assert isinstance(asked_for, AskLog)
    assert asked_for.last_lsn == LOG_ROWS_MAX
    group_id = group_of(world, 1)
    entry = chain(GENESIS, group_id=group_id, epoch=0, view=1, kind=Kind.REQUEST, ts_ms=5)
    world.step(node, Answered(asked_for.ticket, [entry.header]))
    (row,) = items(world.answers[ticket])
    assert fields(row)[b"version"] == bulk(b"0:1:1")
    assert fields(row)[b"kind"] == bulk(b"REQUEST")


def test_a_backup_is_of_a_snapshot_taken_for_it() -> None:
    world = joined(1)
    node = led(world, 1)
    ticket = world.admin(node, "BACKUP 1 there")
    world.answer_questions(value=b"4")
    asked_for = question(world)
    assert isinstance(asked_for, AskBackup)
    assert asked_for.file == "there"
    world.step(node, Answered(asked_for.ticket, 77))
    assert world.answers[ticket] == integer(77)
    refused = world.admin(node, "BACKUP 1 there")
    world.answer_questions(Code.BUSY)
    assert world.answers[refused] == b"-BUSY"


@pytest.mark.parametrize(
    ("words", "kind", "answer"),
    [
        ("GROUP MOVE-PRIMARY 1 0101", MovePrimary, OK),
        ("SNAPSHOT 1", TakeSnapshot, bulk(b"5")),
    ],
)
def test_replicas_are_asked_and_their_answers_passed_on(
    words: str, kind: type, answer: bytes
) -> None:
    world = joined(1)
    leader = led(world, 1)
    for code, value, shown in [
        (Code.OK, b"5", answer),
        (Code.NOTREADY, b"0102 17", b"-NOTREADY 0102 17"),
        (Code.NOTPRIMARY, b"", b"-NOTPRIMARY 1 0:1 " + leader.coord.text.encode()),
    ]:
        ticket = world.admin(leader, words)
        (question,) = world.questions
        assert isinstance(question[1], AskGroup)
        assert isinstance(question[1].event, kind)
        world.questions.clear()
        world.step(leader, GroupReplied(question[1].ticket, Reply(0, code, value)))
        assert world.answers[ticket] == shown
