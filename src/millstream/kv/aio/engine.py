"""One running bucket: partitions in memory, log on disk, flusher between them.

Invariants:
1. Nothing is served before recovery is complete and its new failover entries are durable.
2. The clean-stop receipt is removed before the bucket can change.
3. A clean stop writes all data, then the receipt.
4. A start on a full disk serves reads: its own writes fit into the reserve.
5. A copy that other nodes may also have is never made active by a start: the map is read before
   the log is opened.

Elsewhere: the set of buckets and the listeners (`databases.buckets`, `node`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from millstream.documents.tokens import History, is_valid, parse_token
from millstream.errors import CorruptionError, MillstreamError, UnavailableError
from millstream.kv.aio.compactor import Compactor
from millstream.kv.aio.copies import Copies
from millstream.kv.aio.documents.blob_fetching import BlobFetcher
from millstream.kv.aio.documents.blob_sweeping import BlobSweep
from millstream.kv.aio.documents.blobs import BlobFiles, BlobUpload
from millstream.kv.aio.documents.design_documents import DesignStore
from millstream.kv.aio.documents.local_store import LocalStore, Version
from millstream.kv.aio.documents.old_revisions import OldRevisions
from millstream.kv.aio.documents.revision_store import DocumentStore
from millstream.kv.aio.flusher import DISK_FULL, Flusher
from millstream.kv.aio.majority import MajorityWait
from millstream.kv.aio.memory_keeper import MemoryKeeper
from millstream.kv.aio.pager import NoExpiries, Pager
from millstream.kv.aio.reading_back import LoopReader, ReadingBack
from millstream.kv.aio.replicator import LinkTo, Replicator, plain_link
from millstream.kv.aio.reserve import Reserve
from millstream.kv.aio.serving import ServingWatch
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.collaborators import Attachments, Collaborators
from millstream.kv.core.copies.map_agreement import places_of
from millstream.kv.core.partition.memory import (
    BY_ID_SHARE,
    PENDING_CHANGE_BYTES,
    QUEUE_SHARE,
    UNLIMITED,
    Memory,
)
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.queue.low_points import PURGE_AGE_S, HistoryWindow
from millstream.kv.core.revisions.design_documents import DesignDocuments
from millstream.model.bucket_map import BucketMap
from millstream.model.cluster_maps import DataRecord
from millstream.model.limits import QUEUE_BYTES_MAX, UINT48_MAX
from millstream.model.partitions import DESIGN_PREFIX, PartitionState
from millstream.model.position import BRANCH_NOISE_BITS, FailoverEntry, branch_by_clock
from millstream.runtime.disk import OsDisk
from millstream.runtime.metrics import free_bytes
from millstream.runtime.pace import Turns
from millstream.storage.aio.by_id import LmdbByIdMap
from millstream.storage.core.disk_errors import is_full
from millstream.storage.core.store import LogStore
from millstream.wire.frames import head_of

__all__ = ["BucketEngine", "cas_to_go_on_from", "new_failover_entry"]

_LOG = logging.getLogger(__name__)
MAJORITY_SECONDS_MAX: Final = 10.0
"""How long a change over HTTP waits for a majority of the copies."""
_PURGES: Final = "purges"
"""Setting that counts purges."""
_SOURCE_MARKS: Final = (b'"source_uuid"', b'"source_vec"')
"""Found in the log of a replication whose source reports positions."""
CAS_GAP_NS: Final = 60 * 1_000_000_000
"""Gap left at a start after the clock was set back: more than the CAS that can be lost."""


def new_failover_entry(seqno: int, last_branch: int) -> FailoverEntry:
    """Return an entry for a history that begins after `seqno`, with a larger branch number."""
    by_clock = branch_by_clock(time.time_ns(), secrets.randbits(BRANCH_NOISE_BITS))
    uuid = secrets.randbelow(UINT48_MAX) + 1
    return FailoverEntry(uuid, seqno, max(last_branch + 1, by_clock))


class DiskStatistics(NamedTuple):
    """Statistics of the disk."""

    free_bytes: int


@dataclass(slots=True)
class _Opened:
    """The opened files of a bucket, and its partitions as they were found."""

    path: Path
    store: LogStore
    local: LocalStore
    mark: NoExpiries
    blobs: BlobFiles
    reading: ReadingBack
    memory: Memory
    partitions: list[Partition]


class BucketEngine:
    """A bucket with its store; created by `open`, which has the arguments, ended by `stop`."""

    flusher: Flusher
    copies: Copies
    pager: Pager
    _keeper: MemoryKeeper
    _fetcher: BlobFetcher

    def __init__(
        self,
        opened: _Opened,
        *,
        name: str,
        uuid: str,
        flush_interval_ms: int,
        memory_quota_bytes: int,
        on_persisted: Callable[[], None],
        on_fatal: Callable[[Exception], None],
        on_corrupt: Callable[[CorruptionError], None],
        purge_age_s: int,
        bucket_map: BucketMap | None,
        records: Sequence[DataRecord] | None,
        node_name: str,
        link_to: LinkTo,
    ) -> None:
        self.path, self.store, self.blobs = opened.path, opened.store, opened.blobs
        self._mark, self._reading = opened.mark, opened.reading
        self._on_persisted = on_persisted
        self._is_telling = False
        self._loop = asyncio.get_running_loop()

        def collaborators(bucket: Bucket) -> Collaborators:
            self._keeper = MemoryKeeper(
                bucket, opened.memory,
                lambda: PENDING_CHANGE_BYTES * self.store.count_pending_by_id(),
                self.store.count_keys(),
            )  # fmt: skip
            self.flusher = Flusher(
                bucket, self.store, interval_ms=flush_interval_ms,
                by_id_changes_max=memory_quota_bytes // BY_ID_SHARE // PENDING_CHANGE_BYTES,
                on_persisted=self._persisted, on_fatal=on_fatal,
            )  # fmt: skip
            self.copies = Copies(bucket, self.store, self.flusher)
            self.pager = Pager(bucket, now_ns=time.time_ns, mark=self._mark, on_fatal=on_fatal)
            self._fetcher = BlobFetcher(bucket, self.blobs, link_to)
            upload = partial(BlobUpload, self.blobs)
            return Collaborators(
                self.flusher.hurry, self._tell_reached, self._loop.call_later,
                self.pager.wipe, self.copies,
                Attachments(self._fetcher, self.blobs.piece, upload),
            )  # fmt: skip

        self.bucket = bucket = Bucket(
            name, uuid, opened.partitions,
            new_lease_id=lambda: secrets.randbits(53),
            now_ns=time.time_ns, monotonic_ns=time.monotonic_ns, collaborators=collaborators,
        )  # fmt: skip
        bucket.begin(bucket_map, records, node_name)
        self._sweep = BlobSweep(
            bucket, self.store, self.flusher, self.blobs, forget=self._fetcher.forget,
            now_ns=time.time_ns, monotonic_ns=time.monotonic_ns,
        )  # fmt: skip
        self.compactor = Compactor(
            bucket, self.store, self.flusher,
            now_ns=time.time_ns, monotonic_ns=time.monotonic_ns, on_corrupt=on_corrupt,
            window=HistoryWindow(), purge_age_s=purge_age_s, sweep=self._sweep,
        )  # fmt: skip
        self.replicator = Replicator(bucket, self.copies, link_to)
        self.serving = ServingWatch(bucket)
        self._majority = MajorityWait(time.time_ns)
        self.designs = DesignStore(
            bucket, DesignDocuments(bucket), self.until_persisted, self._majority, time.time_ns
        )
        self.documents = DocumentStore(bucket, self.until_lasting, self._majority, time.time_ns)
        self.local = opened.local
        self.old = OldRevisions(bucket, self.store, self._reading, self.local)
        self.local.is_valid = self._may_stay
        self._purging = asyncio.Lock()
        self._purge_epoch = int(self.local.setting(_PURGES) or 0)
        self._publish()

    def _publish(self) -> None:
        published = self.bucket.published
        published.add("copies", self.copies.statistics)
        published.add("map", partial(places_of, self.bucket))
        published.add("replication", self.replicator.statistics)
        published.add("serving", self.serving.statistics)
        published.add("flusher", self.flusher.statistics)
        published.add("expiry", self.pager.statistics)
        published.add("compaction", self.compactor.statistics)
        published.add("attachments", self._sweep.statistics)
        published.add("memory", self._keeper.statistics)
        published.add("reading_back", self._reading.statistics)
        published.add("disk", lambda: DiskStatistics(free_bytes(self.path)))

    def _persisted(self) -> None:
        self.bucket.made_durable()
        self.compactor.on_commit()
        self._keeper.on_persisted()
        self._on_persisted()

    def _tell_reached(self) -> None:
        """Report progress of copies once per turn; they acknowledge partition by partition."""
        if not self._is_telling:
            self._is_telling = True
            self._loop.call_soon(self._reached)

    def _reached(self) -> None:
        self._is_telling = False
        self.bucket.made_durable()
        self._on_persisted()

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        name: str,
        uuid: str,
        partition_count: int,
        flush_interval_ms: int,
        memory_quota_bytes: int = UNLIMITED,
        on_persisted: Callable[[], None],
        on_fatal: Callable[[Exception], None],
        on_corrupt: Callable[[CorruptionError], None],
        purge_age_s: int = PURGE_AGE_S,
        bucket_map: BucketMap | None = None,
        records: Sequence[DataRecord] | None = None,
        node_name: str = "",
        link_to: LinkTo = plain_link,
        log_id: bytes | None = None,
        has_local: bool = False,
        on_local: Callable[[], None] = lambda: None,
    ) -> BucketEngine:
        """Recover the bucket in `path` (created if new) and make it ready to serve.

        Args:
            path: directory of the bucket.
            name: of the bucket.
            uuid: of the bucket.
            partition_count: fixed when the bucket was created.
            flush_interval_ms: longest wait of a change for its group commit.
            memory_quota_bytes: of the documents in memory.
            on_persisted: called after each group commit.
            on_fatal: called once when the disk failed: nothing is flushed any more.
            on_corrupt: called when a read found a damaged record: the bucket should be stopped.
            purge_age_s: age at which deletions may be forgotten; 0: never.
            bucket_map: which nodes have copies; None: only this one.
            records: adopted in a managed cluster, by partition; they decide what the map shows.
            node_name: of this node in the map and in records.
            link_to: connects to other nodes with copies.
            log_id: id of the log, which was opened before and must be there, with its receipt;
                empty if it is not known; None: the log may be new.
            has_local: `_local` documents or settings were stored and must be there.
            on_local: called in a thread after the first was stored, before that is acknowledged.

        Raises:
            CorruptionError: a record in the middle of the log is damaged; names file and offset.
                The log or `local` (code `local_lost`) is incomplete.
            UnavailableError: `disk_full`, `disk_failed`.
            OSError: the directory cannot be used.
        """
        local = await asyncio.to_thread(
            LocalStore, path / "local", owner=uuid, must_be_there=has_local, on_begun=on_local
        )
        try:
            store = await asyncio.to_thread(
                _open_store, path, partition_count, bucket_map, records, node_name,
                log_id=log_id,
            )  # fmt: skip
        except BaseException:
            local.close()
            raise
        loop = asyncio.get_running_loop()

        def tell_corrupt(error: CorruptionError) -> None:
            loop.call_soon_threadsafe(partial(on_corrupt, error))

        opened = await _opened(path, name, store, local, memory_quota_bytes, tell_corrupt)
        engine = cls(
            opened, name=name, uuid=uuid, flush_interval_ms=flush_interval_ms,
            memory_quota_bytes=memory_quota_bytes, on_persisted=on_persisted, on_fatal=on_fatal,
            on_corrupt=on_corrupt, purge_age_s=purge_age_s, bucket_map=bucket_map,
            records=records, node_name=node_name, link_to=link_to,
        )  # fmt: skip
        if store.cut_bytes:
            _LOG.warning("bucket %s: cut a torn tail of %d bytes", name, store.cut_bytes)
        if not store.was_clean_stop and not store.is_new:
            _LOG.info("bucket %s: started without a clean stop, new failover entries", name)
        engine.flusher.catch_up()
        return engine

    async def until_persisted(self, partition_id: int, seqno: int) -> None:
        """Return once everything of the partition up to `seqno` is durable."""
        await self.flusher.until_persisted(partition_id, seqno)

    async def until_lasting(self, partition_id: int, seqno: int) -> None:
        """Return once a change can no longer be lost, as HTTP promises.

        It is then on this disk and, if there are copies, on a majority of them.

        Raises:
            UnavailableError: `disk_failed`; `ambiguous`: no majority has it in time, or a majority
                has become impossible.
        """
        partition = self.bucket.partitions[partition_id]
        epoch = partition.epoch
        await self.flusher.until_persisted(partition_id, seqno)
        if partition.has_copies:
            await self._until(partition, epoch, lambda: partition.majority_seqno >= seqno)

    async def until_shown(self, partition_id: int, seqno: int) -> None:
        """Return once feeds show a change: it is below a mark that a majority has on disk.

        Raises:
            UnavailableError: as `until_lasting`; `ambiguous`: the history was changed meanwhile.
        """
        partition = self.bucket.partitions[partition_id]
        epoch = partition.epoch
        partition.awaited_seqno = max(partition.awaited_seqno, seqno)  # copies report it at once
        await self.flusher.until_persisted(partition_id, seqno)
        if partition.has_copies:
            await self._until(partition, epoch, lambda: partition.durable_mark() >= seqno)
        if partition.epoch != epoch:
            raise UnavailableError(
                f"partition {partition_id} changed its history meanwhile: ask again",
                code="ambiguous",
            )

    async def _until(
        self, partition: Partition, epoch: int, is_reached: Callable[[], bool]
    ) -> None:
        """Wait until copies have reported enough, or the partition is in another epoch."""
        bucket, news = self.bucket, asyncio.Event()
        bucket.subscribe_durable(news.set)
        try:
            async with asyncio.timeout(MAJORITY_SECONDS_MAX):
                while not is_reached() and partition.epoch == epoch:
                    news.clear()
                    await self._majority.until_possible(partition)
                    await news.wait()
        except (TimeoutError, UnavailableError) as error:
            raise UnavailableError(
                f"the change is on this node's disk, and no majority of the copies of partition "
                f"{partition.partition_id} is known to have it: check later whether it is stored",
                code="ambiguous",
            ) from error
        finally:
            bucket.unsubscribe(news.set)

    @property
    def purge_epoch(self) -> int:
        """Return the number of purges made, or about to be made."""
        return self._purge_epoch

    async def count_purge(self) -> None:
        """Count a purge durably; called before the purge, so that none is made uncounted.

        Raises:
            UnavailableError: `disk_full`.
        """
        async with self._purging:
            await self._count_purges(self._purge_epoch + 1)

    async def count_purges(self, count: int) -> None:
        """Take over another node's number of purges durably, if it is larger.

        Raises as `count_purge` does.
        """
        async with self._purging:
            if count > self._purge_epoch:
                await self._count_purges(count)

    async def _count_purges(self, count: int) -> None:
        await self.local.set(_PURGES, b"%d" % count)
        self._purge_epoch = count

    def _may_stay(self, version: Version) -> bool:
        """Return whether a `_local` document counts: the log of a replication from here always.

        Its statements about this database are judged position by position when it is read.
        """
        if self._is_history(version.stamp):
            return True
        if any(mark not in version.body for mark in _SOURCE_MARKS):
            return False
        try:
            found = msgspec.json.decode(version.body)
        except msgspec.DecodeError:  # of a client with content that this decoder cannot read
            return False
        return isinstance(found, dict) and found.get("source_uuid") == self.bucket.uuid

    def _is_history(self, stamp: str) -> bool:
        """Return whether a stamp's positions in partitions active here are part of history."""
        try:
            vector = parse_token(stamp)
        except MillstreamError:
            return False
        partitions = self.bucket.partitions
        if isinstance(vector, int) or len(vector.positions) != len(partitions):
            return False
        active = [p.state is PartitionState.ACTIVE for p in partitions]
        positions = tuple(compress(vector.positions, active))
        histories = [
            History(partition.failover_log, partition.high_seqno, 0)
            for partition in compress(partitions, active)
        ]
        return is_valid(vector._replace(positions=positions, purge_epoch=0), histories)

    async def stop(self) -> None:
        """Write all data and stop cleanly; after an error of the disk, as after a crash.

        An error here is reported as any other: by `on_fatal`.
        """
        self.serving.stop()
        await self.replicator.stop()
        await self._fetcher.stop()
        await self.pager.stop()
        await self.compactor.stop()
        await self.flusher.stop()
        await self._keeper.stop()
        await self._reading.stop()
        await asyncio.to_thread(self.local.stop)
        if not self.flusher.has_failed:
            try:
                if self.pager.knows_of_none:
                    await asyncio.to_thread(self._mark.write)
                await asyncio.to_thread(self.store.stop)
            except (MillstreamError, OSError) as error:
                self.flusher.fail(error)
        if self.flusher.has_failed:
            await asyncio.to_thread(self.store.close)


