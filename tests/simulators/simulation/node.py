"""One simulated node: the real bucket and log over a disk that fails, and its copies.

Invariants, each an assertion:
1. A copy reads as of its complete end what its history says, after each start, snapshot,
   promotion, rollback and compaction; only tombstones that may be purged can be missing.
2. Its position is the one its stream says, message by message.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.kv.aio.copies import Copies
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.collaborators import Collaborators
from millstream.kv.core.copies.copy_status import standing_of
from millstream.kv.core.copies.feed_effects import Undo
from millstream.kv.core.flush import FlushPlan, GroupCommit
from millstream.kv.core.partition.eviction import Evictor
from millstream.kv.core.partition.memory import Memory
from millstream.kv.core.partition.partition import Partition, value_of
from millstream.kv.core.partition.states import FOLLOWING
from millstream.kv.core.queue.entry import Entry
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverLog, Position
from millstream.model.standing import Standing
from millstream.storage.core.records import key_of
from millstream.storage.core.segment_log import LogSizes
from millstream.storage.core.store import EncodedCommit, LogStore
from millstream.upr.core.source import Hold
from millstream.wire.frames import change_of, seqno_of
from millstream.wire.mcbp import Opcode
from simulators.simulation.following import Following
from simulators.simulation.link import Link, done
from simulators.simulation.truth import Change, name_of, replay
from support.kv.compacting import compact
from support.kv.simulated_disk import Crash, SimulatedById, SimulatedDisk
from support.kv.simulated_reading import SimulatedReading

if TYPE_CHECKING:
    from simulators.simulation.world import World

KEYS = (b"a", b"b", b"c", b"d")
SIZES = LogSizes(700, 2800, fill_from_bytes=1400, fill_bytes=300)
ACTIVE, REPLICA = PartitionState.ACTIVE, PartitionState.REPLICA
SECOND = 1_000_000_000
EVICTION_STEPS = 8
VIEWS_MAX = 2
"""Frozen views of one copy at a time."""


async def no_pause(_: float) -> None:
    """Time does not pass while a copy is moved."""


class Flushing:
    """The flusher and its thread as moves of copies use it: everything is done at once."""

    def __init__(self, node: Node) -> None:
        self.node = node

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        self.node.finish_commit()
        yield

    async def flush(self, partition: Partition) -> None:
        self.node.flush()

    async def in_thread(
        self, function: Callable[..., Any], *args: object, **options: object
    ) -> Any:
        return function(*args, **options)

    def undone(self, partition: Partition) -> None:
        self.node.plan.undone(partition)


class Node:
    """One directory, and the process that serves it, if it lives."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.is_down = self.is_isolated = False
        self.copies = [Copy(self, p) for p in range(self.partition_count)]
        self.new_disk()
        self.start()

    def new_disk(self) -> None:
        self.disk = SimulatedDisk(self.world.rng, self.world.numbers)

    # -- what a node of another world has otherwise

    bucket_uuid = "00"
    moves_kind: type[Copies] = Copies

    @property
    def partition_count(self) -> int:
        """Of its bucket."""
        return self.world.partition_count

    def alone(self) -> set[int]:
        """Partitions that no other node has a copy of."""
        return set()

    def monotonic_ns(self) -> int:
        """By its own clock."""
        return 0

    def now_ms(self) -> int:
        """When it is, for its streams."""
        return self.world.now_ns // 1_000_000

    def place(self) -> None:
        """Say which copies count."""
        self.bucket.begin(self.world.map, None, self.name)

    def calm(self, kind: str, name: str) -> None:
        """What effects of the disk meet while no crash is near."""

    def start(self) -> None:
        def damaged(error: Exception) -> None:
            raise AssertionError("nothing is damaged here") from error

        world = self.world
        self.store = store = LogStore.open(
            self.disk, SimulatedById(self.disk), partition_count=self.partition_count,
            new_entry=world.new_entry, sizes=SIZES, is_alone=self.alone(), begins_absent=True,
        )  # fmt: skip
        store.withdraw_receipt()
        self.memory = Memory()
        self.reading = SimulatedReading()
        reader = self.reading.reader(store, damaged)
        self.partitions = [
            Partition(
                p, failover_log=found.failover_log, high_seqno=found.high_seqno,
                purge_seqno=found.purge_seqno, is_resident=not store.has_records(p),
                log=reader, state=found.state, last_branch=found.last_branch,
                top_seqno=found.top_seqno, range_end=found.range_end, owed=found.owed,
                memory=self.memory,
            )
            for p, found in enumerate(store.partitions)
        ]  # fmt: skip
        self.bucket = Bucket(
            "b", self.bucket_uuid, self.partitions, new_lease_id=lambda: 1,
            now_ns=lambda: world.now_ns, monotonic_ns=self.monotonic_ns,
            collaborators=self._collaborators,
        )  # fmt: skip
        self.plan: FlushPlan[None] = FlushPlan(self.partitions)
        self.evictor = Evictor(self.partitions, self.memory)
        self.moves.subscribe_moved(self.on_moved)
        self.place()
        self.commit: tuple[GroupCommit, EncodedCommit] | None = None
        self.served: set[Link] = set()
        self.following: dict[Node, Following] = {}
        for copy in self.copies:
            copy.check("started")

    def _collaborators(self, bucket: Bucket) -> Collaborators:
        self.moves = self.moves_kind(bucket, self.store, Flushing(self), no_pause)  # type: ignore[arg-type]
        return Collaborators(copies=self.moves)

    @property
    def is_reached(self) -> bool:
        """By whoever promotes."""
        return not (self.is_down or self.is_isolated)

    # -- the disk

    def freeze(self) -> None:
        """A group commit takes what there is; it is on its way to the disk from here on."""
        if self.commit is None:
            plan = self.plan.freeze()
            if plan is not None:
                self.commit = plan, self.store.encode(plan.batches)

    def finish_commit(self) -> None:
        if self.commit is not None:
            plan, encoded = self.commit
            self.store.append(encoded)
            self.store.absorb(encoded)
            self.plan.persisted(plan)
            self.commit = None
            self.bucket.made_durable()

    def flush(self) -> None:
        """Everything."""
        self.finish_commit()
        self.freeze()
        self.finish_commit()

    def tend(self) -> None:
        """Something that goes on by itself."""
        rng = self.world.rng
        dice = rng.random()
        if dice < 0.5:
            self.finish_commit()
            self.compact()
        elif dice < 0.75:
            self.finish_commit()
            self.store.commit_by_id()
        else:
            self.evict(rng.randint(0, 3))

    def evict(self, quarters: int) -> None:
        """Keep so much of the documents in memory."""
        self.memory.low_bytes = self.memory.table_bytes * quarters // 4
        for _ in range(EVICTION_STEPS):
            if not self.evictor.step() and not self.evictor.press():
                break

    def compact(self, *, is_full: bool = False) -> None:
        """Let go of what nobody needs, all of it or as far as luck says."""
        rng = self.world.rng
        for copy in self.copies:
            copy.move_low_points(is_full=is_full)
        self.store._log.roll()
        compact(self.store, lambda n: n[: len(n) if is_full else rng.randint(1, len(n))])
        for copy in self.copies:
            copy.check("compacted")

    # -- its end

    @contextmanager
    def may_crash(self, chance: float) -> Iterator[None]:
        """The process may die at an effect of the disk."""
        rng = self.world.rng
        if rng.random() < chance:
            left = [rng.randint(0, 4)]

            def before(kind: str, name: str) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise Crash
                self.calm(kind, name)

            self.disk.before = before
        try:
            yield
        except Crash:
            self.disk.before = self.calm
            self.die()
        finally:
            self.disk.before = self.calm

    def crash(self) -> None:
        if self.world.rng.random() < 0.6:
            with self.may_crash(1.0):
                self.flush()
        if not self.is_down:
            self.die()

    def die(self) -> None:
        world = self.world
        world.trace(f"{self.name} dies, {[copy.describe() for copy in self.copies]}")
        self.hang_up()
        world.inherits = []
        self.is_down = True
        for copy in self.copies:
            copy.pending, copy.promised = [], copy.last_branch
        if world.rng.random() < 0.5:
            self.disk.lose_power()

    def hang_up(self) -> None:
        """All connections are gone, both ways."""
        for link in list(self.served):
            link.cut(is_server_gone=True)
        self.served.clear()
        self.cut_all()

    def cut_all(self) -> None:
        """What it follows is out of reach."""
        for following in list(self.following.values()):
            following.cut()

    def on_moved(self, partition_id: int) -> None:
        """A copy became another: what the replicator does."""
        for following in list(self.following.values()):
            if partition_id not in following.wanted:
                continue
            if self.partitions[partition_id].state in FOLLOWING:
                following.feed.follow(partition_id)
                following.feed.look(partition_id)
            else:
                following.leave(partition_id)

    def lose_files(self) -> None:
        """Replaced by an empty one."""
        self.world.trace(f"{self.name} loses its files")
        self.die()
        self.new_disk()

    def restart(self) -> None:
        self.is_down = False
        self.start()
        for copy in self.copies:
            if copy.partition.state is PartitionState.ABSENT:
                self.world.admit(copy)
        self.world.trace(f"{self.name} is back, {[copy.describe() for copy in self.copies]}")


