"""The texts of all documents of a bucket, ordered by id.

Invariants:
1. Ids and documents are read on demand, in their current state. The loop gets control in between.
2. A node that does not have all partitions active asks the nodes that have the others.

Elsewhere: texts of documents (`databases.documents.included_documents`), other nodes
(`databases.scans.distributed_scans`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from time import thread_time
from typing import Final

from millstream.databases.documents.included_documents import OwnDocuments
from millstream.databases.partition_owners import BucketPlaces, is_elsewhere
from millstream.databases.scans.distributed_scans import DistributedScan
from millstream.databases.scans.local_scan import Range, ordered_keys
from millstream.errors import MillstreamError
from millstream.gateway.core.api.shared import AskedDocument
from millstream.kv.core.bucket import Bucket
from millstream.runtime.pace import Pace
from millstream.views.core.design.documents import Documents

__all__ = ["DocumentScans"]

_HIGHEST: Final = b"\xff"
"""Larger than every id."""


class DocumentScans:
    """Implements `gateway.core.api.node.DocumentScan`.

    Args:
        find: returns the places of a served bucket's partitions, or raises why there are none.
        now_ns: Unix time.
    """

    def __init__(self, find: Callable[[str], BucketPlaces], now_ns: Callable[[], int]) -> None:
        self._find = find
        self._now_ns = now_ns

    async def documents(
        self,
        bucket: str,
        first: str | None,
        last: str | None,
        *,
        descending: bool,
        conflicts: bool,
    ) -> AsyncGenerator[tuple[str, bytes], None]:
        """Yield id and text of documents by id; their conflicts are not included."""
        places = self._find(bucket)
        low = b"" if first is None else first.encode(errors="surrogatepass")
        high = _HIGHEST if last is None else last.encode(errors="surrogatepass")
        wanted, last_read = Range(low, high, descending), ""
        if not places.is_shared or places.is_whole:
            own = OwnDocuments(places.bucket, self._now_ns)
            try:
                async with aclosing(_own_keys(places.bucket, wanted)) as keys:
                    async for key in keys:
                        doc_id = key.decode()
                        text = await own.text(AskedDocument(doc_id))
                        last_read = doc_id
                        if text is not None:
                            yield doc_id, text
                return
            except MillstreamError as error:
                if not places.is_shared or not is_elsewhere(error):
                    raise
        if last_read:
            wanted = wanted.behind(last_read.encode())
        found = self._spread(places, wanted)
        async with aclosing(found):
            async for one in found:
                yield one

    async def _spread(
        self, places: BucketPlaces, wanted: Range
    ) -> AsyncGenerator[tuple[str, bytes], None]:
        """Yield the documents of all nodes."""
        made = Documents(places.bucket.uuid)
        found = DistributedScan(places, self._now_ns).documents(wanted)
        async with aclosing(found):
            async for one in found:
                for _, key, text in made.of([one.frame], [one.side]):
                    if text is not None:
                        yield key.decode(), text


async def _own_keys(bucket: Bucket, wanted: Range) -> AsyncGenerator[bytes, None]:
    """Yield the ids of documents, without design documents."""
    pace, numbers = Pace(thread_time), range(bucket.partition_count)
    async with aclosing(ordered_keys(bucket, numbers, wanted, pace)) as keys:
        async for key in keys:
            await pace.breathe(0)
            if key[:1] != b"_":
                yield key
