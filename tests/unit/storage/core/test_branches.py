import pytest

from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.storage.core.branches import activation, promise
from millstream.storage.core.records import Kind, LowPoints
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


def test_an_active_copy_has_its_history_and_what_lies_above_the_mark() -> None:
    entry = FailoverEntry(0xE, 6, 5)
    of = summary(REPLICA, top=9)
    assert [c.kind for c in activation(3, of, entry)] == [Kind.ENTRY, Kind.STATE, Kind.MARK]
    of.low_points = LowPoints(8, 7)
    found = {c.kind: c.content for c in activation(3, of, entry)}
    assert found == {
        Kind.LOW_POINTS: LowPoints(6, 6),
        Kind.ENTRY: entry,
        Kind.STATE: ACTIVE,
        Kind.MARK: 9,
    }
    of.top, of.low_points = 6, LowPoints(6, 6)
    assert [c.kind for c in activation(3, of, entry)] == [Kind.ENTRY, Kind.STATE]
