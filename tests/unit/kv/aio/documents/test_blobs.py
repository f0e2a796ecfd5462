from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.errors import UnavailableError, UsageError
from millstream.kv.aio.documents import blobs
from millstream.kv.aio.documents.blobs import READ_BYTES, BlobFiles, BlobUpload, damaged_blobs

DATA = bytes(range(256)) * 2000


async def cut(data: bytes, size: int = 10_000) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def read(files: BlobFiles, sha256: bytes, begin: int, end: int) -> bytes:
    return b"".join([piece async for piece in files.read(sha256, begin, end)])


def files_in(path: Path) -> list[str]:
    return sorted(str(one.relative_to(path)) for one in path.rglob("*") if one.is_file())


async def test_bytes_are_kept_under_their_hash_and_read_by_ranges(tmp_path: Path) -> None:
    files = BlobFiles(tmp_path / "blobs")
    files.prepare()
    assert not (tmp_path / "blobs").exists(), "nothing was ever attached"
    put = await files.put(cut(DATA))
    name = hashlib.sha256(DATA).hexdigest()
    assert put == (bytes.fromhex(name), hashlib.md5(DATA).digest(), len(DATA))
    assert files_in(tmp_path) == [f"blobs/{name[:2]}/{name[2:]}"]
    assert files.has(put.sha256)
    assert len(DATA) > READ_BYTES
    assert await read(files, put.sha256, 0, len(DATA)) == DATA
    assert await read(files, put.sha256, 7, 300_009) == DATA[7:300_009]
    assert files.piece(put.sha256, 5, 100) == (len(DATA), DATA[5:105])
    assert files.piece(put.sha256, len(DATA) + 5, 100) == (len(DATA), b"")
    assert (files.count, files.bytes) == (1, len(DATA))
    with pytest.raises(UnavailableError, match="too short") as short:
        await read(files, put.sha256, 0, len(DATA) + 1)
    assert short.value.code == "blob_missing"


async def test_bytes_that_were_altered_are_never_served_whole(tmp_path: Path) -> None:
    files = BlobFiles(tmp_path)
    put = await files.put(cut(DATA))
    assert damaged_blobs(tmp_path) == 0
    file = tmp_path / files_in(tmp_path)[0]
    file.write_bytes(DATA[:-1] + bytes([DATA[-1] ^ 1]))
    assert damaged_blobs(tmp_path) == 1
    with pytest.raises(UnavailableError, match="is damaged"):
        await read(files, put.sha256, 0, len(DATA))


async def test_the_same_bytes_are_there_once(tmp_path: Path) -> None:
    files = BlobFiles(tmp_path)
    first, second = await files.put(cut(DATA)), await files.put(cut(DATA, 77))
    assert first == second
    assert len(files_in(tmp_path)) == 1
    nothing = await files.put(cut(b""))
    assert await read(files, nothing.sha256, 0, 0) == b""


async def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    files = BlobFiles(tmp_path)
    assert not files.has(bytes(32))
    assert files.piece(bytes(32), 0, 10) is None
    with pytest.raises(UnavailableError) as missing:
        await read(files, bytes(32), 0, 10)
    assert missing.value.code == "blob_missing"


async def test_what_is_broken_off_leaves_nothing(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield DATA
        raise ConnectionError("gone")

    files = BlobFiles(tmp_path)
    with pytest.raises(UnavailableError):  # an error of the operating system, like a full disk
        await files.put(broken())
    assert files_in(tmp_path) == []


async def test_a_start_removes_what_was_not_finished(tmp_path: Path) -> None:
    files = BlobFiles(tmp_path)
    put = await files.put(cut(DATA))
    (tmp_path / "new" / "half").write_bytes(DATA[:9])
    again = BlobFiles(tmp_path)
    again.prepare()
    assert again.has(put.sha256)
    assert len(files_in(tmp_path)) == 1


async def test_names_are_durable_before_put_returns_whoever_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(blobs, "sync_directory", synced.append)
    files = BlobFiles(tmp_path / "blobs")
    put = await files.put(cut(DATA))
    directory = tmp_path / "blobs" / put.sha256.hex()[:2]
    assert synced == [directory, tmp_path / "blobs", tmp_path]
    await files.put(cut(DATA))
    assert synced[3:] == [directory], "that it was there already does not say that it lasts"
    again = BlobFiles(tmp_path / "blobs")
    again.prepare()
    assert synced[4:] == [directory, tmp_path / "blobs", tmp_path]


NAME = hashlib.sha256(DATA).digest()


async def test_what_comes_by_pieces_is_there_once_it_is_whole(tmp_path: Path) -> None:
    files = BlobFiles(tmp_path)
    upload = BlobUpload(files)
    assert await upload.take(NAME, 0, len(DATA), b"") == 0
    assert await upload.take(NAME, 0, len(DATA), DATA[:1000]) == 1000
    assert not files.has(NAME)
    assert await upload.take(NAME, 1000, len(DATA), DATA[1000:]) == len(DATA)
    assert files.piece(NAME, 0, len(DATA)) == (len(DATA), DATA)
    os.utime(f"{tmp_path}/{NAME.hex()[:2]}/{NAME.hex()[2:]}", (1, 1))
    assert await upload.take(NAME, 0, len(DATA), b"") == len(DATA), "it is known"
    assert list(files.old(2, b"", 10, [])) == [None]
    found: list[bytes] = []
    for _ in files.old(2, b"", 10, found):
        pass
    assert found == [], "and stays: somebody is about to name it"
    nothing = hashlib.sha256(b"").digest()
    assert await upload.take(nothing, 0, 0, b"") == 0
    assert files.has(nothing)
    assert [name for name in files_in(tmp_path) if name.startswith("new")] == []


@pytest.mark.parametrize(
    "piece",
    [(NAME, 999, len(DATA), b"x"), (bytes(32), 1000, len(DATA), b"x"),
     (NAME, 1000, 1001, b"xy"), (NAME, 1000, 1001, b"x")],
)  # fmt: skip
async def test_what_does_not_come_next_or_is_something_else_is_refused(
    tmp_path: Path, piece: tuple[bytes, int, int, bytes]
) -> None:
    upload = BlobUpload(BlobFiles(tmp_path))
    await upload.take(NAME, 0, len(DATA), DATA[:1000])
    with pytest.raises(UsageError) as refusal:
        await upload.take(*piece)
    assert refusal.value.code == "bad_blob"
    assert files_in(tmp_path) == []
    with pytest.raises(UsageError):
        await upload.take(NAME, 1000, len(DATA), DATA[1000:])


async def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    upload = BlobUpload(BlobFiles(tmp_path))
    monkeypatch.setattr(blobs.BlobWriting, "write", full)
    with pytest.raises(UnavailableError) as refusal:
        await upload.take(NAME, 0, len(DATA), DATA[:1000])
    assert refusal.value.code == "disk_full"
    assert files_in(tmp_path) == []
