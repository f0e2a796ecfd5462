"""The buckets of a node: found at the start, created and deleted while the node runs.

Invariants:
1. A bucket is gone once `delete` returns. A failed deletion can be repeated.
2. A bucket created again under an old name has a new uuid and no data of the old one.
3. If the name of a damaged bucket cannot be read, it is listed by its uuid.
4. A bucket that could not be opened for lack of disk space is retried until it comes up.
5. A bucket named in the inventory is never created anew, and the error of one that fails says how
   to continue with the files that are left.

Elsewhere: how a bucket is opened (`databases.bucket_table`), maps of buckets
(`databases.bucket_maps`).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable

from millstream.data_directory.bucket_files import (
    BucketRecord,
    clean_and_find,
    remove_directory,
    store_record,
)
from millstream.data_directory.map_file import refuse_managed
from millstream.data_directory.small_files import utc_now
from millstream.databases.bucket_maps import BucketMaps
from millstream.databases.bucket_table import BucketTable
from millstream.errors import (
    ConditionError,
    CorruptionError,
    MillstreamError,
    UnavailableError,
)
from millstream.gateway.core.api.node import BucketStatus
from millstream.kv.aio.copies import Copies
from millstream.kv.aio.documents.design_documents import DesignStore
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.aio.replicator import Replicator
from millstream.kv.core.bucket import Bucket
from millstream.model.bucket_names import (
    checked_bucket_name,
    checked_memory_quota,
    checked_partition_count,
)
from millstream.runtime.tasks import in_thread

__all__ = ["Buckets"]

_LOG = logging.getLogger(__name__)


class Buckets:
    """All buckets of one node; `maps` gives them their maps.

    Args:
        table: the buckets; `open_all` fills it.
        on_gone: awaited with the uuid of a bucket that is no longer served, before its files are
            removed.
    """

    def __init__(
        self, table: BucketTable, *, on_gone: Callable[[str], Awaitable[None]] | None = None
    ) -> None:
        self._table = table
        self._on_gone = on_gone
        self.maps = BucketMaps(table)
        self.engine = table.engine
        self.check_known = table.check_known
        self.link_to = table.link_to
        self.served = table.served
        """What the listeners see; changed in place."""

    @property
    def running(self) -> dict[str, BucketEngine]:
        """The engines by bucket name."""
        return self._table.running

    def await_maps(self, *, is_awaited: bool) -> None:
        """Say whether the cluster has yet to tell which buckets there are."""
        self._table.awaits_maps = is_awaited

    async def open_all(self) -> None:
        """Open all buckets on disk; a damaged bucket is listed as failed.

        Raises:
            CorruptionError: `two_buckets_of_one_name`.
            UsageError: `newer_format`.
            OSError: the directory cannot be read.
        """
        contents, found = await in_thread(self._table.inventory.read), list[BucketRecord]()
        for record in await in_thread(clean_and_find, self._table.path, contents):
            if record.name in self._table.records:
                raise CorruptionError(
                    f"{self._table.path} holds bucket {record.name!r} twice: {record.uuid} and "
                    f"{self._table.records[record.name].uuid}; move one of them away",
                    code="two_buckets_of_one_name",
                )
            self._table.records[record.name] = record
            try:
                if record.damage:
                    raise CorruptionError(record.damage, code="bad_file")
                found.append(record)
                await self._table.bring_up(record, contents.buckets.get(record.uuid))
            except (MillstreamError, OSError) as error:
                self._table.fail(record, error)
        await self._table.name_in_inventory(found)

    async def try_again(self) -> list[str]:
        """Open the buckets that lacked disk space; return those that came up."""
        came_up = []
        for name in sorted(self._table.lacks_space):
            async with self._table.change:
                record = self._table.records.get(name)
                self._table.lacks_space.discard(name)
                if record is None or name not in self._table.failures:
                    continue
                try:
                    await self._table.reopen(record)
                except (MillstreamError, OSError):
                    continue
            _LOG.info("bucket %s is served again: the disk has space", name)
            came_up.append(name)
        return came_up

    async def ensure(self, name: str, partitions: int | None, default: int) -> None:
        """Make sure that a bucket exists; `partitions` None accepts any number.

        No bucket is created while some bucket's name cannot be read: it may be the requested one.

        Raises:
            ConditionError: `other_partitions`, it exists with another number of partitions.
            UsageError, UnavailableError: as `create`.
        """
        record = self._table.records.get(name)
        unnamed = next((one for one in self._table.records.values() if one.damage), None)
        if record is None and unnamed is not None:
            _LOG.error("bucket %s is not created: it might be %s", name, unnamed.uuid)
        elif record is None:
            await self.create(name, partitions or default)
        elif partitions is not None and record.partitions != partitions:
            raise ConditionError(
                f"bucket {name!r} exists with {record.partitions} partitions, not {partitions}: "
                "the number is fixed when a bucket is created",
                code="other_partitions",
            )

    async def create(
        self, name: str, partitions: int, memory_quota_bytes: int | None = None
    ) -> BucketStatus:
        """Create a bucket durably; without a memory quota it has the quota of the node.

        Raises:
            UsageError: `bad_bucket_name`, `bad_partitions`, `bad_memory_quota`.
            ConditionError: `bucket_exists`.
            UnavailableError: `too_many_buckets`, `disk_error`, `disk_full`.
        """
        checked_bucket_name(name)
        checked_partition_count(partitions)
        if memory_quota_bytes is not None:
            checked_memory_quota(memory_quota_bytes)
        async with self._table.change:
            if name in self._table.records:
                raise ConditionError(f"bucket {name!r} exists already", code="bucket_exists")
            record = BucketRecord(
                name, uuid.uuid4().hex, partitions, utc_now(),
                memory_quota_bytes=memory_quota_bytes,
            )  # fmt: skip
            await self._table.make(record)
        return self._status(record)

    async def set_index_replicas(self, name: str, wanted: bool) -> None:
        """Set durably whether a bucket's replicas on this node are indexed too.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`; `disk_error`.
        """
        async with self._table.change:
            running = self.engine(name)
            record = self._table.records[name]._replace(index_replicas=wanted)
            try:
                await in_thread(store_record, self._table.path, record)
            except OSError as error:
                raise UnavailableError(
                    f"bucket {name!r} cannot be changed: {error}", code="disk_error"
                ) from error
            self._table.records[name] = record
            self._table.on_up(running, wanted)

    async def delete(self, name: str, before: Callable[[Bucket], None]) -> None:
        """Delete a bucket; `before` is called once it is no longer served.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `disk_error`.
        """
        async with self._table.change:
            record = self._table.records.get(name)
            if record is None:
                raise ConditionError(f"no bucket {name!r}", code="bucket_not_found")
            self._table.leaving = name
            try:
                await self._delete(record, before)
            finally:
                self._table.leaving = ""
        _LOG.info("deleted bucket %s", name)

    async def _delete(self, record: BucketRecord, before: Callable[[Bucket], None]) -> None:
        name = record.name
        bucket = self._table.served.pop(name, None)
        if bucket is not None:
            before(bucket)
        running = self._table.running.pop(name, None)
        self._table.adopted.pop(name, None)
        if running is not None and name not in self._table.failures:
            try:
                await running.stop()
            except (MillstreamError, OSError) as error:
                _LOG.warning("bucket %s was not stopped cleanly: %s", name, error)
        if self._on_gone is not None:
            await self._on_gone(record.uuid)
        try:
            await in_thread(self._table.forget, record.uuid)
            await in_thread(remove_directory, self._table.path, record)
        except OSError as error:
            self._table.failures[name] = f"it could not be deleted: {error}; delete it again"
            raise UnavailableError(
                f"bucket {name!r} cannot be deleted: {error}", code="disk_error"
            ) from error
        del self._table.records[name]
        self._table.failures.pop(name, None)
        self._table.lacks_map.discard(name)
        self._table.lacks_space.discard(name)

    def copies(self, name: str) -> Copies:
        """Return the operations on a bucket's copies; raises as `compact`."""
        return self.engine(name).copies

    def copies_by_hand(self, name: str) -> Copies:
        """Return them to an operator.

        Raises:
            ConditionError: `managed`: the cluster decides; as `compact`.
            UnavailableError: as `compact`.
        """
        if self.engine(name).bucket.is_managed:
            raise refuse_managed(name)
        return self.engine(name).copies

    def replicator(self, name: str) -> Replicator:
        """Return the replicator of a bucket's copies; raises as `compact`."""
        return self.engine(name).replicator

    def designs(self, name: str) -> DesignStore:
        """Return a bucket's design documents; raises as `compact`."""
        return self.engine(name).designs

    def records(self) -> list[BucketRecord]:
        """Return the stored records of all buckets, sorted by name; faster than `statuses`."""
        return [self._table.records[name] for name in sorted(self._table.records)]

    def statuses(self) -> list[BucketStatus]:
        """Return the status of all buckets, sorted by name."""
        return [self._status(self._table.records[name]) for name in sorted(self._table.records)]

    async def stop(self) -> None:
        """Stop all buckets cleanly, except those whose disk failed: they need a recovery."""
        async with self._table.change:
            self._table.served.clear()
            for name, running in self._table.running.items():
                if name not in self._table.failures:
                    await running.stop()
            self._table.running.clear()

    def _status(self, record: BucketRecord) -> BucketStatus:
        reason = self._table.failures.get(record.name, "")
        running = self._table.running.get(record.name)
        partitions = running.bucket.partitions if running is not None else []
        return BucketStatus(
            record.name,
            record.uuid,
            record.partitions,
            record.created,
            "failed" if reason else "ready",
            reason,
            sum(partition.high_seqno for partition in partitions),
            sum(partition.persisted_seqno for partition in partitions),
            self._table.quota_of(record),
            record.index_replicas,
        )
