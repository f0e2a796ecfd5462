"""Snapshots are taken of the same state everywhere, agreed on, and the log is cut for them."""

from __future__ import annotations

import pytest

from millstream.vsr.core.effects import Code, DiskDone, Soon, TakeSnapshot
from millstream.vsr.core.entries import Kind
from millstream.vsr.core.messages import SnapshotDone
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.replica.snapshot_taking import GIVE_UP_MS
from millstream.vsr.core.tuning import Tuning
from millstream.vsr.core.versions import NEVER
from support.coordination.coordination_group import Group


@pytest.fixture(autouse=True)
def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tuning, "retain_entries", 3)


def written(group: Group, number: int = 20) -> None:
    for ticket in range(100, 100 + number):
        group.set(group.leader, ticket, b"%d" % ticket)
        group.settle()
        del group.replies[ticket]


def take(group: Group, ticket: int) -> None:
    group.step(group.leader, TakeSnapshot(ticket))
    group.settle()


def test_all_members_have_the_same_and_cut_their_logs() -> None:
    group = Group(3)
    written(group)
    take(group, 1)
    group.tick()
    assert group.replies[1].code is Code.OK
    assert group.replies[1].value == b"1"
    assert len({replica.state.stable_id for replica in group.replicas}) == 1
    for number, replica in enumerate(group.replicas):
        assert replica.state.stable_id is not None
        assert replica.log.base.lsn == replica.state.stable_id.lsn - 3
        stable = group.stables[number]
        assert stable is not None
        assert stable.id == replica.state.stable_id


def test_one_is_taken_when_the_log_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tuning, "snapshot_entries", 10)
    group = Group(3)
    written(group, 35)
    assert [replica.parts.snapshots.snapshot_number for replica in group.replicas] == [3, 3, 3]
    assert max(replica.log.op_lsn - replica.log.base.lsn for replica in group.replicas) < 20


def test_the_log_grows_beyond_the_last_snapshot_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tuning, "snapshot_entries", 3)
    group = Group(3)
    group.set(group.leader, 1, bytes(5000))
    group.settle()
    take(group, 2)
    written(group, 9)
    assert group.replicas[0].parts.snapshots.snapshot_number == 1


@pytest.mark.parametrize(("most", "again"), [(1 << 20, False), (9000, True)])
def test_the_log_grows_to_several_times_the_last_snapshot(
    monkeypatch: pytest.MonkeyPatch, most: int, again: bool
) -> None:
    monkeypatch.setattr(Tuning, "snapshot_entries", 3)
    monkeypatch.setattr(Tuning, "snapshot_bytes", most)
    group = Group(3)
    group.set(group.leader, 1, bytes(5000))
    group.settle()
    take(group, 2)
    for ticket in (3, 4):  # together they are more than the snapshot, and not four times as much
        group.set(group.leader, ticket, bytes(5000))
        group.settle()
    written(group, 4)
    assert (group.replicas[0].parts.snapshots.snapshot_number > 1) == again


def test_without_a_quorum_nothing_is_stable_and_nothing_is_cut() -> None:
    group = Group(3)
    written(group)
    leader = group.leader
    group.without(*({0, 1, 2} - {leader}))
    group.step(leader, TakeSnapshot(1))
    group.tick(leader, times=9)
    assert group.replies[1].code is Code.UNKNOWN
    assert group.replicas[leader].state.stable_id is None
    assert group.replicas[leader].log.base.lsn == 0


def test_one_runs_at_a_time() -> None:
    group = Group(3)
    others = {0, 1, 2} - {group.leader}
    group.holds_disk = set(others)
    group.step(group.leader, TakeSnapshot(1))
    group.step(group.leader, TakeSnapshot(2))
    assert group.replies[2].code is Code.BUSY
    group.step(min(others), TakeSnapshot(3))
    assert group.replies[3].code is Code.NOTPRIMARY


def test_one_that_never_becomes_stable_is_given_up() -> None:
    group = Group(3)
    written(group)
    group.passes = lambda sender, receiver, envelope: (
        not isinstance(envelope.payload, SnapshotDone)
    )
    take(group, 1)
    group.tick(times=int(GIVE_UP_MS / 100) + 2)
    assert group.replies[1].code is Code.UNKNOWN
    group.whole()
    take(group, 2)
    group.tick()
    assert group.replies[2] == group.replies[2]._replace(code=Code.OK, value=b"2")


