"""Requests become entries, leave in batches, and are committed by a quorum that has them."""

import pytest

from millstream.vsr.core.effects import Code, Message, Request, Send
from millstream.vsr.core.entries import Body, Kind
from millstream.vsr.core.messages import (
    GetState,
    NewState,
    Prepare,
    PrepareOk,
    StartView,
)
from millstream.vsr.core.replica import normal_case as normal
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.tuning import BATCH_ENTRIES_MAX, PIPELINE_MAX
from support.coordination.coordination_group import Group


def prepared(group: Group) -> list[list[int]]:
    return [
        [entry.lsn for entry in envelope.payload.entries]
        for _, receiver, envelope in group.net
        if isinstance(envelope.payload, Prepare) and receiver == (group.leader + 1) % 3
    ]


def test_a_lone_request_leaves_at_once_and_commits() -> None:
    group = Group(3)
    group.set(group.leader, 1)
    assert prepared(group) == [[2]]
    group.settle()
    assert group.replies[1][1:] == (Code.OK, b"+OK", 2)
    assert [replica.commit_lsn for replica in group.replicas] == [2, 2, 2]


def test_requests_of_one_step_leave_together() -> None:
    group = Group(3)
    body = Body(argv=(b"SET", b"k", b"v"))
    group.step(group.leader, *(Request(ticket, body) for ticket in range(9)))
    assert prepared(group) == [list(range(2, 11))]
    assert len(group.replicas[group.leader].parts.normal._batches) == 1
    group.settle()
    assert [reply.code for reply in group.replies.values()] == [Code.OK] * 9


def test_what_was_ordered_in_the_step_that_deposes_a_primary_is_forgotten() -> None:
    group = Group(3)
    old = group.leader
    group.without(old)
    group.tick(*{0, 1, 2} - {old}, times=25)
    later = next(e for _, _, e in group.sent if isinstance(e.payload, StartView) and e.view > 1)
    group.step(old, Request(1, Body(argv=(b"SET", b"k", b"v"))), Message(later))
    assert group.replies[1].code is Code.UNKNOWN
    assert group.replicas[old].view == later.view
    assert group.disks[old] == group.disks[group.leader]


def test_behind_a_full_pipeline_requests_become_one_batch() -> None:
    group = Group(3)
    for ticket in range(PIPELINE_MAX + 5):
        group.set(group.leader, ticket)
    assert prepared(group) == [[2], [3], [4], [5]]
    group.settle()
    assert len(group.replies) == PIPELINE_MAX + 5
    batches = [
        len(envelope.payload.entries) for _, receiver, envelope in group.sent
        if isinstance(envelope.payload, Prepare) and receiver == (group.leader + 1) % 3
    ]  # fmt: skip
    assert batches == [1, 1, 1, 1, 5]


def test_a_full_batch_does_not_wait() -> None:
    group = Group(3)
    for ticket in range(PIPELINE_MAX + BATCH_ENTRIES_MAX):
        group.set(group.leader, ticket)
    assert [len(lsns) for lsns in prepared(group)] == [1, 1, 1, 1, BATCH_ENTRIES_MAX]


def test_too_much_that_is_not_committed_is_refused() -> None:
    group = Group(3)
    group.without(group.leader)
    for ticket in range(normal.UNCOMMITTED_ENTRIES_MAX + 2):
        group.set(group.leader, ticket)
    assert {ticket: reply.code for ticket, reply in group.replies.items()} == {
        normal.UNCOMMITTED_ENTRIES_MAX: Code.BUSY, normal.UNCOMMITTED_ENTRIES_MAX + 1: Code.BUSY,
    }  # fmt: skip


def test_entries_are_not_acknowledged_before_they_are_durable() -> None:
    group = Group(3)
    leader = group.leader
    group.holds_disk = {0, 1, 2} - {leader}
    group.set(leader, 1)
    group.settle()
    assert group.replies == {}
    group.release_disk((leader + 1) % 3)
    group.settle()
    assert group.replies[1].code is Code.OK


