"""All documents of a bucket in the order of their ids, read on this node.

Invariants:
1. Ids are gathered first, partition by partition, the loop given back in between; documents are
   read when they are wanted, as they are then.
2. Only a node that has all partitions active gives an answer.

Elsewhere: texts of documents (`node.included_documents`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

from millstream.errors import UnavailableError
from millstream.gateway.core.shared_host import AskedDocument
from millstream.kv.core.bucket import Bucket
from millstream.node.included_documents import OwnDocuments

__all__ = ["DocumentScans"]


class DocumentScans:
    """Has the shape of `gateway.core.host.DocumentScan`.

    Args:
        find: returns a served bucket by its name, or raises why there is none.
        now_ns: Unix time.
    """

    def __init__(self, find: Callable[[str], Bucket], now_ns: Callable[[], int]) -> None:
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
        """Yield id and text of documents by id; none here has conflicts."""
        found = self._find(bucket)
        own = OwnDocuments(found, self._now_ns)
        for doc_id in await self._ids(found, first, last, descending=descending):
            text = await own.text(AskedDocument(doc_id))
            if text is not None:
                yield doc_id, text

    async def _ids(
        self, bucket: Bucket, first: str | None, last: str | None, *, descending: bool
    ) -> list[str]:
        low = b"" if first is None else first.encode(errors="surrogatepass")
        high = None if last is None else last.encode(errors="surrogatepass")
        keys: list[bytes] = []
        for partition in bucket.partitions:
            if partition.refusal is not None:
                raise UnavailableError(
                    f"partition {partition.partition_id} is not active on this node: ask a node "
                    "that has them all, or make an index for the query",
                    code="not_my_partition",
                    retry="refresh_map",
                )
            keys += [
                key
                for key in partition.known_keys()
                if key >= low and (high is None or key <= high) and key[:1] != b"_"
            ]
            await asyncio.sleep(0)
        keys.sort(reverse=descending)
        return [key.decode() for key in keys if _is_text(key)]


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True
