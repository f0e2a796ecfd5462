"""The bytes of attachments as partitions see them: a change waits until those it names are here.

Invariants:
1. A change that names bytes which are not on this disk waits until they are: it is neither in
   memory nor in the log before. What the copy that sends it has not got either is not waited for.

Elsewhere: the files (`kv.aio.documents.blobs`), bringing them (`kv.aio.documents.blob_fetching`),
who names them
(`documents.stored`), the command that hands them out (`kv.core.session.blob_commands`).

Source: docs/design/0030-beside-the-frame.md.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple, Protocol

from millstream.kv.core.partition.residents import NotInMemory
from millstream.kv.core.queue.log_reader import Fetched

__all__ = ["NOT_KEPT", "BlobPiece", "Blobs", "BlobsMissing", "Upload"]


class BlobPiece(NamedTuple):
    """A range of a blob's bytes, and how long all of it is."""

    length: int
    data: bytes


class Blobs(Protocol):
    """The attachments of one bucket on this node."""

    def missing(self, names: Collection[bytes]) -> list[bytes]:
        """Return the names of those that must be brought first. In the loop.

        Those that are here stay from now on: the change that names them has to be made, or
        refused, in the same step.
        """

    def bring(self, partition_id: int, names: Collection[bytes], done: Fetched) -> bool:
        """Bring blobs that the copy which this one follows names; see `LogReader.fetch`."""


class Upload(Protocol):
    """What one connection sends of blobs: see `BlobUpload`."""

    async def take(self, name: bytes, offset: int, total: int, data: bytes) -> int:
        """Take a piece; return how many bytes are here."""

    def abandon(self) -> None:
        """Forget what was begun."""


class _NotKept:
    """No blobs are looked for: the partitions are nobody's."""

    def missing(self, _: Collection[bytes]) -> list[bytes]:
        return []

    def bring(self, partition_id: int, names: Collection[bytes], done: Fetched) -> bool:
        raise AssertionError("nothing is missing")


NOT_KEPT: Final[Blobs] = _NotKept()


class BlobsMissing(NotInMemory):
    """A change names blobs that are not here; once they were fetched it is applied again."""

    def __init__(self, blobs: Blobs, partition_id: int, names: Collection[bytes]) -> None:
        Exception.__init__(self, partition_id, names)
        self._blobs = blobs
        self._partition_id = partition_id
        self._names = names

    def fetch(self, done: Fetched) -> bool:
        """See `Blobs.bring`."""
        return self._blobs.bring(self._partition_id, self._names, done)
