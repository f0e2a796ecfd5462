"""Random schedules of the document store on a disk that fails before any effect.

The classes are the real ones; the disk and the by-id map are simulated. A kill keeps what was
written (a write may be cut short); power loss keeps, of each block that was not synced, the old
bytes, the new ones or rubbish, of the directory any subset of unsynced changes, and of by-id any
state committed since its last sync, or nothing. Directories are copied, backed up and restored.
Compaction rewrites random runs of segments, and other steps come between its own.

Checked after every start, rollback and compaction and at the end:
1. nothing acknowledged as persisted is lost, and what comes back ends at a mark;
2. look-ups give the newest live records, reads as of every mark not below the history seqno are
   exact, but for tombstones at or below the purge seqno, which may be gone;
3. scans are ascending and hold each live record once;
4. no (partition, uuid, seqno) names two changes, also across copies, and no uuid that was served
   is forgotten;
5. once everything may go that is not the newest of its key, little else is left.
"""

import copy
import itertools
import random
from dataclasses import dataclass, field

import pytest

from millstream.errors import CorruptionError
from millstream.model.limits import FAILOVER_ENTRIES_MAX
from millstream.model.position import FailoverEntry
from millstream.storage.core.by_id import ById
from millstream.storage.core.log_check import check_log
from millstream.storage.core.records import Kind, key_of
from millstream.storage.core.segment_log import LogSizes, SegmentLog
from millstream.storage.core.store import FlushBatch, LogStore, StoredChange
from millstream.wire.frames import change_of, deletion, mutation, seqno_of
from support.budget import budget
from support.kv.compacting import compact, compacting
from support.kv.simulated_disk import SYNCS, Crash, SimulatedById, SimulatedDisk

SCHEDULES = budget(2000)
BATCH = 250
KEYS = (b"a", b"b", b"c")
SIZES = LogSizes(700, 2800, fill_from_bytes=1400, fill_bytes=300)


@dataclass
class Truth:
    """What one partition of one directory must hold."""

    history: list[tuple[bytes, int | None]] = field(default_factory=list)  # seqno n at n - 1
    acknowledged: int = 0
    marks: set[int] = field(default_factory=lambda: {0})
    entries: list[FailoverEntry] = field(default_factory=list)
    history_seqno: int = 0
    purge_seqno: int = 0
    served: int = 0  # entries made by starts, also those that a crash hid

    def state_at(self, at):
        return dict(self.history[:at])

    def cut(self, seqno):
        self.acknowledged = min(self.acknowledged, seqno)
        self.marks = {mark for mark in self.marks if mark <= seqno}
        self.entries = [entry for entry in self.entries if entry.seqno <= seqno]
        self.history = self.history[:seqno]
        if self.history_seqno > seqno:
            self.history_seqno = self.purge_seqno = 0


class Node:
    def __init__(self, disk, truths):
        self.disk, self.truths = disk, truths
        self.is_failing = False
        self.known_id = None
        self.is_swapped = False
        disk.before = self.before
        self.store: LogStore | None = None
        self.compaction = iter(())
        self.highs: list[int] = []
        self.queues: list[list[tuple[int, bytes, int | None]]] = []

    def before(self, kind, name):
        if self.is_failing and self.disk.rng.random() < (0.3 if kind in SYNCS else 0.08):
            raise Crash


