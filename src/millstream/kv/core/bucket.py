"""A bucket: its partitions, who is told of changes, and the leases that readers hold.

Invariants:
1. The number of partitions never changes.
2. Subscribers are called once per batch of changes, not once per change.
3. `open_tables` and `open_partitions` name what requests may use without further questions; what
   is not plain (`Partition.is_plain`) is missing there: an empty table, None. To be written it
   must be linear, too (`is_linear`), there must be no `refusals`, and writes must not be delayed.
4. A lease id is never used twice; what a lease holds of a partition is lost at once when its time
   is over or the partition's hold is: a lost lease is an answer, never a wrong read.
5. The revisions of the maps it is given only grow. A map changes no partition.

Elsewhere: what a hold keeps (`kv.core.queue.mutation_queue`), the wire forms
(`kv.core.commands`), the map's file (`data_directory.map_file`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

from millstream.errors import UnavailableError
from millstream.kv.core.partition.acknowledgement import Acknowledged
from millstream.kv.core.partition.blobs import NOT_KEPT, BlobPiece, Blobs, Upload
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.queue.mutation_queue import Entry
from millstream.kv.core.statistics import (
    Changes,
    Documents,
    HeldLocks,
    Leases,
    Majority,
    Published,
    Queue,
    Readers,
    Refused,
)
from millstream.model.bucket_map import BucketMap
from millstream.model.limits import LEASE_SECONDS_DEFAULT, LEASE_SECONDS_MAX, LEASES_MAX
from millstream.model.partitions import PartitionState, partition_of
from millstream.upr.core.producer import StreamFigures
from millstream.upr.core.shared_slices import SharedSlices
from millstream.upr.core.source import Hold

__all__ = ["Bucket", "Lease", "Streaming"]

_SECOND_NS = 1_000_000_000
_CLOSED: dict[bytes, Entry] = {}
"""Stays empty."""


def _nobody_waits() -> None: ...


def _nobody_has(name: bytes, offset: int, size: int) -> BlobPiece | None: ...


async def _nobody_changes(partition_id: int, state: PartitionState) -> None: ...


async def _nobody_stops(partition_id: int, epoch: int) -> None: ...


async def _nobody_takes(partition_id: int, state: PartitionState, epoch: int) -> None: ...


async def _nobody_stands_back(partition_id: int) -> None: ...


async def _nobody_undoes(partition_id: int, seqno: int, epoch: int, branch: int) -> int:
    return 0


class Lease(NamedTuple):
    """Holds by partition id; `expires_ns` is a time of the monotonic clock."""

    expires_ns: int
    holds: dict[int, Hold]


class Streaming(Protocol):
    """A connection that streams."""

    def figures(self) -> StreamFigures:
        """Return how far its streams are."""

    def statistics(self) -> list[tuple[str, str]]:
        """Return what STAT `dcp` shows of it."""

    def progress(self, partition_id: int) -> tuple[str, int] | None:
        """Return in a word what the stream of a partition does, and up to which seqno it is."""


class Bucket:
    """One data set; the same thing as an HTTP database."""

    def __init__(
        self,
        name: str,
        uuid: str,
        partitions: list[Partition],
        *,
        new_lease_id: Callable[[], int],
        now_ns: Callable[[], int],
        monotonic_ns: Callable[[], int],
    ) -> None:
        self.name = name
        self.uuid = uuid
        self.partitions = partitions
        self.partition_count = len(partitions)
        self.open_tables: list[dict[bytes, Entry]] = [_CLOSED] * len(partitions)
        self.open_partitions: list[Partition | None] = [None] * len(partitions)
        self.map: BucketMap | None = None
        """Which nodes have copies; None: this one alone."""
        self.node_name = ""
        """What the map calls this node; empty without one."""
        self.leases: dict[int, Lease] = {}
        self._new_lease_id = new_lease_id
        self._now_ns = now_ns
        self._monotonic_ns = monotonic_ns
        self._subscribers: list[Callable[[], None]] = []
        self._durable_subscribers: list[Callable[[], None]] = []
        self._map_subscribers: list[Callable[[], None]] = []
        self.is_told_soon = False
        """`changed` is about to be called: changes until then need not ask for it."""
        self.tell_reached: Callable[[], None] = _nobody_waits
        """Called when a majority of copies has more of a partition than before, or no majority
        is left that could: it must only schedule work."""
        self.hurry: Callable[[], None] = _nobody_waits
        """Asks the flusher not to wait: somebody waits for the disk."""
        self.set_state: Callable[[int, PartitionState], Awaitable[None]] = _nobody_changes
        """Gives a partition's copy another state, durably; raises as `kv.aio.copies` does."""
        self.stop_copy: Callable[[int, int], Awaitable[None]] = _nobody_stops
        """Makes an active copy dead that is in that epoch; see `upr.core.source`."""
        self._take_overs: set[int] = set()
        self.held_back: set[int] = set()
        """Partitions whose writes are answered as a temporary failure: who takes them over does
        not keep up."""
        self.undo_copy: Callable[[int, int, int, int], Awaitable[int]] = _nobody_undoes
        """Rolls a copy back for its source; as `kv.aio.copies.Copies.undo`."""
        self.take_copy_over: Callable[[int, PartitionState, int], Awaitable[None]] = _nobody_takes
        """Gives a copy the state that a take-over wants; as `Copies.take_over`."""
        self.stand_back: Callable[[int], Awaitable[None]] = _nobody_stands_back
        """Lets a copy follow again that waited in vain to take over; as `Copies.stand_back`."""
        self._fed: set[int] = set()
        self.map_changes = 0
        """How often it changed which partitions are active here, or where copies are."""
        self.wipe: Callable[[int, Callable[[], None]], None] = self._wipe_now
        """Deletes all documents at a time (Unix ns), and calls back once they are gone, or will
        be later. In the engine: in steps (`kv.aio.pager`)."""
        self.blobs: Blobs = NOT_KEPT
        """The attachments; copies that follow bring what they lack by it."""
        self.read_blob: Callable[[bytes, int, int], BlobPiece | None] = _nobody_has
        """Returns the piece (name, offset, length) of a blob, None if it is not here; blocks."""
        self.new_upload: Callable[[], Upload] | None = None
        """Returns what takes the blobs of one connection; None: none are kept."""
        self._shared_slices = SharedSlices()
        self.streams: dict[str, Streaming] = {}
        """The connections that stream, by the name that each has given itself."""
        self.sent_bytes_before = self.stuck_readers = self.dead_readers = 0
        """Stream messages sent by connections that are gone."""
        self.refused: dict[str, int] = {}
        """Requests refused, by status."""
        self.published = Published()
        _publish(self)
        self.refusals: set[str] = set()
        """Why all writes are answered as a temporary failure now."""
        self.is_delaying = False
        """Memory is full: writes wait until documents have been evicted, before any is refused."""
        self._waiting_for_room: deque[Callable[[], None]] = deque()
        for partition in partitions:
            partition.on_plain = self.reopen
            partition.bucket_uuid = uuid
            self.reopen(partition.partition_id)

    def reopen(self, partition_id: int) -> None:
        """A partition, or its table, became another: see whether it may be used freely."""
        partition = self.partitions[partition_id]
        is_plain = partition.is_plain
        self.open_tables[partition_id] = partition.table if is_plain else _CLOSED
        is_open = (
            is_plain
            and partition.is_linear
            and not self.is_delaying
            and not self.refuses_writes_of(partition_id)
        )
        self.open_partitions[partition_id] = partition if is_open else None

    def refuse_writes(self, reason: str) -> None:
        """Answer writes as a temporary failure until the same reason is withdrawn."""
        self.refusals.add(reason)
        self._reopen_all()

    def accept_writes(self, reason: str) -> None:
        """Withdraw a reason; harmless if it was not given."""
        self.refusals.discard(reason)
        self._reopen_all()

    def delay_writes(self) -> None:
        """Let writes wait until `end_delay`; what was begun goes on."""
        self.is_delaying = True
        self._reopen_all()

    def end_delay(self) -> None:
        """Take writes again, or refuse them from now on; `wake_waiting` is to be called next."""
        self.is_delaying = False
        self._reopen_all()

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call `callback` once after the delay of writes; it must only schedule work."""
        self._waiting_for_room.append(callback)

    def wake_waiting(self, most: int) -> bool:
        """Call some of those who wait, oldest first; return whether there are more."""
        while most > 0 and self._waiting_for_room and not self.is_delaying:
            self._waiting_for_room.popleft()()
            most -= 1
        return bool(self._waiting_for_room) and not self.is_delaying

    def refuses_writes_of(self, partition_id: int) -> bool:
        """Return whether writes are refused though the partition would take them."""
        return bool(self.refusals) or partition_id in self.held_back

    def begin_take_over(self, partition_id: int) -> bool:
        """Let one stream take the partition over; False: another one does already."""
        if partition_id in self._take_overs:
            return False
        self._take_overs.add(partition_id)
        return True

    def end_take_over(self, partition_id: int) -> None:
        """That stream is over; writes held back for it are accepted again."""
        self._take_overs.discard(partition_id)
        self.accept_writes_again(partition_id)

    def begin_feeding(self, partition_id: int) -> bool:
        """Let one connection feed the copy that others brought; False: it is fed already."""
        source = None if self.map is None else self.map.active(partition_id)
        if partition_id in self._fed or source not in (None, self.node_name):
            return False
        self._fed.add(partition_id)
        return True

    def end_feeding(self, partition_id: int) -> None:
        """That connection feeds it no longer."""
        self._fed.discard(partition_id)

    def hold_back_writes(self, partition_id: int) -> None:
        """Answer new writes of the partition as a temporary failure."""
        self.held_back.add(partition_id)
        self.reopen(partition_id)

    def accept_writes_again(self, partition_id: int) -> None:
        """End that; harmless if there were none held back."""
        self.held_back.discard(partition_id)
        self.reopen(partition_id)

    def give_up_waiting(self) -> None:
        """Answer the durable writes accepted so far as ambiguous, unless they are persisted."""
        for partition in self.partitions:
            partition.doubtful_seqno = partition.queue.high_seqno

    def _reopen_all(self) -> None:
        for partition in self.partitions:
            self.reopen(partition.partition_id)

    def keep_blobs(
        self,
        blobs: Blobs,
        read: Callable[[bytes, int, int], BlobPiece | None],
        new_upload: Callable[[], Upload],
    ) -> None:
        """Let attachments be kept on this node: see `blobs`, `read_blob` and `new_upload`."""
        self.blobs, self.read_blob, self.new_upload = blobs, read, new_upload
        for partition in self.partitions:
            partition.blobs = blobs

    # -- changes

    def partition(self, partition_id: int) -> Partition | None:
        """Return a partition, None if the bucket has none with that number."""
        return self.partitions[partition_id] if partition_id < self.partition_count else None

    def partition_for(self, key: bytes) -> Partition:
        """Return the partition that owns the key."""
        return self.partitions[partition_of(key, self.partition_count)]

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each batch of changes; it must only schedule work."""
        self._subscribers.append(callback)

    def subscribe_durable(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time after changes became durable; it must only schedule work."""
        self._durable_subscribers.append(callback)

    def subscribe_map(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each new map; it must only schedule work."""
        self._map_subscribers.append(callback)

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Reverse all subscriptions; harmless if there was none."""
        every = (self._subscribers, self._durable_subscribers, self._map_subscribers)
        for subscribers in every:
            if callback in subscribers:
                subscribers.remove(callback)

    def made_durable(self) -> None:
        """Tell who wants to know that changes became durable."""
        for callback in tuple(self._durable_subscribers):
            callback()

    def changed(self) -> None:
        """Tell subscribers that partitions changed."""
        self.is_told_soon = False
        for callback in tuple(self._subscribers):
            callback()

    def set_map(self, bucket_map: BucketMap, node_name: str) -> None:
        """Go by another map, in which this node has a name. Whoever calls has made it durable."""
        assert self.map is None or self.map.revision < bucket_map.revision, "an older map"
        assert len(bucket_map.rows) == self.partition_count, "a map of another bucket"
        self.map = bucket_map
        self.node_name = node_name
        self.map_changes += 1
        for partition, row in zip(self.partitions, bucket_map.rows, strict=True):
            if len(row) > 1 or partition.acknowledged is not None:
                self._acknowledged(partition).set_row(row, node_name)
        self.tell_reached()
        for callback in tuple(self._map_subscribers):
            callback()

    # -- copies elsewhere, as their streams tell

    def on_joined(self, name: str, partition_id: int, stream: object) -> None:
        """A copy that follows opened a stream; it replaces an older one of that name."""
        self._acknowledged(self.partitions[partition_id]).join(name, stream)

    def on_acknowledged(
        self, name: str, partition_id: int, stream: object, complete_end: int, persisted_end: int
    ) -> None:
        """A copy has a complete snapshot in memory, and one on disk."""
        acknowledged = self.partitions[partition_id].acknowledged
        if acknowledged is not None and acknowledged.acknowledge(
            name, stream, complete_end, persisted_end
        ):
            self.tell_reached()

    def on_left(self, name: str, partition_id: int, stream: object) -> None:
        """The stream is over: writes that only a majority could confirm are not waited for."""
        partition = self.partitions[partition_id]
        acknowledged = partition.acknowledged
        if acknowledged is None:
            return
        acknowledged.leave(name, stream)
        if not acknowledged.is_possible:
            partition.doubtful_seqno = partition.high_seqno
            self.tell_reached()

    @staticmethod
    def _acknowledged(partition: Partition) -> Acknowledged:
        if partition.acknowledged is None:
            partition.acknowledged = Acknowledged(partition)
        return partition.acknowledged

    def stream_ended(self, name: str, stream: Streaming) -> None:
        """A connection that streamed is gone."""
        figures = stream.figures()
        self.sent_bytes_before += figures.sent_bytes
        self.stuck_readers += figures.is_stuck
        self.dead_readers += figures.is_dead
        if self.streams.get(name) is stream:
            del self.streams[name]
        if len(self.streams) <= 1:
            self._shared_slices.clear()

    @property
    def shared_slices(self) -> SharedSlices | None:
        """See `BucketSource.shared_slices`."""
        return self._shared_slices if len(self.streams) > 1 else None

    def wiping(self) -> Iterator[Callable[[], None]]:
        """Yield calls that delete every document there is now (memcached's FLUSH), one each."""
        ends = [partition.high_seqno for partition in self.partitions]
        for partition, upto in zip(self.partitions, ends, strict=True):
            for key in partition.known_keys():
                yield partial(partition.wipe, key, upto, self._now_ns())

    def _wipe_now(self, at_ns: int, done: Callable[[], None]) -> None:
        for delete in self.wiping():
            delete()
        self.changed()
        done()

    def drop_ended_locks(self) -> None:
        """Forget locks whose time is over."""
        now_ns = self._now_ns()
        for partition in self.partitions:
            partition.drop_ended_locks(now_ns)

    # -- leases

    def open_lease(
        self, wanted: Iterable[tuple[int, int | None]], seconds: int
    ) -> tuple[int, int, dict[int, Hold]] | None:
        """Hold partitions as of seqnos (None: the present high); (id, seconds granted, holds).

        None if one of them cannot be read as wished; then nothing is held.

        Raises:
            UnavailableError: `too_many_leases`, retry later.
        """
        self.drop_expired()
        if len(self.leases) >= LEASES_MAX:
            raise UnavailableError(
                f"bucket {self.name} holds {LEASES_MAX} leases; release some or wait",
                code="too_many_leases",
            )
        holds: dict[int, Hold] = {}
        for partition_id, at in wanted:
            partition = self.partition(partition_id)
            hold = partition.open_hold(at) if partition and partition_id not in holds else None
            if hold is None:
                self._release(holds)
                return None
            holds[partition_id] = hold
        lease_id = self._new_lease_id()
        while lease_id in self.leases or lease_id == 0:
            lease_id = self._new_lease_id()
        granted = self._granted(seconds)
        self.leases[lease_id] = Lease(self._monotonic_ns() + granted * _SECOND_NS, holds)
        return lease_id, granted, holds

    def renew_lease(
        self, lease_id: int, seconds: int, named: Iterable[int] = ()
    ) -> tuple[int, dict[int, Hold]] | None:
        """Extend a lease; (seconds granted, what is still held of the partitions named or all)."""
        lease = self._held_lease(lease_id)
        if lease is None:
            return None
        granted = self._granted(seconds)
        self.leases[lease_id] = lease._replace(
            expires_ns=self._monotonic_ns() + granted * _SECOND_NS
        )
        wanted = list(named) or list(lease.holds)
        return granted, {p: lease.holds[p] for p in wanted if p in lease.holds}

    def release_lease(self, lease_id: int, named: Iterable[int] = ()) -> None:
        """Give up what a lease holds of the partitions named, or all of it."""
        lease = self.leases.get(lease_id)
        if lease is None:
            return
        for partition_id in list(named) or list(lease.holds):
            hold = lease.holds.pop(partition_id, None)
            if hold is not None:
                self.partitions[partition_id].release_hold(hold)
        if not lease.holds:
            del self.leases[lease_id]

    def lease_hold(
        self, lease_id: int, partition_id: int, start: int | None = None
    ) -> Hold | None:
        """Return the hold of a lease on a partition, None if it is not held (any more).

        `start`: a stream is going to read what is above.
        """
        lease = self._held_lease(lease_id)
        hold = lease.holds.get(partition_id) if lease else None
        if hold is not None and start is not None:
            self.partitions[partition_id].queue.holds.asked(hold.hold_id, start)
        return hold

    def drop_expired(self) -> None:
        """Release the leases whose time is over."""
        now_ns = self._monotonic_ns()
        for lease_id in [i for i, lease in self.leases.items() if lease.expires_ns <= now_ns]:
            self.release_lease(lease_id)

    def age_queues(self, now_s: float) -> None:
        """Let queues look at a monotonic clock: nothing waits too long for slow readers."""
        for partition in self.partitions:
            partition.queue.age(now_s)

    def _held_lease(self, lease_id: int) -> Lease | None:
        lease = self.leases.get(lease_id)
        if lease is None:
            return None
        lost = [p for p, hold in lease.holds.items() if not self.partitions[p].is_held(hold)]
        if lease.expires_ns <= self._monotonic_ns():
            lost = list(lease.holds)
        if lost:
            self.release_lease(lease_id, lost)
        return self.leases.get(lease_id)

    def _release(self, holds: dict[int, Hold]) -> None:
        for partition_id, hold in holds.items():
            self.partitions[partition_id].release_hold(hold)

    @staticmethod
    def _granted(seconds: int) -> int:
        return min(seconds or LEASE_SECONDS_DEFAULT, LEASE_SECONDS_MAX)


def _publish(bucket: Bucket) -> None:
    """Publish what a bucket knows without an engine."""
    published, partitions = bucket.published, bucket.partitions

    def changes() -> Changes:
        queues = [partition.queue for partition in partitions]
        return Changes(
            high=sum(partition.high_seqno for partition in partitions),
            persisted=sum(partition.persisted_seqno for partition in partitions),
            unflushed=sum(queue.high_seqno - queue.frozen_seqno for queue in queues),
        )

    def queue() -> Queue:
        queues = [partition.queue for partition in partitions]
        return Queue(
            bytes=sum(queue.bytes_held for queue in queues),
            retained_bytes=sum(queue.retained_bytes for queue in queues),
            seqnos=sum(queue.high_seqno - queue.floor for queue in queues),
        )

    def readers() -> Readers:
        figures = [stream.figures() for stream in bucket.streams.values()]
        return Readers(
            connections=len(figures),
            streams=sum(one.streams for one in figures),
            backfilling=sum(one.backfilling for one in figures),
            lag=max((one.lag for one in figures), default=0),
            unacked_bytes=sum(one.unacked_bytes for one in figures),
            sent_bytes_total=bucket.sent_bytes_before + sum(one.sent_bytes for one in figures),
            stuck_total=bucket.stuck_readers,
            dead_total=bucket.dead_readers,
        )

    def locks() -> HeldLocks:
        every = [partition.locks for partition in partitions]
        return HeldLocks(sum(map(len, every)), sum(one.taken_total for one in every))

    def majority() -> Majority:
        active = [p for p in partitions if p.state is PartitionState.ACTIVE]
        known = [one for p in active if (one := p.acknowledged) is not None]
        return Majority(
            following=sum(one.following for one in known),
            impossible=sum(not one.is_possible for one in known),
            lag=max((p.high_seqno - p.majority_seqno for p in active), default=0),
        )

    published.add("changes", changes)
    published.add("documents", lambda: Documents(sum(len(p.table) for p in partitions)))
    published.add("queue", queue)
    published.add("readers", readers)
    published.add("leases", lambda: Leases(len(bucket.leases)))
    published.add("locks", locks)
    published.add("majority", majority)
    published.add("refused", lambda: Refused(dict(bucket.refused)))
