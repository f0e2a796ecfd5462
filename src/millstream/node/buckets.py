"""The buckets of a node: found at the start, created and deleted while it runs.

A bucket is a directory named by its uuid, with `bucket.toml` (format, name, uuid, partitions,
created, perhaps purge_age_s and memory_quota_bytes) beside what the engine keeps there. A
directory that is being made ends in `.creating`, one that is going away in `.deleted`; the next
start removes both.

Invariants:
1. A bucket is served only after its directory is durable; it is gone once `delete` returns.
2. A bucket created again under an old name has a new uuid and nothing of the old one.
3. A bucket whose files are damaged stops alone: it is listed with its reason, the others are
   served. If not even its name can be read, it is listed by its uuid.
4. A creation that fails leaves nothing; a deletion that fails can be repeated.

Elsewhere: what a bucket does (`kv.aio.engine`).
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from millstream.errors import ConditionError, CorruptionError, MillstreamError, UnavailableError
from millstream.gateway.core.host import BucketStatus
from millstream.kv.aio.copies import Copies
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.low_points import PURGE_AGE_S
from millstream.node.bucket_names import (
    checked_bucket_name,
    checked_memory_quota,
    checked_partition_count,
)
from millstream.node.data_directory import FORMAT, as_text, read_toml, utc_now
from millstream.runtime.files import sync_directory, write_atomically

__all__ = ["BUCKETS_MAX", "BucketRecord", "Buckets", "find_records"]

_LOG = logging.getLogger(__name__)
BUCKETS_MAX: Final = 1000
_BUCKET_FILE: Final = "bucket.toml"
_UNFINISHED: Final = (".creating", ".deleted")


class BucketRecord(NamedTuple):
    """What bucket.toml says; if it is damaged, the uuid stands for the name too."""

    name: str
    uuid: str
    partitions: int
    created: str
    damage: str = ""
    purge_age_s: int = PURGE_AGE_S
    memory_quota_bytes: int | None = None
    """None: that of the node."""


class Buckets:
    """All buckets of one node.

    Args:
        path: the directory `buckets`, made if missing.
        flush_interval_ms: of every bucket.
        memory_quota_bytes: of every bucket that has none of its own.
        on_persisted: called after each group commit.
        on_fatal: called with a bucket's name and the error that ended its writing; the bucket is
            not served any more. Not for one that is being deleted.
        on_stopped: called with a bucket in which a damaged record was met; it is not served any
            more, the other buckets are.
        open_bucket: how a bucket is brought up.
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
        open_bucket: Callable[..., Awaitable[BucketEngine]] = BucketEngine.open,
    ) -> None:
        self.served: dict[str, Bucket] = {}
        """What the listeners see; changes in place."""
        self._path = path
        self._flush_interval_ms = flush_interval_ms
        self._memory_quota_bytes = memory_quota_bytes
        self._on_persisted = on_persisted
        self._on_fatal = on_fatal
        self._on_stopped = on_stopped
        self._open_bucket = open_bucket
        self._records: dict[str, BucketRecord] = {}
        self._running: dict[str, BucketEngine] = {}
        self._failures: dict[str, str] = {}
        self._change = asyncio.Lock()

    @property
    def running(self) -> dict[str, BucketEngine]:
        """The engines by bucket name."""
        return self._running

    async def open_all(self) -> None:
        """Bring up what is on disk; a damaged bucket is listed as failed.

        Raises:
            CorruptionError: `two_buckets_of_one_name`.
            UsageError: `newer_format`.
            OSError: the directory cannot be read.
        """
        for record in await asyncio.to_thread(_clean_and_find, self._path):
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
                await self._bring_up(record)
            except (MillstreamError, OSError) as error:
                self._failures[record.name] = str(error)
                _LOG.error("bucket %s is not served: %s", record.name, error)

    async def ensure(self, name: str, partitions: int | None, default: int) -> None:
        """Make sure that a bucket exists; `partitions` None accepts any number.

        While a bucket's name cannot be read nothing is created: it may be the one wanted.

        Raises:
            ConditionError: `other_partitions`, it exists with another number.
            UsageError, UnavailableError: as `create`.
        """
        record = self._records.get(name)
        unnamed = next((one for one in self._records.values() if one.damage), None)
        if record is None and unnamed is not None:
            _LOG.error("bucket %s is not created: it may be %s", name, unnamed.uuid)
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
        """Create a bucket, durably; without a memory quota it has that of the node.

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
            if len(self._records) >= BUCKETS_MAX:
                raise UnavailableError(
                    f"a node has at most {BUCKETS_MAX} buckets", code="too_many_buckets"
                )
            record = BucketRecord(
                name, uuid.uuid4().hex, partitions, utc_now(),
                memory_quota_bytes=memory_quota_bytes,
            )  # fmt: skip
            try:
                await asyncio.to_thread(_make_directory, self._path, record)
                await self._bring_up(record)
            except BaseException as error:
                await asyncio.to_thread(_take_back_directory, self._path, record)
                if isinstance(error, OSError):
                    raise UnavailableError(
                        f"bucket {name!r} cannot be created: {error}", code="disk_error"
                    ) from error
                raise
            self._records[name] = record
        _LOG.info("created bucket %s", name, extra={"partitions": partitions})
        return self._status(record)

    async def delete(self, name: str, before: Callable[[Bucket], None]) -> None:
        """Delete a bucket; `before` is called once it is not served any more.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `disk_error`.
        """
        async with self._change:
            record = self._records.get(name)
            if record is None:
                raise ConditionError(f"no bucket {name!r}", code="bucket_not_found")
            bucket = self.served.pop(name, None)
            if bucket is not None:
                before(bucket)
            running = self._running.pop(name, None)
            if running is not None and name not in self._failures:
                try:
                    await running.stop()
                except (MillstreamError, OSError) as error:
                    _LOG.warning("bucket %s was not stopped cleanly: %s", name, error)
            try:
                await asyncio.to_thread(_remove_directory, self._path, record)
            except OSError as error:
                self._failures[name] = f"it could not be deleted: {error}; delete it again"
                raise UnavailableError(
                    f"bucket {name!r} cannot be deleted: {error}", code="disk_error"
                ) from error
            del self._records[name]
            self._failures.pop(name, None)
        _LOG.info("deleted bucket %s", name)

    def copies(self, name: str) -> Copies:
        """Return what an operator may ask of a bucket's partitions; raises as `compact`."""
        return self._served_engine(name).copies

    def compact(self, name: str) -> None:
        """Have a bucket's log compacted soon, as far as its history may go.

        Raises:
            ConditionError: `bucket_not_found`.
            UnavailableError: `bucket_failed`, it is not served.
        """
        self._served_engine(name).compactor.ask()

    def _served_engine(self, name: str) -> BucketEngine:
        if name not in self._records:
            raise ConditionError(f"no bucket {name!r}", code="bucket_not_found")
        if name not in self.served:
            reason = self._failures.get(name, "it is being made or deleted")
            raise UnavailableError(f"bucket {name} is not served: {reason}", code="bucket_failed")
        return self._running[name]

    def statuses(self) -> list[BucketStatus]:
        """Return all buckets, sorted by name."""
        return [self._status(self._records[name]) for name in sorted(self._records)]

    async def stop(self) -> None:
        """Stop all buckets cleanly, but those whose disk failed: they need a recovery."""
        async with self._change:
            self.served.clear()
            for name, running in self._running.items():
                if name not in self._failures:
                    await running.stop()
            self._running.clear()

    async def _bring_up(self, record: BucketRecord) -> None:
        name = record.name

        def on_fatal(error: Exception) -> None:
            if isinstance(error, CorruptionError):
                on_corrupt(error)
                return
            if name not in self._running:
                _LOG.warning("bucket %s is being deleted, its disk failed: %s", name, error)
                return
            self._failures[name] = f"its disk failed: {error}"
            self.served.pop(name, None)
            self._on_fatal(name, error)

        def on_corrupt(error: CorruptionError) -> None:
            bucket = self.served.pop(name, None)
            if bucket is not None:
                self._failures[name] = str(error)
                _LOG.critical("bucket %s is stopped: %s", name, error)
                self._on_stopped(bucket)

        running = await self._open_bucket(
            self._path / record.uuid,
            name=name,
            uuid=record.uuid,
            partition_count=record.partitions,
            flush_interval_ms=self._flush_interval_ms,
            on_persisted=self._on_persisted,
            on_fatal=on_fatal,
            on_corrupt=on_corrupt,
            purge_age_s=record.purge_age_s,
            memory_quota_bytes=self._quota_of(record),
        )
        self._running[name] = running
        self.served[name] = running.bucket

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
        )


