"""The maps of a node's buckets: those made by hand, and those of a managed cluster.

Invariants:
1. A map, or a record, is durable before it is in force.
2. The revisions of the maps of a bucket grow, and all of them have the same name for this node.
3. Once a bucket has adopted records of a managed cluster, maps made by hand are refused.
4. A bucket that lacks only its map, or records, is served again once it gets them.

Elsewhere: the buckets (`databases.bucket_table`), adoption (`databases.adopted_records`), files
(`data_directory.map_file`).
"""

from __future__ import annotations

import logging
import re
from typing import Final

from millstream.data_directory.bucket_files import (
    BucketRecord,
    refuse_other,
    store_map,
)
from millstream.data_directory.inventory import MAP
from millstream.data_directory.map_file import AdoptedMap, PlacedMap, is_newer, refuse_managed
from millstream.data_directory.small_files import utc_now
from millstream.databases.adopted_records import AdoptedRecords
from millstream.databases.bucket_table import BucketTable
from millstream.errors import (
    ConditionError,
    CorruptionError,
    MillstreamError,
    UnavailableError,
    UsageError,
)
from millstream.model.bucket_names import checked_bucket_name, checked_partition_count
from millstream.runtime.tasks import in_thread

__all__ = ["BucketMaps"]

_LOG = logging.getLogger(__name__)
_UUID: Final = re.compile(r"[0-9a-f]{32}")


