"""Members get another one's snapshot if the log that they need is cut, or their state is gone."""

from __future__ import annotations

import pytest

from coordination_group import Group
from millstream.coordination.core.effects import Code, Image, TakeSnapshot
from millstream.coordination.core.member import Status
from millstream.coordination.core.messages import GetSnapshot, SnapshotPart
from millstream.coordination.core.replica import Replica
from millstream.coordination.core.snapshots import snapshot_of


@pytest.fixture(autouse=True)
def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replica, "retain_entries", 0)
    monkeypatch.setattr(Replica, "part_bytes", 20)


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
    states = {b"".join(replica.freeze()) for replica in found}
    return (
        len(states) == 1
        and len({replica.commit_lsn for replica in found}) == 1
        and all(replica.status is Status.NORMAL and replica.has_state for replica in found)
    )


def test_who_was_away_too_long_gets_a_snapshot_and_what_follows_it() -> None:
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


def test_who_restarts_into_a_cut_log_gets_a_snapshot_first() -> None:
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


def test_a_restart_goes_on_from_the_own_snapshot() -> None:
    group = Group(3)
    cut_log(group)
    parts = [item for item in group.sent if isinstance(item[2].payload, SnapshotPart)]
    for number in range(3):
        group.start(number)
    group.tick(times=30)
    assert same(group, 0, 1, 2)
    assert parts == [item for item in group.sent if isinstance(item[2].payload, SnapshotPart)]


def test_a_member_without_its_state_acknowledges_and_does_not_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Group(3)
    cut_log(group)
    lame = (group.leader + 1) % 3
    load = Replica.load

    def load_damaged(replica: Replica, image: Image) -> None:
        load(replica, image._replace(snapshot=None))

    group.passes = lambda sender, receiver, envelope: not isinstance(envelope.payload, GetSnapshot)
    with monkeypatch.context() as patch:
        patch.setattr(
            Replica, "load", lambda self, image: load(self, image._replace(snapshot=None))
        )
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
    load = Replica.load

    def load_damaged(replica: Replica, image: Image) -> None:
        load(replica, image._replace(snapshot=None))

    with monkeypatch.context() as patch:
        patch.setattr(Replica, "load", load_damaged)
        group.start(lame)
    group.holds_disk.add(lame)
    group.tick(times=30)
    replica = group.replicas[lame]
    assert replica.has_state
    newer = snapshot_of(9, replica.log.base, b"newer")
    replica.take_for_stable(newer)
    group.stables[lame] = newer
    group.release_disk(lame)
    assert group.stables[lame] is newer
