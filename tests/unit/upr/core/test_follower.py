"""A reader's position follows markers and changes exactly; a rollback ends at a common point."""

import pytest

from millstream.errors import LocalProtocolError, RemoteProtocolError
from millstream.model.position import FailoverEntry, FailoverLog, Position
from millstream.upr.core import follower as follower_module
from millstream.upr.core.follower import Follower, FollowerState, StreamOptions, common_point

A, B, C, D = 0xA, 0xB, 0xC, 0xD
LOG: FailoverLog = (FailoverEntry(C, 300, 3), FailoverEntry(B, 200, 2), FailoverEntry(A, 0, 1))


def opened(position: Position = Position(), log: FailoverLog = LOG, purge: int = 0) -> Follower:  # noqa: B008
    follower = Follower(0, position, (), StreamOptions())
    follower.ask()
    follower.on_opened(log, purge)
    return follower


def test_a_load_from_the_beginning() -> None:
    follower = opened(purge=40)
    assert follower.position == Position(A, 0, 0, 0, 40)
    follower.on_marker(0, 250)
    assert follower.position == Position(B, 0, 0, 250, 40)
    assert not follower.on_advanced(30)
    assert follower.position == Position(B, 30, 0, 250, 40)
    assert follower.on_advanced(250)
    assert follower.position == Position(B, 250, 250, 250)


def test_a_marker_above_the_position_opens_a_snapshot_from_the_last_complete_end() -> None:
    follower = opened(Position(C, 400, 400, 400))
    follower.on_marker(405, 420)
    assert follower.position == Position(C, 400, 400, 420)
    follower.on_advanced(405)
    assert follower.position == Position(C, 405, 400, 420)


def test_a_marker_at_or_below_the_position_continues_one() -> None:
    follower = opened(Position(C, 410, 400, 420))
    follower.on_marker(400, 430)
    assert follower.position == Position(C, 410, 400, 430)
    follower.on_marker(405, 440)
    assert follower.position == Position(C, 410, 400, 440)
    follower.on_marker(390, 440)
    assert follower.position == Position(C, 410, 390, 440)


def test_the_uuid_is_that_of_the_history_in_which_the_snapshot_ends() -> None:
    follower = opened(Position(A, 150, 150, 150))
    follower.on_marker(151, 200)
    assert follower.position.uuid == A
    follower = opened(Position(A, 150, 150, 150))
    follower.on_marker(151, 201)
    assert follower.position.uuid == B


def test_an_unfinished_snapshot_of_which_nothing_came_is_forgotten() -> None:
    assert opened(Position(C, 400, 400, 460)).position == Position(C, 400, 400, 400)
    assert opened(Position(C, 410, 400, 430)).position == Position(C, 410, 400, 430)


def test_the_fifth_member_stays_while_a_load_goes_on() -> None:
    assert opened(Position(A, 30, 0, 100, 40), purge=90).position.purge_seqno == 40


@pytest.mark.parametrize(
    ("start", "end"),
    [(430, 420), (400, 415), (405, 419), (411, 430)],
    ids=["backwards", "shorter", "shorter again", "new inside an unfinished one"],
)
def test_impossible_markers(start: int, end: int) -> None:
    with pytest.raises(RemoteProtocolError):
        opened(Position(C, 410, 400, 420)).on_marker(start, end)


@pytest.mark.parametrize("seqno", [0, 410, 421])
def test_changes_out_of_order_or_outside_the_marker(seqno: int) -> None:
    with pytest.raises(RemoteProtocolError):
        opened(Position(C, 410, 400, 420)).on_advanced(seqno)


# -- rollback


def asking(position: Position, log: FailoverLog = LOG) -> Follower:
    follower = Follower(0, position, log, StreamOptions())
    follower.ask()
    return follower


def test_a_rollback_is_undone_to_a_point_of_the_readers_choice() -> None:
    follower = asking(Position(C, 430, 420, 460))
    assert follower.on_rollback(420) == 420
    follower.undone_to(310)
    assert follower.position == Position(C, 310, 310, 310)
    assert follower.ask().position == follower.position


