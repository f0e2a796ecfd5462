"""The data engine of one node as the node agent of a managed cluster sees it.

Invariants:
1. What `carry_out` and `take_maps` were asked for is durable, and in force, once they return. Only
   a take-over goes on in the background; reports tell when it is over.
2. Steps of one partition are carried out in their order. Those of several partitions that are of
   one kind are made durable together.
3. A bucket that is not here is unknown, not missing, until the first maps were taken.
4. A bucket is dropped only if this node took a map of it in this cluster, and only for maps that
   are not older than any taken before.

Elsewhere: what orders mean (`cluster.core.admission`), adoption (`databases.adopted_records`),
copies (`kv.aio.copies`), take-overs (`kv.aio.replicator`).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, cast

from millstream.cluster.aio.local_engine import ClusterMaps
from millstream.cluster.core.admission import (
    Activate,
    Adopt,
    AdoptIndex,
    Follow,
    Freeze,
    Promise,
    Remove,
    Step,
    StopPart,
    TakeOver,
)
from millstream.cluster.core.elements import Bucket as BucketElement
from millstream.cluster.core.elements import NodeRecord
from millstream.cluster.core.orders import Place
from millstream.cluster.core.recovery import HeldBucket
from millstream.cluster.core.reports import CopyReport, PartReport, no_copy
from millstream.cluster.core.settings import TAKE_OVERS_MAX, Settings
from millstream.data_directory.map_file import AdoptedMap
from millstream.databases.buckets import Buckets
from millstream.errors import ConditionError, MillstreamError
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.copy_status import standing_of
from millstream.model.bucket_map import NodeAddress
from millstream.model.cluster_maps import DataMap, DataRecord, IndexMap, IndexRecord, MapKey
from millstream.model.partitions import PartitionState
from millstream.model.position import common_end
from millstream.runtime.tasks import Tasks
from millstream.upr.aio.link import Link
from millstream.upr.core.messages import decode_branch_log
from millstream.vsr.core.versions import NEVER, Version
from millstream.wire.mcbp import Opcode, Status, request

__all__ = ["IndexParts", "IndexStep", "ManagedEngine", "address_of"]

_LOG = logging.getLogger(__name__)
COMPARE_S_MAX: Final = 5.0
"""How long the removal of copies waits for a node to say what it has instead."""
IndexStep = AdoptIndex | Freeze | StopPart


class IndexParts(Protocol):
    """The index parts of this node."""

    def parts(self) -> Mapping[str, Mapping[int, PartReport]]:
        """Return the parts that are here, by the bucket's uuid."""

    def index_record(self, place: Place) -> IndexRecord | None:
        """Return the adopted index record of a partition."""

    async def carry_out(self, bucket: str, steps: Sequence[IndexStep]) -> None:
        """Carry out steps; see `LocalEngine.carry_out`."""

    async def take_maps(
        self,
        uuid: str,
        index_map: IndexMap | None,
        data_map: DataMap | None,
        nodes: Mapping[str, NodeRecord],
    ) -> None:
        """Take whole maps of a bucket; older ones are passed over."""

    def set_lease(self, lease_ms: int | None) -> None:
        """Set until when the node is in step; None: it is not."""