def _open_store(
    path: Path,
    partition_count: int,
    bucket_map: BucketMap | None,
    records: Sequence[DataRecord] | None,
    node_name: str,
    *,
    log_id: bytes | None,
) -> LogStore:
    alone: bool | set[int] = bucket_map is None or bucket_map.is_alone
    if records is not None:
        alone = {p for p, record in enumerate(records) if record.rows == ((node_name,),)}

    def opened() -> LogStore:
        store = LogStore.open(
            OsDisk(path / "log"),
            LmdbByIdMap(path / "byid"),
            partition_count=partition_count,
            new_entry=new_failover_entry,
            is_alone=alone,
            begins_absent=bucket_map is not None,
            known_id=log_id,
        )
        store.withdraw_receipt()
        return store

    reserve = Reserve(path / "reserve", partition_count)
    try:
        store = opened()
    except (UnavailableError, OSError) as error:
        is_full_disk = is_full(error) if isinstance(error, OSError) else error.code == DISK_FULL
        if not is_full_disk or not reserve.give_back():
            raise
        store = opened()
    reserve.take()
    return store


def cas_to_go_on_from(newest: list[int], now_ns: int) -> list[int]:
    """Return the lower bound of the next CAS of each partition, by those on the disk.

    CAS are times, so usually the next one is larger than any before, including those that the disk
    never had: of locks, and of changes lost by a kill or a rollback. If the clock was set back
    they continue from the largest in the bucket, with a gap for unknown ones.
    """
    largest = max(newest, default=0)
    return newest if largest < now_ns else [largest + CAS_GAP_NS] * len(newest)