def test_the_uuid_after_a_rollback_is_the_one_below() -> None:
    follower = asking(Position(C, 310, 310, 310))
    follower.on_rollback(300)
    follower.undone_to(300)
    assert follower.position.uuid == B


def test_a_rollback_to_zero_compares_the_failover_logs_once() -> None:
    follower = asking(Position(C, 350, 350, 350))
    assert follower.on_rollback(0) is None
    assert follower.state is FollowerState.COMPARING
    theirs = (FailoverEntry(D, 260, 4), FailoverEntry(B, 200, 0), FailoverEntry(A, 0, 0))
    assert follower.on_failover_log(theirs) == 260
    follower.undone_to(255)
    assert follower.ask().position == Position(B, 255, 255, 255)
    assert follower.on_rollback(0) == 0
    follower.undone_to(0)
    assert follower.position == Position()


def test_a_reader_restored_without_its_log_keeps_its_uuid() -> None:
    follower = asking(Position(B, 320, 320, 320), ())
    assert follower.on_rollback(300) == 300
    follower.undone_to(300)
    assert follower.position == Position(B, 300, 300, 300)


@pytest.mark.parametrize(
    ("position", "theirs", "point"),
    [
        (Position(C, 350, 350, 350), ((D, 260), (B, 200), (A, 0)), 260),
        (Position(C, 350, 350, 350), ((D, 320), (B, 200), (A, 0)), 300),
        (Position(C, 350, 350, 350), ((D, 150), (A, 0)), 150),
        (Position(C, 350, 350, 350), ((B, 200), (A, 0)), 300),
        (Position(C, 350, 120, 360), ((D, 260), (B, 200), (A, 0)), 120),
        (Position(C, 350, 350, 350), ((D, 0),), 0),
        (Position(C, 350, 350, 350), ((C, 300), (A, 0)), 0),
    ],
    ids=[
        "their fork first", "my fork first", "an older common entry", "they know no fork",
        "inside a snapshot", "nothing in common", "the uuid is known: purged",
    ],
)  # fmt: skip
def test_common_point(position: Position, theirs: tuple[tuple[int, int], ...], point: int) -> None:
    log = tuple(FailoverEntry(uuid, seqno, 0) for uuid, seqno in theirs)
    assert common_point(position, LOG, log) == point


def test_a_rollback_that_goes_nowhere_is_no_rollback() -> None:
    with pytest.raises(RemoteProtocolError):
        asking(Position(C, 350, 350, 350)).on_rollback(350)


@pytest.mark.parametrize("seqno", [351, 400])
def test_a_reader_cannot_undo_forward(seqno: int) -> None:
    follower = asking(Position(C, 350, 350, 350))
    follower.on_rollback(320)
    with pytest.raises(LocalProtocolError):
        follower.undone_to(seqno)


# -- life


def test_calls_out_of_turn_are_our_own_fault() -> None:
    follower = opened()
    with pytest.raises(LocalProtocolError):
        follower.ask()
    with pytest.raises(LocalProtocolError):
        follower.undone_to(0)
    follower.close()
    with pytest.raises(LocalProtocolError):
        follower.close()


def test_every_move_of_the_table_happens() -> None:
    seen: set[tuple[FollowerState, FollowerState]] = set()
    here = Position(C, 350, 350, 350)
    calls = {
        "ask": lambda f: f.ask(),
        "refused": lambda f: f.on_refused(),
        "rollback": lambda f: f.on_rollback(300),
        "compare": lambda f: f.on_rollback(0),
        "log": lambda f: f.on_failover_log(LOG[1:]),
        "undo": lambda f: f.undone_to(200),
        "open": lambda f: f.on_opened(LOG, None),
        "close": lambda f: f.close(),
        "end": lambda f: f.on_ended(),
    }
    for walk in (
        "ask refused",
        "ask rollback undo ask compare log undo ask open end",
        "ask compare refused",
        "ask rollback refused",
        "ask open close end",
    ):
        follower = Follower(0, here, LOG, StreamOptions())
        for name in walk.split():
            before = follower.state
            calls[name](follower)
            if follower.state is not before:
                seen.add((before, follower.state))
    table = {(a, b) for a, moves in follower_module._MOVES.items() for b in moves}
    assert seen == table