@pytest.mark.parametrize("of_leader", [True, False])
def test_a_member_with_a_diverged_state_serves_no_requests(of_leader: bool) -> None:
    group = Group(3)
    written(group)
    wrong = group.leader if of_leader else (group.leader + 1) % 3
    registers = group.replicas[wrong].machine.registers.values  # type: ignore[attr-defined]
    registers.put(b"other", (b"wrong", NEVER))
    take(group, 1)
    group.tick(times=2)
    assert group.replicas[wrong].report().is_diverged
    group.tick(times=60)
    replicas = group.replicas
    assert all(replica.status is Status.NORMAL and replica.has_state for replica in replicas)
    assert replicas[wrong].machine.registers.values.get(b"other") is None  # type: ignore[attr-defined]
    assert {replica.commit_lsn for replica in replicas} == {replicas[group.leader].log.op_lsn}


def test_a_snapshot_lacks_entries_applied_after_it() -> None:
    group = Group(1)
    written(group)
    group.holds_disk.add(0)
    group.step(0, TakeSnapshot(1))
    group.set(0, 2, b"later")
    group.release_disk(0)
    group.settle()
    stable = group.replicas[0].stable
    assert stable is not None
    assert b"later" not in b"".join(stable.parts)


def test_a_number_is_given_once() -> None:
    """That the last one is stable may be said again while the next one is on its way."""
    group = Group(3)
    take(group, 1)
    leader = group.replicas[group.leader]
    entries = [leader.log.entry_at(lsn) for lsn in range(1, leader.log.op_lsn + 1)]
    (named,) = [e for e in entries if e and e.header.kind is Kind.SNAPSHOT_STABLE]
    group.without(*({0, 1, 2} - {group.leader}))
    group.step(group.leader, TakeSnapshot(2))
    leader.parts.snapshots.hold_stable(named)
    group.step(group.leader, TakeSnapshot(3))
    assert group.replies[3].code is Code.BUSY
    group.whole()
    group.tick(times=8)
    assert group.replies[2] == group.replies[2]._replace(code=Code.OK, value=b"2")


def test_a_member_without_space_for_a_snapshot_goes_on_and_has_the_next_one() -> None:
    group = Group(3)
    written(group)
    behind = (group.leader + 1) % 3
    group.no_space = {behind}
    take(group, 1)
    written(group)
    stuck = group.replicas[behind]
    assert group.replies[1].code is Code.OK
    assert stuck.state.stable_id is None
    assert stuck.log.base.lsn == 0
    assert stuck.commit_lsn >= group.replicas[group.leader].commit_lsn - 1
    assert not stuck.parts.snapshots._steps
    group.no_space = set()
    take(group, 2)
    group.tick()
    assert stuck.state.stable_id == group.replicas[group.leader].state.stable_id is not None
    assert stuck.log.base.lsn > 0


def test_a_wrong_state_is_not_found_in_the_middle_of_a_change_of_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was: the member became lost, and then went on as if it were not."""
    group = Group(3)
    written(group)
    wrong = (group.leader + 1) % 3
    member = group.replicas[wrong]
    member.machine.registers.values.put(b"other", (b"wrong", NEVER))  # type: ignore[attr-defined]
    with monkeypatch.context() as slow:
        slow.setattr(member, "_work", lambda: None)
        slow.setattr(member, "_call_soon", lambda: None)
        take(group, 1)
        group.tick()
    group.holds_disk = {wrong}
    group.step(wrong, Soon())
    member.parts.views.leave(member.view + 1)
    group.step(wrong)
    written_down, *_ = group.held[wrong]
    group.step(wrong, DiskDone(written_down))
    assert member.status is Status.VIEWCHANGE
    group.held[wrong].remove(written_down)
    group.release_disk(wrong)
    assert member.state.is_diverged  # at once: it used to serve until the next heartbeat
    group.tick(times=60)
    assert {replica.status for replica in group.replicas} == {Status.NORMAL}
    assert all(replica.has_state for replica in group.replicas)
