"""A view is left if a quorum wants it, entered durably, and begins with all committed."""

import pytest

from millstream.coordination.core.group_state import GroupState
from millstream.vsr.core.disk.journal import is_of_the_view
from millstream.vsr.core.effects import (
    Code,
    DiskDone,
    Image,
    Message,
    MovePrimary,
    Refused,
    Request,
    SetTimer,
    Start,
    TakeSnapshot,
    Timer,
)
from millstream.vsr.core.entries import Body
from millstream.vsr.core.messages import (
    Entries,
    Envelope,
    Payload,
    Prepare,
    PrepareOk,
    QuorumCheck,
    StartView,
    StartViewChange,
)
from millstream.vsr.core.replica.member import Status
from support.coordination.coordination_group import Group
from support.coordination.coordination_logs import GROUP, chained


def test_another_one_leads_when_the_primary_is_gone() -> None:
    group = Group(3)
    old = group.leader
    group.set(old, 1, b"kept")
    group.settle()
    group.without(old)
    others = [number for number in range(3) if number != old]
    group.tick(*others, times=25)
    assert group.leader in others
    group.get(group.leader, 2)
    group.settle()
    assert group.replies[2].value == b"=kept"
    group.whole()
    group.tick(times=5)
    assert not group.replicas[old].leading
    assert len({replica.log.head for replica in group.replicas}) == 1


def test_another_one_leads_soon_when_the_primary_refuses_connections() -> None:
    group = Group(3)
    old = group.leader
    group.set(old, 1, b"kept")
    group.settle()
    group.without(old)
    others = [number for number in range(3) if number != old]
    for number in others:
        group.step(number, Refused(group.ids[old]))
    group.settle()
    assert group.leader in others, "without a wait"
    group.get(group.leader, 2)
    group.settle()
    assert group.replies[2].value == b"=kept"
    group.whole()
    group.tick(times=5)
    assert not group.replicas[old].leading


def test_one_member_that_is_refused_deposes_nobody() -> None:
    group = Group(3)
    old = group.leader
    other, third = (number for number in range(3) if number != old)
    view = group.replicas[old].view
    for number in (old, other):
        group.step(number, Refused(group.ids[third]))
    group.step(other, Refused(group.ids[old]))
    group.settle()
    group.tick(times=30)
    assert group.leader == old
    assert {replica.view for replica in group.replicas} == {view}


def test_the_next_primary_is_passed_over_if_it_refuses_connections_too() -> None:
    group = Group(5)
    old = group.leader
    order = [group.ids.index(member) for member in sorted(group.ids)]
    after = order[(order.index(old) + 1) % 5]
    group.without(old, after)
    others = [number for number in range(5) if number not in (old, after)]
    for _ in range(2):
        for number in others:
            for gone in (old, after):
                group.step(number, Refused(group.ids[gone]))
        group.settle()
    assert group.leader in others


def configured(*settings: str) -> Group:
    """Return a group with these settings."""
    group = Group(3, machine=GroupState)
    for ticket, setting in enumerate(settings, start=1):
        words = tuple(word.encode() for word in ("0 CONFIG SET GROUP " + setting).split())
        group.step(group.leader, Request(ticket, Body(argv=words)))
        group.tick(times=2)
        assert group.replies[ticket].value == b"+OK"
    return group


def ticks_until_another_leads(group: Group) -> int:
    """Cut off who leads; return for how many tenths of a second the others wait."""
    old = group.leader
    group.tick(times=3)
    group.without(old)
    others = [number for number in range(3) if number != old]
    for ticks in range(1, 200):
        group.tick(*others)
        if group.leader != old:
            return ticks
    raise AssertionError("nobody leads")


@pytest.mark.parametrize(
    ("settings", "ticks"),
    [
        ((), 8), (("GROUP.VIEW.TIMEOUT 300-400 ms",), 4),
        (("GROUP.VIEW.TIMEOUT 2-3 s",), 26), (("GROUP.VIEW.TIMEOUT 8-9 s",), 86),
        (("GROUP.VIEW.TIMEOUT 3-4 s", "GROUP.HEARTBEAT 1 s"), 36),
    ],
)  # fmt: skip
def test_members_ask_for_another_primary_after_the_time_that_is_set(
    settings: tuple[str, ...], ticks: int
) -> None:
    found = ticks_until_another_leads(configured(*settings))
    assert ticks - 10 * ("HEARTBEAT" in str(settings)) <= found <= ticks


