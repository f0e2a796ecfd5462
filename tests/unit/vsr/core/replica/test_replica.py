"""Whole replicas agree whatever happens to network, disks and processes: seeded schedules."""

import pytest

from millstream.vsr.core.effects import Code, Message
from millstream.vsr.core.messages import GetView, Prepare, StartEpoch, StartView
from millstream.vsr.core.replica import replica as replica_module
from millstream.vsr.core.replica.replica import VIEW_STEPS
from millstream.vsr.core.tuning import HEARTBEAT_MS
from simulators.coordination_sim import runs
from simulators.coordination_sim.conditions import Options
from support.budget import budget
from support.coordination.coordination_group import Group

SEEDS = 8


@pytest.mark.parametrize("seed", range(budget(SEEDS)))
def test_a_run_of_faults_finds_nothing(seed: int) -> None:
    assert runs.run(seed, Options(without=frozenset(("namespaces",)))).wrong is None


def test_a_single_member_starts_in_a_new_view() -> None:
    """A directory that was set back gives no versions again that it gave before the loss."""
    group = Group(1)
    first = group.replicas[0].view
    kept, entries, views = group.hard_states[0], list(group.disks[0]), set[int]()
    for chance in (0.0, 0.25, 0.999):
        group.hard_states[0], group.disks[0], group.chance = kept, list(entries), chance
        group.start(0)
        group.settle()
        views.add(group.replicas[0].view)
    assert first == 1, "nothing was lost before the first start"
    assert len(views) == 3
    assert first < min(views) <= max(views) <= first + VIEW_STEPS


def test_messages_of_an_earlier_process_are_not_listened_to() -> None:
    group = Group(3)
    other = (group.leader + 1) % 3
    group.replicas[other].state.send(group.ids[group.leader], GetView(0))
    late = group.replicas[other].state.effects.pop()
    group.start(other)
    group.tick(other, times=2)
    group.step(group.leader, Message(late.envelope))  # type: ignore[union-attr]
    assert not any(isinstance(item[2].payload, StartView) for item in group.net)


def test_other_groups_and_strangers_are_not_listened_to() -> None:
    group = Group(3)
    other = (group.leader + 1) % 3
    group.replicas[other].state.send(group.ids[group.leader], GetView(0))
    envelope = group.replicas[other].state.effects.pop().envelope  # type: ignore[union-attr]
    for stranger in (envelope._replace(group_id=b"h" * 16), envelope._replace(sender=b"s" * 16)):
        group.step(group.leader, Message(stranger))
        assert group.net == []


def test_messages_of_an_old_epoch_are_answered_with_the_new_one() -> None:
    group = Group(1, learners=2)
    group.change(0, 1, 2)
    group.replicas[1].state.send(group.ids[0], GetView(0))
    envelope = group.replicas[1].state.effects.pop().envelope  # type: ignore[union-attr]
    group.step(0, Message(envelope._replace(epoch=0)))
    assert isinstance(group.net[-1][2].payload, StartEpoch)


def test_too_much_that_waits_for_the_disk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "DEFERRED_MAX", 2)
    group = Group(3)
    group.holds_disk = {0}
    group.start(0)
    for ticket in range(3):
        group.set(0, ticket)
    assert {ticket: reply.code for ticket, reply in group.replies.items()} == {2: Code.BUSY}
    group.release_disk(0)
    assert group.replies.keys() == {0, 1, 2}
    assert HEARTBEAT_MS > 0


def test_what_waits_for_the_disk_has_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "DEFERRED_BYTES_MAX", 2_000)
    group = Group(3)
    leader, behind = group.leader, (group.leader + 1) % 3
    group.holds_disk = {behind}
    group.start(behind)
    for ticket in range(9):
        group.set(leader, ticket, b"v" * 1_000)
        group.settle()
    held = [event for event in group.replicas[behind]._deferred if isinstance(event, Message)]
    assert sum(isinstance(event.envelope.payload, Prepare) for event in held) == 2
    group.release_disk(behind)
    assert group.replicas[behind]._deferred_bytes == 0
    group.tick(times=3)
    assert group.replicas[behind].log.head == group.replicas[leader].log.head
