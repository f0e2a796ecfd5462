"""The buckets of a node: found at the start, created and deleted while the node runs.

Invariants:
1. A bucket is served only after its directory is durable. It is gone once `delete` returns.
2. A bucket created again under an old name has a new uuid and no data of the old one.
3. A bucket with damaged files fails alone: it is listed with the reason, and the other buckets are
   served. If its name cannot be read either, it is listed by its uuid.
4. A failed creation leaves nothing behind. A failed deletion can be repeated.
5. A bucket that was given a map, or has adopted records, is not opened without them.
6. A bucket that could not be opened for lack of disk space is retried until it comes up.
7. Every bucket is named in the inventory. A bucket named there is never created anew, and the
   error of one that fails says how to continue with the files that are left.

Elsewhere: maps of buckets (`databases.bucket_maps`), the engine of a bucket (`kv.aio.engine`),
its directory (`data_directory.bucket_files`).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from millstream.data_directory.bucket_files import (
    BucketRecord,
    clean_and_find,
    find_adopted,
    find_map,
    make_directory,
    remove_directory,
    store_record,
    take_back_directory,
    way_out,
)
from millstream.data_directory.inventory import (
    LOCAL,
    LOG,
    MAP,
    RECORDS,
    Contents,
    Entry,
    Inventory,
)
from millstream.data_directory.map_file import AdoptedMap, PlacedMap, refuse_managed
from millstream.data_directory.small_files import utc_now
from millstream.databases.adopted_records import AdoptedRecords
from millstream.databases.bucket_maps import BucketMaps
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
from millstream.kv.aio.replicator import LinkTo, Replicator, plain_link
from millstream.kv.core.bucket import Bucket
from millstream.model.bucket_names import (
    checked_bucket_name,
    checked_memory_quota,
    checked_partition_count,
)
from millstream.runtime.tasks import in_thread
from millstream.storage.core.disk_errors import is_full

__all__ = ["BUCKETS_MAX", "Buckets"]

_LOG = logging.getLogger(__name__)
BUCKETS_MAX: Final = 1000


class Buckets(BucketMaps):
    """All buckets of one node; their maps are in `BucketMaps`.

    Args:
        path: the directory `buckets`, created if missing; the inventory is beside it.
        flush_interval_ms: of every bucket.
        memory_quota_bytes: of every bucket that has no quota of its own.
        on_persisted: called after each group commit.
        on_fatal: called with a bucket's name and the error that ended its writing; the bucket is
            no longer served. Not called for a bucket that is being deleted.
        on_stopped: called with a bucket in which a damaged record was found; it is no longer
            served, the other buckets are.
        link_to: connects to other nodes with copies.
        on_up: called with a bucket that is about to be served and whether its replicas are to be
            indexed; called again when that changes.
        on_gone: awaited with the uuid of a bucket that is no longer served, before its files are
            removed.
        open_bucket: opens a bucket.
    """

    def __init__(
        self,
        path: Path,
        *,
        flush_interval_ms: int,
        memory_quota_bytes: int,
        on_persisted: Callable[[], None],
        on_fatal: Callable[[str, Exception], None],
        on_stopped: Callable[[Bucket], None],
        link_to: LinkTo = plain_link,
        on_up: Callable[[BucketEngine, bool], None] = lambda *_: None,
        on_gone: Callable[[str], Awaitable[None]] | None = None,
        open_bucket: Callable[..., Awaitable[BucketEngine]] = BucketEngine.open,
    ) -> None:
        self.served: dict[str, Bucket] = {}
        """What the listeners see; changed in place."""
        self._path = path
        self._inventory = Inventory(path.parent)
        self._flush_interval_ms = flush_interval_ms
        self._memory_quota_bytes = memory_quota_bytes
        self._on_persisted = on_persisted
        self._on_fatal = on_fatal
        self._on_stopped = on_stopped
        self.link_to = link_to
        self._on_up = on_up
        self._on_gone = on_gone
        self._open_bucket = open_bucket
        self._records: dict[str, BucketRecord] = {}
        self._running: dict[str, BucketEngine] = {}
        self._failures: dict[str, str] = {}
        self._lacks_space: set[str] = set()
        """Failed buckets that could not be opened because the disk was full."""
        self._lacks_map: set[str] = set()
        """Failed buckets that lack only their map."""
        self._leaving = ""
        """The bucket that is being deleted; it can no longer be found."""
        self._change = asyncio.Lock()
        self._adopted: dict[str, AdoptedRecords] = {}
        """By name, of the buckets that belong to a managed cluster."""

    @property
    def running(self) -> dict[str, BucketEngine]:
        """The engines by bucket name."""
        return self._running

    async def open_all(self) -> None:
        """Open all buckets on disk; a damaged bucket is listed as failed.

        Raises:
            CorruptionError: `two_buckets_of_one_name`.
            UsageError: `newer_format`.
            OSError: the directory cannot be read.
        """
        contents, found = await in_thread(self._inventory.read), list[BucketRecord]()
        for record in await in_thread(clean_and_find, self._path, contents):
            if record.name in self._records:
                raise CorruptionError(
                    f"{self._path} holds bucket {record.name!r} twice: {record.uuid} and "
                    f"{self._records[record.name].uuid}; move one of them away",
                    code="two_buckets_of_one_name",
                )
            self._records[record.name] = record
            try:
                if record.damage:
                    raise CorruptionError(record.damage, code="bad_file")
                found.append(record)
                await self._bring_up(record, contents.buckets.get(record.uuid))
            except (MillstreamError, OSError) as error:
                self._fail(record, error)
        await self._name(found)

    async def _name(self, records: Sequence[BucketRecord]) -> None:
        """Name buckets in the inventory; on a full disk the next start does it."""
        try:
            await in_thread(self._take_in, records)
        except OSError as error:
            _LOG.error("the inventory cannot be written: %s", error)

    def _take_in(self, records: Sequence[BucketRecord]) -> None:
        """Name buckets and their parts in the inventory; blocks."""
        for record in records:
            if not record.is_sealed:
                store_record(self._path, record)

        def with_them(contents: Contents) -> Contents:
            buckets = dict(contents.buckets)
            for record in records:
                before = buckets.get(record.uuid, record.entry)
                buckets[record.uuid] = before._replace(parts=before.parts | self._parts_of(record))
            return contents._replace(buckets=buckets)

        self._inventory.change(with_them)

    def _parts_of(self, record: BucketRecord) -> set[str]:
        """Return the parts that a bucket has and must have from now on."""
        if record.name not in self._running:
            return set()
        has_local = (self._path / record.uuid / LOCAL / "data.mdb").exists()
        parts = {LOG: True, MAP: record.has_map, LOCAL: has_local, RECORDS: record.has_records}
        return {part for part, is_there in parts.items() if is_there}

    def _fail(self, record: BucketRecord, error: Exception) -> None:
        name = record.name
        self._failures[name] = f"{error}{way_out(self._path / record.uuid, error)}"
        if isinstance(error, CorruptionError) and error.code == "bad_map_file":
            self._lacks_map.add(name)
        if _is_of_space(error):
            self._lacks_space.add(name)
            self._failures[name] += "; it is tried again by itself"
        _LOG.error("bucket %s is not served: %s", name, self._failures[name])

    async def try_again(self) -> list[str]:
        """Open the buckets that lacked disk space; return those that came up."""
        came_up = []
        for name in sorted(self._lacks_space):
            async with self._change:
                record = self._records.get(name)
                self._lacks_space.discard(name)
                if record is None or name not in self._failures:
                    continue
                try:
                    contents = await in_thread(self._inventory.read)
                    await self._bring_up(record, contents.buckets.get(record.uuid), is_again=True)
                    await self._name([record])
                except (MillstreamError, OSError) as error:
                    self._fail(record, error)
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
        record = self._records.get(name)
        unnamed = next((one for one in self._records.values() if one.damage), None)
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
        async with self._change:
            if name in self._records:
                raise ConditionError(f"bucket {name!r} exists already", code="bucket_exists")
            record = BucketRecord(
                name, uuid.uuid4().hex, partitions, utc_now(),
                memory_quota_bytes=memory_quota_bytes,
            )  # fmt: skip
            await self._make(record)
        return self._status(record)

    async def _make(
        self, record: BucketRecord, placed: PlacedMap | AdoptedMap | None = None
    ) -> None:
        name = record.name
        if len(self._records) >= BUCKETS_MAX:
            raise UnavailableError(
                f"a node has at most {BUCKETS_MAX} buckets", code="too_many_buckets"
            )
        try:
            await in_thread(make_directory, self._path, record, placed)
            await self._bring_up(record)
            await in_thread(self._take_in, [record])
        except BaseException as error:  # also when cancelled: no unfinished directory remains
            await self._let_go(record)
            await in_thread(take_back_directory, self._path, record)
            if isinstance(error, OSError):
                raise UnavailableError(
                    f"bucket {name!r} cannot be created: {error}", code="disk_error"
                ) from error
            raise
        self._records[name] = record
        _LOG.info("created bucket %s", name, extra={"partitions": record.partitions})

    async def _let_go(self, record: BucketRecord) -> None:
        """Stop and forget a bucket whose creation failed after it was opened."""
        self.served.pop(record.name, None)
        running = self._running.pop(record.name, None)
        self._adopted.pop(record.name, None)
        if running is not None:
            await running.stop()
        with suppress(MillstreamError, OSError):  # the next start finds it missing
            await in_thread(self._forget, record.uuid)

    def _forget(self, uuid: str) -> None:
        self._inventory.change(lambda contents: contents.without_bucket(uuid))

    async def set_index_replicas(self, name: str, wanted: bool) -> None:
        """Set durably whether a bucket's replicas on this node are indexed too.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`; `disk_error`.
        """
        async with self._change:
            running = self.engine(name)
            record = self._records[name]._replace(index_replicas=wanted)
            try:
                await in_thread(store_record, self._path, record)
            except OSError as error:
                raise UnavailableError(
                    f"bucket {name!r} cannot be changed: {error}", code="disk_error"
                ) from error
            self._records[name] = record
            self._on_up(running, wanted)

    def _note_part(self, record: BucketRecord, part: str) -> None:
        self._inventory.change(lambda contents: contents.with_part(record.uuid, part))

    async def delete(self, name: str, before: Callable[[Bucket], None]) -> None:
        """Delete a bucket; `before` is called once it is no longer served.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `disk_error`.
        """
        async with self._change:
            record = self._records.get(name)
            if record is None:
                raise ConditionError(f"no bucket {name!r}", code="bucket_not_found")
            self._leaving = name
            try:
                await self._delete(record, before)
            finally:
                self._leaving = ""
        _LOG.info("deleted bucket %s", name)

    async def _delete(self, record: BucketRecord, before: Callable[[Bucket], None]) -> None:
        name = record.name
        bucket = self.served.pop(name, None)
        if bucket is not None:
            before(bucket)
        running = self._running.pop(name, None)
        self._adopted.pop(name, None)
        if running is not None and name not in self._failures:
            try:
                await running.stop()
            except (MillstreamError, OSError) as error:
                _LOG.warning("bucket %s was not stopped cleanly: %s", name, error)
        if self._on_gone is not None:
            await self._on_gone(record.uuid)
        try:
            await in_thread(self._forget, record.uuid)
            await in_thread(remove_directory, self._path, record)
        except OSError as error:
            self._failures[name] = f"it could not be deleted: {error}; delete it again"
            raise UnavailableError(
                f"bucket {name!r} cannot be deleted: {error}", code="disk_error"
            ) from error
        del self._records[name]
        self._failures.pop(name, None)
        self._lacks_map.discard(name)
        self._lacks_space.discard(name)

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

    def compact(self, name: str) -> None:
        """Schedule compaction of a bucket's log, as far as its history allows.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`, it is not served.
        """
        self.engine(name).compactor.ask()

    def engine(self, name: str) -> BucketEngine:
        """Return a served bucket's engine; raises as `compact`."""
        if name not in self._records or name == self._leaving:
            raise ConditionError(f"no bucket {name!r}", code="bucket_not_found")
        if name not in self.served:
            reason = self._failures.get(name, "it is being made")
            raise UnavailableError(f"bucket {name} is not served: {reason}", code="bucket_failed")
        return self._running[name]

    def records(self) -> list[BucketRecord]:
        """Return the stored records of all buckets, sorted by name; faster than `statuses`."""
        return [self._records[name] for name in sorted(self._records)]

    def statuses(self) -> list[BucketStatus]:
        """Return the status of all buckets, sorted by name."""
        return [self._status(self._records[name]) for name in sorted(self._records)]

    async def stop(self) -> None:
        """Stop all buckets cleanly, except those whose disk failed: they need a recovery."""
        async with self._change:
            self.served.clear()
            for name, running in self._running.items():
                if name not in self._failures:
                    await running.stop()
            self._running.clear()

    async def _bring_up(
        self, record: BucketRecord, entry: Entry | None = None, *, is_again: bool = False
    ) -> None:
        """Open a bucket; `entry`: from the inventory; `is_again`: it failed before."""
        name = record.name
        parts = entry.parts if entry is not None else frozenset()

        def on_fatal(error: Exception) -> None:
            if isinstance(error, CorruptionError):
                on_corrupt(error)
                return
            if name not in self._running:
                _LOG.warning("bucket %s is being deleted and its disk failed: %s", name, error)
                return
            self._failures[name] = f"its disk failed: {error}"
            self.served.pop(name, None)
            self._on_fatal(name, error)

        def on_corrupt(error: CorruptionError) -> None:
            bucket = self.served.pop(name, None)
            if bucket is not None:
                self._failures[name] = f"{error}{way_out(self._path / record.uuid, error)}"
                _LOG.critical("bucket %s is stopped: %s", name, error)
                self._on_stopped(bucket)

        directory = self._path / record.uuid
        adopted = await in_thread(find_adopted, directory, record)
        placed: AdoptedMap | PlacedMap | None = adopted
        if placed is None:
            placed = await in_thread(find_map, directory, record)
        running = await self._open_bucket(
            directory,
            name=name,
            uuid=record.uuid,
            partition_count=record.partitions,
            flush_interval_ms=self._flush_interval_ms,
            on_persisted=self._on_persisted,
            on_fatal=on_fatal,
            on_corrupt=on_corrupt,
            purge_age_s=record.purge_age_s,
            memory_quota_bytes=self._quota_of(record),
            link_to=self.link_to,
            bucket_map=placed.bucket_map if placed else None,
            records=adopted.records if adopted else None,
            node_name=placed.node_name if placed else "",
            is_begun=LOG in parts,
            has_local=LOCAL in parts,
            on_local=lambda: self._note_part(record, LOCAL),
        )
        self._running[name] = running
        if is_again:
            self._failures.pop(name, None)
        if adopted:
            self._manage(record, running, adopted)
        if placed:
            await self._take_places(name, running)
        if name not in self._failures:
            self.served[name] = running.bucket
            self._on_up(running, record.index_replicas)

    async def _take_places(self, name: str, running: BucketEngine) -> None:
        """Take the map's places for this node that were not taken before the last stop."""
        try:
            await running.copies.take_places()
        except UnavailableError as error:
            _LOG.error("bucket %s: replicas are missing; send its map again: %s", name, error)
        except BaseException:  # also when cancelled: nothing keeps running half-started
            del self._running[name]
            await running.stop()
            raise

    def _quota_of(self, record: BucketRecord) -> int:
        own = record.memory_quota_bytes
        return self._memory_quota_bytes if own is None else own

    def _status(self, record: BucketRecord) -> BucketStatus:
        reason = self._failures.get(record.name, "")
        running = self._running.get(record.name)
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
            self._quota_of(record),
            record.index_replicas,
        )


def _is_of_space(error: Exception) -> bool:
    """Return whether a start may succeed once there is disk space."""
    if isinstance(error, UnavailableError):
        return error.code in ("disk_full", "by_id_unusable")
    return isinstance(error, OSError) and is_full(error)
