"""Attachments of one bucket while everything goes on: seeded schedules over the real classes.

Documents are written with attachments that were put before, copied, changed by kv and deleted; the
log is flushed and compacted, partitions are rolled back, the process is killed. A sweep is under
way most of the time and takes a step now and then. Somebody holds older states; a copy that lags
is told of changes, and asks for what they name.

What has to hold after every step: every document that can be read has its attachments, so has
every state that is held, and whoever was told of a change gets what it names. In the end, once
nobody reads anything old and history is over, there is nothing that no document names.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.documents.stored import StoredDocument
from millstream.errors import MillstreamError, UnavailableError
from millstream.kv.aio import engine as engine_module
from millstream.kv.aio.documents import blob_sweeping, blobs
from millstream.kv.aio.documents.blob_sweeping import BlobSweep
from millstream.kv.aio.documents.blobs import BlobFiles
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.core.queue.low_points import HistoryWindow
from support.http.revised_documents import attachment, signature, with_leaf

PARTITIONS = 2
KEYS = [b"doc%d" % n for n in range(5)]
BYTES = [b"bytes of attachment %d" % n for n in range(6)]
REVS = 1000
HISTORY_S = 100
STEPS = 300
UUID = "0123456789abcdef0123456789abcdef"
FOLLOWER = "b"

Names = frozenset[bytes]


class Never:
    """In the place of the compactor's sweep: the world makes its own."""

    def is_due(self) -> bool:
        return False

    async def run(self, pacing: Any) -> None:
        return


class Pace:
    """A sweep that takes its steps when it is told to."""

    def __init__(self) -> None:
        self._permits = asyncio.Semaphore(0)

    def permit(self, steps: int) -> None:
        for _ in range(steps):
            self._permits.release()

    async def steps(self, steps: Iterator[None]) -> None:
        for _ in steps:
            await self._permits.acquire()

    async def rest(self) -> None:
        await self._permits.acquire()


class Told:
    """What a copy of a partition was told of, and has still to ask for."""

    def __init__(self, end: int) -> None:
        self.sent = self.complete = end
        self.wanted: list[bytes] = []
        self.epoch = -1


