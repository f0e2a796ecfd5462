"""One run of a job: where it begins, batches side by side, checkpoints, its end.

Events come in with the time, effects go out; who carries them out is elsewhere.

Invariants:
1. A checkpoint is made of a place only when everything before it was written or is listed.
2. If the target may have lost what was written, or the source no longer has what it named, nothing
   of it is recorded: the run goes back to where both logs agree.
3. Documents on the list of exceptions are tried again when a run begins, and while it goes on:
   `RETRY_REFUSED_MIN_MS` after the last new one, then at twice the distance each time.
4. At most `worker_processes` batches are under way; changes are not read ahead of them.
5. A run that was once incomplete stays so, and so do those that go on from its checkpoints.

Elsewhere: starts, batches and checkpoints (`starting`, `batches`, `checkpointing`), when a run is
repeated (`scheduling`), sockets and clocks (`aio.runner`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from millstream.errors import MillstreamError, UnavailableError
from millstream.replication.core.asking import (
    Changes,
    Failure,
    Feed,
    Page,
    Pause,
    Row,
    StoreRecords,
    feed_of,
)
from millstream.replication.core.batches import Batch, Done
from millstream.replication.core.checkpointing import Checkpoint, checkpoint
from millstream.replication.core.coverage import Record, may_be_carried, member_to_json
from millstream.replication.core.jobs import Job
from millstream.replication.core.logs import (
    EXCEPTIONS_MAX,
    Entry,
    Statistics,
    http_date,
)
from millstream.replication.core.places import NOWHERE, Place
from millstream.replication.core.reading import UNREADABLE, WAIT_MS, Reader
from millstream.replication.core.starting import Chain, Pair, Started, started
from millstream.replication.core.tasks import Effect, Steps, Tasks, asked, may_go_well
from millstream.replication.core.tracking import Mark, Tracker

__all__ = [
    "FAILURES_TOLD", "GOING_BACK_MAX", "MISSING_MAX", "RETRIED_AT_ONCE", "RETRY_REFUSED_MAX_MS",
    "RETRY_REFUSED_MIN_MS", "UNRECORDED_MAX", "Outcome", "Run",
]  # fmt: skip

GOING_BACK_MAX: Final = 10
"""How often a run goes back without a checkpoint in between before it fails."""
MISSING_MAX: Final = 3
"""A run goes back at most this often for a document that the source named and does not have."""
UNRECORDED_MAX: Final = 3
"""Checkpoints in a row that may fail before the run fails."""
FAILURES_TOLD: Final = 10
"""How many of the last refused documents are named."""
RETRIED_AT_ONCE: Final = 100
"""Refused documents that are tried again with one request for their changes."""
RETRY_REFUSED_MIN_MS: Final = 60_000
"""A continuous run tries a refused document again after this time."""
RETRY_REFUSED_MAX_MS: Final = 3_600_000


class Outcome(NamedTuple):
    """How a run ended."""

    error: MillstreamError | None = None
    """None: it read all changes."""


class Run:
    """One run.

    Args:
        job: what to do.
        new_id: makes an id that nobody else makes, for each checkpoint.
    """

    def __init__(self, job: Job, new_id: Callable[[], str]) -> None:
        self.job = job
        self.outcome: Outcome | None = None
        self.statistics = Statistics()
        self.entries: list[Entry] = []
        """The newest checkpoint of this run, if there is one."""
        self.skipped = 0
        """Changes that it did not read since they came through others."""
        self.via: set[str] = set()
        """Names of those."""
        self.failures: dict[str, Failure] = {}
        """The newest failures of documents that the target does not have, by id."""
        self.pending: int | None = None
        """Changes that the source had left behind what was read last, if it says so."""
        self.rows_seen = 0
        """Changes that were read, those of batches under way among them."""
        self._new_id = new_id
        self._tasks = Tasks()
        self._now_ms = self._begun_ms = 0.0
        self._feed = feed_of(job)
        self._went_back = 0
        self._missed: dict[str, int] = {}
        self._reset()

    def _reset(self) -> None:
        self._started: Started | None = None
        self._tracker = Tracker(NOWHERE)
        self._reader = Reader(self.job.worker_batch_size)
        self._chain = Chain(is_complete=False, purge_epoch=0)
        self._first = self._first_page = self._read_to = self._recorded = NOWHERE
        self._is_reading = self._is_recording = self._is_waiting = self._is_retrying = False
        self._retry_ms, self._retry_wait_ms = 0.0, float(RETRY_REFUSED_MIN_MS)
        self._is_caught_up = self._has_ended = False
        self._unrecorded = 0
        self._told: set[tuple[str, Any, Any]] = set()
        self._next_ms = self._coverage_ms = self._parts_ms = 0.0

    # ---- in and out

    def start(self, now_ms: float) -> list[Effect]:
        """Begin; return what is to be done first."""
        self._now_ms = self._begun_ms = now_ms
        self._begin()
        return self._tasks.take()

    def answer(self, ticket: int, value: Any, now_ms: float) -> list[Effect]:
        """An effect's answer is here; return what is to be done next."""
        self._now_ms = now_ms
        self._tasks.answer(ticket, value)
        return self._tasks.take()

    def fail(self, ticket: int, error: MillstreamError, now_ms: float) -> list[Effect]:
        """An effect was refused; return what is to be done next."""
        self._now_ms = now_ms
        self._tasks.fail(ticket, error)
        return self._tasks.take()

    @property
    def place(self) -> Place:
        """Up to where everything is done."""
        return self._tracker.at.place

    @property
    def pair(self) -> Pair | None:
        """The two databases, once they are known."""
        return None if self._started is None else self._started.pair

    @property
    def started(self) -> Started | None:
        """Where it began, once that is known."""
        return self._started

    @property
    def told(self) -> dict[str, Any]:
        """Times and counts of this run so far, as a history has them."""
        statistics = self.statistics._asdict()
        del statistics["rows_read"]
        return {
            "start_time": http_date(self._begun_ms),
            "end_time": http_date(self._now_ms),
            "start_last_seq": self._first.seq,
            "end_last_seq": self.place.seq,
            **statistics,
        }

    @property
    def trouble(self) -> str:
        """Why changes cannot be read at the moment; empty: they can."""
        return self._reader.trouble

    @property
    def dropped(self) -> int:
        """Refusals of documents that are not tried again, since they were too many to remember."""
        before = 0 if self._started is None else self._started.chain.dropped
        in_log = self.entries[-1].dropped if self.entries else 0
        return max(before + self._tracker.dropped, in_log)

    @property
    def has_changed_nothing(self) -> bool:
        """Whether there was nothing to do."""
        return not self.statistics.rows_read and not self.entries

    def _end(self, error: MillstreamError | None) -> None:
        self._tasks.close()
        self.outcome = Outcome(error)

    # ---- beginning

    def _begin(self) -> None:
        self._reset()
        self._tasks.spawn(started(self.job), self._on_started)

    def _go_back(self, why: str) -> None:
        """Forget everything since the last checkpoint, and go on from there."""
        self._tasks.close()
        self._went_back += 1
        if self._went_back > GOING_BACK_MAX:
            self._end(UnavailableError(f"{why}, again and again", code="unavailable"))
            return
        self._begin()

    def _on_started(self, begun: Started, error: MillstreamError | None) -> None:
        if error is not None:
            self._end(error)
            return
        self._started, self._chain = begun, begun.chain
        self._first = self._read_to = begun.place
        self._recorded = begun.place if not begun.is_new else NOWHERE
        member = begun.pair.member
        names = [n for n in begun.chain.exceptions if member is None or member.admits(n)]
        self._tracker = Tracker(begun.place, names, begun.chain.leaves)
        self._next_ms = self._now_ms + self.job.checkpoint_interval_ms
        self._coverage_ms = self._now_ms
        self._parts_ms = self._next_ms
        self._retry_later(RETRY_REFUSED_MIN_MS)
        if names:
            self._tasks.spawn(self._retried(), self._on_retried)
        else:
            self._on_retried(None, None)

    def _retry_later(self, wait_ms: float) -> None:
        self._retry_wait_ms = min(wait_ms, RETRY_REFUSED_MAX_MS)
        self._retry_ms = self._now_ms + self._retry_wait_ms

    def _retried(self) -> Steps[Done]:
        """Try the exceptions again.

        Where a filter looks into documents, the leaves are asked for that it let pass when they
        were refused. Where these are not known, only the feed itself can tell.
        """
        assert self.pair is not None
        names, leaves = sorted(self._tracker.exceptions), dict(self._tracker.leaves)
        whole, rest = Done(frozenset(), (), frozenset(), Statistics()), list[str]()
        if self.pair.looks_inside:
            rest = [name for name in names if name not in leaves]
            names = [name for name in names if name in leaves]
        else:
            leaves = {}
        for at in range(0, len(names), RETRIED_AT_ONCE):
            done = yield from self._retried_by_id(names[at : at + RETRIED_AT_ONCE], leaves)
            whole = whole.plus(done)
        try:
            if rest:
                done = yield from self._retried_of(rest, self._feed, {})
                whole = whole.plus(done)
        except MillstreamError as error:
            if error.code != UNREADABLE:
                raise
        return whole

    def _retried_by_id(
        self, names: list[str], leaves: Mapping[str, tuple[str, ...]]
    ) -> Steps[Done]:  # fmt: skip
        """Try some of them again; those that the source cannot answer for stay refused."""
        feed = Feed(self._feed.style, tuple(names))
        try:
            return (yield from self._retried_of(names, feed, leaves))
        except MillstreamError as error:
            if error.code != UNREADABLE:
                raise
            if len(names) == 1:
                failure = Failure(names[0], "", error.code, str(error))
                return Done(frozenset(), (failure,), frozenset(), Statistics(), leaves)
        middle = len(names) // 2
        done = yield from self._retried_by_id(names[:middle], leaves)
        other = yield from self._retried_by_id(names[middle:], leaves)
        return done.plus(other)

    def _retried_of(
        self, names: list[str], feed: Feed, leaves: Mapping[str, tuple[str, ...]]
    ) -> Steps[Done]:
        """Try some of them again that a feed has.

        One leaves the list only if what it is now shows that the target has what it was at the
        place where the run begins: not if deletions may have been forgotten, or revisions purged,
        since then, not if it is gone, and not if one of `leaves` is a leaf no more.
        """
        limit = self.job.worker_batch_size if feed.doc_ids is None else len(names)
        reader, wanted = Reader(limit), frozenset(names)
        rows: dict[str, Row] = {}
        since, is_sound = 0, True
        while not reader.is_at_end:
            page: Page = yield from reader.page(Changes(since, limit, feed))
            rows |= {row.name: row for row in page.rows if row.name in wanted}
            since = page.place.seq
            is_sound = is_sound and page.is_complete and self._is_as_pure(page)
        done = yield from Batch([_kept(row, leaves) for row in rows.values()]).steps()
        accepted = done.accepted - _moved_on(rows, leaves) if is_sound else frozenset[str]()
        return done._replace(accepted=accepted, leaves={**done.leaves, **leaves})

    def _is_as_pure(self, page: Page) -> bool:
        """Whether the source was purged no more than when the run began, or read first."""
        begun = self._first.vector or self._first_page.vector
        return page.place.vector is None or (
            begun is not None and page.place.vector.purge_epoch == begun.purge_epoch
        )

    def _on_retried(self, done: Done | None, error: MillstreamError | None) -> None:
        if error is not None:
            self._end(error)
            return
        if done is not None:
            self._settle(0, done)
        assert self._started is not None
        if self._started.used:
            place = self._started.place
            is_closed = place.vector is None or place.vector.is_closed
            self._record(Mark(place, is_closed), self._on_begun)
        else:
            self._on_begun(None, None)

    def _settle(self, number: int, done: Done) -> None:
        self._tracker.settle(number, done)
        self._count(done)

    def _on_begun(self, entry: Entry | None, error: MillstreamError | None) -> None:
        begun = self._started
        assert begun is not None
        if begun.used:
            if error is not None:
                self._end(error)
                return
            if not self._is_recorded(entry, error):
                return
            self.skipped += begun.skipped
            self.via.update(name for record in begun.used for name in record.via)
        ours = tuple(member_to_json(m) for m in ([begun.pair.member] if begun.pair.member else []))
        replaced = (each for each in begun.used if _is_replaced(each, begun.pair, ours))
        removed = (*begun.unknown, *(each.name for each in replaced))
        if removed:
            self._tasks.spawn(asked("target", StoreRecords((), removed)), self._on_removed)
        else:
            self._go_on()

    def _on_removed(self, _: None, error: MillstreamError | None) -> None:
        self._go_on()  # records that stay make nothing wrong: the origin does not confirm them

    # ---- reading and writing

    def _go_on(self) -> None:
        if self.outcome is not None:
            return
        may_read = self._tracker.pending < self.job.worker_processes
        if may_read and not self._is_reading and not self._has_ended:
            self._is_reading = True
            self._tasks.spawn(self._page(), self._on_page)
        self._retry_refused()
        if self._is_due() and not self._is_recording:
            self._record(self._tracker.at, self._on_checkpoint)
        elif not self._is_recording and self._is_behind() and not self._is_waiting:
            self._is_waiting = True
            self._tasks.spawn(_paused(self._next_ms - self._now_ms), self._on_time)
        is_over = self._has_ended and not self._tracker.pending
        if is_over and not self._is_recording and not self._is_reading:
            self._end(None)

    def _retry_refused(self) -> None:
        """In a run that has no end, try again from time to time what the target refused."""
        is_due = self.job.continuous and not self._is_retrying and self._now_ms >= self._retry_ms
        if is_due and self._tracker.exceptions:
            self._is_retrying, number = True, self._tracker.newest
            self._tasks.spawn(
                self._retried(), lambda done, failed: self._on_again(number, done, failed)
            )

    def _on_again(self, number: int, done: Done, error: MillstreamError | None) -> None:
        if error is not None:
            self._end(error)
            return
        self._is_retrying = False
        self._settle(number, done)
        self._retry_later(2 * self._retry_wait_ms)
        self._go_on()

    def _on_time(self, _: None, error: MillstreamError | None) -> None:
        assert error is None, "a pause raises nothing"
        self._is_waiting = False
        self._go_on()

    def _page(self) -> Steps[Page]:
        waits = self.job.continuous and self._is_caught_up
        puller = ""
        pair = self.pair
        assert pair is not None
        if self.job.transitive and pair.source.uuid and self._coverage_ms <= self._now_ms:
            puller = pair.target.uuid
        takes_parts = bool(puller) and self._parts_ms <= self._now_ms
        if takes_parts:  # it costs the source a look at all logs and records
            self._parts_ms = self._now_ms + self.job.checkpoint_interval_ms
        return (yield from self._reader.page(Changes(
            self._read_to.seq, self.job.worker_batch_size, self._feed, WAIT_MS if waits else 0,
            puller, takes_parts,
        )))  # fmt: skip

    def _on_page(self, page: Page, error: MillstreamError | None) -> None:
        self._is_reading = False
        if error is not None:
            self._end(error)
            return
        if not page.is_complete:
            self._chain = self._chain._replace(is_complete=False)
        if self._first_page is NOWHERE:
            self._first_page = page.place
        self._read_to, self.pending = page.place, page.pending
        self.rows_seen += len(page.rows)
        self._is_caught_up = self._reader.is_at_end
        self._has_ended = self._is_caught_up and not self.job.continuous
        number = self._tracker.opened(self._mark_of(page))
        self._tasks.spawn(
            Batch(page.rows).steps(), lambda done, failed: self._on_batch(number, done, failed)
        )
        self._go_on()

    def _mark_of(self, page: Page) -> Mark:
        vector = page.place.vector
        is_closed = self._reader.is_at_end if vector is None else vector.is_closed
        fresh = [
            each
            for each in page.records
            if self.job.use_checkpoints
            and _said_by(each) not in self._told
            and may_be_carried(each, page.place, is_closed=is_closed)
        ]
        self._told |= set(map(_said_by, fresh))
        if fresh and is_closed:
            self._coverage_ms = self._now_ms + self.job.checkpoint_interval_ms
        return Mark(page.place, is_closed, tuple(fresh))

    def _on_batch(self, number: int, done: Done, error: MillstreamError | None) -> None:
        if error is not None:
            self._end(error)
            return
        self._count(done)
        if any(self._is_missed(name) for name in sorted(done.missing)):
            self._go_back("the source does not have what it names")
            return
        if done.refused - self._tracker.exceptions:
            self._retry_later(RETRY_REFUSED_MIN_MS)
        self._tracker.ended(number, done)
        self._go_on()

    def _is_missed(self, name: str) -> bool:
        """Whether to go back for a document that the source named and does not have."""
        self._missed[name] = self._missed.get(name, 0) + 1
        return self._missed[name] <= MISSING_MAX

    def _count(self, done: Done) -> None:
        self.statistics = self.statistics.plus(done.statistics)
        for name in done.accepted:
            self.failures.pop(name, None)
        for failure in done.failures[-FAILURES_TOLD:]:
            self.failures.pop(failure.name, None)
            self.failures[failure.name] = failure
        while len(self.failures) > FAILURES_TOLD:
            del self.failures[next(iter(self.failures))]

    # ---- checkpoints

    def _is_behind(self) -> bool:
        """Whether there is something to record."""
        at = self._tracker.at
        return self.job.use_checkpoints and (
            self._tracker.is_held or at.place.seq != self._recorded.seq
        )

    def _is_due(self) -> bool:
        is_last = self._has_ended and not self._tracker.pending
        is_time = self._tracker.is_held or is_last or self._now_ms >= self._next_ms
        return is_time and self._is_behind()

    def _record(self, mark: Mark, done: Callable[[Any, MillstreamError | None], None]) -> None:
        assert self._started is not None
        self._is_recording = True
        exceptions = self._tracker.exceptions
        if len(exceptions) > EXCEPTIONS_MAX:
            self._chain = self._chain._replace(is_complete=False)
        dropped = self._started.chain.dropped + self._tracker.dropped
        leaves = self._tracker.leaves if self._started.pair.looks_inside else {}
        chain = self._chain._replace(exceptions=exceptions, dropped=dropped, leaves=dict(leaves))
        wanted = Checkpoint(self._new_id(), mark, chain, self._what_was_done(mark), self._now_ms)
        self._tasks.spawn(checkpoint(self._started.pair, wanted), done)

    def _what_was_done(self, mark: Mark) -> dict[str, Any]:
        return self.told | {"end_last_seq": mark.place.seq}

    def _is_recorded(self, entry: Entry | None, error: MillstreamError | None) -> bool:
        self._is_recording = False
        if error is not None:
            self._unrecorded += 1
            if not may_go_well(error) or self._unrecorded >= UNRECORDED_MAX:
                self._end(error)
            else:
                self._next_ms = self._now_ms + self.job.checkpoint_interval_ms
                self._go_on()
            return False
        if entry is None:
            self._go_back("what was written may be lost")
            return False
        self._recorded, self._unrecorded = entry.place, 0
        self._chain = self._chain._replace(
            is_complete=self._chain.is_complete and entry.is_complete
        )
        self.entries = [entry]
        self._went_back = 0
        self._next_ms = self._now_ms + self.job.checkpoint_interval_ms
        return True

    def _on_checkpoint(self, entry: Entry | None, error: MillstreamError | None) -> None:
        if self._is_recorded(entry, error):
            self._missed.clear()
            assert entry is not None
            self._tracker.recorded(entry.place)
            self._go_on()


def _kept(row: Row, leaves: Mapping[str, tuple[str, ...]]) -> Row:
    """Return a row without other leaves than these, if they are known."""
    known = leaves.get(row.name)
    return row if known is None else row._replace(revs=tuple(set(known) & set(row.revs)))


def _moved_on(rows: Mapping[str, Row], leaves: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Return the documents of which one of these revisions is a leaf no more."""
    return {name for name, row in rows.items() if not set(leaves.get(name, ())) <= {*row.revs}}


def _said_by(record: Record) -> tuple[str, Any, Any]:
    """Return what tells a record, or a part of it, from others."""
    return record.name, record.stamp, record.place.seq


def _is_replaced(record: Record, pair: Pair, ours: tuple[dict[str, Any], ...]) -> bool:
    theirs = tuple(member_to_json(member) for member in record.members)
    return record.origin == pair.source_name and theirs == ours


def _paused(wait_ms: float) -> Steps[None]:
    yield Pause(max(0.0, wait_ms))
