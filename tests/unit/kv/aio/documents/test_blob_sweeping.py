"""Sweeps of a running bucket, on real files; what happens beside them is in `blob_world`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.errors import CorruptionError, UnavailableError
from millstream.kv.aio import engine as engine_module
from millstream.kv.aio.documents import blob_sweeping as module
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.aio.flusher import DISK_FULL
from millstream.kv.core.queue.low_points import HistoryWindow
from millstream.kv.core.revisions.revision_store import Made
from support.http.revised_documents import attachment, signature, with_leaf

NOW = 1_700_000_000_000_000_000
HOUR_NS = 3600 * 10**9


class Node:
    """A running bucket with a clock of its own, whose history is over at once."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.now_ns = NOW
        self.failures: list[Exception] = []
        clock = SimpleNamespace(time_ns=lambda: self.now_ns, monotonic_ns=lambda: self.now_ns)
        monkeypatch.setattr(engine_module, "time", clock)
        monkeypatch.setattr(engine_module, "HistoryWindow", lambda: HistoryWindow(0, 0))
        self.number = 0

    async def open(self) -> None:
        self.engine = await BucketEngine.open(
            self.path, name="b", uuid="00", partition_count=2, flush_interval_ms=1,
            on_persisted=lambda: None, on_fatal=self.failures.append,
            on_corrupt=self.failures.append, purge_age_s=0,
        )  # fmt: skip

    async def put(self, data: bytes, *, hours: float = 2) -> bytes:
        """Keep bytes, so many hours ago."""

        async def pieces() -> AsyncIterator[bytes]:
            yield data

        name = (await self.engine.blobs.put(pieces())).sha256
        then_ns = self.now_ns - int(hours * HOUR_NS)
        os.utime(self.file(name), ns=(then_ns, then_ns))
        self.engine.blobs.put_ns = self.now_ns
        return name

    def file(self, name: bytes) -> Path:
        return self.path / "blobs" / name.hex()[:2] / name.hex()[2:]

    async def write(self, key: bytes, *data: bytes) -> Any:
        """Let a document name bytes."""
        self.number += 1
        document = with_leaf(None, f"{self.number}-{signature(self.number)}", b"{}", blobs=data)
        [made] = await self.engine.documents.update(
            [(key, lambda _: document)], 1000, is_durable=True
        )
        return made

    async def compact(self) -> None:
        """History is over: the first look notes where the bucket stands, the second goes by it."""
        for _ in range(2):
            self.now_ns += 10**9
            await self.engine.compactor.compact()

    def left(self) -> set[bytes]:
        return {bytes.fromhex(f.parent.name + f.name) for f in self.path.glob("blobs/??/*")}


@pytest.fixture(name="node")
async def _node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    node = Node(tmp_path, monkeypatch)
    await node.open()
    yield node
    await node.engine.stop()
    assert node.failures == []


def name_of(data: bytes) -> bytes:
    return attachment(data).sha256


async def test_what_no_document_names_any_more_goes_with_compaction(node: Node) -> None:
    for data in (b"a", b"b", b"c"):
        await node.put(data)
    await node.write(b"doc", b"a", b"b")
    await node.write(b"other", b"b")
    await node.compact()
    assert node.left() == {name_of(b"a"), name_of(b"b")}
    await node.write(b"doc", b"b")
    await node.compact()
    assert node.left() == {name_of(b"b")}
    await node.write(b"doc")
    await node.write(b"other")
    await node.compact()
    assert node.left() == set()
    figures = node.engine.bucket.published.read("attachments")
    assert figures["attachments_removed_total"] == 3
    assert figures["attachments_removed_bytes_total"] == 3
    assert figures["attachments_files"] == figures["attachments_bytes"] == 0


async def test_what_was_put_in_the_last_hour_may_be_named_yet(node: Node) -> None:
    await node.put(b"young", hours=0.9)
    await node.put(b"old")
    await node.compact()
    assert node.left() == {name_of(b"young")}
    made = await node.write(b"doc", b"young")
    assert isinstance(made, Made)
    node.now_ns += HOUR_NS
    await node.compact()
    assert node.left() == {name_of(b"young")}


async def test_bytes_that_are_put_again_are_young_again(node: Node) -> None:
    await node.put(b"x")
    node.now_ns = int(node.file(name_of(b"x")).stat().st_mtime_ns) + 2 * HOUR_NS
    before = node.file(name_of(b"x")).stat().st_mtime_ns

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x"

    await node.engine.blobs.put(pieces())
    assert node.file(name_of(b"x")).stat().st_mtime_ns > before
    assert node.engine.blobs.count == 1


async def test_who_names_them_too_late_is_told(node: Node) -> None:
    await node.put(b"x")
    await node.compact()
    made = await node.write(b"doc", b"x")
    assert isinstance(made, UnavailableError)
    assert made.code == "blob_missing"
    await node.put(b"x")
    assert isinstance(await node.write(b"doc", b"x"), Made)


