"""Reads are answered by a quorum's word that came after them; without one a primary is silent."""

from millstream.vsr.core.effects import Code, Message, Read
from millstream.vsr.core.entries import Body
from millstream.vsr.core.messages import (
    Commit,
    Envelope,
    GetView,
    Prepare,
    PrepareOk,
    QuorumCheck,
    QuorumCheckOk,
    StartView,
    StartViewChange,
)
from millstream.vsr.core.replica.reads import CHECKS_MAX
from support.coordination.coordination_group import Group


def checks(group: Group) -> set[int]:
    return {e.payload.nonce for _, _, e in group.net if isinstance(e.payload, QuorumCheck)}


def hold_answers(group: Group) -> list[Envelope]:
    """Let no answer to a check pass; return where they are kept."""
    held: list[Envelope] = []

    def passes(_sender: int, _receiver: int, envelope: Envelope) -> bool:
        is_answer = isinstance(envelope.payload, QuorumCheckOk)
        if is_answer:
            held.append(envelope)
        return not is_answer

    group.passes = passes
    return held


def test_a_read_sees_what_was_committed_before() -> None:
    group = Group(3)
    group.set(group.leader, 1, b"new")
    group.settle()
    lsn = group.replicas[group.leader].log.op_lsn
    group.get(group.leader, 2)
    assert 2 not in group.replies
    group.settle()
    assert group.replies[2][1:] == (Code.OK, b"=new", lsn)
    assert group.replicas[group.leader].log.op_lsn == lsn


def test_an_answer_counts_only_for_reads_that_came_before_the_question() -> None:
    group = Group(3)
    group.get(group.leader, 1)
    first = checks(group)
    group.get(group.leader, 2)
    assert checks(group) == first
    group.settle()
    assert group.replies.keys() == {1, 2}
    asked = {e.payload.nonce for _, _, e in group.sent if isinstance(e.payload, QuorumCheckOk)}
    assert len(asked) == 2


def test_reads_of_one_step_share_a_question() -> None:
    group = Group(3)
    reads = [Read(ticket, Body(argv=(b"GET", b"k"))) for ticket in range(9)]
    group.step(group.leader, *reads)
    assert len(checks(group)) == 1
    group.settle()
    assert len(group.replies) == 9
    assert (
        len({e.payload.nonce for _, _, e in group.sent if isinstance(e.payload, QuorumCheckOk)})
        == 1
    )


def test_a_deposed_primary_answers_no_read() -> None:
    group = Group(3)
    old = group.leader
    others = [number for number in range(3) if number != old]
    group.without(old)
    group.tick(*others, times=25)
    assert group.leader != old
    group.get(old, 1)
    group.set(old, 2)
    group.settle()
    assert group.replies == {}
    group.tick(old, times=8)
    assert group.replies[1].code is Code.NOQUORUM
    assert group.replies[2].code is Code.UNKNOWN


def test_a_primary_without_a_quorum_is_silent_and_goes_on_once_it_has_one() -> None:
    group = Group(3)
    leader = group.leader
    group.without(leader)
    group.tick(leader, times=8)
    assert group.replicas[leader].suspended
    group.set(leader, 1)
    group.get(leader, 2)
    assert {group.replies[ticket].code for ticket in (1, 2)} == {Code.NOQUORUM}
    group.whole()
    group.sent.clear()
    group.passes = lambda sender, receiver, e: not isinstance(e.payload, StartViewChange)
    group.tick(leader)
    first = [type(e.payload) for sender, _, e in group.sent if sender == leader]
    assert Commit not in first[:2]
    assert Prepare not in first[:2]
    group.tick(leader, times=2)
    assert not group.replicas[leader].suspended


def test_a_primary_that_hears_of_a_higher_view_never_goes_on() -> None:
    group = Group(3)
    leader, ahead = group.leader, (group.leader + 1) % 3
    replica = group.replicas[leader]
    group.replicas[ahead].parts.views.leave(replica.view + 3)
    for effect in group.replicas[ahead].state.effects:
        group.replicas[ahead].state.effects = []
        group.hard_states[ahead] = effect.hard_state  # type: ignore[union-attr]
        group.written(ahead, effect.op)  # type: ignore[union-attr]
    view = replica.view
    group.settle()
    assert replica.state.deposed or replica.view > view
    group.tick(times=30)
    assert {r.view for r in group.replicas} == {group.replicas[group.leader].view}
    assert group.replicas[group.leader].view >= view + 3


def test_others_do_not_answer_reads() -> None:
    group = Group(3)
    group.get((group.leader + 1) % 3, 1)
    assert group.replies[1].code is Code.NOTPRIMARY


def test_a_read_that_may_be_stale_is_answered_by_any_member_that_is_far_enough() -> None:
    group = Group(3)
    other = (group.leader + 1) % 3
    group.set(group.leader, 1, b"new")
    group.settle()
    group.without(other)
    group.step(other, Read(2, Body(argv=(b"GET", b"k")), seen=2))
    assert group.replies[2][1:] == (Code.OK, b"=new", 2)
    group.step(other, Read(3, Body(argv=(b"GET", b"k")), seen=3))
    group.tick(other, times=9)
    assert 3 not in group.replies
    group.tick(other, times=2)
    assert group.replies[3][1:] == (Code.BEHIND, b"", 2)