def find_records(path: Path) -> list[BucketRecord]:
    """Return the buckets in a directory, in the order of their uuids; changes nothing.

    One whose bucket.toml cannot be read comes with its damage.

    Raises:
        UsageError: `newer_format`.
        OSError: the directory cannot be read.
    """
    records = []
    for directory in sorted(path.iterdir()):
        if directory.suffix in _UNFINISHED:
            continue
        if (directory / _BUCKET_FILE).is_file():
            try:
                records.append(_read_record(directory))
            except (CorruptionError, OSError) as error:
                records.append(BucketRecord(directory.name, directory.name, 0, "", str(error)))
        else:
            _LOG.warning("%s is no bucket and is left alone", directory)
    return records


def _clean_and_find(path: Path) -> list[BucketRecord]:
    path.mkdir(exist_ok=True)
    for directory in path.iterdir():
        if directory.suffix in _UNFINISHED:
            shutil.rmtree(directory)
    return find_records(path)


def _read_record(directory: Path) -> BucketRecord:
    content = read_toml(directory / _BUCKET_FILE)
    try:
        name, partitions = str(content["name"]), int(str(content["partitions"]))
        purge_age_s = int(str(content.get("purge_age_s", PURGE_AGE_S)))
        created = as_text(content["created"])
        quota = content.get("memory_quota_bytes")
        record = BucketRecord(
            name, str(content["uuid"]), partitions, created, "", purge_age_s,
            None if quota is None else checked_memory_quota(int(str(quota))),
        )  # fmt: skip
        if purge_age_s < 0:
            raise ValueError(f"purge_age_s is {purge_age_s}")
        checked_bucket_name(record.name)
        checked_partition_count(record.partitions)
    except (KeyError, ValueError, MillstreamError) as error:
        raise CorruptionError(
            f"{directory / _BUCKET_FILE} is damaged: {error}", code="bad_file"
        ) from error
    if record.uuid != directory.name:
        raise CorruptionError(
            f"{directory} holds the bucket {record.uuid}: a copied directory keeps its name",
            code="bad_file",
        )
    return record


