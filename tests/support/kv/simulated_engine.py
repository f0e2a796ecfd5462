"""A bucket of the real parts over a simulated disk, stepped by hand and checked against a model.

Partitions, queue, leases, flush plan and log store are those of a running bucket; threads, timers
and the disk are the test's. A commit is frozen, appended and absorbed in three steps, by-id is
applied piece by piece, readers go chunk by chunk, with anything between them.

Invariants, each an assertion:
1. What was acknowledged as persisted is there after every start; what comes back ends at a mark,
   has its failover log and low points, and a new entry unless the stop was clean.
2. A waiter is told once, not before its change is durable and not later.
3. A reader with positions comes to the end, and held at the end of each snapshot what the history
   it read from had there.

Elsewhere: what can be read (`engine_checks`), what is right (`engine_model`), copies and what they
follow (`simulated_copies`), leases (`simulated_leases`), evicted documents (`simulated_reading`).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from struct import Struct
from typing import Final
from unittest.mock import patch

from millstream.documents.stored import load, pack
from millstream.errors import CorruptionError, UnavailableError
from millstream.kv.aio.engine import _newest_cas
from millstream.kv.core import flush
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.moves import restore
from millstream.kv.core.flush import FlushPlan, GroupCommit
from millstream.kv.core.partition.eviction import Evictor
from millstream.kv.core.partition.memory import Memory
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.partition.revision_changes import write_document
from millstream.kv.core.partition.states import STREAMED
from millstream.kv.core.partition.with_meta import given_change, store_given
from millstream.model.position import FailoverEntry, FailoverLog
from millstream.storage.core.compaction import Compaction
from millstream.storage.core.segment_log import LogSizes
from millstream.storage.core.store import EncodedCommit, LogStore
from millstream.upr.core.source import Hold
from millstream.wire.mcbp import Opcode, Packet, Status
from support.http.revised_documents import signature, with_leaf
from support.kv.compacting import mark, rewrite
from support.kv.engine_checks import KEYS, Read
from support.kv.engine_model import (
    BUCKET,
    FAILOVER_ENTRIES,
    NEVER_CREATE,
    SECOND,
    PartitionModel,
    with_revision,
)
from support.kv.simulated_copies import ACTIVE, EngineCopies, Outcome
from support.kv.simulated_disk import Crash, Fault, SimulatedById, SimulatedDisk
from support.kv.simulated_leases import EngineLeases
from support.kv.simulated_reading import SimulatedReading
from support.streams.stream_line import Line

PARTITIONS: Final = 2
NOW: Final = 1_700_000_000 * SECOND
SIZES: Final = LogSizes(700, 2800, fill_from_bytes=1400, fill_bytes=300)
COMMIT_CHANGES: Final = 8
"""After which a commit takes no further partition: so few that some must wait."""
PROMPT_SHARE: Final = 0.7
"""Of the requests that wait for a thread, those for which nothing else happens meanwhile."""
PUT, DELETE, INCREMENT, GIVE, REVISE = 0, 6, 8, 10, 11
"""What `write` does."""


@dataclass(eq=False)
class Commit:
    plan: GroupCommit
    encoded: EncodedCommit
    shown: list[int]
    """What of each partition others may rely on once it is durable."""
    is_appended: bool = False


class SimulatedEngine(EngineCopies, EngineLeases):
    """One directory, and the process that serves it, if it lives."""

    def __init__(self, seed: int) -> None:
        self.rng, self.numbers = random.Random(seed), itertools.count(1000)
        self.disk = SimulatedDisk(self.rng, self.numbers)
        self.disk.before = self._before
        self.fault: Fault | None = None
        self.struck: Fault | None = None
        self.models = [PartitionModel(p) for p in range(PARTITIONS)]
        self.now, self.monotonic = NOW, 0
        window_bytes = self.rng.choice((1, 100, 1000, 100_000))
        self.line = Line(self.rng, PARTITIONS, self._documents, window_bytes)
        self.is_alive = False
        self.undecided: dict[int, list[Outcome]] = {}
        """What a step which was cut short may have left of a partition."""
        self.undecided_states = {}
        self.sources = {}
        self._forget()

    @classmethod
    def beside_the_end_of_a_block(cls, seed: int) -> SimulatedEngine:
        """One with a past: few writes from here on cross blocks of the queue."""
        past, engine = _past(), cls(seed)
        engine.numbers = itertools.count(1_000_000)
        engine.disk = past.disk.copied(engine.rng, engine.numbers)
        engine.disk.before = engine._before
        engine.models = [model.copy() for model in past.models]
        return engine

    def _forget(self) -> None:
        """What only the process has."""
        self.line.cut()
        self.commit: Commit | None = None
        self.applying: Iterator[None] | None = None
        self.compacting: Iterator[str] | None = None
        self.compaction: Compaction | None = None
        self.is_swapped = self.must_rest = False
        self.holds: list[tuple[int, Hold]] = []
        self.reads: list[Read] = []
        self.waiting: set[tuple[int, int]] = set()
        self.reading = SimulatedReading()
        self.following = set()
        self.leases = []
        self.is_memory_bound = False

    # -- faults

    def _before(self, kind: str, name: str) -> None:
        fault = self.fault
        if fault is not None and fault.strikes(kind):
            self.fault, self.struck = None, fault
            raise fault.error(kind)

    def attempt(self, step: Callable[[], object]) -> None:
        """A step that meets the disk."""
        try:
            step()
        except (Crash, OSError, UnavailableError) as error:
            self._survive(error)

    def _survive(self, error: Crash | OSError | UnavailableError) -> None:
        """Go on if only the disk is full, else die as the fault says."""
        assert self.struck is not None, "an error without a fault"
        if isinstance(error, UnavailableError) and error.code == "disk_full" and self.is_alive:
            assert self.struck.kind == "full"
            return
        self.die(is_power_lost=self.struck.kind == "power")

    def die(self, *, is_power_lost: bool) -> None:
        if self.is_alive:
            self.store.close()
        self.is_alive = False
        self._forget()
        if is_power_lost:
            self.disk.lose_power()

    # -- start and stop

    def start(self) -> None:
        while not self.is_alive:  # as often as it takes
            self.attempt(self._open)
        self._check_start()

    def _open(self) -> None:
        store = LogStore.open(
            self.disk, SimulatedById(self.disk), partition_count=PARTITIONS,
            new_entry=self._new_entry, sizes=SIZES,
        )  # fmt: skip
        store.withdraw_receipt()
        reader = self.reading.reader(store, self._damaged)
        self.memory = Memory()
        partitions, newest = [], _newest_cas(store)
        for p, found in enumerate(store.partitions):
            partition = Partition(
                p, failover_log=found.failover_log, high_seqno=found.high_seqno,
                purge_seqno=found.purge_seqno, is_resident=not store.has_records(p),
                log=reader, last_cas=newest[p], queue_bytes_max=1 << 20, memory=self.memory,
                state=found.state, last_branch=found.last_branch, top_seqno=found.top_seqno,
                range_end=found.range_end, owed=found.owed,
            )  # fmt: skip
            partitions.append(partition)
        self.bucket = Bucket(
            "b", BUCKET, partitions, new_lease_id=lambda: next(self.numbers),
            now_ns=lambda: self.now, monotonic_ns=lambda: self.monotonic,
        )  # fmt: skip
        self.plan: FlushPlan[tuple[int, int]] = FlushPlan(partitions)
        self.evictor = Evictor(partitions, self.memory)
        self.store = store
        self.is_alive = True

    def _damaged(self, error: CorruptionError) -> None:
        raise AssertionError("damage was met") from error

    def _new_entry(self, seqno: int, last_branch: int) -> FailoverEntry:
        """Of a branch that nobody has given, also where a crash took what others told: a clock."""
        number = next(self.numbers)
        return FailoverEntry(number, seqno, max(last_branch + 1, number))

    def _check_start(self) -> None:
        for p, model in enumerate(self.models):
            found = self.store.partition(p)
            came_back = found.high_seqno, found.history_seqno, found.purge_seqno
            low_points = model.history_seqno, model.purge_seqno
            right = [(m, *low_points) for m in sorted(model.marks) if m >= model.acknowledged]
            right += self.undecided.pop(p, [])
            assert came_back in right, f"p{p} came back at {came_back}, not one of {right}"
            mark, model.history_seqno, model.purge_seqno = came_back
            self.check_copy(p, found)
            if model.complete_end is None:
                model.cut(mark)
            model.acknowledged = mark
            self._check_failover_log(model, found.failover_log)
            self.undecided_states.pop(p, None)
        self.check_marks()

    def _check_failover_log(self, model: PartitionModel, log: tuple[FailoverEntry, ...]) -> None:
        """A start that was cut short may have left entries that nobody was told of."""
        p = model.partition_id
        assert len(log) <= FAILOVER_ENTRIES
        if model.complete_end is None or p in self.undecided_states:
            for entry in model.entries:
                is_kept = entry in log or len(log) == FAILOVER_ENTRIES
                assert entry.seqno > model.shown or is_kept, f"p{p}: {entry} was served, is gone"
        else:
            assert list(reversed(log)) in (model.entries, *model.logged)
        assert [e.branch for e in log] == sorted({e.branch for e in log}, reverse=True)
        assert [e.seqno for e in log] == sorted((e.seqno for e in log), reverse=True)
        if not self.store.was_clean_stop and model.complete_end is None:
            assert log[0] not in model.entries, f"p{p}: no new entry after an unclean stop"
            assert log[0].seqno == model.high
        model.entries, model.logged = list(reversed(log)), [list(reversed(log))]
        model.last_cas = self.bucket.partitions[p].last_cas
        cas = [made.cas for made in model.history if made is not None]
        kept = [made.cas for made in model.as_of(model.high) if not model.may_be_gone(made)]
        assert max(kept, default=0) <= model.last_cas <= max(cas, default=0)

    def settle(self) -> None:
        """Nothing is under way."""
        self.flush()
        self.step_by_id(10_000)

    def stop(self) -> None:
        """Cleanly."""
        self.settle()
        self.store.stop()
        self.is_alive = False
        self._forget()

    def copy(self) -> None:
        """Go on with a copy of the directory, stopped or not."""
        assert not self.is_alive
        self.disk = self.disk.copied(self.rng, self.numbers)
        self.disk.before = self._before

    # -- clients

    def burst(self, p: int, seed: int, count: int) -> None:
        rng = random.Random(seed)
        for _ in range(count):
            key, is_odd = rng.choice(KEYS), rng.random() < 0.3
            self.write(p, key, rng.randrange(12), rng.randrange(6), is_odd=is_odd)

    def write(self, p: int, key: bytes, op: int, n: int, *, is_odd: bool) -> None:
        """One request of a client; the answer must be the model's, whenever it comes."""
        self._ask(p, lambda: self._write(p, key, op, n, is_odd=is_odd))

    def _ask(self, p: int, call: Callable[[], object]) -> None:
        self.reading.ask(self.bucket.partitions[p], call)
        if self.rng.random() < PROMPT_SHARE:
            self.reading.finish()

    def _write(self, p: int, key: bytes, op: int, n: int, *, is_odd: bool) -> None:
        self._notice_purged(p, key)
        if op == REVISE:
            self._revise(p, key, n, is_deleted=is_odd)
            return
        found, now = self.models[p].newest(key), self.now
        cas = found.cas + (n % 2) if found and is_odd else 0
        value = b"%d" % n * (1 + 40 * (n == 5))
        expiry = now // SECOND + n if is_odd and n else 0
        given = max(now, self.models[p].last_cas) + 5, (found.rev if found else 0) + n + 1
        done: list[object] = []
        for one in (self.bucket.partitions[p], self.models[p]):
            match op:
                case _ if op == GIVE:
                    answer = self._give(one, key, None if is_odd else value, n, given)
                case 4:
                    answer: object = one.add(key, value, n, expiry, n & 1, now)
                case 5:
                    answer = one.replace(key, value, n, expiry, cas, n & 1, now)
                case _ if op == DELETE:
                    answer = one.delete(key, cas, now)
                case 7:
                    answer = one.touch(key, expiry, now)
                case _ if op == INCREMENT:
                    answer = one.count(key, n - 2, n, NEVER_CREATE if is_odd else 0, cas, now)
                case 9:
                    answer = one.extend(key, b"<" * n, b">", cas, 60, now)
                case _:
                    answer = one.put(key, value, n, expiry, cas, n & 1, now)
            done.append(answer)
        assert done[0] == done[1], f"p{p} {key!r} op {op}: {done[0]!r}, right is {done[1]!r}"

    def _give(
        self,
        one: Partition | PartitionModel,
        key: bytes,
        value: bytes | None,
        n: int,
        given: tuple[int, int],
    ) -> bytes | Status:
        """A change as it was elsewhere, which stays whatever is there."""
        cas, rev = given
        expiry = self.now // SECOND + n if value is None or n else 0
        if isinstance(one, PartitionModel):
            return one.give(key, value, n, expiry, cas, rev, n & 1, self.now)
        extras = Struct(">IIQQI").pack(n, expiry, rev, cas, 0x08)
        packet = Packet(0x80, Opcode.SET_WITH_META, n & 1, 0, 0, 0, b"", extras, key, value or b"")
        change = given_change(packet, knows_lineage=False)
        assert not isinstance(change, Status)
        return store_given(one, packet, change, self.now, is_deletion=value is None)

    def _revise(self, p: int, key: bytes, n: int, *, is_deleted: bool) -> None:
        """One more leaf of a document's revisions; what is there is read first."""
        partition, model = self.bucket.partitions[p], self.models[p]
        partition.live(key, self.now)
        model.live(key, self.now)
        entry, made = partition.entry(key), model.newest(key)
        if made is not None and made.seqno in model.forgotten:
            made = None
        rev, body = f"{n + 1}-{signature(next(self.numbers))}", b'{"n":%d}' % n
        packed = with_revision(made, rev, body, is_deleted=is_deleted)
        found = None if entry is None else load(BUCKET, key, entry.frame, entry.side)
        assert pack(with_leaf(found, rev, body, is_deleted=is_deleted)) == packed
        frame = write_document(partition, key, *packed, self.now)
        assert frame == model.revise(key, packed, self.now)

    def _notice_purged(self, p: int, key: bytes) -> None:
        """Whether a purged tombstone is still there is up to compaction; both are right."""
        model = self.models[p]
        made = model.newest(key)
        is_purged = made is not None and model.may_be_gone(made)
        if made and is_purged and self.bucket.partitions[p].newest(key) is None:
            model.forgotten.add(made.seqno)

    def get(self, p: int, key: bytes) -> None:
        self._ask(p, lambda: self._get(p, key))

    def _get(self, p: int, key: bytes) -> None:
        found = self.bucket.partitions[p].live(key, self.now)
        right = self.models[p].live(key, self.now)
        assert found == (right and right.frame)

    def evict(self, share: int, steps: int) -> None:
        """Let documents go, down to a share of what there is, as far as they may."""
        self.memory.low_bytes = self.memory.table_bytes * share // 4
        for _ in range(steps):
            if not self.evictor.step() and not self.evictor.press():
                return

    # -- holds and readers

    def hold(self, p: int, n: int, start: int | None = None) -> Hold | None:
        """Freeze the present state, or take one that is held, or a mark of the log, or any seqno.

        None: any seqno that nobody kept.
        """
        model, partition = self.models[p], self.bucket.partitions[p]
        held = [hold.at for q, hold in self.holds if q == p]
        marks = [m for m in sorted(model.marks) if model.history_seqno <= m <= model.acknowledged]
        choices = [None, *held[-2:], *marks[-3:], model.high // 2]
        at = choices[n % len(choices)]
        hold = partition.open_hold(at, start)
        is_kept = at in held or (at is None and model.shown == model.high)
        if partition.state not in STREAMED:
            assert hold is None
        elif is_kept or (at and at in marks and at <= partition.persisted_seqno):
            assert hold is not None, f"p{p}: {at} cannot be held"
        if hold is not None:
            assert hold.at == (model.shown if at is None else at)
        return hold

    def keep_hold(self, p: int, n: int) -> None:
        hold = self.hold(p, n)
        if hold is not None:
            self.holds.append((p, hold))

    def release(self, n: int) -> None:
        p, hold = self.holds.pop(n % len(self.holds))
        self.bucket.partitions[p].release_hold(hold)
        assert not self.bucket.partitions[p].is_held(hold)

    def begin_read(self, p: int, after: int, n: int) -> None:
        hold = self.hold(p, n, after)
        if hold is not None:
            after = min(after, hold.at)
            read = Read(p, hold, after, self.models[p].purge_seqno, after)
            self.bucket.partitions[p].add_reader(read)
            self.reads.append(read)

    # -- streams

    def follow(self, count: int) -> None:
        """A reader of all partitions takes some bytes; it keeps its positions for ever."""
        if self.line.consumer is None:
            self.line.connect(self.bucket)
        self.line.ask_again()
        self.line.producer.on_news()
        for _ in range(count):
            self.line.exchange()

    def _follow_to_the_end(self) -> None:
        self.line.window_bytes = 100_000
        self.line.disconnect()
        for _ in range(200):
            self.follow(20)
            positions = [reader.position for reader in self.line.readers]
            if [at.seqno for at in positions] == [model.high for model in self.models]:
                assert all(at.is_closed for at in positions)
                return
        raise AssertionError(f"readers do not come to the end: {positions}")

    def _documents(self, p: int, seqno: int, branch: int) -> dict[bytes, bytes]:
        return self.sources.get(p, self.models[p]).documents(seqno, branch)

    # -- the flusher

    def freeze(self) -> None:
        """Take the next commit, if anything changed."""
        for p, model in enumerate(self.models):
            waiter = p, model.shown
            if waiter not in self.waiting and self.plan.wait(*waiter, waiter):
                self.waiting.add(waiter)
        with patch.object(flush, "COMMIT_CHANGES_MAX", COMMIT_CHANGES):
            planned = self.plan.freeze()
        if planned is None:
            assert all(model.shown == model.acknowledged for model in self.models)
            return
        for partition, seqno in zip(planned.partitions, planned.seqnos, strict=True):
            model = self.models[partition.partition_id]
            assert seqno == model.high
            model.marks.add(model.shown)
            model.logged.append(list(model.entries))
        shown = [self.models[partition.partition_id].shown for partition in planned.partitions]
        self.commit = Commit(planned, self.store.encode(planned.batches), shown)

    def append(self) -> None:
        commit = self.commit
        assert commit is not None
        self.store.append(commit.encoded)
        commit.is_appended = True
        for partition, shown in zip(commit.plan.partitions, commit.shown, strict=True):
            model = self.models[partition.partition_id]
            model.acknowledged, model.logged = shown, model.logged[-1:]

    def absorb(self) -> None:
        assert self.commit is not None
        self.store.absorb(self.commit.encoded)
        for p, seqno in self.plan.persisted(self.commit.plan):
            assert (p, seqno) in self.waiting, f"p{p}: told twice of {seqno}"
            assert seqno <= self.models[p].acknowledged, f"p{p}: told of {seqno} too early"
            self.waiting.discard((p, seqno))
        late = {(p, s) for p, s in self.waiting if s <= self.bucket.partitions[p].persisted_seqno}
        assert not late, f"not told: {late}"
        self.commit = None

    def flush(self) -> None:
        """All there is, the commit under way first."""
        self._finish_commit()
        while self.plan.is_dirty():
            self.freeze()
            self._finish_commit()

    def _finish_commit(self) -> None:
        if self.commit is not None:
            if not self.commit.is_appended:
                self.append()
            self.absorb()

    def take_by_id(self) -> None:
        self.applying = self.store.by_id_steps(self.store.take_by_id())

    def step_by_id(self, steps: int) -> None:
        for _ in range(steps):
            if self.applying is None:
                return
            try:
                next(self.applying)
            except StopIteration:
                self.applying = None
            except UnavailableError:
                self.applying = None
                raise

    # -- the log's history

    @contextmanager
    def _undecided(self, p: int, *states: Outcome) -> Iterator[None]:
        """If the step is cut short, the next start finds the state before or one of these."""
        self.undecided[p] = list(states)
        try:
            yield
        except UnavailableError as error:
            if error.code == "disk_full":
                del self.undecided[p]
            raise
        del self.undecided[p]

    def move_low_points(self, p: int, history_share: int, purge_share: int) -> None:
        """By quarters of what readers allow."""
        self.settle()
        model, partition = self.models[p], self.bucket.partitions[p]
        limit = min(model.acknowledged, partition.history_limit())
        history = max(model.history_seqno, limit * history_share // 4)
        limit = min(history, partition.purge_limit())
        purge = max(model.purge_seqno, limit * purge_share // 4)
        self.check_purge(p, purge)
        with self._undecided(p, (model.acknowledged, history, purge)):
            self.store.set_low_points({p: (history, purge)})
        model.history_seqno, model.purge_seqno = history, purge
        partition.purge_seqno = purge

    def compact(self, seed: int, steps: int) -> None:
        """Go on with a compaction, or begin one: of a random run, with by-id up to date or not."""
        if self.compacting is None:
            rng = random.Random(seed)
            self.compacting = self._compacting(rng, is_applied=rng.random() < 0.7)
        for _ in range(steps):
            if self.compacting is not None and not (self.must_rest and self.applying is not None):
                self._step_compaction()

    def tidy(self, p: int, seed: int) -> None:
        """Let go of all that may go, and compact it at once."""
        self.settle()
        self.store._log.roll()
        while self.is_swapped:  # what was swapped is always installed
            self._step_compaction()
        self.move_low_points(p, 4, 4)
        self.compacting = self.compaction = None
        self.must_rest = False
        self.compact(seed, 10_000)

    def _compacting(self, rng: random.Random, *, is_applied: bool) -> Iterator[str]:
        store = self.store
        if is_applied:
            self.settle()
            store.commit_by_id()
        yield from mark(store)
        numbers = [counts.number for counts in store.reclaiming.may_rewrite()]
        if numbers:
            begin = rng.randrange(len(numbers))
            run = numbers[begin : rng.randint(begin + 1, len(numbers))]
            yield from rewrite(store, run, self._begun)

    def _begun(self, compaction: Compaction) -> None:
        self.compaction = compaction

    def _step_compaction(self) -> None:
        """One step; without space for it the compaction is given up, and the process lives."""
        assert self.compacting is not None
        try:
            step = next(self.compacting, "end")
        except (OSError, UnavailableError):
            assert self.struck is not None
            if self.struck.kind != "full":
                raise
            if self.compaction is not None and not self.is_swapped:
                self.compaction.abandon()
            step = "end"
        self.is_swapped |= step == "swap"
        self.must_rest = step == "rest"
        if self.must_rest and self.is_swapped:
            self.flush()  # what follows is done while nothing is appended
        if step == "end":
            self.compacting = self.compaction = None
            self.is_swapped = False
        if step in ("install", "remove", "end"):
            self.check_marks()

    def roll_back(self, p: int, seqno: int) -> None:
        """Of the running partition, with what it has that no commit took."""
        self._finish_commit()
        self.step_by_id(10_000)
        model, partition = self.models[p], self.bucket.partitions[p]
        right = model.rollback_target(min(seqno, model.high))
        kept = right >= model.history_seqno
        low_points = (model.history_seqno, model.purge_seqno) if kept else (0, 0)
        with self._maybe(p, model.state), self._undecided(p, (right, *low_points)):
            found = self.store.roll_back(p, seqno)
        assert found.high_seqno == right, f"p{p}: back to {found.high_seqno}, not {right}"
        assert (found.history_seqno, found.purge_seqno) == low_points
        self._check_rolled_back(model, found.failover_log, right)
        restore(partition, found)
        told = set(self.plan.undone(partition))
        assert told == {(q, at) for q, at in self.waiting if q == p and at > right}
        self.waiting -= told
        model.cut(right)
        model.entries = list(reversed(found.failover_log))
        model.logged = [list(model.entries)]
        model.range_end = right
        self.following.discard(p)
        self.holds = [(q, hold) for q, hold in self.holds if partition.is_held(hold) or q != p]
        assert all(q != p for q, _ in self.holds)
        self.lose_leases(p)
        self.check_marks()

    @staticmethod
    def _check_rolled_back(model: PartitionModel, log: FailoverLog, right: int) -> None:
        """An active copy begins another history there, others go on in their source's."""
        is_active = model.complete_end is None
        before = model.entries if is_active else model.logged[-1]
        kept = [entry for entry in before if entry.seqno <= right]
        if is_active:
            assert log[0] not in before
            assert log[0].seqno == right
            kept.append(log[0])
        assert list(reversed(log)) == (kept or before[:1])[-FAILOVER_ENTRIES:]

    def finish(self) -> None:
        """A clean stop and a start after it keep everything, the histories too."""
        self.fault = None
        if not self.is_alive:
            self.start()
        self.reading.finish()
        for p, model in enumerate(self.models):
            if model.state is not ACTIVE:
                self.set_state(p, ACTIVE)
        self._follow_to_the_end()
        before = [list(model.entries) for model in self.models]
        self.stop()
        self.start()
        assert self.store.was_clean_stop
        assert [model.entries for model in self.models] == before
        self.check()


@cache
def _past() -> SimulatedEngine:
    engine = SimulatedEngine(0)
    engine.start()
    for p, high in ((0, 1010), (1, 2035)):
        for key in KEYS:
            engine.write(p, key, PUT, 0, is_odd=False)
        while engine.models[p].high < high:
            engine.write(p, KEYS[0], INCREMENT, 3, is_odd=False)
    engine.stop()
    return engine