def test_the_only_member_cannot_reach_what_it_does_not_have() -> None:
    """A client has seen it: the member's directory was set back, and nobody else remembers."""
    group = Group(1)
    group.set(0, 1, b"new")
    group.settle()
    last = group.replicas[0].log.op_lsn
    for ticket, seen in ((2, last), (3, last + 1)):
        group.step(0, Read(ticket, Body(argv=(b"GET", b"k")), seen=seen))
    assert group.replies[2].code is Code.OK
    assert group.replies[3].code is Code.HISTORY_LOST
    assert group.replies[3].value.startswith(b"%d " % last)
    assert "set back" in group.replicas[0].contradiction


def test_a_member_that_catches_up_in_time_answers() -> None:
    group = Group(3)
    other = (group.leader + 1) % 3
    group.step(other, Read(1, Body(argv=(b"GET", b"k")), seen=2))
    assert group.replies == {}
    group.set(group.leader, 2, b"new")
    group.settle()
    assert group.replies[1][1:] == (Code.OK, b"=new", 2)


def test_acknowledgements_that_come_late_do_not_make_a_suspended_primary_speak() -> None:
    group = Group(3)
    group.tick(times=5)
    leader = group.leader
    primary = group.replicas[leader]
    late: list[Envelope] = []

    def passes(sender: int, receiver: int, envelope: Envelope) -> bool:
        if receiver == leader and isinstance(envelope.payload, PrepareOk):
            late.append(envelope)
        return receiver != leader

    group.passes = passes
    for ticket in range(40):
        group.set(leader, ticket)
    group.tick(times=7)
    assert primary.suspended
    assert primary.state.flushed_lsn < primary.log.op_lsn
    before = primary.commit_lsn
    for envelope in late:
        group.step(leader, Message(envelope))
    assert primary.commit_lsn > before
    said = {type(e.payload) for sender, _, e in group.net if sender == leader}
    assert not said & {Prepare, Commit}
    group.passes = lambda sender, receiver, e: not isinstance(e.payload, StartViewChange)
    group.tick(times=3)
    assert not primary.suspended
    assert primary.commit_lsn == primary.log.op_lsn


def test_a_deposed_primary_tells_nobody_of_its_view() -> None:
    group = Group(3)
    leader = group.leader
    group.replicas[leader].parts.views.hear_higher_view(5)
    group.replicas[leader].state.effects.clear()
    asked = GetView(0)
    hard_state = group.hard_states[1 - leader if leader < 2 else 0]
    envelope = Envelope(
        hard_state.group_id, hard_state.node_id, hard_state.incarnation, 0, hard_state.view, asked
    )
    group.step(leader, Message(envelope))
    assert not [e for _, _, e in group.net if isinstance(e.payload, StartView)]


def test_reads_are_answered_over_links_that_take_longer_than_a_retry() -> None:
    group = Group(3)
    leader, late = group.leader, 7
    due: list[tuple[int, Envelope]] = []
    rounds = 0

    def passes(sender: int, receiver: int, envelope: Envelope) -> bool:
        is_slow = isinstance(envelope.payload, QuorumCheckOk)
        if is_slow:
            due.append((rounds + late, envelope))
        return not is_slow

    group.passes = passes
    for rounds in range(40):
        group.get(leader, rounds)
        group.tick()
        while due and due[0][0] <= rounds:
            group.step(leader, Message(due.pop(0)[1]))
            group.settle()
    answered = sorted(group.replies)
    assert answered == list(range(len(answered)))
    assert len(answered) >= 40 - late - 4
    assert {reply.code for reply in group.replies.values()} == {Code.OK}


def test_an_answer_to_an_earlier_check_says_nothing_of_later_reads() -> None:
    group = Group(3)
    leader = group.leader
    held: list[Envelope] = []
    group.passes = lambda sender, receiver, e: (
        not (isinstance(e.payload, QuorumCheckOk) and held.append(e) is None)
    )
    group.get(leader, 1)
    group.settle()
    early = list(held)
    group.get(leader, 2)
    group.tick(times=3)
    group.step(leader, *(Message(envelope) for envelope in early))
    assert group.replies.keys() == {1}
    group.step(leader, *(Message(envelope) for envelope in held))
    assert group.replies.keys() == {1, 2}


def test_checks_under_way_are_bounded_and_no_read_is_lost() -> None:
    group = Group(3)
    leader = group.leader
    held: list[Envelope] = []
    group.passes = lambda sender, receiver, e: (
        not (isinstance(e.payload, QuorumCheckOk) and held.append(e) is None)
    )
    for number in range(4 * CHECKS_MAX):
        group.get(leader, number)
        group.tick()
    assert group.replicas[leader].parts.reads.reads_waiting == 4 * CHECKS_MAX
    group.step(leader, Message(held[0]))
    assert not group.replies
    group.step(leader, Message(held[-1]))
    group.whole()
    group.tick(times=3)
    assert sorted(group.replies) == list(range(4 * CHECKS_MAX))
