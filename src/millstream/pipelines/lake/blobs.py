"""Attachments in a backup: their bytes, each once, and which of them a part's documents name.

    DIR/blobs/ab/cdef...                                     the bytes whose SHA-256 is abcdef...
    DIR/data-000003-5f2c9a10/partition=7/_blobs-<16 hex>     the names, 32 bytes each, ascending

Invariants:
1. A file has its name once all of it is on the disk, and its bytes have that name. The manifest of
   whoever names it is written later.
2. Memory holds the names of one part, some 100 bytes each, and one piece.
3. A document is written only when the node that has its partition has what it names, but for what
   the backup has not got: that is counted, and told.

Elsewhere: rows (`copying`), the directory (`directory`), the node's side (`client.blobs`).
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from millstream.client.blobs import BlobClient
from millstream.client.columns import decode_meta
from millstream.client.connection import PORT_DEFAULT, TIMEOUT_S
from millstream.client.routing import Router
from millstream.client.writes import GivenWrite
from millstream.documents.stored import blobs_of
from millstream.errors import AccessError, CorruptionError, UnavailableError
from millstream.model.addresses import parse_address
from millstream.model.partitions import partition_of
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.change_stream.patience import advised
from millstream.pipelines.lake.manifest import DataFile
from millstream.runtime.files import sync_directory

__all__ = [
    "BlobRestore",
    "BlobTask",
    "Fetch",
    "blob_client",
    "blob_file",
    "check_blobs",
    "keep_blobs",
    "kept_names",
    "listed",
    "named_in",
    "read_names",
    "remove_others",
    "sync_blobs",
]

NAME_BYTES: Final = 32
KNOWN_S: Final = 600.0
"""How long the node is taken to have what was put: it keeps for an hour what nothing names yet."""
_FOLDER: Final = "blobs"
_READ_BYTES: Final = 1024 * 1024

Fetch = Callable[[int, bytes], Iterator[bytes]]
"""(partition, name) -> the bytes; raises `blob_missing` where the node has not got them."""


class BlobTask(NamedTuple):
    """Attachments to be checked."""

    root: Path
    names: tuple[bytes, ...]


def blob_client(options: SourceOptions) -> BlobClient:
    """Connect to the nodes with a bucket's attachments. Raises as `control.open_client`."""
    hosts = options.hosts.split(",")
    seeds = [parse_address(host.strip(), default_port=PORT_DEFAULT) for host in hosts]
    try:
        router = Router(
            seeds, bucket=options.bucket, user=options.user, password=options.password,
            timeout_s=TIMEOUT_S, tls=options.tls(),
        )  # fmt: skip
    except AccessError as error:
        raise advised(error) from error
    return BlobClient(router)


def blob_file(root: Path, name: bytes) -> Path:
    """Return where the bytes of a name are."""
    digits = name.hex()
    return root / _FOLDER / digits[:2] / digits[2:]


def named_in(metas: Iterable[bytes | None]) -> set[bytes]:
    """Return the names of all attachments of some rows, by their column `meta`.

    Raises:
        CorruptionError: `bad_sidecar`, `bad_meta`.
    """
    names = set[bytes]()
    for meta in metas:
        if meta is not None:
            try:
                sidecar = decode_meta(meta).sidecar
            except ValueError as error:
                raise CorruptionError(f"a row has no lineage: {error}", code="bad_meta") from error
            if sidecar:
                names |= blobs_of(sidecar)
    return names


# -- backing up


def keep_blobs(root: Path, partition_id: int, names: Iterable[bytes], fetch: Fetch) -> list[bytes]:
    """Bring what the backup has not got yet; return the names of all that it has then.

    Raises:
        CorruptionError: `bad_blob`: the node sends other bytes.
        UnavailableError: the node cannot be asked.
    """
    found = []
    for name in sorted(names):
        try:
            if not blob_file(root, name).exists():
                _keep(blob_file(root, name), name, fetch(partition_id, name))
        except UnavailableError as error:
            if error.code != "blob_missing":
                raise
        else:
            found.append(name)
    return found


def kept_names(root: Path, names: Iterable[bytes]) -> list[bytes]:
    """Return those that the backup has, ascending."""
    return [name for name in sorted(names) if blob_file(root, name).exists()]