def test_a_primary_counts_its_own_copy_like_any_other() -> None:
    group = Group(3)
    leader = group.leader
    group.holds_disk = {leader}
    group.without((leader + 1) % 3)
    group.set(leader, 1)
    group.settle()
    assert group.replies == {}
    group.release_disk(leader)
    assert group.replies[1].code is Code.OK


def test_only_the_primary_takes_requests() -> None:
    group = Group(3)
    group.set((group.leader + 1) % 3, 1)
    assert group.replies[1].code is Code.NOTPRIMARY


def test_a_member_that_missed_entries_gets_them_and_is_normal_again() -> None:
    group = Group(3)
    leader, behind = group.leader, (group.leader + 1) % 3
    group.without(behind)
    group.set(leader, 1)
    group.settle()
    group.whole()
    group.replicas[behind].parts.repairs.spare[1] = group.replicas[leader].log.after(0, 1, 1)[0]
    group.set(leader, 2)
    group.settle()
    assert not group.replicas[behind].parts.repairs.spare, "no other end is fetched any more"
    assert any(isinstance(envelope.payload, GetState) for _, _, envelope in group.sent)
    assert any(isinstance(envelope.payload, NewState) for _, _, envelope in group.sent)
    assert group.replicas[behind].status is Status.NORMAL
    assert group.replicas[behind].log.head == group.replicas[leader].log.head


def test_a_lost_prepare_is_said_again() -> None:
    group = Group(3)
    group.without(*{0, 1, 2} - {group.leader})
    group.set(group.leader, 1)
    group.settle()
    group.whole()
    group.tick(times=2)
    assert group.replies[1].code is Code.OK


def test_repeated_messages_are_the_same() -> None:
    group = Group(3)
    leader = group.leader
    group.without(*{0, 1, 2} - {leader})
    for ticket in range(PIPELINE_MAX + 1):
        group.set(leader, ticket)
    group.settle()
    replica = group.replicas[leader]
    assert replica.log.op_lsn > replica.state.flushed_lsn
    group.net.clear()
    replica.parts.normal.remind()
    replica.parts.normal.remind()
    again = [
        entry.lsn for effect in replica.state.effects
        if isinstance(effect, Send) and isinstance(effect.envelope.payload, Prepare)
        for entry in effect.envelope.payload.entries
    ]  # fmt: skip
    assert max(again) == replica.state.flushed_lsn


def test_the_disk_learns_how_much_is_committed() -> None:
    group = Group(3)
    for replica in group.replicas:
        replica.state.tuning.hint_entries_max = 3
    for ticket in range(5):
        group.set(group.leader, ticket)
    group.settle()
    assert {hard_state.commit_hint for hard_state in group.hard_states} <= {0, 1}
    group.tick()
    assert {hard_state.commit_hint for hard_state in group.hard_states} == {6}
    group.start(group.leader)
    assert max(replica.commit_lsn for replica in group.replicas) == 6
    assert {replica.commit_lsn for replica in group.replicas} == {6}


def test_acknowledgements_of_an_earlier_view_do_not_count() -> None:
    group = Group(3)
    leader, other = group.leader, (group.leader + 1) % 3
    group.without(0, 1, 2)
    group.set(leader, 1)
    group.settle()
    replica = group.replicas[leader]
    digest = replica.log.hash_at(2)
    assert digest is not None
    group.replicas[other].state.send(group.ids[leader], PrepareOk(0, 2, digest, 1))
    send = group.replicas[other].state.effects.pop()
    envelope = send.envelope  # type: ignore[union-attr]
    group.step(leader, Message(envelope._replace(view=envelope.view - 1)))
    assert group.replies == {}
    group.step(leader, Message(envelope))
    assert group.replies[1].code is Code.OK