class ManagedEngine:
    """Implements `cluster.aio.local_engine.LocalEngine`.

    Args:
        node: id of this node.
        buckets: of this node.
        path: in the file system of the data.
        delete: deletes a bucket, by name.
        take_over: makes a copy active in place of its source's, by the bucket's name and
            partition (`Engine.take_prepared`). By default the indexes here do not catch up first.
        on_maps: called after maps or buckets have changed.
        index: the index parts; None: there are none.
        is_copied: whether what is stored beside the log of a partition is here, by the bucket's
            name and partition; if not, it begins to copy that. A copy that is being built is not
            whole without it.
    """

    def __init__(
        self,
        node: str,
        buckets: Buckets,
        path: Path,
        *,
        delete: Callable[[str], Awaitable[None]],
        take_over: Callable[[str, int], Awaitable[None]] | None = None,
        on_maps: Callable[[], None] = lambda: None,
        index: IndexParts | None = None,
        is_copied: Callable[[str, int], bool] = lambda *_: True,
    ) -> None:
        self._node = node
        self._is_copied = is_copied
        self._buckets = buckets
        self._path = path
        self._delete = delete
        self._take_over = take_over or self._take_over_plainly
        self._on_maps = on_maps
        self._index = index
        self._lease_ms: int | None = None
        self._is_admitted = False
        self._settings = Settings()
        self._newest: Version = NEVER
        """Of the maps that were taken."""
        self._failures: dict[str, str] = {}
        """Why buckets do not follow their maps, by uuid; logged once."""
        self._taking: set[Place] = set()
        buckets.await_maps(is_awaited=True)
        self._may_take = asyncio.Semaphore(TAKE_OVERS_MAX)
        self._tasks = Tasks()

    async def stop(self) -> None:
        """End the take-overs that wait; those that have begun go on until the buckets stop."""
        await self._tasks.stop()

    # -- reports

    def copies(self) -> Mapping[str, Mapping[int, CopyReport]]:
        """Return the copies that are here, and those whose record was adopted, by uuid."""
        running = self._buckets.running
        return {
            bucket.uuid: self._copies_of(bucket, running[name].store.reclaiming.live_bytes)
            for name, bucket in self._buckets.served.items()
            if bucket.is_managed
        }

    def _copies_of(self, bucket: Bucket, log_bytes: int) -> dict[int, CopyReport]:
        """Return the copies; each has a share of the log by the number of its changes."""
        found: dict[int, CopyReport] = {}
        changes = max(1, sum(partition.high_seqno for partition in bucket.partitions))
        absent, active = PartitionState.ABSENT, PartitionState.ACTIVE
        for number, partition in enumerate(bucket.partitions):
            record = bucket.record(number)
            assert record is not None, "a managed bucket has all records"
            if partition.state is absent:
                found[number] = no_copy(number, record.at)
                continue
            is_active, acknowledged = partition.state is active, partition.acknowledged
            is_confirmed = (
                is_active
                and record.is_moving
                and acknowledged is not None
                and acknowledged.is_confirmed
            )
            standing = standing_of(partition)
            if self._node in record.building and not self._is_copied(bucket.name, number):
                standing = standing._replace(is_whole=False)
            found[number] = CopyReport(
                standing,
                record.at,
                is_active and bucket.may_serve_now(number),
                is_confirmed,
                bucket.heard.get(number, 0),
                None if is_active else bucket.quiet_ms(number),
                log_bytes * partition.high_seqno // changes,
            )
        return found

    def parts(self) -> Mapping[str, Mapping[int, PartReport]]:
        """Return the index parts that are here, by uuid."""
        return {} if self._index is None else self._index.parts()

    def record(self, place: Place) -> DataRecord | None:
        """Return the adopted record of a partition."""
        bucket = self._served(place.bucket)
        return None if bucket is None else bucket.record(place.partition)

    def index_record(self, place: Place) -> IndexRecord | None:
        """Return the adopted index record of a partition."""
        return None if self._index is None else self._index.index_record(place)

    def keys(self) -> Mapping[str, MapKey]:
        """Return the key of the newest whole data map that was taken, by uuid."""
        every = (
            (self._buckets.maps.adopted(name), one) for name, one in self._buckets.served.items()
        )
        return {one.uuid: known.adopted.data_map.key for known, one in every if known is not None}

    def adopted(self) -> Mapping[str, HeldBucket]:
        """Return what is durably adopted of each bucket, by uuid."""
        found: dict[str, HeldBucket] = {}
        with_replicas = {one.name for one in self._buckets.statuses() if one.index_replicas}
        for name, bucket in self._buckets.served.items():
            known = self._buckets.maps.adopted(name)
            if known is None:
                continue
            adopted = known.adopted
            parts = {
                number: record
                for number in range(len(adopted.records))
                if (record := self.index_record(Place(bucket.uuid, number))) is not None
            }
            found[bucket.uuid] = HeldBucket(
                name, adopted.nodes, adopted.data_map.key, adopted.records, parts,
                tuple(map(standing_of, bucket.partitions)), name in with_replicas,
            )  # fmt: skip
        return found

    def broken(self) -> Mapping[str, bool]:
        """Return the nodes that copies here have streams from or to; True: all are broken."""
        found: dict[str, bool] = {}
        for name, bucket in self._buckets.served.items():
            if bucket.is_managed:
                streams = self._buckets.replicator(name).streams()
                for node, is_there in (*streams.items(), *_streams_to(bucket).items()):
                    found[node] = found.get(node, True) and not is_there
        return found

    def has_space(self, reserve_percent: int) -> bool:
        """Return whether the disk has more than the reserve left."""
        found = os.statvfs(self._path)
        return found.f_bavail * 100 > found.f_blocks * reserve_percent

    def set_right(self, lease_ms: int | None, *, is_admitted: bool) -> None:
        """Set until when active copies serve by the lease; None: the node is out of step."""
        self._lease_ms, self._is_admitted = lease_ms, is_admitted
        if self._index is not None:
            self._index.set_lease(lease_ms)
        for bucket in self._managed():
            bucket.set_right(lease_ms, is_admitted=is_admitted)

    def set_settings(self, settings: Settings) -> None:
        """Use these settings from now on."""
        self._settings = settings
        for bucket in self._managed():
            bucket.set_rules(settings.contact_window_ms, settings.isolation)

    def _managed(self) -> list[Bucket]:
        return [bucket for bucket in self._buckets.served.values() if bucket.is_managed]

    # -- steps of orders

    async def carry_out(self, bucket: str, steps: Sequence[Step]) -> None:
        """Carry out steps of orders, of any partitions of a bucket, in this order.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`, and the errors of the disk.
        """
        self._name_of(bucket)  # also for its index: it may have been dropped meanwhile
        index = [step for step in steps if isinstance(step, IndexStep)]
        if index:
            if self._index is None:
                raise ConditionError("this node has no indexes", code="not_indexed")
            await self._index.carry_out(bucket, index)
        waiting: dict[int, deque[_DataStep]] = {}
        for step in steps:
            if isinstance(step, _DataStep):
                waiting.setdefault(step.place.partition, deque()).append(step)
        while waiting:
            kind = type(next(iter(waiting.values()))[0])
            heads = [own.popleft() for own in waiting.values() if type(own[0]) is kind]
            waiting = {partition: own for partition, own in waiting.items() if own}
            await self._carry_out(bucket, heads)

    def _name_of(self, uuid: str) -> str:
        name = self._buckets.maps.name_of(uuid)
        if name is None:
            raise ConditionError(f"no bucket of uuid {uuid}", code="bucket_not_found")
        return name

    async def _carry_out(self, uuid: str, steps: Sequence[_DataStep]) -> None:
        """Carry out steps of one kind, of different partitions."""
        name = self._name_of(uuid)
        running = self._buckets.engine(name)
        copies, numbers = running.copies, [step.place.partition for step in steps]
        match steps[0]:
            case Adopt():
                adopted = self._buckets.maps.adopted(name)
                if adopted is None:
                    message = f"bucket {name!r} has no map of the cluster yet"
                    raise ConditionError(message, code="not_managed")
                every = cast(Sequence[Adopt], steps)
                await adopted.adopt({step.place.partition: step.record for step in every})
                for step in every:
                    if self._node in step.record.building:
                        self._is_copied(name, step.place.partition)  # begin
            case Promise() | Activate():
                with_branch = cast(Sequence[Promise | Activate], steps)
                branches = {step.place.partition: step.branch for step in with_branch}
                if isinstance(steps[0], Promise):
                    await copies.promise_all(branches)
                else:
                    await copies.activate_all(branches)
            case Follow():
                await copies.follow_again(numbers)
            case Remove():
                await self._tell_removal(running, numbers)
                await copies.remove(numbers)
            case TakeOver():
                for number in numbers:
                    self._begin_take_over(name, Place(uuid, number))

    async def _tell_removal(self, running: BucketEngine, numbers: Sequence[int]) -> None:
        """Log what copies have that the ones which serve have not, as far as that is known."""
        bucket, by_node = running.bucket, dict[NodeAddress, list[int]]()
        for number in numbers:
            name = bucket.active_node(number)
            if bucket.map is not None and name and bucket.map.has_node(name):
                by_node.setdefault(bucket.map.node(name), []).append(number)
        common: dict[int, int] = {}
        for node, own in by_node.items():
            try:
                async with asyncio.timeout(COMPARE_S_MAX):
                    common |= await _common_ends(
                        self._buckets.link_to(node, bucket.name), bucket, own
                    )
            except (MillstreamError, TimeoutError) as error:
                _LOG.warning("bucket %s: node %s says nothing of copies that are removed: %s",
                             bucket.name, node.name, error)  # fmt: skip
        for number in numbers:
            partition = bucket.partitions[number]
            high, end = partition.high_seqno, common.get(number)
            lost = "it is not known what only this copy had" if end is None else (
                f"only this copy had the {high - end} changes after {end}"
            )  # fmt: skip
            _LOG.log(
                logging.INFO if end == high else logging.WARNING,
                "bucket %s: the copy of partition %d is removed at %d of branch %d; %s",
                bucket.name, number, high, partition.failover_log[0].branch,
                "nothing is lost" if end == high else lost,
            )  # fmt: skip

    def _begin_take_over(self, name: str, place: Place) -> None:
        if place not in self._taking:
            self._taking.add(place)
            work = self._take(name, place)
            self._tasks.start(work, name=f"take {name}/{place.partition} over")

    async def _take(self, name: str, place: Place) -> None:
        try:
            async with self._may_take:
                await self._take_over(name, place.partition)
        except MillstreamError as error:  # the order comes again
            _LOG.warning(
                "bucket %s: partition %d is not taken over: %s", name, place.partition, error
            )
        finally:
            self._taking.discard(place)

    async def _take_over_plainly(self, name: str, partition: int) -> None:
        await self._buckets.replicator(name).take_over(partition)

    # -- whole maps

    async def take_maps(self, maps: ClusterMaps) -> None:
        """Take whole maps: make buckets that are new, drop those that are gone, adopt records.

        Raises:
            MillstreamError: some bucket could not follow; the others did.
        """
        failure: MillstreamError | None = None
        addresses = {name: address_of(name, one) for name, one in maps.nodes.items()}
        for uuid, data_map in maps.data.items():
            element = maps.buckets.get(uuid)
            if element is None:
                continue
            try:
                await self._take_map(maps.cluster, element, data_map, addresses)
                if self._index is not None:
                    await self._index.take_maps(uuid, maps.index.get(uuid), data_map, maps.nodes)
                self._failures.pop(uuid, None)
            except MillstreamError as error:
                if self._failures.get(uuid) != str(error):  # it comes again with every map
                    _LOG.error("bucket %s does not follow its map: %s", element.name, error)
                self._failures[uuid] = str(error)
                failure = failure or error
        try:
            await self._drop_gone(maps)
        except MillstreamError as error:
            failure = failure or error
        self.set_settings(maps.settings)  # new buckets have none of this yet
        self.set_right(self._lease_ms, is_admitted=self._is_admitted)
        self._on_maps()
        self._buckets.await_maps(is_awaited=False)  # names are known, also of those that failed
        if failure is not None:
            raise failure

    async def _take_map(
        self,
        cluster: str,
        element: BucketElement,
        data_map: DataMap,
        addresses: Mapping[str, NodeAddress],
    ) -> None:
        known = self._buckets.maps.adopted(element.name)
        if known is not None and known.adopted.data_map.key > data_map.key:
            return
        names = {self._node, *data_map.names()} & addresses.keys()
        nodes = tuple(addresses[name] for name in sorted(names))
        adopted = AdoptedMap(cluster, self._node, nodes, data_map, data_map.records)
        quota = element.settings.get("memory_quota_bytes")
        await self._buckets.maps.take_map(
            element.name, element.partitions, adopted, quota if isinstance(quota, int) else None
        )

    async def _drop_gone(self, maps: ClusterMaps) -> None:
        """Drop the buckets of this cluster that the maps have no more."""
        if maps.version < self._newest:
            return
        self._newest = maps.version
        self._failures = {
            uuid: why for uuid, why in self._failures.items() if uuid in maps.buckets
        }
        for name in list(self._buckets.served):
            known = self._buckets.maps.adopted(name)
            if known is None or known.adopted.cluster != maps.cluster:
                continue
            if known.adopted.data_map.bucket not in maps.buckets:
                _LOG.warning("bucket %s was dropped by the cluster", name)
                await self._delete(name)

    def _served(self, uuid: str) -> Bucket | None:
        return next((one for one in self._buckets.served.values() if one.uuid == uuid), None)


