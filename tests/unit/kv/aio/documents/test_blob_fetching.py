from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.errors import MillstreamError, RemoteProtocolError, UnavailableError
from millstream.kv.aio.documents import blob_fetching
from millstream.kv.aio.documents.blob_fetching import BlobFetcher
from millstream.kv.aio.documents.blobs import BlobFiles
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.wire.mcbp import Opcode, Packet, Status, cut_packets, response
from support.kv.log_double import new_bucket

NODES = (NodeAddress("n1", "h", 1, 2), NodeAddress("n2", "h", 3, 4))
DATA = b"0123456789" * 10


class Source:
    """The other node; also every link to it."""

    address = "n1"

    def __init__(self) -> None:
        self.blobs: dict[bytes, bytes] = {}
        self.failure: MillstreamError | None = None
        self.piece_bytes = 30
        self.opened = self.closed = 0

    def link_to(self, node: NodeAddress, bucket: str) -> Source:
        assert (node, bucket) == (NODES[0], "b")
        return self

    async def open(self) -> frozenset[int]:
        self.opened += 1
        if self.failure is not None:
            raise self.failure
        return frozenset()

    async def close(self) -> None:
        self.closed += 1

    async def ask(self, frame: bytes) -> Packet:
        (asked,), _ = cut_packets(frame, 1000)
        assert asked.opcode == Opcode.GET_BLOB
        data, offset = self.blobs.get(asked.key), int.from_bytes(asked.extras[:8], "big")
        status = Status.KEY_ENOENT if data is None else Status.SUCCESS
        piece = (data or b"")[offset : offset + self.piece_bytes]
        extras = len(data or b"").to_bytes(8, "big")
        (packet,), _ = cut_packets(
            response(Opcode.GET_BLOB, status, 0, extras=extras, value=piece), 1000
        )
        return packet


class Here:
    """This node, which follows the other one."""

    def __init__(self, path: Path) -> None:
        self.source = Source()
        self.bucket = new_bucket(2)
        self.bucket.set_map(BucketMap(1, NODES, (("n1", "n2"), ("n2", "n1"))), "n2")
        self.files = BlobFiles(path)
        self.fetcher = BlobFetcher(self.bucket, self.files, self.source.link_to)  # type: ignore[arg-type]

    async def bring(self, *names: bytes, partition: int = 0) -> Exception | None:
        told: list[Exception | None] = []
        assert self.fetcher.bring(partition, names, told.append)
        await self.fetcher._work.finish()
        return told[0]


@pytest.fixture(name="here")
def _here(tmp_path: Path) -> Here:
    return Here(tmp_path)


async def name_of(data: bytes, path: Path) -> bytes:
    async def whole() -> AsyncIterator[bytes]:
        yield data

    return (await BlobFiles(path).put(whole())).sha256


async def test_it_comes_in_pieces_and_is_not_missing_any_more(here: Here, tmp_path: Path) -> None:
    name = await name_of(DATA, tmp_path / "there")
    here.source.blobs[name] = DATA
    assert here.fetcher.missing([name]) == [name]
    assert await here.bring(name) is None
    assert here.files.piece(name, 0, 1000) == (len(DATA), DATA)
    assert here.fetcher.missing([name]) == []
    assert (here.source.opened, here.source.closed) == (1, 1)


async def test_nothing_at_all_is_brought_too(here: Here, tmp_path: Path) -> None:
    name = await name_of(b"", tmp_path / "there")
    here.source.blobs[name] = b""
    assert await here.bring(name) is None
    assert here.files.has(name)


async def test_two_who_want_it_wait_for_one_fetch(here: Here, tmp_path: Path) -> None:
    name = await name_of(DATA, tmp_path / "there")
    here.source.blobs[name] = DATA
    told: list[Exception | None] = []
    here.fetcher.bring(0, [name], told.append)
    here.fetcher.bring(0, [name], told.append)
    await here.fetcher._work.finish()
    assert (told, here.source.opened) == ([None, None], 1)


async def test_what_is_nowhere_is_waited_for_no_longer(
    here: Here, caplog: pytest.LogCaptureFixture
) -> None:
    assert await here.bring(bytes(32)) is None
    assert here.fetcher.missing([bytes(32)]) == []
    assert "has not got attachment" in caplog.text


async def test_other_bytes_are_not_taken_for_it(here: Here) -> None:
    here.source.blobs[bytes(32)] = DATA
    failure = await here.bring(bytes(32))
    assert isinstance(failure, RemoteProtocolError)
    assert here.fetcher.missing([bytes(32)]) == [bytes(32)]


async def test_a_node_that_sends_nothing_more_is_not_asked_for_ever(here: Here) -> None:
    here.source.blobs[bytes(32)] = DATA
    here.source.piece_bytes = 0
    failure = await here.bring(bytes(32))
    assert isinstance(failure, UnavailableError)
    assert failure.code == "blob_missing"


async def test_it_is_tried_again_once_the_node_can_be_reached(here: Here, tmp_path: Path) -> None:
    name = await name_of(DATA, tmp_path / "there")
    here.source.blobs[name] = DATA
    here.source.failure = UnavailableError("away", code="unreachable")
    assert await here.bring(name) is here.source.failure
    here.source.failure = None
    assert await here.bring(name) is None


async def test_without_a_source_nobody_is_asked(here: Here) -> None:
    failure = await here.bring(bytes(32), partition=1)  # which this node itself is to have
    assert isinstance(failure, UnavailableError)
    here.bucket.map = None
    assert isinstance(await here.bring(bytes(32)), UnavailableError)
    assert here.source.opened == 0


async def test_what_is_remembered_is_bounded(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_fetching, "_KNOWN_MAX", 2)
    for number in range(5):
        await here.bring(bytes([number]) * 32)
    assert len(here.fetcher._known) == 2
    await here.fetcher.stop()
