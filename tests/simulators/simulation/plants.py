"""Mistakes planted in the product, to see how soon the simulator finds them.

Each replaces one function by a wrong one while schedules run; the table in
docs/design/0008-simulator.md says within how many seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

from millstream.cluster.core import promotion
from millstream.kv.core.copies.replica_stream import Feed, Line
from millstream.kv.core.partition.acknowledgement import Acknowledged
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.partition.replica import Replica
from millstream.kv.core.queue.mutation_queue import MutationQueue
from millstream.model.position import FailoverLog, Position
from millstream.model.rows import Row
from millstream.storage.core import branches
from millstream.storage.core.commit import Control, control
from millstream.storage.core.records import Kind
from millstream.storage.core.store import LogStore
from millstream.storage.core.summary import PartitionSummary
from millstream.upr.core import barriers, decision
from millstream.upr.core.bookkeeper import Bookkeeper, Effect, Keep
from millstream.upr.core.follower import Follower
from millstream.upr.core.stream import Stream


class Plant(NamedTuple):
    what: str
    make: Callable[[], Any]
    """Returns a context in which the mistake is made."""


def swap(owner: object, name: str, wrong: Any) -> Callable[[], Any]:
    return lambda: patch.object(owner, name, wrong)


def together(*makes: Callable[[], Any]) -> Callable[[], Any]:
    @contextmanager
    def make() -> Iterator[None]:
        with ExitStack() as stack:
            for one in makes:
                stack.enter_context(one())
            yield

    return make


# -- the source


def rollback_skipped(position: Position, **asked: Any) -> int | None:
    return None


_memory_slice = MutationQueue.memory_slice


def slice_from_one_later(self: MutationQueue, after: int, *args: Any) -> Any:
    return _memory_slice(self, after + 1 if after == self.floor else after, *args)


def waits_for_what_is_sent(self: Any, stream: Stream) -> None:
    if stream.sent >= self.awaited.get(stream.partition_id, 1 << 64):
        del self.awaited[stream.partition_id]
        self.reached[stream.partition_id] = barriers.Reached(0, stream.sent)


_lose_hold = Stream._lose_hold


def forgets_the_promised_end(self: Stream) -> None:
    _lose_hold(self)
    self._end_min, self._marker_start = 0, self.sent + 1


_rollback_seqno = decision.rollback_seqno


def judged_above_the_end(position: Position, **asked: Any) -> int | None:
    """A replica judges by entries of its log above its complete end."""
    top = max(asked["high_seqno"], *(entry.seqno for entry in asked["log"]))
    return _rollback_seqno(position, **asked | {"high_seqno": top})


# -- the copy


def high_is_the_newest(self: Partition) -> int:
    return self.queue.high_seqno


def completes_without_settling(self: Replica) -> None:
    self.complete_end = self.range_end
    self._partition.queue.settled_seqno = self.complete_end


_on_opened = Replica.on_opened


def purge_not_taken_over(self: Replica, log: FailoverLog, purge_seqno: int, *high: int) -> None:
    _on_opened(self, log, 0, *high)


_activation = branches.activation


def keeps_low_points(*asked: Any) -> Iterator[Control]:
    return (one for one in _activation(*asked) if one.kind != Kind.LOW_POINTS)


def begins_at_the_top(p: int, summary: PartitionSummary, *asked: Any) -> Iterator[Control]:
    for one in _activation(p, summary, *asked):
        is_entry = one.kind == Kind.ENTRY
        yield control(one.kind, p, one.content._replace(seqno=summary.top)) if is_entry else one


_at_start = LogStore._at_start


def comes_back_active(self: LogStore, *_: object, **__: bool) -> Iterator[Control]:
    yield from _at_start(self, True, begins_absent=True)


_roll_back = LogStore.roll_back


def forgets_only_the_newest(self: LogStore, partition_id: int, seqno: int) -> Any:
    """A copy goes back less far than it was told."""
    return _roll_back(self, partition_id, self._summaries[partition_id].mark)


# -- acknowledgement and promotion

_set_rows = Acknowledged.set_rows


def half_is_a_majority(self: Acknowledged, rows: tuple[Row, ...], own: str) -> None:
    _set_rows(self, tuple(row[:-1] for row in rows), own)


def newest_branch_wins(standing: Any) -> tuple[int, int]:
    return standing.branch, standing.complete_end


def highest_end_wins(standing: Any) -> tuple[int, int]:
    return standing.complete_end, 0


# -- the reader

_opened = Bookkeeper.on_opened


def no_refetch(self: Bookkeeper, position: Position, log: FailoverLog) -> list[Effect]:
    if self._point is None and not self.kept.is_undoing and self.kept.failover_log:
        self.kept = replace(self.kept, failover_log=log, position=position)
    return _opened(self, position, log)


def load_by_branch(self: Bookkeeper, position: Position, log: FailoverLog) -> list[Effect]:
    """Documents carry the branch that they were read in."""
    effects = _opened(self, position, log)
    loaded = self.kept.loaded._replace(load=max(log[0].branch, 1))
    self.kept = replace(self.kept, loaded=loaded)
    return [*effects, Keep(self.partition_id, self.kept)]


def undoes_below_the_purge(self: Bookkeeper, position: Position, log: FailoverLog) -> list[Effect]:
    effects = _opened(self, position, log)
    if position.seqno == 0:
        self.kept = replace(self.kept, loaded=self.kept.loaded._replace(floor=0))
        effects.append(Keep(self.partition_id, self.kept))
    return effects


_load_anew = Bookkeeper._load_anew


def undoes_below_a_later_purge(self: Bookkeeper, *stands: Any) -> list[Effect]:
    effects = _load_anew(self, *stands)
    self.kept = replace(self.kept, loaded=self.kept.loaded._replace(floor=0))
    return [*effects, Keep(self.partition_id, self.kept)]


_on_advanced = Follower.on_advanced


def start_at_the_first_item(self: Follower, seqno: int) -> bool:
    is_first = self.position.seqno == self.position.snap_start > 0
    is_complete = _on_advanced(self, seqno)
    if is_first and not is_complete:
        self.position = self.position._replace(snap_start=seqno)
    return is_complete


_start_again = Bookkeeper.start_again


def bare_position(self: Bookkeeper) -> tuple[Position, FailoverLog]:
    (uuid, seqno, *_), log = _start_again(self)
    return Position(uuid, seqno, seqno, seqno), log


def reader_of(name: str, wrong: Any) -> Callable[[], Any]:
    return swap(Bookkeeper, name, wrong)


PLANTS: dict[str, Plant] = {
    "rollback_skipped": Plant(
        "a source tells nobody to go back", swap(decision, "rollback_seqno", rollback_skipped)
    ),
    "rollback_too_short": Plant(
        "a copy goes back to its newest mark, wherever it was told to",
        swap(LogStore, "roll_back", forgets_only_the_newest),
    ),
    "memory_switch": Plant(
        "memory is read from one seqno too late after the log",
        swap(MutationQueue, "memory_slice", slice_from_one_later),
    ),
    "early_barrier": Plant(
        "a barrier comes back when enough was sent, be it inside a snapshot",
        swap(barriers._Barrier, "on_step", waits_for_what_is_sent),
    ),
    "diverted_marker": Plant(
        "a slow reader's snapshot goes on in the log as if it were a new one",
        swap(Stream, "_lose_hold", forgets_the_promised_end),
    ),
    "judged_above_end": Plant(
        "a replica judges positions by entries above its complete end",
        swap(decision, "rollback_seqno", judged_above_the_end),
    ),
    "end_inside_snapshot": Plant(
        "a copy shows, acknowledges and is promoted at what it has inside a snapshot",
        swap(Partition, "high_seqno", property(high_is_the_newest)),
    ),
    "complete_not_owed": Plant(
        "a copy drops versions below its complete end for newer ones",
        swap(Replica, "_complete", completes_without_settling),
    ),
    "replica_purge": Plant(
        "a copy that loads from 0 does not take over its source's purge seqno",
        swap(Replica, "on_opened", purge_not_taken_over),
    ),
    "purge_kept": Plant(
        "a copy promoted inside its first load keeps the purge seqno of that load",
        swap(branches, "activation", keeps_low_points),
    ),
    "entry_at_top": Plant(
        "a promotion begins its history at the top, not at the complete end",
        swap(branches, "activation", begins_at_the_top),
    ),
    "restart_as_active": Plant(
        "an active copy that was killed serves again at once",
        swap(LogStore, "_at_start", comes_back_active),
    ),
    "no_fencing": Plant(
        "a copy follows a source of a lower branch than it has promised",
        together(
            swap(Replica, "accepts", lambda self, log: True),
            swap(Line, "is_stale", property(lambda self: False)),
            swap(Feed, "_accepts", staticmethod(lambda line, branch: True)),
        ),
    ),
    "promise_not_looked_at": Plant(
        "a stream goes on after its copy has promised a later branch",
        swap(Line, "is_stale", property(lambda self: False)),
    ),
    "half_is_a_majority": Plant(
        "one copy too few is taken for a majority",
        swap(Acknowledged, "set_rows", half_is_a_majority),
    ),
    "stale_acknowledgement": Plant(
        "what was acknowledged in one history counts in another",
        swap(Acknowledged, "_check_epoch", lambda self: None),
    ),
    "own_disk_is_durable": Plant(
        "durable-only readers get what one copy has on disk",
        swap(Partition, "_lasting_seqno", property(lambda self: self.persisted_seqno)),
    ),
    "always_intact": Plant(
        "a copy that lost its memory counts as an answer to a promotion",
        swap(Replica, "is_intact", property(lambda self: True)),
    ),
    "always_whole": Plant(
        "a copy that was rolled back or lost its files counts as an answer",
        swap(Replica, "is_whole", property(lambda self: True)),
    ),
    "newest_branch_wins": Plant(
        "promotion goes by the newest branch of the log, not the one at the end",
        swap(promotion, "_reach", newest_branch_wins),
    ),
    "highest_end_wins": Plant(
        "promotion goes by the highest seqno, whatever its history",
        swap(promotion, "_reach", highest_end_wins),
    ),
    "purge_not_held_back": Plant(
        "deletions are forgotten that streams have still to send",
        swap(Partition, "purge_limit", lambda self: self.high_seqno),
    ),
    "history_not_held_back": Plant(
        "versions are let go that a frozen view still reads",
        swap(Partition, "history_limit", lambda self: self.high_seqno),
    ),
    "no_refetch": Plant(
        "a reader does not fetch its ring again when history is another",
        reader_of("on_opened", no_refetch),
    ),
    "sweep_by_branch": Plant(
        "a reader sweeps by branch instead of load", reader_of("on_opened", load_by_branch)
    ),
    "ring_floor": Plant(
        "a reader undoes below the purge seqno at which its load began",
        reader_of("on_opened", undoes_below_the_purge),
    ),
    "ring_floor_anew": Plant(
        "a reader undoes below the purge seqno at which it loaded anew",
        reader_of("_load_anew", undoes_below_a_later_purge),
    ),
    "own_snap_start": Plant(
        "a position's snapshot starts at its first item, not at the complete end before it",
        swap(Follower, "on_advanced", start_at_the_first_item),
    ),
    "bare_position": Plant(
        "the snapshot's range is not kept", reader_of("start_again", bare_position)
    ),
}
