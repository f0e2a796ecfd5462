import pytest

from millstream.model.limits import UINT64_MAX
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.storage.core.branches import (
    absence,
    activation,
    memory_owed,
    promise,
    state_of_copy,
    take_over_ended,
    with_all_owed,
)
from millstream.storage.core.commit import control
from millstream.storage.core.records import Kind, LowPoints, Owed
from millstream.storage.core.summary import PartitionSummary

ACTIVE, REPLICA, PENDING = (PartitionState[n] for n in ("ACTIVE", "REPLICA", "PENDING"))


def summary(state: PartitionState, *, mark: int = 6, top: int = 6) -> PartitionSummary:
    made = PartitionSummary()
    made.state, made.last_branch, made.mark, made.top = state, 4, mark, top
    return made


@pytest.mark.parametrize("state", [ACTIVE, PENDING])
def test_who_serves_promises_before_it_stands_down(state: PartitionState) -> None:
    found = [(c.kind, c.partition_id, c.content) for c in promise(3, summary(state), 5)]
    assert found == [(Kind.BRANCH, 3, 5), (Kind.STATE, 3, REPLICA)]


def test_who_follows_only_promises() -> None:
    assert [c.kind for c in promise(3, summary(REPLICA), 5)] == [Kind.BRANCH]
    assert not list(promise(3, summary(REPLICA), 4))


def test_a_take_over_ends_with_the_process() -> None:
    (found,) = take_over_ended(3, summary(PENDING))
    assert found == control(Kind.STATE, 3, REPLICA)
    assert not list(take_over_ended(3, summary(ACTIVE)))


def test_an_active_copy_has_its_history_and_what_lies_above_the_mark() -> None:
    def new_entry(seqno: int, last_branch: int) -> FailoverEntry:
        return FailoverEntry(0xE, seqno, last_branch + 1)

    entry, of = FailoverEntry(0xE, 6, 5), summary(REPLICA, top=9)
    assert [c.kind for c in activation(3, of, new_entry, None)] == [
        Kind.ENTRY, Kind.STATE, Kind.OWED, Kind.MARK,
    ]  # fmt: skip
    of.low_points = LowPoints(8, 7)
    found = {c.kind: c.content for c in activation(3, of, new_entry, None)}
    assert found == {
        Kind.LOW_POINTS: LowPoints(6, 6),
        Kind.ENTRY: entry,
        Kind.STATE: ACTIVE,
        Kind.OWED: (0, 0),
        Kind.MARK: 9,
    }
    of.top, of.low_points = 6, LowPoints(6, 6)
    assert [c.kind for c in activation(3, of, new_entry, None)][2:] == [Kind.OWED]
    of.failover_log, of.last_branch = (FailoverEntry(0xA, 0, 1),), 70
    assert next(activation(3, of, new_entry, 70)).content == FailoverEntry(0xE, 6, 70)
    for branch in (71, 1):
        with pytest.raises(AssertionError):
            next(activation(3, of, new_entry, branch))


def test_a_copy_without_a_history_is_older_than_any() -> None:
    def new_entry(seqno: int, last_branch: int) -> FailoverEntry:
        return FailoverEntry(0xE, seqno, last_branch + 1)

    found = [(c.kind, c.content) for c in absence(3, summary(ACTIVE), new_entry)]
    assert found == [
        (Kind.ENTRY, FailoverEntry(0xE, 0, 0)),
        (Kind.STATE, PartitionState.ABSENT),
    ]


def test_what_is_owed_stands_before_the_rollback_that_takes_it() -> None:
    rollback = control(Kind.ROLLBACK, 3, 5)
    owed, then = with_all_owed(3, [rollback])
    assert (owed.kind, owed.content, then) == (Kind.OWED, (UINT64_MAX, UINT64_MAX), rollback)
    of = summary(REPLICA)
    of.owed = Owed(7, 5)
    assert memory_owed(3, of).content == (UINT64_MAX, 5)


def test_a_copy_that_becomes_active_owes_nothing() -> None:
    assert [c.kind for c in state_of_copy(3, ACTIVE)] == [Kind.STATE, Kind.OWED]
    assert [c.kind for c in state_of_copy(3, PENDING)] == [Kind.STATE]
