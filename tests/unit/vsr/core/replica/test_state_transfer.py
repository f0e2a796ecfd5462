"""Members get another one's snapshot if the log that they need is cut, or their state is gone."""

from __future__ import annotations

import pytest

from millstream.vsr.core.effects import Code, Image, Message, TakeSnapshot
from millstream.vsr.core.messages import (
    Entries,
    Envelope,
    GetSnapshot,
    SnapshotPart,
    StartView,
)
from millstream.vsr.core.replica import view_change as views
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.replica.reads import FETCHING_MS_MAX, Reads
from millstream.vsr.core.replica.storage import Storage
from millstream.vsr.core.snapshots import snapshot_of
from millstream.vsr.core.tuning import Tuning
from support.coordination.coordination_group import Group


@pytest.fixture(autouse=True)
def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tuning, "retain_entries", 0)
    monkeypatch.setattr(Tuning, "part_bytes", 20)


def cut_log(group: Group, writes: int = 20) -> None:
    for ticket in range(100, 100 + writes):
        group.set(group.leader, ticket, b"%d" % ticket)
        group.settle()
        del group.replies[ticket]
    group.step(group.leader, TakeSnapshot(99))
    group.tick()
    assert group.replies.pop(99).code is Code.OK


def same(group: Group, *numbers: int) -> bool:
    found = [group.replicas[number] for number in numbers]
    states = {b"".join(replica.parts.execution.freeze()) for replica in found}
    return (
        len(states) == 1
        and len({replica.commit_lsn for replica in found}) == 1
        and all(replica.status is Status.NORMAL and replica.has_state for replica in found)
    )


def test_a_member_far_behind_gets_a_snapshot_and_later_entries() -> None:
    group = Group(3)
    away = (group.leader + 1) % 3
    group.without(away)
    cut_log(group)
    group.set(group.leader, 1, b"last")
    group.settle()
    group.whole()
    group.tick(times=30)
    assert same(group, 0, 1, 2)
    assert group.bases[away].lsn > 0
    assert group.stables[away] is not None


def test_a_snapshot_that_takes_longer_than_a_view_lasts_comes_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tuning, "part_bytes", 5)
    monkeypatch.setattr(Reads, "fetches", lambda reads, envelope: None)
    group = Group(3)
    away, gone = (group.leader + 1) % 3, (group.leader + 2) % 3
    group.without(away)
    cut_log(group)
    group.without(gone)
    cuts, parts = group.passes, 0

    def slowly(sender: int, receiver: int, envelope: Envelope) -> bool:
        nonlocal parts
        is_part = isinstance(envelope.payload, SnapshotPart)
        parts -= is_part
        return cuts(sender, receiver, envelope) and (not is_part or parts >= 0)

    group.passes = slowly
    views = {group.replicas[away].view}
    for _ in range(600):
        parts = 1
        group.tick()
        views.add(group.replicas[away].view)
        if same(group, away, 3 - away - gone):
            break
    assert len(views) > 2
    assert same(group, away, 3 - away - gone)


def test_a_restart_into_a_cut_log_fetches_a_snapshot_first() -> None:
    group = Group(3)
    away = (group.leader + 1) % 3
    group.without(away)
    cut_log(group)
    group.whole()
    group.start(away)
    group.tick(times=30)
    assert same(group, 0, 1, 2)


def test_a_lost_log_comes_back_with_a_snapshot() -> None:
    group = Group(3)
    away = (group.leader + 1) % 3
    cut_log(group)
    group.start(away, lost=True)
    group.tick(times=30)
    assert same(group, 0, 1, 2)


