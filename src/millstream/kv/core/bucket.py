"""A bucket: its partitions and its parts; the source of its streams.

Invariants:
1. The number of partitions never changes.
2. The keys of its maps, and of the records of each partition, only grow. Neither changes the
   state of a partition.
3. In a managed cluster the adopted records say which copies count. The map only shows where
   clients find partitions, and where nodes are.
4. What it needs from its engine is given at construction (`Collaborators`).

Elsewhere: which writes are accepted (`write_gate`), who may serve (`serving`), subscribers
to changes (`notifications`), leases (`leases`), connections that stream (`streams`), the map's
file (`data_directory.map_file`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from millstream.errors import ConditionError
from millstream.kv.core.collaborators import Collaborators
from millstream.kv.core.leases import BucketLeases
from millstream.kv.core.notifications import Notifications
from millstream.kv.core.partition.acknowledgement import Acknowledged
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.serving import RecordOf, ServingRights
from millstream.kv.core.statistics import (
    Changes,
    Clients,
    Documents,
    HeldLocks,
    Leases,
    Majority,
    Published,
    Queue,
    Refused,
)
from millstream.kv.core.streams import BucketStreams
from millstream.kv.core.write_gate import WriteGate
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.cluster_maps import DataRecord
from millstream.model.partitions import PartitionState, partition_of
from millstream.model.rows import Row
from millstream.model.serving_rights import Isolation, Right, may_hand_over
from millstream.upr.core.shared_slices import SharedSlices
from millstream.upr.core.source import Hold, Peer

__all__ = ["MISSED_S", "Bucket"]

MISSED_S: Final = 2.0
"""How long writes of a managed bucket wait for a copy that has left, without which there is no
majority. It opens another stream while its partition moves."""


class Bucket:
    """One data set; also visible as an HTTP database."""

    def __init__(
        self,
        name: str,
        uuid: str,
        partitions: list[Partition],
        *,
        new_lease_id: Callable[[], int],
        now_ns: Callable[[], int],
        monotonic_ns: Callable[[], int],
        collaborators: Callable[[Bucket], Collaborators] = lambda _: Collaborators(),
    ) -> None:
        self.name = name
        self.uuid = uuid
        self.partitions = partitions
        self.partition_count = len(partitions)
        self._now_ns = now_ns
        self._monotonic_ns = monotonic_ns
        # Attributes that requests read often are here, too.
        self.writes = WriteGate(partitions)
        self.open_tables = self.writes.open_tables
        self.open_partitions = self.writes.open_partitions
        self.serving = ServingRights(partitions, self.writes.reopen)
        self.is_told_soon = False
        """A call of `changed` is scheduled: further changes need not schedule one."""
        self.notifications = Notifications()
        self.leases = BucketLeases(
            name, partitions, new_id=new_lease_id, monotonic_ns=monotonic_ns
        )
        self.streams = BucketStreams()
        self.map: BucketMap | None = None
        """Which nodes have copies; None: only this node."""
        self.node_name = ""
        """Name of this node in the map and in records; empty without a map."""
        self._records: list[DataRecord] = []
        """The adopted records, by partition; none until the bucket is managed."""
        self.adopt: Callable[[Mapping[int, DataRecord]], Awaitable[None]] | None = None
        """Adopts records durably, those that are news; None: the bucket is not managed."""
        self.heard: dict[int, int] = {}
        """By partition: the largest branch that a reader has come with."""
        self.map_changes = 0
        """How often the set of active partitions here, or the places of copies, changed."""
        self._take_overs: dict[int, str] = {}
        """Partitions that are being taken over by a stream, and the nodes that do it."""
        self._fed: set[int] = set()
        """Partitions whose copies are fed by other connections."""
        self.refused: dict[str, int] = {}
        """Number of refused requests, by status."""
        self.received_bytes = 0
        """From clients of the kv ports; counted once per wake-up of a connection."""
        self.sent_bytes = 0
        """Replies to these clients; not what they stream."""
        self.reads = [0]
        """One number, which sessions share: documents that clients asked for, over HTTP, too."""
        self.published = Published()
        _publish(self)
        for partition in partitions:
            partition.bucket_uuid = uuid
        made = collaborators(self)
        self.hurry = made.hurry
        self._tell_reached = made.tell_reached
        self._later = made.later
        self.wipe = made.wipe or self._wipe_now
        """Deletes all documents; see `Collaborators`."""
        self.copies = made.copies
        self.attachments = made.attachments
        for partition in partitions:
            partition.blobs = made.attachments.blobs

    def begin_take_over(self, partition_id: int, reader: str = "") -> bool:
        """Let one stream of a node take the partition over; False: another already does."""
        if partition_id in self._take_overs:
            return False
        self._take_overs[partition_id] = reader
        return True

    def may_hand_over(self, partition_id: int, reader: str) -> bool:
        """Return whether a node may take the partition over now.

        In a managed cluster the newest record must want that, and the copy here must be allowed to
        serve. Else whoever runs the cluster has decided it.
        """
        record = self.record(partition_id)
        if record is None:
            return True
        return may_hand_over(record, reader, self.right_now(partition_id))

    def end_take_over(self, partition_id: int) -> None:
        """A take-over stream has ended; writes held back for it are accepted again."""
        self._take_overs.pop(partition_id, None)
        self.accept_writes_again(partition_id)

    def begin_feeding(self, partition_id: int) -> bool:
        """Let one connection feed the copy; False: another does, or the copy follows a node."""
        source = self.active_node(partition_id)
        if self.is_managed or partition_id in self._fed or source not in (None, self.node_name):
            return False
        self._fed.add(partition_id)
        return True

    def end_feeding(self, partition_id: int) -> None:
        """The connection no longer feeds the copy."""
        self._fed.discard(partition_id)

    def hold_back_writes(self, partition_id: int) -> None:
        """Answer new writes of the partition with a temporary failure."""
        self.writes.hold_back(partition_id)

    def accept_writes_again(self, partition_id: int) -> None:
        """End that; does nothing if no writes were held back."""
        self.writes.accept_again(partition_id)

    async def stop_copy(self, partition_id: int, epoch: int) -> None:
        """Make an active copy of that epoch dead; see `upr.core.source`."""
        reader = self._take_overs.get(partition_id, "")
        if not self.may_hand_over(partition_id, reader):
            raise ConditionError(
                f"partition {partition_id} is not to be taken over by {reader!r} any more",
                code="not_taken_over",
            )
        await self.copies.stop(partition_id, epoch)

    def give_up_waiting(self) -> None:
        """Answer the pending durable writes as ambiguous, unless they are persisted."""
        for partition in self.partitions:
            partition.doubtful_seqno = partition.queue.high_seqno

    # -- changes

    def partition(self, partition_id: int) -> Partition | None:
        """Return a partition; None if the bucket has none with that number."""
        return self.partitions[partition_id] if partition_id < self.partition_count else None

    def partition_for(self, key: bytes) -> Partition:
        """Return the partition that owns the key."""
        return self.partitions[partition_of(key, self.partition_count)]

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each batch of changes; it must only schedule work."""
        self.notifications.subscribe(callback)

    def subscribe_durable(self, callback: Callable[[], None]) -> None:
        """Call `callback` each time changes have become durable; it must only schedule work."""
        self.notifications.subscribe_durable(callback)

    def subscribe_map(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each new map; it must only schedule work."""
        self.notifications.subscribe_map(callback)

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Reverse all subscriptions; harmless if there was none."""
        self.notifications.unsubscribe(callback)

    def made_durable(self) -> None:
        """Notify subscribers that changes have become durable."""
        self.notifications.tell_durable()

    def changed(self) -> None:
        """Notify subscribers that partitions changed."""
        self.is_told_soon = False
        self.notifications.tell_changed()

    def begin(
        self,
        bucket_map: BucketMap | None,
        records: Sequence[DataRecord] | None,
        node_name: str,
    ) -> None:
        """Use what a node has kept of map and records, after its start.

        What the other copies have is unknown until they tell it.
        """
        if records is not None:
            self.set_records(records, node_name)
        if bucket_map is not None:
            self.set_map(bucket_map, node_name)
        for partition in self.partitions:
            if partition.acknowledged is not None:
                partition.acknowledged.begin()

    def set_map(self, bucket_map: BucketMap, node_name: str) -> None:
        """Use another map, in which this node has a name. The caller has made it durable.

        In a managed cluster the adopted records stay in force, and a map of the same key has other
        addresses of nodes.
        """
        assert self.map is None or self.map.key <= bucket_map.key, "an older map"
        assert len(bucket_map.rows) == self.partition_count, "a map of another bucket"
        self.map = bucket_map
        self.node_name = node_name
        if not self.is_managed:
            for partition, row in zip(self.partitions, bucket_map.rows, strict=True):
                self._set_rows(partition, (row,))
        self._tell_map()

    # -- records of a managed cluster

    @property
    def is_managed(self) -> bool:
        """Return whether the bucket belongs to a managed cluster.

        If so, its active copies serve by rights: call `look_at_rights` before requests are
        answered.
        """
        return self.serving.record_of is not None

    def record(self, partition_id: int) -> DataRecord | None:
        """Return the adopted record of a partition; None if the bucket is not managed."""
        record_of = self.serving.record_of
        return None if record_of is None else record_of(partition_id)

    def set_records(self, records: Sequence[DataRecord], node_name: str) -> None:
        """Use the first records, one for each partition. The caller has made them durable."""
        assert not self.is_managed, "there are records"
        assert len(records) == self.partition_count, "records of another bucket"
        self.node_name = node_name
        self._records = list(records)
        self.manage(node_name, self._records.__getitem__)
        for partition, record in zip(self.partitions, records, strict=True):
            self._use_record(partition, record, is_new_row=record.is_moving)
        self._tell_map()

    def use_records(self, records: Mapping[int, DataRecord]) -> None:
        """Use newer records from now on. The caller has made them durable."""
        known = self._records
        assert known, "the bucket is not managed"
        for partition_id, record in records.items():
            before = known[partition_id]
            assert before.at < record.at, "an older record"
            known[partition_id] = record
            is_new_row = record.is_moving and before.since != record.since
            self._use_record(self.partitions[partition_id], record, is_new_row=is_new_row)
        self.serving.records_changed(records, self.now_ms())
        self._tell_map()

    def _use_record(self, partition: Partition, record: DataRecord, *, is_new_row: bool) -> None:
        known = partition.acknowledged
        if known is None or known.rows != record.rows:
            self._set_rows(partition, record.rows)
        if is_new_row:
            self._acknowledged(partition).confirm_from_now()

    def active_node(self, partition_id: int) -> str | None:
        """Return the node with the active copy by the newest record or map; None if unknown."""
        record = self.record(partition_id)
        if record is not None:
            return record.active
        return None if self.map is None else self.map.active(partition_id)

    def is_placed(self, partition_id: int) -> bool:
        """Return whether the newest record or map places a copy on this node."""
        record = self.record(partition_id)
        if record is not None:
            return self.node_name in record.placed
        return self.map is not None and self.node_name in self.map.rows[partition_id]

    def sources(self, partition_id: int) -> list[NodeAddress]:
        """Return the nodes that a copy here may follow, the one with the active copy first.

        A copy that no record places follows nobody. Another copy that counts may have become
        active since the record was made. Before there are records, every copy follows the active
        one of the map.
        """
        bucket_map, names = self.map, [self.active_node(partition_id)]
        record = self.record(partition_id)
        if record is not None:
            names = [*names, *record.voters] if self.is_placed(partition_id) else []
        others = [name for name in dict.fromkeys(names) if name not in (None, self.node_name)]
        if bucket_map is None or not others:
            return []
        return [bucket_map.node(name) for name in others if name and bucket_map.has_node(name)]

    def source(self, partition_id: int) -> NodeAddress | None:
        """Return the node with the active copy, if a copy here follows it; None if unknown."""
        sources, active = self.sources(partition_id), self.active_node(partition_id)
        return next((one for one in sources if one.name == active), None)

    def hear(self, partition_id: int, branch: int) -> None:
        """A reader has promised a branch: none that is active in a lower one is followed by it."""
        partition = self.partitions[partition_id]
        is_active = partition.state is PartitionState.ACTIVE
        if is_active and branch > partition.failover_log[0].branch:
            self.heard[partition_id] = max(branch, self.heard.get(partition_id, 0))

    def _set_rows(self, partition: Partition, rows: tuple[Row, ...]) -> None:
        is_alone = rows == ((self.node_name,),) if self.is_managed else len(rows[0]) == 1
        if partition.acknowledged is not None or not is_alone:
            self._acknowledged(partition).set_rows(rows, self.node_name)

    def _tell_map(self) -> None:
        self.map_changes += 1
        self._tell_reached()
        self.notifications.tell_map()

    # -- the right to serve

    def manage(self, node_id: str, record_of: RecordOf) -> None:
        """Serve by rights from now on, by the records of a managed cluster.

        Args:
            node_id: name of this node in the records.
            record_of: returns the adopted record of a partition.
        """
        for partition in self.partitions:
            partition.on_plain = self._refresh
        self.serving.manage(node_id, record_of, self.now_ms())
        for partition in self.partitions:
            self.writes.reopen(partition.partition_id)

    def set_right(self, lease_ms: int | None, *, is_admitted: bool) -> None:
        """Set until when this node has a lease (monotonic ms); None: it is out of step."""
        self.serving.set_lease(lease_ms, is_admitted=is_admitted, now_ms=self.now_ms())

    def set_rules(self, window_ms: int, isolation: Isolation) -> None:
        """Use another contact window, and another answer to isolation."""
        self.serving.set_rules(window_ms, isolation, self.now_ms())

    def look_at_rights(self) -> None:
        """Close what may not be served any longer. Costs one look at the clock."""
        now_ms = self.now_ms()
        if now_ms >= self.serving.next_change_ms:
            self.serving.look(now_ms)

    def right_now(self, partition_id: int) -> Right:
        """Return why the copy may serve plain requests now, if it may."""
        return self.serving.right(partition_id, self.now_ms())

    def may_serve_now(self, partition_id: int) -> bool:
        """Return whether an active copy has the right to serve plain requests now."""
        return self.right_now(partition_id).is_given

    def quiet_ms(self, partition_id: int) -> int | None:
        """Return how long ago a copy here answered its source; None: not since the start."""
        return self.serving.quiet_ms(partition_id, self.now_ms())

    def _refresh(self, partition_id: int) -> None:
        self.serving.refresh(partition_id, self.now_ms())
        self.writes.reopen(partition_id)

    def now_ms(self) -> int:
        """Return the monotonic time by which rights last."""
        return self._monotonic_ns() // 1_000_000

    # -- copies elsewhere, as reported by their streams

    def on_joined(self, name: str, partition_id: int, stream: object) -> None:
        """A following copy opened a stream; it replaces an older stream of that name."""
        self._acknowledged(self.partitions[partition_id]).join(name, stream)

    def on_acknowledged(
        self, name: str, partition_id: int, stream: object, complete_end: int, persisted_end: int
    ) -> None:
        """A copy has a complete snapshot in memory, and one on disk."""
        acknowledged = self.partitions[partition_id].acknowledged
        if acknowledged is not None and acknowledged.acknowledge(
            name, stream, complete_end, persisted_end
        ):
            self._tell_reached()

    def on_accepted(self, peer: Peer, partition_id: int, stream: object) -> None:
        """A copy has accepted the history here: what its node answers is contact."""
        self.serving.confirm(peer, partition_id, stream, self.now_ms())

    def on_heard(self, peer: Peer) -> None:
        """A node with following copies has answered."""
        self.serving.heard(peer, self.now_ms())

    def on_left(self, name: str, partition_id: int, stream: object) -> None:
        """The stream has ended: writes that now cannot reach a majority stop waiting."""
        self.serving.left(name, partition_id, stream, self.now_ms())
        partition = self.partitions[partition_id]
        acknowledged = partition.acknowledged
        if acknowledged is None:
            return
        acknowledged.leave(name, stream)
        if not acknowledged.is_possible:
            doubt = partial(self._doubt, partition, partition.epoch, partition.high_seqno)
            if self.is_managed:  # it may only have opened another stream
                self._later(MISSED_S, doubt)
            else:
                doubt()

    def _doubt(self, partition: Partition, epoch: int, seqno: int) -> None:
        """End the wait of writes that cannot reach a majority, if that is still so."""
        acknowledged = partition.acknowledged
        is_same = partition.epoch == epoch
        if is_same and acknowledged is not None and not acknowledged.is_possible:
            partition.doubtful_seqno = seqno
            self._tell_reached()

    @staticmethod
    def _acknowledged(partition: Partition) -> Acknowledged:
        if partition.acknowledged is None:
            partition.acknowledged = Acknowledged(partition)
        return partition.acknowledged

    @property
    def shared_slices(self) -> SharedSlices | None:
        """See `BucketSource.shared_slices`."""
        return self.streams.shared_slices

    def lease_hold(
        self, lease_id: int, partition_id: int, start: int | None = None
    ) -> Hold | None:
        """Return the hold of a lease on a partition; see `BucketLeases.hold`."""
        return self.leases.hold(lease_id, partition_id, start)

    def wiping(self) -> Iterator[Callable[[], None]]:
        """Yield calls that delete one existing document each (memcached's FLUSH)."""
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
        """Remove expired locks."""
        now_ns = self._now_ns()
        for partition in self.partitions:
            partition.drop_ended_locks(now_ns)

    def age_queues(self, now_s: float) -> None:
        """Age the queues by a monotonic clock, so that nothing waits too long for slow readers."""
        for partition in self.partitions:
            partition.queue.age(now_s)


def _publish(bucket: Bucket) -> None:
    """Publish the statistics of a bucket without an engine."""
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
    published.add("readers", bucket.streams.figures)
    published.add("leases", lambda: Leases(len(bucket.leases)))
    published.add("locks", locks)
    published.add("majority", majority)
    published.add("refused", lambda: Refused(dict(bucket.refused)))

    def clients() -> Clients:
        return Clients(bucket.received_bytes, bucket.sent_bytes, bucket.reads[0])

    published.add("clients", clients)
