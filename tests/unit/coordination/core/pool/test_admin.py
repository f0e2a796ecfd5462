"""`coordination.core.pool.admin`: commands to a node."""

from __future__ import annotations

import pytest

from millstream.coordination.core.pool import admin_requests as pool_asking
from millstream.coordination.core.pool.admin import ADMIN_MAX, LOG_ROWS_MAX
from millstream.coordination.core.pool.effects import (
    AskBackup,
    AskLog,
    AskReport,
    GroupChanged,
    Heard,
    Refusal,
    Say,
    Stray,
    Told,
)
from millstream.coordination.core.pool.messages import Hello, NodeInfo, PoolEnvelope
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.effects import Code, Timer
from millstream.vsr.core.entries import GENESIS, Kind, chain
from millstream.vsr.core.messages import Envelope, GetEpoch
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.report import Report
from millstream.vsr.core.values import OK, bulk, integer, items
from simulators.pool_world import Node, World, asked, group_of, joined, led

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


def test_unknown_commands_are_refused_by_name() -> None:
    world = joined(1)
    (node,) = world.nodes
    for words in ("FROBNICATE", "GROUP", "GROUP FLY 1", ""):
        answer = asked(world, node, words)
        assert answer is not None
        assert answer.startswith(b"-BADARG there is no ADMIN")


def test_nodes_are_listed_with_their_groups() -> None:
    world = joined(2)
    led(world, 1)
    table = asked(world, world.nodes[1], "nodes")
    assert table is not None
    rows = [fields(row) for row in items(table)]
    assert [row[b"node"] for row in rows] == [bulk(b"01" * 16), bulk(b"02" * 16)]
    assert [items(row[b"groups"]) for row in rows] == [[integer(1)], []]
    assert rows[1][b"is_here"] == b"#t"


def test_a_status_is_the_replicas_report_with_addresses() -> None:
    world = joined(1)
    node = led(world, 1)
    ticket = world.admin(node, "STATUS 1")
    asked_for = question(world)
    assert isinstance(asked_for, AskReport)
    world.step(node, Told(asked_for.ticket, REPORT))
    shown = fields(world.answers[ticket])
    assert shown[b"role"] == bulk(b"primary")
    assert shown[b"commit_lsn"] == integer(9)
    assert fields(shown[b"lags"]) == {b"78" * 16: integer(3)}
    assert shown[b"primary"] == bulk(node.coord.text.encode())
    assert shown[b"view_changed_ms"] == integer(int(world.now_ms - 100))


def test_the_status_of_a_group_that_is_deleted_meanwhile() -> None:
    world = joined(1)
    node = led(world, 1)
    ticket = world.admin(node, "STATUS 1")
    asked_for = question(world)
    node.running.tables.bury(asked_for.group_id)
    world.step(node, Told(asked_for.ticket, REPORT))
    assert world.answers[ticket].startswith(b"-ERROR_DOES_NOT_EXISTS")


def test_the_status_of_a_node_has_all_groups_also_those_elsewhere() -> None:
    world = joined(2)
    two = world.nodes[1]
    assert asked(world, two, "GROUP CREATE 7 0202") == OK
    led(world, 7)
    ticket = world.admin(two, "STATUS")
    asked_for = question(world)
    world.step(two, Told(asked_for.ticket, Refusal("ERR", "it is being closed")))
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
    node.running.delete(group_of(world, 1))
    world.step(node, Told(asked_for.ticket, REPORT))
    world.run(world.now_ms + 100)
    assert fields(fields(world.answers[ticket])[b"groups"]) == {}


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


def test_a_join_that_nobody_answers_changes_nothing() -> None:
    world = joined(1)
    (node,) = world.nodes
    pool_ids = node.running.tables.pool_ids
    answer = asked(world, node, "JOIN nowhere 1 nowhere 2", for_ms=12_000)
    assert answer is not None
    assert answer.startswith(b"-ERR no node answers")
    assert node.running.tables.pool_ids == pool_ids
    for words in ("JOIN", "JOIN there", "JOIN there 0", "JOIN node1 7000"):
        answer = asked(world, node, words)
        assert answer is not None
        assert answer.startswith(b"-BADARG")


def test_a_join_said_again_does_not_end_with_the_first_one() -> None:
    world = joined(1)
    (node,) = world.nodes
    first = world.admin(node, "JOIN nowhere 1")
    world.run(world.now_ms + 5000)
    second = world.admin(node, "JOIN nowhere 1")
    world.run(world.now_ms + 6000)
    assert world.answers[first].startswith(b"-ERR no node answers")
    assert second not in world.answers
    world.run(world.now_ms + 6000)
    assert world.answers[second].startswith(b"-ERR no node answers")


def test_joining_the_pool_one_is_in_is_no_fault() -> None:
    world = joined(2)
    assert asked(world, world.nodes[1], "JOIN node1 7000") == OK


def test_commands_under_way_are_bounded() -> None:
    world = joined(1)
    node = led(world, 1)
    tickets = [world.admin(node, "STATUS 1") for _ in range(ADMIN_MAX + 1)]
    assert world.answers[tickets[-1]].startswith(b"-BUSY")
    assert tickets[0] not in world.answers


def test_a_log_is_shown_entry_by_entry() -> None:
    world = joined(1)
    node = led(world, 1)
    ticket = world.admin(node, "LOG 1 1 9999999")
    asked_for = question(world)
    assert isinstance(asked_for, AskLog)
    assert asked_for.last_lsn == LOG_ROWS_MAX
    group_id = group_of(world, 1)
    entry = chain(GENESIS, group_id=group_id, epoch=0, view=1, kind=Kind.REQUEST, ts_ms=5)
    world.step(node, Told(asked_for.ticket, [entry.header]))
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
    world.step(node, Told(asked_for.ticket, 77))
    assert world.answers[ticket] == integer(77)
    refused = world.admin(node, "BACKUP 1 there")
    world.answer_questions(Code.BUSY)
    assert world.answers[refused] == b"-BUSY"


def cut(world: World, nodes: list[Node]) -> None:
    """Have these hear one another only, and the others neither."""
    inside = {node.address for node in nodes}
    ids = {node.id for node in nodes}

    def send(say: Say) -> None:
        if (say.address in inside) is (say.envelope.sender in ids):
            World._send(world, say)

    world._send = send  # type: ignore[method-assign]


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
    assert world.answers[ticket].startswith(b"-CONFLICT it is alive")
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
    assert world.answers[ticket].startswith(b"-CONFLICT it is alive")


def test_a_removal_for_which_there_is_no_room_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    world = joined(3)
    led(world, 1)
    world.crash(world.nodes[2])
    ticket = world.admin(world.nodes[0], "LEAVE 0303")
    monkeypatch.setattr(pool_asking, "TOMBSTONES_MAX", 0)
    world.run(world.now_ms + 4000)
    assert world.answers[ticket].startswith(b"-QUOTA")


def test_of_a_node_that_lives_and_one_that_was_removed_the_first_is_meant() -> None:
    world = joined(2)
    (one, two) = world.nodes
    one.running.tables.bury(b"\x02\x02" + b"x" * 14)
    one.running.is_changed = True
    answer = asked(world, one, "LEAVE 0202")
    assert answer is not None
    assert answer.startswith(b"-CONFLICT it is alive")
    assert one.running.tables.node(two.id) is not None


def test_whom_to_remove_from_a_group_has_to_be_said() -> None:
    world = joined(1)
    leader = led(world, 1)
    answer = asked(world, leader, "GROUP REMOVE 1")
    assert answer is not None
    assert answer.startswith(b"-BADARG ADMIN GROUP REMOVE")