def _make_directory(path: Path, record: BucketRecord) -> None:
    directory = path / f"{record.uuid}.creating"
    directory.mkdir()
    content = (
        f'format = {FORMAT}\nname = "{record.name}"\nuuid = "{record.uuid}"\n'
        f"partitions = {record.partitions}\ncreated = {record.created}\n"
    )
    if record.memory_quota_bytes is not None:
        content += f"memory_quota_bytes = {record.memory_quota_bytes}\n"
    write_atomically(directory / _BUCKET_FILE, content.encode())
    directory.rename(path / record.uuid)
    sync_directory(path)


def _take_back_directory(path: Path, record: BucketRecord) -> None:
    """Remove what was made of a bucket; what cannot be removed now is at the next start."""
    made = path / record.uuid
    if made.is_dir():
        with suppress(OSError):
            made.rename(path / f"{record.uuid}.deleted")
    for suffix in _UNFINISHED:
        shutil.rmtree(path / f"{record.uuid}{suffix}", ignore_errors=True)


def _remove_directory(path: Path, record: BucketRecord) -> None:
    """Remove a bucket, also one whose removal failed half way."""
    doomed = path / f"{record.uuid}.deleted"
    if (path / record.uuid).is_dir():
        (path / record.uuid).rename(doomed)
    sync_directory(path)
    if doomed.is_dir():
        shutil.rmtree(doomed)