def test_a_lost_log_begins_with_the_snapshot_that_the_primary_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that the others still had was fetched, though a snapshot stands for nearly all of it."""
    monkeypatch.setattr(Tuning, "retain_entries", 1000)
    group = Group(3)
    away = (group.leader + 1) % 3
    cut_log(group, 40)
    group.set(group.leader, 1, b"last")
    group.settle()
    stable = group.replicas[group.leader].state.stable_id
    assert stable is not None
    group.sent.clear()
    group.start(away, lost=True)
    group.tick(times=30)
    assert same(group, 0, 1, 2)
    assert group.bases[away] == stable.link
    fetched = [e.payload.entries for _, _, e in group.sent if isinstance(e.payload, Entries)]
    assert all(entry.lsn > stable.lsn for entries in fetched for entry in entries)


def test_a_lost_member_asks_another_if_the_primary_goes_during_a_snapshot() -> None:
    group = Group(5)
    away, leader = (group.leader + 1) % 5, group.leader
    cut_log(group, 40)
    group.start(away, lost=True)
    group.passes = lambda sender, receiver, envelope: (
        not (sender == leader and isinstance(envelope.payload, SnapshotPart))
    )
    group.tick(times=15)
    group.without(leader)
    group.tick(times=60)
    assert same(group, *{0, 1, 2, 3, 4} - {leader})


def test_a_restart_goes_on_from_the_own_snapshot() -> None:
    group = Group(3)
    cut_log(group)
    parts = [item for item in group.sent if isinstance(item[2].payload, SnapshotPart)]
    for number in range(3):
        group.start(number)
    group.tick(times=30)
    assert same(group, 0, 1, 2)
    assert parts == [item for item in group.sent if isinstance(item[2].payload, SnapshotPart)]


LOAD = Storage.load


def load_damaged(storage: Storage, image: Image) -> None:
    """Load without the snapshot."""
    LOAD(storage, image._replace(snapshot=None))


def test_a_member_without_its_state_acknowledges_and_does_not_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(3)
    cut_log(group)
    lame = (group.leader + 1) % 3
    group.passes = lambda sender, receiver, envelope: not isinstance(envelope.payload, GetSnapshot)
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "load", load_damaged)
        group.start(lame)
    group.tick(times=5)
    replica = group.replicas[lame]
    assert not replica.has_state
    assert replica.report().status == "RECOVERY/GAP"
    leader = group.leader
    group.passes = lambda sender, receiver, envelope: (
        {sender, receiver} == {lame, leader} and not isinstance(envelope.payload, GetSnapshot)
    )
    group.set(leader, 1)
    group.settle()
    assert group.replies[1].code is Code.OK
    group.without(leader)
    before = group.passes
    group.passes = lambda sender, receiver, envelope: (
        before(sender, receiver, envelope) and not isinstance(envelope.payload, GetSnapshot)
    )
    group.tick(times=60)
    assert not replica.leading
    assert group.leader not in (lame, leader)
    group.whole()
    group.tick(times=30)
    assert same(group, 0, 1, 2)


def test_members_that_have_all_lost_their_state_say_why_they_do_not_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(3)
    cut_log(group)
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "load", load_damaged)
        for number in range(3):
            group.start(number)
    group.tick(times=120)
    for replica in group.replicas:
        report = replica.report()
        assert report.trouble == "its state is missing: it wants snapshot 1 of another member"
        assert report.is_stuck
    assert not any(replica.leading for replica in group.replicas)


def test_a_part_that_is_wrong_is_noticed_and_fetched_again() -> None:
    group = Group(3)
    away = (group.leader + 1) % 3
    group.without(away)
    cut_log(group)
    group.whole()
    spoiled: list[int] = []

    def passes(sender: int, receiver: int, envelope: object) -> bool:
        part = envelope.payload  # type: ignore[attr-defined]
        if isinstance(part, SnapshotPart) and not spoiled:
            spoiled.append(receiver)
            wrong = part._replace(data=bytes(len(part.data)))
            group.net.append((sender, receiver, envelope._replace(payload=wrong)))  # type: ignore[attr-defined]
            return False
        return True

    group.passes = passes
    group.tick(times=40)
    assert spoiled
    assert same(group, 0, 1, 2)


def test_a_learner_begins_at_a_snapshot() -> None:
    group = Group(1, learners=2)
    cut_log(group)
    group.change(0, 1, 2)
    group.tick(times=60)
    assert {replica.epoch for replica in group.replicas} == {1}
    assert same(group, 0, 1, 2)


def test_a_snapshot_that_was_replaced_meanwhile_is_not_put_in_force_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(3)
    cut_log(group)
    lame = (group.leader + 1) % 3
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "load", load_damaged)
        group.start(lame)
    group.holds_disk.add(lame)
    group.tick(times=30)
    replica = group.replicas[lame]
    assert replica.has_state
    newer = snapshot_of(9, replica.log.base, b"newer")
    replica.parts.snapshots.take_for_stable(newer)
    group.stables[lame] = newer
    group.release_disk(lame)
    assert group.stables[lame] is newer


class _SlowLine:
    """Parts of snapshots come one at a time to a member that others are cut off from."""

    def __init__(self, group: Group, to: int, *gone: int) -> None:
        self.group, self.to = group, to
        self.line: list[Envelope] = []
        self.offsets: list[int] = []

        def passes(sender: int, receiver: int, envelope: Envelope) -> bool:
            if {sender, receiver} & set(gone):
                return False
            held = receiver == to and isinstance(envelope.payload, SnapshotPart)
            if held:
                self.line.append(envelope)
            return not held

        group.passes = passes

    def tick(self) -> None:
        self.group.tick()
        for envelope in self.line[:1]:
            assert isinstance(envelope.payload, SnapshotPart)
            self.offsets.append(envelope.payload.offset)
            self.group.step(self.to, Message(envelope))
        self.line.clear()
        self.group.settle()


def test_snapshots_that_follow_fast_do_not_keep_a_slow_member_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(3)
    leader, away = group.leader, (group.leader + 1) % 3
    group.without(away)
    cut_log(group)
    monkeypatch.setattr(Tuning, "retain_entries", 1000)
    line = _SlowLine(group, away)
    for ticket in range(60):
        group.set(leader, 1000 + 2 * ticket)
        group.step(leader, TakeSnapshot(1001 + 2 * ticket))
        line.tick()
    assert group.replicas[leader].parts.snapshots.snapshot_number > 20
    assert line.offsets.count(0) == 1
    assert same(group, 0, 1, 2)


def test_fetched_entries_survive_a_view_change() -> None:
    group = Group(5)
    leader, away = group.leader, (group.leader + 1) % 5
    group.without(away)
    cut_log(group)
    line = _SlowLine(group, away)
    while len(line.offsets) < 3:
        line.tick()
    group.passes = lambda sender, receiver, envelope: (
        leader not in (sender, receiver) and not isinstance(envelope.payload, StartView)
    )
    group.tick(times=12)
    assert group.replicas[away].status is Status.VIEWCHANGE
    last = _SlowLine(group, away, leader)
    for _ in range(60):
        last.tick()
    assert last.offsets.count(0) == 0
    assert group.replicas[away].status is Status.NORMAL


def test_a_primary_waits_for_the_member_that_completes_its_quorum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tuning, "part_bytes", 8)
    group = Group(3)
    leader, away = group.leader, (group.leader + 1) % 3
    group.without(away)
    cut_log(group)
    view = group.replicas[leader].view
    line = _SlowLine(group, away, (leader + 2) % 3)
    group.set(leader, 1)
    ticks = 0
    while 1 not in group.replies and ticks < 100:
        line.tick()
        ticks += 1
        if ticks == 8:
            group.set(leader, 2)
    assert group.replies[2].code is Code.NOQUORUM
    assert ticks > 8, "it was fetched before anybody could lose patience"
    assert group.replies[1].code is Code.OK
    assert group.replicas[leader].view == view


def test_members_that_fetch_do_not_keep_a_primary_that_another_could_replace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tuning, "part_bytes", 1)
    group = Group(5)
    leader = group.leader
    _, last, *away = [(leader + n) % 5 for n in (1, 2, 3, 4)]
    group.without(*away)
    cut_log(group)
    lines: dict[int, list[Envelope]] = {number: [] for number in away}

    def passes(sender: int, receiver: int, envelope: Envelope) -> bool:
        if {sender, receiver} == {leader, last}:
            return False
        held = receiver in lines and isinstance(envelope.payload, SnapshotPart)
        if held:
            lines[receiver].append(envelope)
        return not held

    group.passes = passes
    group.set(leader, 1)
    before, began = group.replicas[leader].commit_lsn, group.now
    while group.replicas[group.leader].commit_lsn == before:
        group.tick()
        for number, line in lines.items():
            group.step(number, *map(Message, line[:1]))
            line.clear()
        group.settle()
        assert group.now - began < FETCHING_MS_MAX + 5000
    assert all(group.replicas[number].status is not Status.NORMAL for number in away)


def test_a_state_that_came_back_takes_in_what_was_known_as_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tuning, "hint_entries_max", 10)
    monkeypatch.setattr(views, "FRAME_MARKS_MAX", 30)
    group = Group(3)
    cut_log(group)
    leader, lame = group.leader, (group.leader + 1) % 3
    for ticket in range(1000, 1040):
        group.set(leader, ticket)
        group.settle()
    group.tick(times=3)
    load = Storage.load
    with monkeypatch.context() as patch:
        patch.setattr(
            Storage, "load", lambda self, image: load(self, image._replace(snapshot=None))
        )
        group.without(leader)
        group.start(lame)
    group.tick(times=60)
    replica = group.replicas[lame]
    assert replica.has_state
    assert replica.status is Status.NORMAL
