"""The buckets of a node, those that are served and those that failed, and how one is opened.

Invariants:
1. A bucket is served only after its directory is durable. A failed creation leaves nothing behind.
2. A bucket with damaged files fails alone: it is listed with the reason.
3. A bucket that was given a map, or has adopted records, is not opened without them.
4. Every bucket is named in the inventory.

Elsewhere: what can be done with the set of buckets (`databases.buckets`) and with their maps
(`databases.bucket_maps`); the engine of a bucket (`kv.aio.engine`), its directory
(`data_directory.bucket_files`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from millstream.data_directory.bucket_files import (
    BucketRecord,
    find_adopted,
    find_map,
    make_directory,
    store_adopted,
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
from millstream.data_directory.map_file import AdoptedMap, PlacedMap
from millstream.databases.adopted_records import AdoptedRecords
from millstream.errors import (
    ConditionError,
    CorruptionError,
    MillstreamError,
    UnavailableError,
)
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.aio.replicator import LinkTo, plain_link
from millstream.kv.core.bucket import Bucket
from millstream.runtime.tasks import in_thread
from millstream.storage.core.disk_errors import is_full

__all__ = ["BUCKETS_MAX", "BucketTable"]

_LOG = logging.getLogger(__name__)
BUCKETS_MAX: Final = 1000


class BucketTable:
    """The buckets of one node; whoever changes the set holds the lock `change`.

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
        open_bucket: Callable[..., Awaitable[BucketEngine]] = BucketEngine.open,
    ) -> None:
        self.served: dict[str, Bucket] = {}
        """What the listeners see; changed in place."""
        self.path = path
        self.inventory = Inventory(path.parent)
        self._flush_interval_ms = flush_interval_ms
        self._memory_quota_bytes = memory_quota_bytes
        self._on_persisted = on_persisted
        self._on_fatal = on_fatal
        self._on_stopped = on_stopped
        self.link_to = link_to
        self.on_up = on_up
        self._open_bucket = open_bucket
        self.records: dict[str, BucketRecord] = {}
        self.running: dict[str, BucketEngine] = {}
        self.failures: dict[str, str] = {}
        self.lacks_space: set[str] = set()
        """Failed buckets that could not be opened because the disk was full."""
        self.lacks_map: set[str] = set()
        """Failed buckets that lack only their map."""
        self.leaving = ""
        """The bucket that is being deleted; it can no longer be found."""
        self.awaits_maps = False
        """The cluster has not said yet which buckets there are: a missing one is unknown."""
        self.change = asyncio.Lock()
        self.adopted: dict[str, AdoptedRecords] = {}
        """By name, of the buckets that belong to a managed cluster."""

    def engine(self, name: str) -> BucketEngine:
        """Return a served bucket's engine.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`, it is not served; `buckets_unknown`.
        """
        if name not in self.records:
            self.check_known()
        if name not in self.records or name == self.leaving:
            raise ConditionError(f"no bucket {name!r}", code="bucket_not_found")
        if name not in self.served:
            reason = self.failures.get(name, "it is being made")
            raise UnavailableError(f"bucket {name} is not served: {reason}", code="bucket_failed")
        return self.running[name]

    def check_known(self) -> None:
        """Return if all buckets are known that this node is to have.

        Raises:
            UnavailableError: `buckets_unknown`.
        """
        if self.awaits_maps:
            raise UnavailableError(
                "this node has not read yet which buckets its cluster has: ask again, or another "
                "node; `millstream cluster status` says what it waits for",
                code="buckets_unknown",
            )

    async def make(
        self, record: BucketRecord, placed: PlacedMap | AdoptedMap | None = None
    ) -> None:
        """Create a bucket durably, with its first map if it has one.

        Raises:
            UnavailableError: `too_many_buckets`, `disk_error`, `disk_full`.
        """
        name = record.name
        if len(self.records) >= BUCKETS_MAX:
            raise UnavailableError(
                f"a node has at most {BUCKETS_MAX} buckets", code="too_many_buckets"
            )
        try:
            await in_thread(make_directory, self.path, record, placed)
            await self.bring_up(record)
            await in_thread(self._take_in, [record])
        except BaseException as error:  # also when cancelled: no unfinished directory remains
            await self._let_go(record)
            await in_thread(take_back_directory, self.path, record)
            if isinstance(error, OSError):
                raise UnavailableError(
                    f"bucket {name!r} cannot be created: {error}", code="disk_error"
                ) from error
            raise
        self.records[name] = record
        _LOG.info("created bucket %s", name, extra={"partitions": record.partitions})

    async def bring_up(
        self, record: BucketRecord, entry: Entry | None = None, *, is_again: bool = False
    ) -> None:
        """Open a bucket; `entry`: from the inventory; `is_again`: it failed before."""
        name = record.name
        parts = entry.parts if entry is not None else frozenset()

        def on_fatal(error: Exception) -> None:
            if isinstance(error, CorruptionError):
                on_corrupt(error)
                return
            if name not in self.running:
                _LOG.warning("bucket %s is being deleted and its disk failed: %s", name, error)
                return
            self.failures[name] = f"its disk failed: {error}"
            self.served.pop(name, None)
            self._on_fatal(name, error)

        def on_corrupt(error: CorruptionError) -> None:
            bucket = self.served.pop(name, None)
            if bucket is not None:
                self.failures[name] = f"{error}{way_out(self.path / record.uuid, error)}"
                _LOG.critical("bucket %s is stopped: %s", name, error)
                self._on_stopped(bucket)

        directory = self.path / record.uuid
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
            memory_quota_bytes=self.quota_of(record),
            link_to=self.link_to,
            bucket_map=placed.bucket_map if placed else None,
            records=adopted.records if adopted else None,
            node_name=placed.node_name if placed else "",
            log_id=entry.log if entry is not None else None,
            has_local=LOCAL in parts,
            on_local=lambda: self.note_part(record, LOCAL),
        )
        self.running[name] = running
        if is_again:
            self.failures.pop(name, None)
        if adopted:
            self.manage(record, running, adopted)
        if placed:
            await self._take_places(name, running)
        if name not in self.failures:
            self.served[name] = running.bucket
            self.on_up(running, record.index_replicas)

    async def _take_places(self, name: str, running: BucketEngine) -> None:
        """Take the map's places for this node that were not taken before the last stop."""
        try:
            await running.copies.take_places()
        except UnavailableError as error:
            _LOG.error("bucket %s: replicas are missing; send its map again: %s", name, error)
        except BaseException:  # also when cancelled: nothing keeps running half-started
            del self.running[name]
            await running.stop()
            raise

    def fail(self, record: BucketRecord, error: Exception) -> None:
        """List a bucket as failed, with the reason and the way out."""
        name = record.name
        self.failures[name] = f"{error}{way_out(self.path / record.uuid, error)}"
        if isinstance(error, CorruptionError) and error.code == "bad_map_file":
            self.lacks_map.add(name)
        if _is_of_space(error):
            self.lacks_space.add(name)
            self.failures[name] += "; it is tried again by itself"
        _LOG.error("bucket %s is not served: %s", name, self.failures[name])

    async def _let_go(self, record: BucketRecord) -> None:
        """Stop and forget a bucket whose creation failed after it was opened."""
        self.served.pop(record.name, None)
        running = self.running.pop(record.name, None)
        self.adopted.pop(record.name, None)
        if running is not None:
            await running.stop()
        with suppress(MillstreamError, OSError):  # the next start finds it missing
            await in_thread(self.forget, record.uuid)

    def quota_of(self, record: BucketRecord) -> int:
        """Return the memory quota of a bucket in bytes: its own, or that of the node."""
        own = record.memory_quota_bytes
        return self._memory_quota_bytes if own is None else own

    async def name_in_inventory(self, records: Sequence[BucketRecord]) -> None:
        """Name buckets in the inventory; on a full disk the next start does it."""
        try:
            await in_thread(self._take_in, records)
        except OSError as error:
            _LOG.error("the inventory cannot be written: %s", error)

    def _take_in(self, records: Sequence[BucketRecord]) -> None:
        """Name buckets and their parts in the inventory; blocks."""
        for record in records:
            if not record.is_sealed:
                store_record(self.path, record)

        def with_them(contents: Contents) -> Contents:
            buckets = dict(contents.buckets)
            for record in records:
                before = buckets.get(record.uuid, record.entry)
                running = self.running.get(record.name)
                log_id = running.store.log_id.hex() if running is not None else before.log_id
                parts = before.parts | self._parts_of(record)
                buckets[record.uuid] = before._replace(parts=parts, log_id=log_id)
            return contents._replace(buckets=buckets)

        self.inventory.change(with_them)

    def _parts_of(self, record: BucketRecord) -> set[str]:
        """Return the parts that a bucket has and must have from now on."""
        if record.name not in self.running:
            return set()
        has_local = (self.path / record.uuid / LOCAL / "data.mdb").exists()
        parts = {LOG: True, MAP: record.has_map, LOCAL: has_local, RECORDS: record.has_records}
        return {part for part, is_there in parts.items() if is_there}

    def note_part(self, record: BucketRecord, part: str) -> None:
        """Name a part of a bucket in the inventory; blocks."""
        self.inventory.change(lambda contents: contents.with_part(record.uuid, part))

    def forget(self, uuid: str) -> None:
        """Remove a bucket from the inventory; blocks."""
        self.inventory.change(lambda contents: contents.without_bucket(uuid))

    async def reopen(self, record: BucketRecord) -> None:
        """Open a bucket that failed; raises as its engine, and then it is listed as failed."""
        try:
            contents = await in_thread(self.inventory.read)
            await self.bring_up(record, contents.buckets.get(record.uuid), is_again=True)
            await self.name_in_inventory([record])
        except (MillstreamError, OSError) as error:
            self.fail(record, error)
            raise

    def manage(self, record: BucketRecord, running: BucketEngine, adopted: AdoptedMap) -> None:
        """Let a bucket adopt further records from now on."""
        keep = partial(self.keep_adopted, record.name)
        self.adopted[record.name] = known = AdoptedRecords(running, adopted, keep)
        running.bucket.adopt = known.adopt

    async def keep_adopted(self, name: str, adopted: AdoptedMap) -> None:
        """Write the file of adopted records.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `disk_error`.
        """
        record = self.records.get(name)
        if record is None:
            raise ConditionError(f"no bucket {name!r}", code="bucket_not_found")
        try:
            await in_thread(store_adopted, self.path / record.uuid, record, adopted)
            if not record.has_records:
                await in_thread(self.note_part, record, RECORDS)
        except OSError as error:
            raise UnavailableError(
                f"the records of bucket {name!r} cannot be written: {error}", code="disk_error"
            ) from error
        if not record.has_records:
            self.records[name] = record._replace(has_records=True)


def _is_of_space(error: Exception) -> bool:
    """Return whether a start may succeed once there is disk space."""
    if isinstance(error, UnavailableError):
        return error.code in ("disk_full", "by_id_unusable")
    return isinstance(error, OSError) and is_full(error)
