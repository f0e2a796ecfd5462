"""Attachment bytes as partitions see them: a change waits until the bytes that it names are here.

Invariants:
1. A change that names bytes waits until they are on this disk: before that it is neither in memory
   nor in the log. Bytes that the sending copy does not have either are not waited for.

Elsewhere: the files (`kv.aio.documents.blobs`), fetching (`kv.aio.documents.blob_fetching`), the
names in documents (`documents.stored`), the command that sends them
(`kv.core.session.blob_commands`).

Source: docs/design/0030-beside-the-frame.md.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple, Protocol

from millstream.kv.core.partition.residents import NotInMemory
from millstream.kv.core.queue.log_reader import Fetched

__all__ = ["NOT_KEPT", "BlobPiece", "Blobs", "BlobsMissing", "Upload"]


class BlobPiece(NamedTuple):
    """A range of a blob's bytes, and the length of the whole blob."""

    length: int
    data: bytes


class Blobs(Protocol):
    """The attachments of one bucket on this node."""

    def missing(self, names: Collection[bytes]) -> list[bytes]:
        """Return the names of those that must be fetched first. Called in the loop.

        Those that are here are kept from now on: the change that names them must be made, or
        refused, in the same step.
        """

    def bring(self, partition_id: int, names: Collection[bytes], done: Fetched) -> bool:
        """Fetch blobs named by the copy that this one follows; see `LogReader.fetch`."""


class Upload(Protocol):
    """Blobs being sent by one connection: see `BlobUpload`."""

    async def take(self, name: bytes, offset: int, total: int, data: bytes) -> int:
        """Store a piece; return how many bytes are here."""

    def abandon(self) -> None:
        """Discard an unfinished upload."""


class _NotKept:
    """Checks no blobs: the partitions belong to no bucket."""

    def missing(self, _: Collection[bytes]) -> list[bytes]:
        return []

    def bring(self, partition_id: int, names: Collection[bytes], done: Fetched) -> bool:
        raise AssertionError("nothing is missing")


NOT_KEPT: Final[Blobs] = _NotKept()


class BlobsMissing(NotInMemory):
    """A change names blobs that are not here; it is applied again after they were fetched."""

    def __init__(self, blobs: Blobs, partition_id: int, names: Collection[bytes]) -> None:
        Exception.__init__(self, partition_id, names)
        self._blobs = blobs
        self._partition_id = partition_id
        self._names = names

    def fetch(self, done: Fetched) -> bool:
        """See `Blobs.bring`."""
        return self._blobs.bring(self._partition_id, self._names, done)