def test_a_member_takes_the_time_from_the_log_and_from_a_snapshot() -> None:
    group = configured("GROUP.VIEW.TIMEOUT 2-3 s")
    leader = group.leader
    group.step(leader, TakeSnapshot(9))
    group.tick(times=20)
    for number in {0, 1, 2} - {leader}:
        group.start(number)
    group.tick(times=5)
    assert {replica.state.tuning.view_time_out_ms for replica in group.replicas} == {(2000, 3000)}
    assert ticks_until_another_leads(group) > 20
    unset = tuple(b"0 CONFIG UNSET GROUP GROUP.VIEW.TIMEOUT".split())
    group.whole()
    group.tick(times=5)
    group.step(group.leader, Request(10, Body(argv=unset)))
    group.tick(times=5)
    assert ticks_until_another_leads(group) == 8


def test_a_primary_shows_life_as_often_as_is_set_and_keeps_its_view() -> None:
    for beat_ms, ticks_per_beat in ((100, 1), (250, 3), (1000, 10)):
        group = configured("GROUP.VIEW.TIMEOUT 6-9 s", f"GROUP.HEARTBEAT {beat_ms} ms")
        leader, view = group.leader, group.replicas[group.leader].view
        group.tick(times=20)
        group.sent.clear()
        group.tick(times=60)
        to = (leader + 1) % 3
        signs = [each for each in group.sent if each[:2] == (leader, to)]
        checks = [each for each in signs if isinstance(each[2].payload, QuorumCheck)]
        assert len(checks) == 60 // ticks_per_beat
        assert len(signs) == 2 * len(checks)
        assert group.replicas[leader].leading
        assert group.replicas[leader].view == view
        assert not group.replicas[leader].suspended


def test_a_primary_without_a_quorum_suspends_some_heart_beats_later() -> None:
    for settings, least, most in (
        ((), 500, 800), (("GROUP.VIEW.TIMEOUT 6-9 s", "GROUP.HEARTBEAT 2 s"), 4300, 6500)
    ):  # fmt: skip
        group = configured(*settings)
        replica = group.replicas[group.leader]
        group.without(group.leader)
        before = group.now
        while not replica.suspended:
            group.tick(group.leader)
        assert least < group.now - before < most


def test_members_are_woken_at_least_as_often_as_a_sign_is_due() -> None:
    for beat_ms, wake_ms in ((40, 40.0), (100, 100.0), (250, 250 / 3), (2000, 100.0)):
        group = configured("GROUP.VIEW.TIMEOUT 6-9 s", f"GROUP.HEARTBEAT {beat_ms} ms")
        for replica in group.replicas:
            assert SetTimer(wake_ms) in replica.step(group.now, int(group.now), Timer())


def test_after_a_fail_over_between_equal_logs_none_is_written_anew() -> None:
    group = Group(3)
    old = group.leader
    group.set(old, 1, b"kept")
    group.tick(times=3)
    group.without(old)
    kept = group.replicas[old].log.op_lsn
    group.installs.clear()
    group.tick(*(number for number in range(3) if number != old), times=25)
    assert group.leader != old
    assert {(done.keep_lsn, len(done.suffix)) for done in group.installs} == {(kept, 0), (kept, 1)}
    assert all(is_of_the_view(done.suffix, done.hard_state) for done in group.installs)


def test_one_member_that_hears_nobody_deposes_nobody() -> None:
    group = Group(3)
    leader, deaf = group.leader, (group.leader + 1) % 3
    view = group.replicas[leader].view
    group.passes = lambda sender, receiver, envelope: receiver != deaf
    group.tick(times=40)
    assert group.leader == leader
    assert {replica.view for replica in group.replicas} == {view}


def test_entries_of_the_old_primary_alone_are_lost_with_unknown_outcome() -> None:
    group = Group(3)
    old = group.leader
    group.without(old)
    group.set(old, 1, b"lost")
    group.tick(times=25)
    assert group.replies[1].code is Code.UNKNOWN
    group.whole()
    group.tick(times=10)
    group.get(group.leader, 2)
    group.settle()
    assert group.replies[2].value == b"="


def test_a_late_start_view_cuts_nothing() -> None:
    group = Group(3)
    start = next(item for item in group.sent if isinstance(item[2].payload, StartView))
    group.set(group.leader, 1)
    group.settle()
    before = group.replicas[start[1]].log.op_lsn
    group.step(start[1], Message(start[2]))
    assert group.replicas[start[1]].log.op_lsn == before == 2


def test_after_all_lost_their_power_the_group_goes_on() -> None:
    group = Group(3)
    group.set(group.leader, 1, b"kept")
    group.settle()
    views = {replica.view for replica in group.replicas}
    for number in range(3):
        group.start(number)
    assert not any(replica.leading for replica in group.replicas)
    assert {replica.status for replica in group.replicas} == {Status.GAP}
    group.tick(times=30)
    assert group.replicas[group.leader].view > max(views)
    group.get(group.leader, 2)
    group.settle()
    assert group.replies[2].value == b"=kept"