_DataStep = Adopt | Promise | Activate | Follow | TakeOver | Remove


def address_of(name: str, node: NodeRecord) -> NodeAddress:
    """Return where a member's copies are reached."""
    return NodeAddress(name, node.host, node.ports.get("kv", 0), node.ports.get("http", 0))


async def _common_ends(link: Link, bucket: Bucket, numbers: Sequence[int]) -> dict[int, int]:
    """Return up to where the copies of another node have what the copies here have."""
    try:
        await link.open()
        asked = [request(Opcode.BRANCH_LOG, vbucket=number) for number in numbers]
        answers = await link.ask_all(asked)
        highs = await link.high_seqnos()
    finally:
        await link.close()
    found: dict[int, int] = {}
    for number, answer in zip(numbers, answers, strict=True):
        if answer.status == Status.SUCCESS and number in highs:
            own, log = bucket.partitions[number], decode_branch_log(answer.value)
            found[number] = common_end(own.failover_log, own.high_seqno, log, highs[number])
    return found


def _streams_to(bucket: Bucket) -> dict[str, bool]:
    """Return the nodes that should follow copies here, and whether each is heard on a stream."""
    found: dict[str, bool] = {}
    now_ms = bucket.now_ms()
    for number, partition in enumerate(bucket.partitions):
        record = bucket.record(number)
        if partition.state is PartitionState.ACTIVE and record is not None:
            for name in record.placed:
                if name != bucket.node_name and not found.get(name, False):
                    found[name] = bucket.serving.hears(name, number, now_ms)
    return found