class World:
    """One schedule."""

    def __init__(self, seed: int, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.random = random.Random(seed)
        self.path = path
        self.patch = patch
        self.offset_ns = HISTORY_S * 10**9
        """Ahead of the clock that stamps files: what was just put is old."""
        self.number = 0
        self.removed = self.refused = self.written = 0
        self.ready: list[bytes] = []
        """Names of what was put and is to be named by some document."""
        self.leases: dict[int, tuple[int, Names]] = {}
        self.is_at_rest = False
        self.going: list[bytes] = []
        """What a sweep has still to remove of those that it is removing."""
        self.tasks = set[asyncio.Task[Any]]()
        clock = SimpleNamespace(time_ns=self.now_ns, monotonic_ns=self.now_ns)
        patch.setattr(engine_module, "time", clock)
        patch.setattr(engine_module, "HistoryWindow", lambda: HistoryWindow(HISTORY_S, 2**60))
        patch.setattr(blob_sweeping, "UNNAMED_SECONDS_MIN", 0)
        patch.setattr(blob_sweeping, "REMOVED_AT_ONCE", self.random.choice((2, 8)))
        patch.setattr(blob_sweeping, "COPIES_LOOK_S", 0)
        patch.setattr(blobs, "sync_directory", lambda _: None)
        for name in ("fsync", "fdatasync"):  # nobody loses power here
            patch.setattr(os, name, lambda _: None)
        patch.setattr(blobs.asyncio, "to_thread", self.in_loop)
        real = BlobFiles.remove

        def remove(files: BlobFiles, names: list[bytes], put_before_s: float) -> Iterator[None]:
            self.going = list(names)
            return real(files, iter(self.taken, None), put_before_s)

        patch.setattr(BlobFiles, "remove", remove)

    def taken(self) -> bytes | None:
        return self.going.pop(0) if self.going else None

    def now_ns(self) -> int:
        return time.time_ns() + self.offset_ns

    async def in_loop(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """In the place of a thread: others have a turn before and after."""
        for _ in range(self.random.randrange(3)):
            await asyncio.sleep(0)
        done = function(*arguments, **named)
        try:
            for _ in range(self.random.randrange(3)):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            if hasattr(done, "close"):
                done.close()
            raise
        return done

    # -- the schedule

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        await self.open()
        try:
            await self._live()
        finally:
            await self.end()

    async def _live(self) -> None:
        steps = [
            self.put, self.put, self.put_and_write, self.put_and_write,
            self.write, self.write, self.write, self.copy, self.change_by_kv,
            self.delete, self.flush, self.flush, self.compact, self.compact, self.roll_back,
            self.kill, self.hold, self.hold_what_goes, self.release,
            self.tell, self.tell_what_goes, self.ask, self.ask,
            self.sweep, self.sweep, self.sweep, self.pass_time,
        ]  # fmt: skip
        for _ in range(STEPS):
            step = self.random.choice(steps)
            if step in (self.kill, self.roll_back) and self.random.random() < 0.8:
                continue
            await step()
            await self.check(step.__name__)
        await self.come_to_rest()

    async def open(self) -> None:
        self.engine = await BucketEngine.open(
            self.path, name="b", uuid=UUID, partition_count=PARTITIONS, flush_interval_ms=10**6,
            on_persisted=lambda: None, on_fatal=self.failed, on_corrupt=self.failed,
            purge_age_s=0,
        )  # fmt: skip
        real: BlobSweep = self.engine.compactor._sweep  # type: ignore[assignment]
        self.sweeping, self.engine.compactor._sweep = real, Never()
        self.files = self.engine.blobs
        self.pace = Pace()
        self.running: asyncio.Task[None] | None = None
        self.told = [Told(0) for _ in range(PARTITIONS)]
        self.leases.clear()

    def failed(self, error: Exception) -> None:
        raise AssertionError(error)

    # -- what clients do

    async def put(self) -> None:
        """Bytes come in; in the meantime other things happen."""
        self.start_putting(self.random.choice(BYTES))
        for _ in range(self.random.randrange(12)):
            await asyncio.sleep(0)

    def start_putting(self, data: bytes) -> None:

        async def pieces() -> AsyncIterator[bytes]:
            yield data

        async def put() -> None:
            self.ready.append((await self.files.put(pieces())).sha256)

        task = asyncio.get_running_loop().create_task(put())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def put_and_write(self) -> None:
        """Bytes come in and are named at once: such as are about to go, if there are any."""
        known = {attachment(data).sha256: data for data in BYTES}
        going = [known[name] for name in self.going]
        await self.put_now(self.random.choice(going or BYTES))
        if self.ready:
            await self.write_names(self.random.choice(KEYS), [self.ready.pop()])

    async def put_now(self, data: bytes) -> None:
        self.start_putting(data)
        for _ in range(30):
            await asyncio.sleep(0)

    async def write(self) -> None:
        """A document names what was put some time ago, or lets go what it named."""
        count = min(len(self.ready), self.random.randrange(3))
        names = [self.ready.pop(self.random.randrange(len(self.ready))) for _ in range(count)]
        await self.write_names(self.random.choice(KEYS), names)

    async def copy(self) -> None:
        """Somebody has read a document, and is going to name its attachments in another one."""
        self.ready += sorted((await self.named(self.random.choice(KEYS)))[1])[:2]

    async def write_names(
        self, key: bytes, names: list[bytes], *, replaces: bool | None = None
    ) -> None:
        self.number += 1
        rev = f"{self.number}-{signature(self.number)}"
        if replaces is None:
            replaces = self.random.random() < 0.6
        known = {attachment(data).sha256: data for data in BYTES}

        def decide(document: StoredDocument | None) -> StoredDocument:
            base = None if replaces else document
            return with_leaf(base, rev, b'{"a":1}', blobs=tuple(known[name] for name in names))

        [made] = await self.engine.documents.update([(key, decide)], REVS, is_durable=False)
        if isinstance(made, MillstreamError):
            assert isinstance(made, UnavailableError), made
            assert made.code == "blob_missing", made
            self.refused += 1
        else:
            self.written += bool(names)

    async def change_by_kv(self) -> None:
        key = self.random.choice(KEYS)
        await self.named(key)
        partition = self.engine.bucket.partition_for(key)
        partition.put(key, b"%d" % self.number, 0, 0, 0, 0, self.now_ns())

    async def delete(self) -> None:
        key = self.random.choice(KEYS)
        await self.named(key)
        self.engine.bucket.partition_for(key).delete(key, 0, self.now_ns())

    # -- what the node does

    async def flush(self) -> None:
        for partition in self.engine.bucket.partitions:
            await self.engine.until_persisted(partition.partition_id, partition.high_seqno)

    async def compact(self) -> None:
        """As the compactor does it: never beside a sweep."""
        if self.running is None:
            await self.engine.compactor.compact()

    async def roll_back(self) -> None:
        partition = self.random.choice(self.engine.bucket.partitions)
        back = self.random.randrange(4)
        await self.engine.copies.roll_back(
            partition.partition_id, max(0, partition.high_seqno - back)
        )
        self.told[partition.partition_id] = Told(partition.high_seqno)

    async def kill(self) -> None:
        """What no flush took is gone, and so is who was about to put or name something."""
        await self.end()
        self.ready.clear()
        await self.open()

    async def end(self) -> None:
        for task in [*self.tasks, *([self.running] if self.running else [])]:
            task.cancel()
        running = [self.running] if self.running else []
        await asyncio.gather(*self.tasks, *running, return_exceptions=True)
        self.removed += self.files.removed_count
        self.engine.flusher.has_failed = True
        await self.engine.stop()

    async def pass_time(self) -> None:
        self.offset_ns += self.random.randrange(2 * HISTORY_S) * 10**9

    async def sweep(self) -> None:
        if self.running is None:
            self.running = asyncio.get_running_loop().create_task(self.sweeping.run(self.pace))
        for _ in range(self.random.choice((1, 1, 2, 3, 5, 30))):
            self.pace.permit(1)
            await asyncio.sleep(0)
            if self.going and not self.is_at_rest and self.random.random() < 0.5:
                await self.put_and_write()
        if self.running.done():
            self.running.result()
            self.running = None
            self.pace = Pace()

    # -- who reads

    async def hold(self) -> None:
        await self.hold_one(self.random.randrange(PARTITIONS))

    async def hold_one(self, p: int) -> None:
        names = await self.named_in(p)
        found = self.engine.bucket.leases.open([(p, None)], 10**6)
        assert found is not None
        self.leases[found[0]] = p, names

    async def hold_what_goes(self) -> None:
        """A state that only memory has is held, and replaced."""
        key = self.random.choice(KEYS)
        await self.put_now(self.random.choice(BYTES))
        await self.write_names(key, [self.ready.pop()] if self.ready else [])
        await self.hold_one(self.engine.bucket.partition_for(key).partition_id)
        await self.write_names(key, [], replaces=True)

    async def release(self) -> None:
        if self.leases:
            lease = self.random.choice(list(self.leases))
            del self.leases[lease]
            self.engine.bucket.leases.release(lease)

    async def tell(self) -> None:
        await self.tell_of(self.random.randrange(PARTITIONS))

    async def tell_what_goes(self) -> None:
        """A copy is told of a change that is replaced and forgotten before it asks."""
        key = self.random.choice(KEYS)
        await self.put_now(self.random.choice(BYTES))
        await self.write_names(key, [self.ready.pop()] if self.ready else [])
        await self.tell_of(self.engine.bucket.partition_for(key).partition_id)
        await self.write_names(key, [], replaces=True)
        await self.flush()
        for _ in range(2):
            self.offset_ns += 2 * HISTORY_S * 10**9
            await self.compact()

    async def tell_of(self, p: int) -> None:
        """A copy is told of the newest change of each key that it has not got."""
        bucket = self.engine.bucket
        partition = bucket.partitions[p]
        told = self.told[p]
        if told.epoch != partition.epoch:
            self.told[p] = told = Told(0)
            told.epoch = partition.epoch
            bucket.on_joined(FOLLOWER, p, told)
        for key in KEYS:
            if bucket.partition_for(key) is partition:
                seqno, names = await self.named(key)
                if seqno > told.sent:
                    told.wanted += sorted(names)
        told.sent = partition.high_seqno

    async def ask(self) -> None:
        """The copy asks for a few of what it was told of; once it has all it says so."""
        told = self.random.choice(self.told)
        for _ in range(min(len(told.wanted), self.random.randrange(4))):
            name = told.wanted.pop()
            assert self.files.piece(name, 0, 100), "what a copy was told of is gone"
        if not told.wanted and told.epoch >= 0:
            self.acknowledge(told)

    def acknowledge(self, told: Told) -> None:
        told.complete = told.sent
        p = self.told.index(told)
        self.engine.bucket.on_acknowledged(FOLLOWER, p, told, told.complete, 0)

    # -- what has to hold

    async def named(self, key: bytes) -> tuple[int, Names]:
        """The seqno of a document's newest change, and what it names."""
        found = await self.engine.documents.read(key, REVS, is_durable=False)
        if found is None:
            return 0, frozenset()
        tables = [content.attachments.values() for content in found.document.contents.values()]
        return found.seqno, frozenset(a.sha256 for table in tables for a in table if a.sha256)

    async def named_in(self, partition_id: int) -> Names:
        bucket, names = self.engine.bucket, frozenset[bytes]()
        for key in KEYS:
            if bucket.partition_for(key).partition_id == partition_id:
                names |= (await self.named(key))[1]
        return names

    def left(self) -> set[bytes]:
        """The names of the files."""
        return {bytes.fromhex(f.parent.name + f.name) for f in self.path.glob("blobs/??/*")}

    async def check(self, after: str) -> None:
        for p in range(PARTITIONS):
            for name in await self.named_in(p):
                assert self.files.piece(name, 0, 100), f"a document lacks bytes after {after}"
        for lease, (p, names) in list(self.leases.items()):
            if self.engine.bucket.lease_hold(lease, p) is None:
                del self.leases[lease]
                continue
            for name in names:
                assert self.files.piece(name, 0, 100), f"what is held lacks bytes after {after}"

    async def come_to_rest(self) -> None:
        """Nobody reads, puts or lags any more, and history is over."""
        self.is_at_rest = True
        while self.tasks:  # who puts what is being removed waits for the sweep
            if self.running is not None:
                await self.sweep()
            await asyncio.sleep(0.001)
        while self.leases:
            await self.release()
        for told in self.told:
            while told.wanted:
                assert self.files.piece(told.wanted.pop(), 0, 100)
        for p, partition in enumerate(self.engine.bucket.partitions):
            told = self.told[p]
            if told.epoch == partition.epoch:
                told.sent = partition.high_seqno
                self.acknowledge(told)
        while self.running is not None:
            await self.sweep()
        await self.flush()
        for _ in range(2):  # the first notes where the bucket stands, the second goes by it
            self.offset_ns += 2 * HISTORY_S * 10**9
            await self.engine.compactor.compact()
        await self.sweep()
        while self.running is not None:
            await self.sweep()
        needed = frozenset[bytes]().union(*[await self.named_in(p) for p in range(PARTITIONS)])
        left = self.left()
        assert left == needed, "in the end there is what documents name, and nothing else"
        assert self.files.count == len(left)