def test_a_restarted_primary_follows_or_asks_but_never_goes_on() -> None:
    group = Group(3)
    old = group.leader
    group.start(old)
    assert not group.replicas[old].leading
    group.tick(times=25)
    assert {replica.status for replica in group.replicas} == {Status.NORMAL}
    assert group.leader != old or group.replicas[old].view > 1


def test_an_old_write_that_is_done_says_nothing_of_a_view_not_yet_durable() -> None:
    """A prepare of the old view comes while the log of the new one is being fetched."""
    group = Group(3)
    old = group.leader
    new = (old + 1) % 3
    member = group.replicas[3 - old - new]
    number, head, view = 3 - old - new, member.log.head, member.view
    commit = (member.commit_lsn, member.log.hash_at(member.commit_lsn) or b"")
    (left,) = chained("x", head, view)
    missing, last = chained("yz", head, view + 1)
    group.holds_disk.add(number)

    def say(sender: int, view: int, payload: Payload) -> None:
        hard_state = group.hard_states[sender]
        incarnation = hard_state.incarnation
        envelope = Envelope(GROUP, group.ids[sender], incarnation, 0, view, payload)
        group.step(number, Message(envelope))

    say(new, view + 1, StartView(last.lsn, last.header.hash, *commit, (last,)))
    say(old, view, Prepare((left,), *commit))
    say(new, view + 1, Entries((missing, last)))
    append, install = group.held.pop(number)
    group.net.clear()
    group.step(number, DiskDone(append))
    assert not group.net
    group.step(number, DiskDone(install))
    assert [
        (e.view, e.payload.lsn) for _, _, e in group.net if isinstance(e.payload, PrepareOk)
    ] == [(view + 1, last.lsn)]


def test_a_group_whose_states_are_all_damaged_waits_and_changes_its_view_now_and_then() -> None:
    """It once changed ten times a second, and ended its process when numbers grew too large."""
    group = Group(1)
    group.tick(times=12)
    group.set(0, 1, b"kept")
    group.settle()
    group.step(0, TakeSnapshot(50))
    group.tick(times=5)
    assert group.replies[50].code is Code.OK
    stable = group.stables[0]
    assert stable is not None
    group.replicas[0] = type(group.replicas[0])(GroupState(), lambda: 0.5)
    log = tuple(group.disks[0])
    image = Image(group.hard_states[0], log, False, group.bases[0], stable.id, None)
    group.step(0, Start(image))
    before = group.replicas[0].view
    group.tick(times=600)
    assert group.replicas[0].view - before < 20
    for _ in range(1800):
        group.now += 10_000.0
        group.tick()
    assert group.replicas[0].status is Status.VIEWCHANGE


def test_the_log_of_a_view_comes_over_a_slow_line_with_few_copies() -> None:
    """Each heartbeat once asked again for what was under way."""
    group = Group(3)
    old = group.leader
    new, away = (old + 1) % 3, (old + 2) % 3
    for replica in group.replicas:
        replica.state.tuning.batch_entries_max = 1
    group.without(away)
    for ticket in range(30):
        group.set(old, ticket)
        group.settle()
    group.step(old, MovePrimary(1000, group.ids[new]))
    group.settle()
    group.tick(old, new, times=3)
    assert group.leader == new
    group.tick_with_a_line(away, Entries, 1, 40)
    assert group.replicas[away].log.head == group.replicas[new].log.head
    assert group.replicas[away].status is Status.NORMAL


def test_a_proposal_of_long_ago_deposes_nobody() -> None:
    """It was once kept by a healthy primary, so that another deaf member made a quorum with it."""
    group = Group(3)
    leader, view = group.leader, group.replicas[group.leader].view
    for deaf in ((leader + 1) % 3, (leader + 2) % 3):
        group.passes = lambda sender, receiver, envelope, deaf=deaf: receiver != deaf
        group.tick(times=12)
        group.whole()
        group.tick(times=5)
    assert group.leader == leader
    assert {replica.view for replica in group.replicas} == {view}


def test_a_former_primary_proposes_nothing_after_a_suspension() -> None:
    group = Group(3)
    group.tick(times=5)
    leader = group.leader
    primary = group.replicas[leader]
    group.passes = lambda sender, receiver, envelope: (
        receiver != leader and not isinstance(envelope.payload, StartViewChange)
    )
    group.tick(times=7)
    assert primary.suspended
    group.passes = lambda sender, receiver, envelope: (
        not isinstance(envelope.payload, StartViewChange)
    )
    group.tick(times=3)
    assert primary.leading
    assert not primary.suspended
    assert not primary.parts.views._proposals