def _keep(path: Path, name: bytes, pieces: Iterator[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{secrets.token_hex(8)}"
    digest = hashlib.sha256()
    try:
        with temporary.open("xb") as file:
            for piece in pieces:
                digest.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        if digest.digest() != name:
            raise CorruptionError(
                f"the node sent other bytes as attachment {name.hex()}: its file is damaged; "
                "bring it from a replica",
                code="bad_blob",
            )
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def listed(root: Path, data: str, partition_id: int, names: Sequence[bytes]) -> DataFile | None:
    """Write the list of attachments that a part's documents name, durably.

    None: no attachments.
    """
    if not names:
        return None
    content = b"".join(names)
    folder = root / data / f"partition={partition_id}"
    folder.mkdir(exist_ok=True)
    path = folder / f"_blobs-{secrets.token_hex(8)}"  # readers of Parquet pass over such names
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return DataFile(
        path=path.relative_to(root).as_posix(), row_count=len(names), byte_count=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )  # fmt: skip


def read_names(root: Path, file: DataFile) -> list[bytes]:
    """Return the names in a list.

    Raises:
        CorruptionError: `damaged_file`.
    """
    try:
        content = (root / file.path).read_bytes()
    except OSError as error:
        raise _damaged(file.path, error.strerror or str(error)) from error
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise _damaged(file.path, "it has another checksum")
    return [content[at : at + NAME_BYTES] for at in range(0, len(content), NAME_BYTES)]


# -- the directory


def sync_blobs(root: Path) -> None:
    """Make the names of all attachments durable."""
    folder = root / _FOLDER
    if folder.exists():
        for inner in folder.iterdir():
            sync_directory(inner)
        sync_directory(folder)


def remove_others(root: Path, needed: Iterable[DataFile]) -> None:
    """Remove all that no list names, and what was not finished.

    Raises:
        CorruptionError: a list cannot be read: nothing is removed.
    """
    names = {name.hex() for file in needed for name in read_names(root, file)}
    for path in (root / _FOLDER).glob("??/*"):
        if path.parent.name + path.name not in names:
            path.unlink()


def check_blobs(task: BlobTask) -> list[str]:
    """Read attachments; return what is wrong with them."""
    problems = []
    for name in task.names:
        path = blob_file(task.root, name)
        try:
            is_right = _digest(path) == name
        except OSError as error:
            problems.append(f"attachment {name.hex()} of the backup is missing: {error.strerror}")
        else:
            if not is_right:
                problems.append(f"attachment {name.hex()} of the backup is damaged")
    return problems


def _digest(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
    return digest.digest()


# -- restoring


class BlobRestore:
    """Brings attachments of a backup to a bucket's nodes, before the documents that name them.

    Args:
        root: of the backup.
        connect: how the nodes are reached, when the first is wanted.
        partition_count: of the bucket.
        now_s: a clock that nobody sets.
    """

    def __init__(
        self,
        root: Path,
        connect: Callable[[], BlobClient],
        partition_count: int,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._connect = connect
        self._partition_count = partition_count
        self._now_s = now_s
        self._client: BlobClient | None = None
        self._known: dict[tuple[int, bytes], float] = {}
        self.put = 0
        """How many were brought."""
        self.missing = set[bytes]()
        """Named, and not in the backup."""

    def close(self) -> None:
        """Close what is open."""
        if self._client is not None:
            self._client.close()

    def bring(self, write: GivenWrite) -> None:
        """Bring what a document names.

        Raises:
            CorruptionError: `damaged_file`, `bad_sidecar`.
            MillstreamError: the node does not take it.
        """
        if not write.sidecar:
            return
        partition_id = partition_of(write.key, self._partition_count)
        for name in sorted(blobs_of(write.sidecar)):
            since_s = self._known.get((partition_id, name))
            if since_s is None or self._now_s() - since_s > KNOWN_S:
                self._bring(partition_id, name)
                self._known[partition_id, name] = self._now_s()

    def _bring(self, partition_id: int, name: bytes) -> None:
        if self._client is None:
            self._client = self._connect()
        path = blob_file(self._root, name)
        try:
            file = path.open("rb")
        except FileNotFoundError:
            self.missing.add(name)
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            try:
                self.put += self._client.put(partition_id, name, size, file)
            except CorruptionError as error:
                if _digest(path) != name:
                    where = path.relative_to(self._root).as_posix()
                    raise _damaged(where, "these are other bytes") from error
                raise UnavailableError(
                    f"partition {partition_id} moved while attachments were brought; run it again"
                ) from error


def _damaged(path: str, reason: str) -> CorruptionError:
    return CorruptionError(
        f"{path} of the backup is damaged: {reason}; use a manifest that does not need it, "
        "or make a new backup",
        code="damaged_file",
    )
