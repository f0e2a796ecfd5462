"""`coordination.core.pool_admin`: commands to a node."""

from __future__ import annotations

from millstream.coordination.core.effects import Code
from millstream.coordination.core.entries import GENESIS, Kind, chain
from millstream.coordination.core.pool_admin import ADMIN_MAX, LOG_ROWS_MAX
from millstream.coordination.core.pool_effects import AskBackup, AskLog, AskReport, Refusal, Told
from millstream.coordination.core.report import Report
from millstream.coordination.core.values import OK, bulk, integer, items
from pool_world import World, asked, group_of, joined, led

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
