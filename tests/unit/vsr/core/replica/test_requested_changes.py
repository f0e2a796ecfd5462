"""Changes that operators request: other members, another primary; each is answered once."""

import pytest

from millstream.vsr.core.effects import Code, MovePrimary, Reconfigure, Request
from millstream.vsr.core.entries import Body, Kind
from millstream.vsr.core.messages import Learn, LearnOk, Prepare, PrepareOk
from millstream.vsr.core.replica.member import Status
from support.coordination.coordination_group import Group


def test_the_answer_comes_once_the_next_epoch_runs() -> None:
    group = Group(3, learners=2)
    leader = group.leader
    group.change(leader, 3, 4)
    group.tick(times=4)
    reply = group.replies[1000]
    assert (reply.code, reply.value) == (Code.OK, b"1")
    assert group.replicas[leader].commit_lsn >= group.replicas[leader].state.noop_lsn


def test_a_primary_that_leaves_answers_once_the_others_have_begun() -> None:
    group = Group(3, learners=3)
    leader = group.leader
    group.change(3, 4, 5)
    group.tick(times=6)
    assert group.replies[1000][1:3] == (Code.OK, b"1")
    assert group.replicas[leader].status is Status.RETIRED


def test_a_node_whose_disk_is_lost_is_replaced_by_a_new_one() -> None:
    group = Group(3, learners=1)
    leader = group.leader
    gone = (leader + 1) % 3
    group.set(leader, 1, b"kept")
    group.without(gone)
    group.change(*(number for number in range(4) if number != gone))
    group.tick(times=6)
    assert group.replies[1000].code is Code.OK
    assert group.replicas[3].status is Status.NORMAL
    group.without(gone, (leader + 2) % 3)
    group.set(leader, 2, b"two of three")
    group.settle()
    assert group.replies[2].code is Code.OK


@pytest.mark.parametrize(
    ("members", "epoch", "code", "value"),
    [
        ((0, 1, 2, 3), None, Code.BADCONFIG, b"a group has 3, 5 or 7 members"),
        ((0,), None, Code.BADCONFIG, b"a group has 3, 5 or 7 members"),
        ((0, 0, 1), None, Code.BADCONFIG, b"members are not in order, or one is named twice"),
        ((0, 1, 3), 1, Code.CONFLICT, b"0"),
        ((0, 1, 2), 1, Code.OK, b"0"),
        ((0, 1, 2), 0, Code.OK, b"0"),
    ],
)
def test_an_impossible_request_changes_nothing(
    members: tuple[int, ...], epoch: int | None, code: Code, value: bytes
) -> None:
    group = Group(3, learners=1)
    group.change(*members, epoch=epoch)
    assert group.replies[1000][1:3] == (code, value)
    assert not group.replicas[group.leader].state.closing


def test_a_member_that_does_not_lead_says_so() -> None:
    group = Group(3)
    other = (group.leader + 1) % 3
    group.step(other, Reconfigure(1, tuple(group.ids)))
    group.step(other, MovePrimary(2, group.ids[other]))
    assert {group.replies[ticket].code for ticket in (1, 2)} == {Code.NOTPRIMARY}


def test_without_a_quorum_a_logged_change_has_an_unknown_outcome() -> None:
    group = Group(3, learners=2)
    leader = group.leader
    group.only(Learn, LearnOk)
    assert group.change(leader, 3, 4).state.closing
    group.tick(times=10)
    assert group.replies[1000].code is Code.UNKNOWN


def test_a_primary_hands_over_and_leaves_nothing_in_doubt() -> None:
    group = Group(3)
    leader = group.leader
    heir = (leader + 2) % 3
    passes = {"prepare": False}
    group.passes = lambda s, r, e: passes["prepare"] or not isinstance(e.payload, Prepare)
    group.set(leader, 1, b"before")
    group.step(leader, MovePrimary(2, group.ids[heir]))
    group.set(leader, 3, b"meanwhile")
    group.settle()
    assert group.replies == {}
    passes["prepare"] = True
    group.tick(leader, times=3)
    assert group.leader == heir
    assert group.replies[1].code is Code.OK
    assert group.replies[2].code is Code.OK
    assert group.replies[3].code is Code.NOTPRIMARY
    assert group.replicas[leader].report().view_reason == "the primary handed over"