class View(NamedTuple):
    """A frozen view that somebody holds, and what it must show."""

    partition: Partition
    epoch: int
    hold: Hold
    right: dict[bytes, bytes]

    def is_held_by(self, partition: Partition) -> bool:
        """Whether it can still be read: neither lost, nor of a process or history that is gone."""
        is_same = partition is self.partition and partition.epoch == self.epoch
        return is_same and partition.is_held(self.hold)


class Copy:
    """One copy of one partition; what of it outlives the process."""

    def __init__(self, node: Node, partition_id: int) -> None:
        self.node, self.world, self.partition_id = node, node.world, partition_id
        self.pending: list[tuple[Change, str, int]] = []
        """Changes that a client waits for, the level, and the epoch they belong to."""

        self.views: list[View] = []
        self.promised = 0
        """What it had heard of when its process died last: the cluster remembers for it."""

    @property
    def last_branch(self) -> int:
        return max(self.promised, self.partition.last_branch)

    @property
    def name(self) -> str:
        return f"{self.node.name}/{self.partition_id}"

    def describe(self) -> str:
        partition, replica = self.partition, self.partition.replica
        state, log = partition.state.name.lower(), [tuple(e) for e in partition.failover_log]
        where = f"high {self.end}" if replica is None else str(tuple(replica.position))
        return f"{self.name} {state} {where} durable {partition.persisted_seqno} {log}"

    # -- what it holds

    @property
    def partition(self) -> Partition:
        return self.node.partitions[self.partition_id]

    @property
    def is_active(self) -> bool:
        return not self.node.is_down and self.partition.state is ACTIVE

    @property
    def is_replica(self) -> bool:
        return not self.node.is_down and self.partition.state is REPLICA

    @property
    def may_follow(self) -> bool:
        return not self.node.is_down and self.partition.state in FOLLOWING

    @property
    def end(self) -> int:
        """What may be acknowledged, read by others, and promoted at."""
        return self.partition.high_seqno

    def stands(self) -> tuple[Position, FailoverLog]:
        """As a reader of its source."""
        replica = self.partition.replica
        assert replica is not None
        return replica.position, self.partition.failover_log

    is_settled = True

    @property
    def branch(self) -> int:
        return self.partition.failover_log[0].branch

    def history(self) -> list[Change]:
        return self.world.truth.history(self.partition.failover_log, self.end)

    def values(self) -> dict[bytes, bytes]:
        frames = {key: self.newest(key) for key in KEYS}
        return {
            key: value_of(frame)
            for key, frame in frames.items()
            if frame is not None and frame[1] == Opcode.DCP_MUTATION
        }

    def entry(self, key: bytes) -> Entry | None:
        """The newest change of a key, wherever it is."""
        found: list[Entry | None] = []
        self.node.reading.wait_for(lambda: found.append(self.partition.entry(key)))
        return found[-1]

    def newest(self, key: bytes) -> bytes | None:
        entry = self.entry(key)
        return None if entry is None else entry.frame

    def is_purgeable(self, seqno: int, value: bytes | None) -> bool:
        return value is None and seqno <= self.partition.purge_seqno

    def documents(self, purge_seqno: int) -> dict[bytes, tuple[bytes, bytes]]:
        """Frames, with CAS and revision, and lineages, but tombstones that may be gone."""
        entries = [self.entry(key) for key in KEYS]
        return {
            entry.key: (entry.frame, entry.side)
            for entry in entries
            if entry is not None
            and (entry.frame[1] == Opcode.DCP_MUTATION or seqno_of(entry.frame) > purge_seqno)
        }

    def check(self, when: str) -> None:
        """What it can be read as of is what its history says."""
        partition, end = self.partition, self.end
        if end and partition.state in (ACTIVE, REPLICA):
            hold = partition.open_hold(None)
            if hold is None:  # holds were lost inside a snapshot, and the log is behind
                assert end < partition.queue.high_seqno
                return
            assert hold.at == end
            frames = list(read_all(partition, hold.at, is_logged=hold.is_logged))
            partition.release_hold(hold)
            found = {name_of(frame) for frame in frames}
            newest = {change.key: change for change in self.history()}
            right = {(change.seqno, change.value) for change in newest.values()}
            gone = {name for name in right - found if self.is_purgeable(*name)}
            assert found == right - gone, f"{self.name} {when}, {end}: {found}, right is {right}"
        self.check_views()
        partition.queue.check()

    # -- frozen views

    def look(self) -> None:
        """Somebody opens a frozen view of the present state, or gives one up."""
        partition = self.partition
        if len(self.views) == VIEWS_MAX:
            view = self.views.pop(0)
            if view.is_held_by(partition):
                partition.release_hold(view.hold)
        elif partition.state in (ACTIVE, REPLICA) and (hold := partition.open_hold()) is not None:
            self.views.append(View(partition, partition.epoch, hold, replay(self.history())))

    def check_views(self) -> None:
        """As long as they are held they can be read."""
        partition = self.partition
        self.views = [view for view in self.views if view.is_held_by(partition)]
        for view in self.views:
            at = view.hold.at
            frames = read_all(partition, at, is_logged=view.hold.is_logged)
            found = {key_of(f): value_of(f) for f in frames if f[1] == Opcode.DCP_MUTATION}
            assert found == view.right, f"{self.name}, view of {at}: {found}, not {view.right}"

    # -- what clients do

    def write(self, key: bytes, value: bytes | None, level: str, expiry: int = 0) -> None:
        def change() -> None:
            if value is None:
                self.partition.delete(key, 0, self.world.now_ns)
            else:
                self.partition.put(key, value, 0, expiry, 0, 0, self.world.now_ns)

        self._change(key, value, level, change)

    def expire(self, key: bytes) -> None:
        now_ns = self.world.now_ns
        self._change(key, None, "memory", lambda: self.partition.expire(key, now_ns))

    def _change(self, key: bytes, value: bytes | None, level: str, change) -> None:
        world, partition = self.world, self.partition
        assert self.is_active
        known = {made.key: made for made in self.history()}.get(key)
        before = partition.high_seqno
        self.node.reading.wait_for(change)
        if partition.high_seqno == before:
            return  # there was nothing to delete, nothing is due
        assert partition.high_seqno == before + 1 or value is None
        entry = self.entry(key)
        assert entry is not None
        if (
            known
            and change_of(entry.frame).rev == 1
            and self.is_purgeable(known.seqno, known.value)
        ):
            known = None
        made = world.truth.written(partition, entry, known, value)
        if level != "memory":
            self.pending.append((made, level, partition.epoch))

    def take_acknowledged(self) -> list[tuple[Change, str]]:
        """The changes whose clients are told now that they are what they asked for."""
        partition = self.partition
        reached = {"majority": partition.majority_seqno, "persisted": partition.durable_seqno}
        waiting = [one for one in self.pending if one[2] == partition.epoch]
        done = [one for one in waiting if one[0].seqno <= reached[one[1]]]
        self.pending = [one for one in waiting if one not in done]
        return [one[:2] for one in done]

    # -- what happens to it

    def set_state(self, state: PartitionState, *, is_hand_over: bool = False) -> None:
        done(self.node.moves.set_state(self.partition_id, state, is_hand_over=is_hand_over))

    def stand_down(self) -> None:
        """Serve no document."""
        if self.is_active:
            self.set_state(REPLICA)

    def following(self) -> list[Following]:
        """The connections by which it is to follow somebody; more than one where it moves."""
        return [f for f in self.node.following.values() if self.partition_id in f.wanted]

    def is_fed_by(self, source: Copy) -> bool:
        """Whether it follows that copy now, and the other side knows."""
        known = source.partition.acknowledged
        return known is not None and self.node.name in known._following

    def promise(self, branch: int) -> bool:
        """To whoever promotes; then it follows nobody of a lower branch."""
        p = self.partition_id
        return bool(done(self.node.moves.promise([p], branch)) == [p])

    def follow_again(self) -> None:
        """Stopped for a hand-over, or waiting for one in vain: be a replica."""
        if self.partition.state in (PartitionState.DEAD, PartitionState.PENDING):
            self.set_state(REPLICA)

    def standing(self) -> Standing:
        return standing_of(self.partition)

    def activate(self, branch: int, end: int) -> bool:
        """Begin a new history at the complete end, as promised."""
        partition, p = self.partition, self.partition_id
        mark, top = self.end, partition.queue.high_seqno
        with self.passing_on():
            is_done = done(self.node.moves.activate(branch, {p: end})) == [p]
        if is_done:
            found = self.node.store.partition(p)
            assert partition.failover_log[0][1:] == (mark, branch)
            assert found.purge_seqno <= found.history_seqno <= mark
            assert partition.purge_seqno == found.purge_seqno
            assert self.end == top
            self.check("activated")
        return is_done

    @contextmanager
    def passing_on(self) -> Iterator[None]:
        """A history that begins meanwhile has what the copy has above its complete end."""
        world, log, mark = self.world, self.partition.failover_log, self.end
        frames = [self.newest(key) for key in KEYS]
        above = [f for f in frames if f is not None and seqno_of(f) > mark]
        world.inherits = [world.truth.of(log, frame) for frame in above]
        try:
            yield
        finally:
            world.inherits = []

    def undo(self, effect: Undo) -> int:
        """As told by a source; return where that is."""
        self.node.finish_commit()
        right = max((mark for mark in self.marks() if mark <= effect.seqno), default=0)
        point: int = done(self.node.moves.undo(*effect))
        assert point == right == self.end, f"{self.name} back to {point}, not {right}"
        self.check("undone")
        return point

    def marks(self) -> list[int]:
        store, p = self.node.store, self.partition_id
        live, numbers = store._summaries[p], store._log.numbers
        columns = [store._log.columns(number, p) for number in numbers]
        return [
            mark
            for number, one in zip(numbers, columns, strict=True)
            for mark in (one.marks if one is not None else ())
            if live.low_points.history_seqno <= mark <= live.limit(number)
        ]

    def move_low_points(self, *, is_full: bool) -> None:
        rng, partition, store = self.world.rng, self.partition, self.node.store
        found = store.partition(self.partition_id)
        limit = min(found.high_seqno, partition.history_limit())
        history = max(
            found.history_seqno, limit if is_full or rng.random() < 0.6 else rng.randint(0, limit)
        )
        if history <= found.high_seqno:
            purge = found.purge_seqno
            if is_full or rng.random() < 0.5:
                purge = max(purge, min(history, partition.purge_limit()))
            store.set_low_points({self.partition_id: (history, purge)})
            partition.purge_seqno = max(partition.purge_seqno, purge)

    def lose_holds(self) -> None:
        """Readers are too slow: they go on in the log."""
        self.partition.queue.holds.lose_all()
        self.partition.queue.collect(0)


def read_all(partition: Partition, at: int, *, is_logged: bool) -> Iterator[bytes]:
    """As a reader from 0 does: the log, then memory."""
    after = 0
    if is_logged or partition.memory_floor > 0:
        for frames, covered in partition.backfill(0, at, is_logged=is_logged):
            yield from frames
            after = covered
    while after < at:
        found = partition.memory_slice(after, at, 1 << 20, 7)
        assert found is not None
        frames, after = found
        yield from frames