async def test_what_was_removed_is_not_taken_for_known(node: Node) -> None:
    """Names that were here are remembered, so that not every change looks for them."""
    await node.put(b"x")
    await node.write(b"doc", b"x")
    await node.write(b"doc")
    await node.compact()
    assert node.left() == set()
    assert isinstance(await node.write(b"other", b"x"), UnavailableError)


async def test_who_puts_what_is_being_removed_waits_until_it_is_gone(node: Node) -> None:
    files, name = node.engine.blobs, await node.put(b"x")
    with files.removing([name]):
        assert not files.has(name)
        assert node.engine.bucket.attachments.blobs.missing([name]) == [name]
        putting = asyncio.get_running_loop().create_task(node.put(b"x"))
        while not list((node.path / "blobs" / "new").iterdir()):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
        assert not putting.done()
        for _ in files.remove([name], 2**40):
            pass
        assert not node.file(name).exists()
    assert await putting == name
    assert files.has(name)
    assert files.count == 1


async def test_what_was_put_while_it_was_about_to_go_stays(node: Node) -> None:
    name = await node.put(b"x", hours=0)
    for _ in node.engine.blobs.remove([name], NOW / 10**9 - 1):
        pass
    assert node.left() == {name}


async def test_of_many_files_some_are_judged_at_a_time(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NAMES_MAX", 3)
    for n in range(20):
        await node.put(b"%d" % n)
    await node.write(b"doc", b"3", b"17")
    await node.compact()
    assert node.left() == {name_of(b"3"), name_of(b"17")}


async def test_a_lagging_copy_is_waited_for(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await node.put(b"x")
    await node.write(b"doc", b"x")
    await node.write(b"doc")
    bucket, stream = node.engine.bucket, object()
    partition = bucket.partition_for(b"doc")
    bucket.on_joined("n2", partition.partition_id, stream)
    looks = 0

    async def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        node.now_ns += 10**9

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    await node.compact()
    assert node.left() == {name_of(b"x")}
    assert looks >= module.COPIES_SECONDS_MAX
    assert not node.engine.compactor.is_running
    node.now_ns += 2 * HOUR_NS
    assert node.engine.compactor._sweep.is_due(), "it tries again"
    bucket.on_acknowledged("n2", partition.partition_id, stream, partition.high_seqno, 0)
    await node.compact()
    assert node.left() == set()


async def test_sweeps_are_due_now_and_then_where_there_may_be_something(node: Node) -> None:
    sweep = node.engine.compactor._sweep
    assert not sweep.is_due(), "there is no attachment"
    await node.put(b"x", hours=0)
    assert sweep.is_due()
    await node.compact()
    assert not sweep.is_due(), "it is not time"
    node.now_ns += 2 * HOUR_NS
    assert sweep.is_due(), "what was put was too young"


async def test_while_the_disk_is_too_full_for_the_log_nothing_is_judged(node: Node) -> None:
    await node.put(b"x")
    node.engine.bucket.writes.refuse(DISK_FULL)
    await node.engine.compactor._sweep.run(Pace())
    assert node.left() == {name_of(b"x")}
    node.engine.bucket.writes.accept(DISK_FULL)
    await node.engine.compactor._sweep.run(Pace())
    assert node.left() == set()


class Pace:
    async def steps(self, steps: Iterator[None]) -> None:
        for _ in steps:
            pass

    async def rest(self) -> None:
        return


async def test_nothing_goes_where_a_sidecar_cannot_be_read(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await node.put(b"x")
    await node.write(b"doc", b"x")
    await node.write(b"doc")
    sweep = node.engine.compactor._sweep
    store = node.engine.store
    found = SimpleNamespace(sidecar=b"\x09 of a newer release")
    with monkeypatch.context() as patch:
        patch.setattr(store, "scan", lambda *_: iter([[found]]))
        await sweep.run(Pace())
    assert node.left() == {name_of(b"x")}
    assert "unused attachments are not removed" in caplog.text

    def damaged(*_: object) -> Iterator[Any]:
        raise CorruptionError("a record", code="corrupt_log")
        yield

    monkeypatch.setattr(store, "scan", damaged)
    with pytest.raises(CorruptionError):
        await sweep.run(Pace())


async def test_a_file_that_cannot_be_removed_is_told_and_stays(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await node.put(b"x")

    def refuse(_: Path) -> None:
        raise PermissionError("not this one")

    monkeypatch.setattr(Path, "unlink", refuse)
    await node.engine.compactor._sweep.run(Pace())
    assert node.left() == {name_of(b"x")}
    assert node.engine.blobs.has(name_of(b"x"))
    assert "not this one" in caplog.text