def test_absent_nodes_are_not_waited_for() -> None:
    group = Group(3)
    leader = group.leader
    heir = (leader + 1) % 3
    group.without(heir)
    group.tick(times=5)
    group.step(leader, MovePrimary(2, group.ids[heir]))
    group.set(leader, 3)
    group.tick(times=5)  # of 100 ms
    assert group.replies[2].code is Code.NOTREADY
    assert group.replies[2].value == b"%s 1" % group.ids[heir].hex().encode()
    assert group.replies[3].code is Code.OK
    assert group.leader == leader


def test_a_member_that_has_just_stopped_is_not_handed_over_to() -> None:
    group = Group(3)
    leader = group.leader
    heir = (leader + 1) % 3
    group.set(leader, 1)
    group.tick()
    assert group.replies[1].code is Code.OK  # everything is acknowledged, also by the heir
    group.without(heir)
    group.step(leader, MovePrimary(2, group.ids[heir]))
    group.settle()
    group.set(leader, 3)
    group.tick(times=5)  # of 100 ms
    assert group.replies[2].code is Code.NOTREADY
    assert group.replies[2].value.startswith(group.ids[heir].hex().encode())
    assert group.replies[3].code is Code.OK
    assert group.leader == leader


def test_an_heir_that_stops_halfway_holds_requests_up_for_a_time_only() -> None:
    group = Group(3)
    leader = group.leader
    heir = (leader + 1) % 3
    group.without(heir)
    group.set(leader, 1)
    group.settle()
    group.step(leader, MovePrimary(2, group.ids[heir]))
    group.set(leader, 3)
    group.settle()
    assert 3 not in group.replies
    group.tick(times=5)  # of 100 ms
    assert group.replies[2].code is Code.NOTREADY
    assert group.replies[3].code is Code.OK


def test_only_members_can_be_handed_over_to() -> None:
    group = Group(3, learners=1)
    group.step(group.leader, MovePrimary(1, group.ids[3]))
    group.step(group.leader, MovePrimary(2, group.ids[group.leader]))
    assert group.replies[1].code is Code.BADCONFIG
    assert group.replies[2].code is Code.OK


def test_one_request_is_in_progress_at_a_time() -> None:
    group = Group(3)
    leader = group.leader
    group.without(leader)
    group.set(leader, 9)
    group.step(leader, MovePrimary(1, group.ids[(leader + 1) % 3]))
    group.step(leader, MovePrimary(2, group.ids[(leader + 1) % 3]))
    assert group.replies[2].code is Code.BUSY


def test_what_waits_for_a_handover_is_not_taken_for_what_its_session_asks_later() -> None:
    group = Group(3)
    leader, me = group.leader, b"i" * 16
    heir = (leader + 1) % 3
    opening = Body(argv=(b"5000", b"s"))
    group.step(leader, Request(1, opening, me, kind=Kind.SESSION_OPEN))
    group.settle()
    group.tick()
    session = int(group.replies[1].value)
    group.passes = lambda sender, _, envelope: (
        not (sender == heir and isinstance(envelope.payload, PrepareOk))
    )
    group.set(leader, 2)
    group.settle()
    group.step(leader, MovePrimary(3, group.ids[heir]))
    group.settle()
    for ticket, value in ((4, b"one"), (5, b"other")):
        body = Body(argv=(b"SET", b"k", value))
        group.step(leader, Request(ticket, body, me, session, 1, is_counted=True))
        group.settle()
    assert not {3, 4, 5} & set(group.replies)
    for _ in range(60):
        group.tick()
    assert [group.replies[ticket].code for ticket in (4, 5)] == [Code.OK, Code.SESSIONMOVED]
    assert group.replicas[group.leader].machine.read(Body(argv=(b"GET", b"k"))) == b"=one"