def test_a_number_that_a_connection_counted_joins_no_request_of_another() -> None:
    group = Group(3)
    leader, me = group.leader, b"i" * 16
    opening = Body(argv=(b"5000", b"s"))
    group.step(leader, Request(1, opening, me, kind=Kind.SESSION_OPEN))
    group.settle()
    group.tick()
    session = int(group.replies[1].value)
    one, other = (Body(argv=(b"SET", b"k", value)) for value in (b"one", b"other"))
    group.step(leader, Request(2, one, me, session, 1, is_counted=True))
    group.step(leader, Request(3, other, me, session, 1, is_counted=True))
    group.settle()
    group.tick()
    assert group.replies[2].code is Code.OK
    assert group.replies[3].code is Code.SESSIONMOVED
    group.step(leader, Request(4, other, me, session, 1, is_counted=True))
    group.step(leader, Request(5, one, me, session, 1))
    group.settle()
    assert group.replies[4].code is Code.SESSIONMOVED
    assert group.replies[5][1:] == group.replies[2][1:]


def test_a_member_whose_disk_stands_still_takes_so_much_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(normal, "UNWRITTEN_ENTRIES_MAX", 5)
    group = Group(3)
    leader, behind = group.leader, (group.leader + 1) % 3
    group.holds_disk = {behind}
    for ticket in range(40):
        group.set(leader, ticket)
        group.settle()
    stuck = group.replicas[behind]
    assert stuck.log.op_lsn == stuck.state.durable_lsn + 5
    group.sent.clear()
    group.tick(times=5)
    assert not [e for s, _, e in group.sent if s == behind and isinstance(e.payload, GetState)]
    group.release_disk(behind)
    group.tick(times=3)
    assert stuck.log.head == group.replicas[leader].log.head
    assert stuck.status is Status.NORMAL
    assert stuck.state.durable_lsn == stuck.log.op_lsn
    assert stuck.parts.normal.unwritten_bytes == 0


def test_large_entries_count_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normal, "UNWRITTEN_BYTES_MAX", 3_000)
    group = Group(3)
    leader, behind = group.leader, (group.leader + 1) % 3
    group.holds_disk = {behind}
    for ticket in range(9):
        group.set(leader, ticket, b"v" * 1_000)
        group.settle()
    stuck = group.replicas[behind]
    assert stuck.log.op_lsn - stuck.state.durable_lsn == 3


def test_a_primary_whose_disk_stands_still_hands_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normal, "UNWRITTEN_ENTRIES_MAX", 5)
    group = Group(3)
    old = group.leader
    group.holds_disk = {old}
    for ticket in range(9):
        group.set(old, ticket)
        group.settle()
    assert [reply.code for reply in group.replies.values()] == [Code.OK] * 5 + [Code.BUSY] * 4
    group.tick(times=3)
    assert group.leader != old
    group.set(group.leader, 100)
    group.settle()
    assert group.replies[100].code is Code.OK
    group.release_disk(old)
    group.tick(times=3)
    assert group.replicas[old].log.head == group.replicas[group.leader].log.head


def test_members_whose_disks_stand_still_alike_refuse_and_go_on_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(normal, "UNCOMMITTED_ENTRIES_MAX", 5)
    group = Group(3)
    leader = group.leader
    group.holds_disk = {0, 1, 2}
    for ticket in range(9):
        group.set(leader, ticket)
        group.settle()
    group.get(leader, 100)
    group.tick(times=9)
    assert group.leader == leader
    assert group.replies[100].code is Code.OK
    assert {group.replies[ticket].code for ticket in range(5, 9)} == {Code.BUSY}
    for number in range(3):
        group.release_disk(number)
    group.tick(times=2)
    assert {group.replies[ticket].code for ticket in range(5)} == {Code.OK}


def test_a_member_on_a_slow_line_comes_nearer_with_each_answer() -> None:
    """Each heartbeat and each write once began one more row of requests for the same entries."""
    group = Group(3)
    away = (group.leader + 1) % 3
    for replica in group.replicas:
        replica.state.tuning.batch_entries_max = 1
    group.without(away)
    for ticket in range(100):
        group.set(group.leader, ticket)
        group.settle()
    number = group.tick_with_a_line(away, NewState, 10, 13)
    assert group.replicas[away].log.head == group.replicas[group.leader].log.head
    assert number < 130
