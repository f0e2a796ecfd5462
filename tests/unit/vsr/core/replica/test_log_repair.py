"""What is missing of a log is fetched from members that have it."""

from millstream.vsr.core.effects import (
    Damaged,
    Image,
    Message,
    Start,
)
from millstream.vsr.core.messages import (
    Entries,
    Envelope,
    GetEntries,
    StartView,
)
from millstream.vsr.core.replica.member import Status
from support.coordination.coordination_group import Group
from support.coordination.coordination_logs import GROUP, chained


def test_a_damaged_entry_is_fetched_from_a_member_that_has_it() -> None:
    group = Group(3)
    group.set(group.leader, 1, b"kept")
    group.set(group.leader, 2, b"too")
    group.settle()
    hurt = (group.leader + 1) % 3
    log = tuple(Damaged(entry.header) if entry.lsn == 2 else entry for entry in group.disks[hurt])
    group.replicas[hurt] = type(group.replicas[hurt])(group.replicas[hurt].machine, lambda: 0.5)
    group.replicas[hurt].state.machine = type(group.replicas[0].machine)()
    group.step(hurt, Start(Image(group.hard_states[hurt], log)))
    assert list(group.replicas[hurt].log.holes) == [2]
    group.tick(times=5)
    assert group.replicas[hurt].status is Status.NORMAL
    assert not group.replicas[hurt].log.holes
    assert group.replicas[hurt].log.head == group.replicas[group.leader].log.head


def test_all_damaged_at_different_places_still_have_one_log() -> None:
    group = Group(3)
    for ticket in range(4):
        group.set(group.leader, ticket, b"%d" % ticket)
    group.settle()
    for number, lsn in ((0, 2), (1, 3), (2, 4)):
        log = tuple(
            Damaged(entry.header) if entry.lsn == lsn else entry for entry in group.disks[number]
        )
        machine = type(group.replicas[number].machine)()
        group.replicas[number] = type(group.replicas[number])(machine, lambda: 0.5)
        group.step(number, Start(Image(group.hard_states[number], log)))
    group.tick(times=40)
    group.get(group.leader, 9)
    group.settle()
    assert group.replies[9].value == b"=3"


def test_copies_of_an_answer_are_asked_for_more_once() -> None:
    """Else each copy has an answer of its own, which the network may double again."""
    group = Group(3)
    new = (group.leader + 1) % 3
    number = 3 - group.leader - new
    member = group.replicas[number]
    commit = (member.commit_lsn, member.log.hash_at(member.commit_lsn) or b"")
    _, middle, last = chained("xyz", member.log.head, member.view + 1)
    group.holds_disk.add(number)
    incarnation, view = group.hard_states[new].incarnation, member.view + 1
    start = StartView(last.lsn, last.header.hash, *commit, (last,))
    for payload in (start, Entries((middle,)), Entries((middle,)), Entries((middle,))):
        envelope = Envelope(GROUP, group.ids[new], incarnation, 0, view, payload)
        group.step(number, Message(envelope))
    asked = [e.payload.lsn for _, _, e in group.net if isinstance(e.payload, GetEntries)]
    assert asked == [middle.lsn, middle.lsn - 1]
