"""What the log has to say when a copy promises a branch, becomes active in one, or loses changes.

Invariants:
1. A promise stands before the state that it ends: wherever a crash cuts, a copy that stood down
   for it has promised.
2. A history begins at the copy's mark. What lies above belongs to it, and its end becomes a mark;
   low points come down to its beginning.
3. What a copy owes stands before the rollback that takes it: wherever a crash cuts, a copy that
   lost something says so.

Elsewhere: writing it (`store`), what it means once it is read again (`summary`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from millstream.model.limits import UINT64_MAX
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.storage.core.commit import Control, control
from millstream.storage.core.records import NOTHING_OWED, Kind, LowPoints, Owed
from millstream.storage.core.summary import PartitionSummary

__all__ = [
    "absence",
    "activation",
    "memory_owed",
    "promise",
    "state_of_copy",
    "take_over_ended",
    "with_all_owed",
]

_SERVING: Final = (PartitionState.ACTIVE, PartitionState.PENDING)


def promise(p: int, summary: PartitionSummary, branch: int) -> Iterator[Control]:
    """Later branches are larger than this one; a copy that serves, or is about to, stands down."""
    if branch > summary.last_branch:
        yield control(Kind.BRANCH, p, branch)
    if summary.state in _SERVING:
        yield control(Kind.STATE, p, PartitionState.REPLICA)


def activation(
    p: int,
    summary: PartitionSummary,
    new_entry: Callable[[int, int], FailoverEntry],
    branch: int | None,
) -> Iterator[Control]:
    """A new history begins at the newest mark, and this copy is active in it.

    `branch`: that it promised last, and no history has; None: one larger than any.
    """
    mark = summary.mark
    entry = new_entry(mark, summary.last_branch)
    if branch is not None:
        assert summary.failover_log[0].branch < branch == summary.last_branch
        entry = entry._replace(branch=branch)
    assert entry.seqno == mark
    if max(summary.low_points) > mark:
        low_points = LowPoints(*(min(point, mark) for point in summary.low_points))
        yield control(Kind.LOW_POINTS, p, low_points)
    yield control(Kind.ENTRY, p, entry)
    yield from state_of_copy(p, PartitionState.ACTIVE)
    if summary.top > mark:
        yield control(Kind.MARK, p, summary.top)


def take_over_ended(p: int, summary: PartitionSummary) -> Iterator[Control]:
    """A stop ends a take-over: its copy follows again."""
    if summary.state is PartitionState.PENDING:
        yield control(Kind.STATE, p, PartitionState.REPLICA)


def absence(
    p: int, summary: PartitionSummary, new_entry: Callable[[int, int], FailoverEntry]
) -> Iterator[Control]:
    """A copy has nothing. A branch that no history was written in is older than any."""
    yield control(Kind.ENTRY, p, new_entry(0, summary.last_branch)._replace(branch=0))
    yield control(Kind.STATE, p, PartitionState.ABSENT)


def state_of_copy(p: int, state: PartitionState) -> Iterator[Control]:
    """A copy plays another part; an active one has everything by definition."""
    yield control(Kind.STATE, p, state)
    if state is PartitionState.ACTIVE:
        yield control(Kind.OWED, p, NOTHING_OWED)


def memory_owed(p: int, summary: PartitionSummary) -> Control:
    """What a copy had in memory is lost: it owes that until somebody says how far it was."""
    return control(Kind.OWED, p, Owed(UINT64_MAX, summary.owed.disk))


def with_all_owed(p: int, rollback: Iterable[Control]) -> Iterator[Control]:
    """A copy goes back, or has nothing: it owes all it ever acknowledged."""
    yield control(Kind.OWED, p, Owed(UINT64_MAX, UINT64_MAX))
    yield from rollback
