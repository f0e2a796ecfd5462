"""Stream requests are judged as the released protocol judges them: every worked case, and more."""

from typing import Any

import pytest

from millstream.model.limits import UINT64_MAX
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry, Position
from millstream.upr.core.decision import Grant, RollbackError, decide
from millstream.upr.core.messages import RefusedError, StreamRequest
from millstream.wire.mcbp import Status, StreamFlag
from support.streams.fake_source import FakeBucket, FakePartition

A, B, C, Z = 0xA, 0xB, 0xC, 0xFF
LOG = (FailoverEntry(C, 300, 3), FailoverEntry(B, 200, 2), FailoverEntry(A, 0, 1))


def bucket(**fields: Any) -> FakeBucket:
    known = {"failover_log": LOG, "high_seqno": 450, **fields}
    return FakeBucket([FakePartition(0, **known)])


def answer(position: Position, flags: int = 0, **fields: Any) -> int | None:
    """The seqno to go back to, None if granted."""
    try:
        decide(StreamRequest(0, position, flags=flags), bucket(**fields), is_streaming=False)
    except RollbackError as error:
        return error.seqno
    return None


WORKED_CASES = {
    "from the beginning": (Position(0, 0, 0, 0), 0, 0, None),
    "complete, in the newest history": (Position(C, 400, 400, 400), 0, 0, None),
    "complete, in an older one": (Position(B, 250, 250, 250), 0, 0, None),
    "complete, beyond where histories part": (Position(B, 320, 320, 320), 0, 0, 300),
    "the same reader, once it has undone": (Position(B, 300, 300, 300), 0, 0, None),
    "inside a snapshot that reaches beyond": (Position(B, 280, 260, 310), 0, 0, 260),
    "complete beyond, begun far below": (Position(A, 210, 150, 210), 0, 0, 200),
    "nothing but the marker came": (Position(A, 150, 150, 260), 0, 0, None),
    "inside a snapshot of common history": (Position(A, 150, 120, 180), 0, 0, None),
    "inside one whose end was lost": (Position(C, 430, 420, 460), 0, 0, 420),
    "ahead of the copy": (Position(C, 500, 500, 500), 0, 0, 450),
    "in a history nobody knows": (Position(Z, 5, 5, 5), 0, 0, 0),
    "deletions above it are forgotten": (Position(C, 320, 320, 320), 0, 350, 0),
    "it does not mind": (Position(C, 320, 320, 320), StreamFlag.IGNORE_PURGE, 350, None),
    "it began when they were": (Position(C, 320, 320, 320, 350), 0, 350, None),
    "more are by now": (Position(C, 320, 320, 320, 340), 0, 350, 0),
    "only its snapshot's start is below": (Position(C, 360, 340, 400), 0, 350, None),
    "a name and nothing read": (Position(Z, 0, 0, 0), 0, 0, None),
    "and the name is to be judged": (Position(Z, 0, 0, 0), StreamFlag.STRICT_UUID, 0, 0),
    "no name to be judged": (Position(0, 0, 0, 0), StreamFlag.STRICT_UUID, 350, None),
}


@pytest.mark.parametrize("state", [PartitionState.ACTIVE, PartitionState.REPLICA])
@pytest.mark.parametrize(
    ("position", "flags", "purge", "back_to"), WORKED_CASES.values(), ids=WORKED_CASES
)
def test_worked_cases(
    position: Position, flags: int, purge: int, back_to: int | None, state: PartitionState
) -> None:
    assert answer(position, flags, purge_seqno=purge, state=state) == back_to


def granted(position: Position, **fields: Any) -> Grant:
    return decide(StreamRequest(0, position, **fields), bucket(), is_streaming=False)


def test_the_range_granted() -> None:
    assert granted(Position(C, 400, 400, 400)) == Grant(400, UINT64_MAX, 400, 400)
    assert granted(Position(C, 430, 420, 440), end=435) == Grant(430, 435, 420, 440)


def test_a_snapshot_of_which_only_the_marker_came_need_not_be_finished() -> None:
    assert granted(Position(A, 150, 150, 260)).snap_end == 150
    assert granted(Position(C, 440, 440, 900)).snap_end == 440


def test_to_latest_and_from_latest() -> None:
    latest = StreamFlag.TO_LATEST
    assert granted(Position(C, 400, 400, 400), flags=latest).end == 450
    assert granted(Position(), flags=StreamFlag.FROM_LATEST)[:4] == (450, UINT64_MAX, 450, 450)
    both = StreamFlag.FROM_LATEST | latest
    assert granted(Position(), flags=both)[:4] == (450, 450, 450, 450)


def test_from_latest_with_a_uuid_of_another_history() -> None:
    with pytest.raises(RollbackError) as caught:
        granted(Position(Z), flags=StreamFlag.FROM_LATEST | StreamFlag.STRICT_UUID)
    assert caught.value.seqno == 0


def test_disk_only_ends_at_what_is_durable() -> None:
    durable = bucket(persisted_seqno=420)
    asked = StreamRequest(0, Position(C, 400, 400, 400), flags=StreamFlag.DISK_ONLY)
    assert decide(asked, durable, is_streaming=False).end == 420
    asked = StreamRequest(0, Position(C, 430, 430, 430), flags=StreamFlag.DISK_ONLY)
    with pytest.raises(RefusedError) as caught:
        decide(asked, durable, is_streaming=False)
    assert caught.value.status == Status.ERANGE


def test_a_wrong_range_is_told_before_history_is_judged() -> None:
    with pytest.raises(RefusedError) as caught:
        granted(Position(Z, 500, 400, 450))
    assert caught.value.status == Status.ERANGE
