from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from millstream.client.columns import encode_meta
from millstream.client.writes import GivenWrite
from millstream.documents.stored import pack
from millstream.errors import CorruptionError, UnavailableError
from millstream.model.partitions import partition_of
from millstream.pipelines.lake.blobs import (
    KNOWN_S,
    BlobRestore,
    BlobTask,
    blob_file,
    check_blobs,
    keep_blobs,
    kept_names,
    listed,
    named_in,
    read_names,
)
from support.http.revised_documents import signature, with_leaf

LINEAGE = b"\1\1"
DATA = {hashlib.sha256(data).digest(): data for data in (b"one", b"two" * 1000, b"")}
NAMES = sorted(DATA)


def sidecar(*data: bytes) -> bytes:
    return pack(with_leaf(None, "1-" + signature(1), blobs=data)).sidecar


class Node:
    """Sends attachments, and takes them."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.blobs = dict(DATA)
        self.failure: Exception | None = None
        self.is_closed = False

    def fetch(self, partition_id: int, name: bytes) -> Iterator[bytes]:
        assert partition_id == 3
        self.asked.append(name)
        if name not in self.blobs:
            raise UnavailableError("not here", code="blob_missing")
        yield self.blobs[name][:2]
        if self.failure is not None:
            raise self.failure
        yield self.blobs[name][2:]

    def put(self, partition_id: int, name: bytes, size: int, file: BinaryIO) -> bool:
        data = file.read()
        assert len(data) == size
        self.asked.append(name)
        if hashlib.sha256(data).digest() != name or self.failure is not None:
            raise CorruptionError("other bytes", code="bad_blob")
        is_new = name not in self.blobs
        self.blobs[name] = data
        return is_new

    def close(self) -> None:
        self.is_closed = True


def test_rows_name_attachments_by_their_sidecars() -> None:
    metas = [None, encode_meta(LINEAGE), encode_meta(LINEAGE, sidecar(b"one", b""))]
    assert named_in(metas) == {hashlib.sha256(data).digest() for data in (b"one", b"")}
    with pytest.raises(CorruptionError) as damage:
        named_in([b"\x90"])
    assert damage.value.code == "bad_meta"


def test_each_is_brought_once_and_listed(tmp_path: Path) -> None:
    node = Node()
    assert keep_blobs(tmp_path, 3, NAMES[:2], node.fetch) == NAMES[:2]
    assert keep_blobs(tmp_path, 3, NAMES, node.fetch) == NAMES
    assert sorted(node.asked) == NAMES
    assert {name: blob_file(tmp_path, name).read_bytes() for name in NAMES} == DATA
    (tmp_path / "data").mkdir()
    found = listed(tmp_path, "data", 3, NAMES)
    assert found is not None
    assert found.path.startswith("data/partition=3/_blobs-")
    assert read_names(tmp_path, found) == NAMES
    assert listed(tmp_path, "data", 3, []) is None
    (tmp_path / found.path).write_bytes(b"x" * 96)
    with pytest.raises(CorruptionError):
        read_names(tmp_path, found)
    (tmp_path / found.path).unlink()
    with pytest.raises(CorruptionError):
        read_names(tmp_path, found)


def test_attachments_missing_at_the_node_are_left_out(tmp_path: Path) -> None:
    node = Node()
    del node.blobs[NAMES[1]]
    assert keep_blobs(tmp_path, 3, NAMES, node.fetch) == [NAMES[0], NAMES[2]]
    assert kept_names(tmp_path, NAMES) == [NAMES[0], NAMES[2]]


def test_interrupted_and_wrong_attachments_leave_no_file(tmp_path: Path) -> None:
    node = Node()
    node.failure = UnavailableError("gone", code="connection_closed")
    with pytest.raises(UnavailableError):
        keep_blobs(tmp_path, 3, NAMES, node.fetch)
    node.failure = None
    node.blobs[NAMES[0]] = b"something else"
    with pytest.raises(CorruptionError) as other:
        keep_blobs(tmp_path, 3, NAMES, node.fetch)
    assert other.value.code == "bad_blob"
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_damage_is_found_by_reading(tmp_path: Path) -> None:
    keep_blobs(tmp_path, 3, NAMES, Node().fetch)
    task = BlobTask(tmp_path, tuple(NAMES))
    assert check_blobs(task) == []
    blob_file(tmp_path, NAMES[0]).write_bytes(b"x")
    blob_file(tmp_path, NAMES[2]).unlink()
    damaged, missing = check_blobs(task)
    assert damaged == f"attachment {NAMES[0].hex()} of the backup is damaged"
    assert missing.startswith(f"attachment {NAMES[2].hex()} of the backup is missing")


def restore_to(node: Node, root: Path, clock: list[float]) -> BlobRestore:
    connect: Any = lambda: node  # noqa: E731 - typed as what it stands for
    return BlobRestore(root, connect, 8, lambda: clock[0])


def write(key: bytes, *data: bytes) -> GivenWrite:
    beside = sidecar(*data) if data else b""
    return GivenWrite(key, b"{}", 0, 1, 0, 1, 1, LINEAGE, sidecar=beside)


def test_missing_attachments_are_sent_before_the_document(tmp_path: Path) -> None:
    keep_blobs(tmp_path, 3, NAMES, Node().fetch)
    node, clock = Node(), [0.0]
    node.blobs = {hashlib.sha256(b"").digest(): b""}
    bringing = restore_to(node, tmp_path, clock)
    bringing.bring(write(b"k"))
    assert node.asked == []
    bringing.bring(write(b"k", b"one", b""))
    assert node.blobs == {name: DATA[name] for name in NAMES if DATA[name] in (b"one", b"")}
    assert (bringing.put, bringing.missing) == (1, set())
    asked = len(node.asked)
    bringing.bring(write(b"k", b"one"))
    assert len(node.asked) == asked, "it is known to be there"
    other = next(
        key for key in (b"a", b"b", b"c") if partition_of(key, 8) != partition_of(b"k", 8)
    )
    bringing.bring(write(other, b"one"))
    assert len(node.asked) == asked + 1, "another node may have that partition"
    clock[0] += KNOWN_S + 1
    bringing.bring(write(b"k", b"one"))
    assert len(node.asked) == asked + 2, "what nothing names is not kept for ever"
    bringing.close()
    assert node.is_closed


def test_missing_attachments_are_counted_and_damage_is_an_error(tmp_path: Path) -> None:
    keep_blobs(tmp_path, 3, NAMES, Node().fetch)
    node, name = Node(), hashlib.sha256(b"one").digest()
    node.blobs.clear()
    bringing = restore_to(node, tmp_path, [0.0])
    bringing.bring(write(b"k", b"not there"))
    assert bringing.missing == {hashlib.sha256(b"not there").digest()}
    node.failure = OSError()
    with pytest.raises(UnavailableError, match="moved"):
        bringing.bring(write(b"k", b"one"))
    blob_file(tmp_path, name).write_bytes(b"0ne")
    with pytest.raises(CorruptionError) as damage:
        bringing.bring(write(b"k", b"one"))
    assert damage.value.code == "damaged_file"