class World:
    """One schedule."""

    def __init__(self, seed):
        self.rng, self.numbers = random.Random(seed), itertools.count(100)
        rng = self.rng
        self.lines: list[str] = []
        self.partitions = rng.choice((2, 2, 3))
        self.crashes = rng.choice((0.1, 0.2, 0.5))
        self.named: set[tuple[int, int, int]] = set()
        self.nodes = [Node(SimulatedDisk(rng, self.numbers), self.truths())]
        self.backup = self.image(self.nodes[0])
        self.steps = [self.write] * 10 + [self.flush] * 6 + [self.check] * 2 + [
            self.roll_back, self.roll_back, self.apply, self.roll, self.move_low_points, self.stop,
            self.crash, self.crash, self.copy, self.swap_by_id,
        ] + [self.compact] * 4 + [self.go_on_compacting] * 8  # fmt: skip

    def truths(self):
        return [Truth() for _ in range(self.partitions)]

    def run(self):
        for _ in range(self.rng.choice((20, 50, 90))):
            self.step(self.rng.choice(self.nodes), self.rng.choice(self.steps))
        for node in self.nodes:
            node.is_failing = False
            if node.store is None:
                self.start(node)
            self.stop(node)
            before = [truth.entries[-1] for truth in node.truths]
            self.start(node)
            assert node.store.was_clean_stop
            assert [truth.entries[-1] for truth in node.truths] == before
            self.check_offline(node)
            self.roll_a_copy_back(node)
            self.compact_all(node)

    def step(self, node, step):
        node.is_failing = self.rng.random() < (self.crashes if node.store else 0.5)
        try:
            if node.store is None:
                self.start(node)
            else:
                step(node)
        except Crash:
            self.lines.append("crash")
            self.crash(node)

    def open(self, node):
        return LogStore.open(
            node.disk, SimulatedById(node.disk), partition_count=self.partitions,
            new_entry=self.new_entry, sizes=SIZES, known_id=node.known_id,
        )  # fmt: skip

    def new_entry(self, seqno, last_branch):
        return FailoverEntry(next(self.numbers), seqno, last_branch + 1)

    def start(self, node):
        node.store = None
        for truth in node.truths:
            truth.served += 1
        try:
            store = self.open(node)
        except CorruptionError:
            if not node.is_swapped:  # only a map of another time or copy is ahead of the log
                raise
            node.disk.by_id = [{}]
            store = self.open(node)
        node.is_swapped = False
        node.known_id = store.log_id
        node.store, node.highs, node.queues = store, [], [[] for _ in node.truths]
        node.compaction = iter(())
        self.lines.append(f"start {store.was_clean_stop} {store.cut_bytes}")
        for p, truth in enumerate(node.truths):
            state = store.partition(p)
            high, log = state.high_seqno, state.failover_log
            self.lines.append(f"  p{p} high {high} of {len(truth.history)}")
            assert high >= truth.acknowledged, f"p{p}: {truth.acknowledged} lost, {high}"
            assert high in truth.marks, f"p{p}: came back at {high}, marks {truth.marks}"
            for entry in truth.entries if truth.served < FAILOVER_ENTRIES_MAX else ():
                assert entry.seqno > high or entry in log, f"p{p}: {entry} is forgotten"
            truth.cut(high)
            truth.acknowledged = high  # the start made it durable
            assert state.history_seqno >= truth.history_seqno
            truth.history_seqno, truth.purge_seqno = state.history_seqno, state.purge_seqno
            if not store.was_clean_stop:
                assert log[0] not in truth.entries
                assert log[0].seqno == high
                truth.entries.append(log[0])
            node.highs.append(high)
        self.check(node)

    # -- steps

    def write(self, node):
        p, key = self.rng.randrange(self.partitions), self.rng.choice(KEYS)
        value = next(self.numbers) if self.rng.random() < 0.65 else None
        node.store.withdraw_receipt()
        node.highs[p] += 1
        seqno = node.highs[p]
        name = p, node.store.partition(p).failover_log[0].uuid, seqno
        assert name not in self.named, f"p{p}: (uuid, seqno) {name[1:]} names two changes"
        self.named.add(name)
        node.truths[p].history.append((key, value))
        node.queues[p].append((seqno, key, value))
        self.lines.append(f"p{p}: {key!r} = {value} @{seqno}")

    def flush(self, node):
        node.store.withdraw_receipt()
        chosen = [p for p in range(self.partitions) if self.rng.random() < 0.7]
        for p in chosen:
            node.truths[p].marks.add(node.highs[p])
        commit = node.store.encode([FlushBatch.of(p, self.batch(node, p)) for p in chosen])
        node.store.append(commit)
        node.store.absorb(commit)
        for p in chosen:
            node.truths[p].acknowledged = node.highs[p]
            node.queues[p] = []
        self.lines.append(f"flush {chosen} at {commit.place}")

    def batch(self, node, p):
        newest = {key: (seqno, value) for seqno, key, value in node.queues[p]}
        return [
            self.change(node, p, seqno, key, value)
            for key, (seqno, value) in sorted(newest.items(), key=lambda item: item[1][0])
        ]

    def change(self, node, p, seqno, key, value):
        before = node.store.find(p, key)
        previous = seqno_of(before.frame) if before else 0
        if value is None:
            frame = deletion(p, key, seqno, 1, seqno, 0)
        else:
            size = self.rng.choice((0, 10, 200))
            frame = mutation(p, key, b"%d " % value + bytes(size), seqno, 1, seqno, 0, 0, 0)
        sidecar = self.rng.choice((b"", b"", b"sidecar"))
        return StoredChange(frame, previous, b"lineage", sidecar)

    def roll_back(self, node):
        p = self.rng.randrange(self.partitions)
        truth = node.truths[p]
        seqno = self.rng.randint(0, node.highs[p])
        right = max((m for m in truth.marks if truth.history_seqno <= m <= seqno), default=0)
        kept = copy.deepcopy(truth)
        truth.cut(right)  # a crash in the middle leaves the one state or the other
        truth.history, truth.marks = kept.history, kept.marks
        truth.served += 1
        state = node.store.roll_back(p, seqno)
        self.lines.append(f"p{p}: back to {seqno}: {state.high_seqno}")
        assert state.high_seqno == right, f"p{p}: back to {state.high_seqno}, not {right}"
        truth.cut(right)
        truth.entries.append(state.failover_log[0])
        node.highs[p], node.queues[p] = right, []
        self.check(node)

    def check_offline(self, node):
        """What `millstream check` says of a copy of the directory."""
        disk = node.disk.copied(self.rng, self.numbers)
        log = SegmentLog(disk, SIZES, known_id=node.known_id)
        found = check_log(log, self.partitions, ById(SimulatedById(disk)))
        assert found.segments == len(node.store._log.numbers)
        for p, truth in enumerate(node.truths):
            state = truth.state_at(node.highs[p])
            one = found.partitions[p]
            assert one.documents == sum(value is not None for value in state.values())
            assert one.high_seqno == node.highs[p]
            assert one.changes == one.documents + one.tombstones + one.replaced + one.dead

    def roll_a_copy_back(self, node):
        """A partition can be brought back to each of its marks."""
        p = self.rng.randrange(self.partitions)
        for mark in sorted(node.truths[p].marks):
            if node.truths[p].history_seqno <= mark:
                other = self.image(node)
                self.start(other)
                assert other.store.roll_back(p, mark).high_seqno == mark
                other.truths[p].cut(mark)
                self.check(other)

    def apply(self, node):
        node.store.commit_by_id()

    def roll(self, node):
        node.store.withdraw_receipt()
        node.store._log.roll()

    def move_low_points(self, node):
        p = self.rng.randrange(self.partitions)
        truth = node.truths[p]
        history = self.rng.randint(truth.history_seqno, truth.acknowledged)
        purge = self.rng.choice((truth.purge_seqno, self.rng.randint(truth.purge_seqno, history)))
        self.set_low_points(node, p, history, purge)

    def set_low_points(self, node, p, history, purge):
        truth = node.truths[p]
        before = truth.history_seqno, truth.purge_seqno
        truth.history_seqno, truth.purge_seqno = history, purge
        try:
            node.store.set_low_points({p: (history, purge)})
        except Crash:
            truth.history_seqno, truth.purge_seqno = before
            raise
        self.lines.append(f"p{p}: history {history} purge {purge}")

    # -- compaction

    def compact(self, node):
        """Begin one if none is under way, and take some steps."""
        if self.rng.random() < 0.5:
            self.move_low_points(node)
        if next(node.compaction, None) is None:
            node.compaction = self.compacting(node)
        if self.rng.random() < 0.5:
            self.go_on_compacting(node, 1000)

    def go_on_compacting(self, node, steps=20):
        for _ in range(self.rng.randint(1, steps)):
            if next(node.compaction, None) is None:
                break
        self.check(node)

    def compacting(self, node):
        """As the engine does it: other steps come between two that this yields."""

        def choose(numbers):
            begin = self.rng.randrange(len(numbers))
            run = numbers[begin : self.rng.randint(begin + 1, len(numbers))]
            self.lines.append(f"compacting {run}")
            return run

        for name in compacting(node.store, choose, is_applied=self.rng.random() < 0.5):
            if name in ("swap", "install", "remove"):
                self.lines.append(name)
                self.check(node)
            yield name

    def compact_all(self, node):
        """With low points at the end nothing is left but the newest of each key."""
        store = node.store
        store.withdraw_receipt()
        store._log.roll()
        for p, high in enumerate(node.highs):
            self.set_low_points(node, p, high, high)
        store.commit_by_id()
        compact(store)
        self.check(node)
        left = [0] * self.partitions
        rollbacks = 0
        for number in store._log.numbers:
            for record in store._log.walk(number):
                left[record.partition_id % self.partitions] += record.kind == Kind.CHANGE
                rollbacks += record.kind == Kind.ROLLBACK
        for p, truth in enumerate(node.truths):
            right = [key for key, value in truth.state_at(node.highs[p]).items() if value]
            known = [key for key in store.keys(p) if store.find(p, key)]
            assert sorted(known) == sorted(right)  # a lost by-id may come back with others
            assert left[p] == len(right), f"p{p}: {left[p]} changes left of {len(right)}"
        assert rollbacks == 0

    def stop(self, node):
        for p, truth in enumerate(node.truths):
            truth.marks.add(node.highs[p])
        commit = node.store.encode(
            [FlushBatch.of(p, self.batch(node, p)) for p in range(self.partitions)]
        )
        node.store.withdraw_receipt()
        node.store.append(commit)
        node.store.absorb(commit)
        for p, truth in enumerate(node.truths):
            truth.acknowledged = node.highs[p]
        node.store.stop()
        node.store = None
        self.lines.append("clean stop")

    def crash(self, node):
        node.store, node.is_failing = None, False
        if self.rng.random() < 0.5:
            self.lines.append("power lost")
            node.disk.lose_power()

    def image(self, node):
        image = Node(node.disk.copied(self.rng, self.numbers), copy.deepcopy(node.truths))
        image.known_id, image.is_swapped = node.known_id, node.is_swapped
        return image

    def copy(self, node):
        """A second node from a copy, a backup, or a restore of it in place."""
        if self.rng.random() < 0.5:
            self.stop(node)
        choice = self.rng.choice(("copy", "back up", "restore"))
        if choice == "copy" and len(self.nodes) < 3:
            self.nodes.append(self.image(node))
        elif choice == "back up":
            self.backup = self.image(node)
        elif choice == "restore":
            self.nodes[self.nodes.index(node)] = self.image(self.backup)
        self.lines.append(choice)

    def swap_by_id(self, node):
        """A by-id map of another time or copy, under a log of its own."""
        other = self.rng.choice([*self.nodes, self.backup])
        self.crash(node)
        node.disk.by_id = [other.disk.by_id[0]]
        node.is_swapped = True
        self.lines.append("by-id swapped")

    # -- checks

    def check(self, node):
        store = node.store
        for p, truth in enumerate(node.truths):
            persisted = store.partition(p).high_seqno
            for key in KEYS:
                found = self.name(store.find(p, key))
                right = self.newest(truth, key, persisted)
                assert self.same(truth, found, right), f"p{p} {key!r}: {found}, right is {right}"
            kept = {key for key in KEYS if not self.is_purged(truth, key, persisted)}
            known = {key for key in store.keys(p) if store.find(p, key)}  # by-id may be an old one
            assert kept <= known <= {*kept, *truth.state_at(persisted)}
            for at in sorted(truth.marks):
                if truth.history_seqno <= at <= persisted:
                    self.check_as_of(node, p, at)

    def check_as_of(self, node, p, at):
        skip = node.store.superseded(p, 0, at)
        read = [change for chunk in node.store.scan(p, 0, at, skip) for change in chunk]
        seqnos = [seqno_of(change.frame) for change in read]
        assert seqnos == sorted(set(seqnos))
        truth = node.truths[p]
        found = {key_of(change.frame): self.name(change) for change in read}
        assert len(found) == len(read)
        for key in KEYS:
            right = self.newest(truth, key, at)
            assert self.same(truth, found.get(key), right), (
                f"p{p} {key!r} as of {at}: {found.get(key)}, right is {right}"
            )

    def is_purged(self, truth, key, at):
        newest = self.newest(truth, key, at)
        return newest is None or (newest[1] is None and newest[0] <= truth.purge_seqno)

    @staticmethod
    def same(truth, found, right):
        may_be_gone = right and right[1] is None and right[0] <= truth.purge_seqno
        return found == right or (may_be_gone and found is None)

    @staticmethod
    def newest(truth, key, at):
        found = [(n, v) for n, (k, v) in enumerate(truth.history[:at], 1) if k == key]
        return found[-1] if found else None

    @staticmethod
    def name(change):
        if change is None:
            return None
        cut = change_of(change.frame)
        return cut.seqno, None if cut.is_deleted else int(cut.value.split(b" ")[0])


@pytest.mark.parametrize("first", range(0, SCHEDULES, BATCH))
def test_no_schedule_breaks_the_store(first):
    for seed in range(first, min(first + BATCH, SCHEDULES)):
        world = World(seed)
        try:
            world.run()
        except Exception as error:
            error.add_note(f"seed {seed}")
            error.add_note("\n".join(world.lines[-40:]))
            raise