async def _opened(
    path: Path,
    name: str,
    store: LogStore,
    local: LocalStore,
    memory_quota_bytes: int,
    on_corrupt: Callable[[CorruptionError], None],
) -> _Opened:
    """Open the rest of the files; return them and the partitions as they were found."""
    newest = await asyncio.to_thread(_newest_cas, store)
    newest = cas_to_go_on_from(newest, time.time_ns())
    reading = ReadingBack(name, store, on_corrupt)
    reader, memory = LoopReader(store, on_corrupt, reading), Memory(memory_quota_bytes)
    found = store.partitions
    queue_bytes_max = min(QUEUE_BYTES_MAX, memory_quota_bytes // QUEUE_SHARE) // len(found)
    partitions, turns = list[Partition](), Turns()
    for partition_id, recovered in enumerate(found):
        await turns.give()
        partition = Partition(
            partition_id,
            failover_log=recovered.failover_log,
            high_seqno=recovered.high_seqno,
            purge_seqno=recovered.purge_seqno,
            is_resident=not store.has_records(partition_id),
            log=reader,
            last_cas=newest[partition_id],
            state=recovered.state,
            last_branch=recovered.last_branch,
            top_seqno=recovered.top_seqno,
            range_end=recovered.range_end,
            owed=recovered.owed,
            queue_bytes_max=queue_bytes_max,
            memory=memory,
        )
        partitions.append(partition)
    known = await asyncio.to_thread(store.keys_beginning, DESIGN_PREFIX)
    for partition, keys in zip(partitions, known, strict=True):
        partition.design_keys |= keys
    mark = await asyncio.to_thread(NoExpiries, path)
    blobs = BlobFiles(path / "blobs")
    await asyncio.to_thread(blobs.prepare)
    return _Opened(path, store, local, mark, blobs, reading, memory, partitions)


def _newest_cas(store: LogStore) -> list[int]:
    """Return the CAS of the newest change of each partition; 0 if there is none."""
    newest = map(store.newest_change, range(len(store.partitions)))
    return [0 if change is None else head_of(change.frame).cas for change in newest]