class BucketMaps:
    """The maps of the buckets of one node."""

    def __init__(self, table: BucketTable) -> None:
        self._table = table

    # -- maps made by hand

    def map_of(self, name: str) -> PlacedMap | None:
        """Return a served bucket's map, None if it has none; raises as `compact`."""
        bucket = self._table.engine(name).bucket
        return None if bucket.map is None else PlacedMap(bucket.map, bucket.node_name)

    async def set_map(
        self, name: str, bucket_uuid: str, partitions: int, placed: PlacedMap
    ) -> None:
        """Give a bucket its map durably; create the bucket with this uuid if there is none.

        A partition that the map places on this node behind the first place, and that this node
        does not have, becomes a replica. No other state changes: copies are activated by a
        separate call, and a copy that the map does not place here stays until it is removed. A new
        bucket has no active partitions.

        Raises:
            UsageError: `bad_bucket_name`, `bad_bucket_uuid`, `bad_partitions`, `bad_map_rows`.
            ConditionError: `other_uuid`, `uuid_taken`, `other_partitions`, `other_node_name`,
                `older_map`, `other_map` (of the same revision); `managed`.
            UnavailableError: `too_many_buckets`, `bucket_failed`, `disk_error`, `disk_full`,
                `disk_failed`: the same map may be given again.
        """
        checked_bucket_name(name)
        checked_partition_count(partitions)
        if not _UUID.fullmatch(bucket_uuid):
            raise UsageError(
                f"uuid {bucket_uuid[:40]!r}: must be 32 hexadecimal digits in lower case",
                code="bad_bucket_uuid",
            )
        if len(placed.bucket_map.rows) != partitions:
            raise UsageError(
                f"{len(placed.bucket_map.rows)} rows for {partitions} partitions: must be one "
                f"for each",
                code="bad_map_rows",
            )
        async with self._table.change:
            record = self._table.records.get(name)
            if record is None:
                self._refuse_taken(bucket_uuid)
                await self._table.make(
                    BucketRecord(name, bucket_uuid, partitions, utc_now(), has_map=True), placed
                )
            else:
                refuse_other(record, bucket_uuid, partitions)
                if record.has_records:
                    raise refuse_managed(name)
                await self._replace_map(record, placed)
            await self._table.engine(name).copies.take_places()

    def _refuse_taken(self, bucket_uuid: str) -> None:
        for record in self._table.records.values():
            if record.uuid == bucket_uuid:
                raise ConditionError(
                    f"bucket {record.name!r} has the uuid {bucket_uuid}: a bucket has the same "
                    "name on all nodes",
                    code="uuid_taken",
                )

    async def _replace_map(self, record: BucketRecord, placed: PlacedMap) -> None:
        name = record.name
        if name in self._table.lacks_map:
            await self._keep_map(record, placed)
            await self._heal(record)
            return
        bucket = self._table.engine(name).bucket
        if bucket.map is not None and not is_newer(bucket.map, bucket.node_name, placed):
            return
        await self._keep_map(record, placed)
        bucket.set_map(*placed)
        bucket_map, node = placed
        _LOG.info("bucket %s: map %d, this node is %s", name, bucket_map.revision, node)

    async def _heal(self, record: BucketRecord) -> None:
        """Open a bucket that lacked its map."""
        self._table.lacks_map.discard(record.name)
        try:
            await self._table.reopen(record)
        except (MillstreamError, OSError) as error:
            raise UnavailableError(
                f"bucket {record.name} has its map and is not served: {error}",
                code="bucket_failed",
            ) from error

    async def _keep_map(self, record: BucketRecord, placed: PlacedMap) -> None:
        try:
            await in_thread(store_map, self._table.path / record.uuid, record, placed)
            await in_thread(self._table.note_part, record, MAP)
        except OSError as error:
            raise UnavailableError(
                f"the map of bucket {record.name!r} cannot be written: {error}", code="disk_error"
            ) from error
        self._table.records[record.name] = record._replace(has_map=True)

    # -- managed clusters

    def adopted(self, name: str) -> AdoptedRecords | None:
        """Return what a served bucket has adopted; None if it does not belong to a cluster."""
        return self._table.adopted.get(name)

    def name_of(self, bucket_uuid: str) -> str | None:
        """Return the name of the bucket with a uuid; None if there is none."""
        return next(
            (one.name for one in self._table.records.values() if one.uuid == bucket_uuid), None
        )

    async def take_map(
        self,
        name: str,
        partitions: int,
        adopted: AdoptedMap,
        memory_quota_bytes: int | None = None,
    ) -> None:
        """Take a whole map of a managed cluster; create the bucket if there is none.

        From then on the bucket is managed. An older map is passed over. A new bucket has no active
        partitions.

        Args:
            name: of the bucket.
            partitions: their number.
            adopted: the map, with its records.
            memory_quota_bytes: of a new bucket; None: that of the node.

        Raises:
            UsageError: `bad_bucket_name`, `bad_partitions`.
            ConditionError: `other_uuid`, `uuid_taken`, `other_partitions`; `other_cluster`: the
                bucket belongs to another cluster.
            CorruptionError: `other_map`.
            UnavailableError: `too_many_buckets`, `bucket_failed`, `disk_error`, `disk_full`,
                `disk_failed`.
        """
        checked_bucket_name(name)
        checked_partition_count(partitions)
        data_map = adopted.data_map
        if len(data_map.records) != partitions:
            raise CorruptionError(
                f"the map of bucket {name!r} has {len(data_map.records)} records for {partitions} "
                "partitions; restore a backup of the coordination service and run "
                "`millstream cluster recover`",
                code="bad_cluster_map",
            )
        async with self._table.change:
            record = self._table.records.get(name)
            if record is None:
                self._refuse_taken(data_map.bucket)
                record = BucketRecord(
                    name, data_map.bucket, partitions, utc_now(),
                    memory_quota_bytes=memory_quota_bytes, has_records=True,
                )  # fmt: skip
                await self._table.make(record, adopted)
                return
            refuse_other(record, data_map.bucket, partitions)
            known = self._table.adopted.get(name)
            if known is not None:
                self._table.engine(name)
                if known.adopted.cluster != adopted.cluster:
                    raise ConditionError(
                        f"bucket {name!r} belongs to cluster {known.adopted.cluster}, not to "
                        f"{adopted.cluster}: begin with an empty data directory",
                        code="other_cluster",
                    )
                await known.take(data_map, adopted.nodes)
            elif name in self._table.lacks_map:
                await self._table.keep_adopted(name, adopted)
                await self._heal(self._table.records[name])
            else:
                await self._begin_to_manage(name, adopted)

    async def _begin_to_manage(self, name: str, adopted: AdoptedMap) -> None:
        """A bucket that was on this node alone, or had maps made by hand, gets records."""
        running = self._table.engine(name)
        await self._table.keep_adopted(name, adopted)
        running.bucket.set_records(adopted.records, adopted.node_name)
        running.bucket.set_map(adopted.bucket_map, adopted.node_name)
        self._table.manage(self._table.records[name], running, adopted)
        await running.copies.take_places()
        _LOG.info("bucket %s belongs to cluster %s from now on", name, adopted.cluster)
