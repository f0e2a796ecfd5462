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
from functools import partial
from time import thread_time
from typing import Final

from millstream.databases.documents.included_documents import AskedDocument, StoredTexts
from millstream.databases.routing import Router
from millstream.databases.scans.distributed_scans import FoundDocument, scan_everywhere
from millstream.databases.scans.local_scan import Range, ordered_keys
from millstream.gateway.core.api.stored import Stored
from millstream.kv.aio.reading_back import with_documents
from millstream.kv.core.revisions.revision_store import RevisedDocuments
from millstream.runtime.pace import Pace
from millstream.views.core.design.documents import Documents

__all__ = ["DocumentScans"]

_HIGHEST: Final = b"\xff"
"""Larger than every id."""


class DocumentScans:
    """Implements `gateway.core.api.node.DocumentScan`.

    Args:
        route: returns the router of a served bucket, or raises why there is none.
        now_ns: Unix time.
    """

    def __init__(self, route: Callable[[str], Router], now_ns: Callable[[], int]) -> None:
        self._route = route
        self._now_ns = now_ns

    def documents(
        self,
        bucket: str,
        first: str | None,
        last: str | None,
        *,
        descending: bool,
        conflicts: bool,
    ) -> AsyncGenerator[tuple[str, bytes], None]:
        """Return id and text of documents by id; their conflicts are not included."""
        router = self._route(bucket)
        low = b"" if first is None else first.encode(errors="surrogatepass")
        high = _HIGHEST if last is None else last.encode(errors="surrogatepass")
        documents = Documents(router.uuid)

        def made(found: FoundDocument) -> bytes | None:
            [(_, _, text)] = documents.of([found.frame], [found.side]) or [(0, b"", None)]
            return text

        own = partial(self._own, router)
        return scan_everywhere(router, Range(low, high, descending), own, made, self._now_ns)

    async def _own(
        self, router: Router, wanted: Range
    ) -> AsyncGenerator[tuple[bytes, bytes | None], None]:
        """Yield texts, without design documents, if all partitions are here."""
        bucket = router.bucket
        documents, texts, pace = (
            RevisedDocuments(bucket),
            StoredTexts(bucket.uuid),
            Pace(thread_time),
        )
        numbers = range(bucket.partition_count)
        async with aclosing(ordered_keys(bucket, numbers, wanted, pace)) as keys:
            async for key in keys:
                await pace.breathe(0)
                if key[:1] == b"_":
                    continue
                kept = await with_documents(partial(documents.kept, key, self._now_ns()))
                if kept is not None:
                    stored = Stored(kept.frame, kept.side)
                    yield key, await texts.text(AskedDocument(key.decode()), stored)
