"""Fetches attachments from the nodes that this one follows, before changes that name them.

Invariants:
1. Bytes are stored only under the name computed from their own hash.
2. Only one fetch of a blob runs at a time. It continues if the connection that requested it is
   lost.
3. If the followed node does not have a blob either, this is logged and the blob is no longer
   waited for: otherwise it would block the copy for ever. Any other failure is reported, and the
   fetch is retried with the change.

Elsewhere: which changes wait (`kv.core.partition.blobs`), the files (`kv.aio.documents.blobs`).

Source: docs/design/0030-beside-the-frame.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from functools import partial
from typing import Final

from millstream.errors import MillstreamError, RemoteProtocolError, UnavailableError
from millstream.kv.aio.documents.blobs import BlobFiles
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.queue.log_reader import Fetched
from millstream.kv.core.session.blob_commands import blob_request, piece_of
from millstream.model.bucket_map import NodeAddress
from millstream.runtime.tasks import Tasks
from millstream.upr.aio.link import Link
from millstream.wire.mcbp import Status

__all__ = ["BlobFetcher"]

_LOG = logging.getLogger(__name__)
_KNOWN_MAX: Final = 65_536
"""Cached names of blobs that are here, or nowhere: some 100 bytes each."""


class _NotThereError(Exception):
    """The other node does not have it either."""


class BlobFetcher:
    """Implements `kv.core.partition.blobs.Blobs`.

    Args:
        bucket: of the attachments.
        files: their store.
        link_to: connects to another node, for a bucket by name.
    """

    def __init__(
        self, bucket: Bucket, files: BlobFiles, link_to: Callable[[NodeAddress, str], Link]
    ) -> None:
        self._bucket = bucket
        self._files = files
        self._link_to = link_to
        self._known: dict[bytes, None] = {}
        self._running: dict[bytes, asyncio.Task[Exception | None]] = {}
        self._work = Tasks()

    def missing(self, names: Collection[bytes]) -> list[bytes]:
        """Return the names of those that must be fetched first; those that are here stay."""
        self._files.keep(names)
        return [name for name in names if name not in self._known and not self._has(name)]

    def _has(self, name: bytes) -> bool:
        if self._files.has(name) and name not in self._running:
            self._remember(name)
            return True
        return False

    def _remember(self, name: bytes) -> None:
        if len(self._known) >= _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[name] = None

    def forget(self, names: Collection[bytes]) -> None:
        """These are about to be removed: forget that they are here."""
        for name in names:
            self._known.pop(name, None)

    def bring(self, partition_id: int, names: Collection[bytes], done: Fetched) -> bool:
        """Fetch blobs from the node that the partition's copy follows."""
        self._work.start(self._bring(partition_id, names, done), name="bring attachments")
        return True

    async def stop(self) -> None:
        """Stop all fetches."""
        await self._work.stop()

    async def _bring(self, partition_id: int, names: Collection[bytes], done: Fetched) -> None:
        failure: Exception | None = None
        for name in names:
            running = self._running.get(name)
            if running is None:
                running = self._work.start(
                    self._try_to_fetch(partition_id, name), name="fetch an attachment"
                )
                self._running[name] = running
                running.add_done_callback(partial(self._fetched, name))
            failure = await asyncio.shield(running)
            if failure is not None:
                break
        done(failure)

    def _fetched(self, name: bytes, _: asyncio.Task[Exception | None]) -> None:
        self._running.pop(name, None)

    async def _try_to_fetch(self, partition_id: int, name: bytes) -> Exception | None:
        try:
            await self._fetch(partition_id, name)
        except (MillstreamError, OSError) as error:
            return error
        return None

    async def _fetch(self, partition_id: int, name: bytes) -> None:
        node = self._source_of(partition_id)
        link = self._link_to(node, self._bucket.name)
        try:
            await link.open()
            kept = await self._files.put(_pieces(link, name))
        except _NotThereError:
            _LOG.error(
                "bucket %s: node %s has not got attachment %s, which partition %d names: it is "
                "lost unless a backup has it",
                self._bucket.name, node.name, name.hex(), partition_id,
            )  # fmt: skip
        else:
            if kept.sha256 != name:
                message = f"node {node.name} sent other bytes as attachment {name.hex()}"
                raise RemoteProtocolError(message, code="bad_blob")
        finally:
            await link.close()
        self._remember(name)

    def _source_of(self, partition_id: int) -> NodeAddress:
        source = self._bucket.source(partition_id)
        if source is None:
            raise UnavailableError(
                f"no map says which node has the attachments of partition {partition_id} of "
                f"bucket {self._bucket.name!r}: give the bucket a map",
                code="blob_missing",
            )
        return source


async def _pieces(link: Link, name: bytes) -> AsyncIterator[bytes]:
    offset, length = 0, 1
    while offset < length:
        packet = await link.ask(blob_request(name, offset))
        if packet.status == Status.KEY_ENOENT:
            raise _NotThereError
        piece = piece_of(packet) if packet.status == Status.SUCCESS else None
        if piece is None or (not piece.data and piece.length > offset):
            raise UnavailableError(
                f"{link.address} does not send attachment {name.hex()}: status "
                f"0x{packet.status:02x}",
                code="blob_missing",
            )
        offset, length = offset + len(piece.data), piece.length
        yield piece.data
