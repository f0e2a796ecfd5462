"""What this node tells other nodes about its buckets, and the documents that they request.

Invariants:
1. A bucket that is not served stays in the list, without a revision, so other nodes keep what they
   know of it.
2. An answer with documents is bounded by `PORTION_BYTES` and one document more.

Elsewhere: the pages (`gateway.aio.peers.shared_pages`), one bucket (`databases.own_bucket`), how
other nodes use it (`cluster.cluster_state`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from millstream.cluster.cluster_state import ListedBucket, SharedBucket, SharedList
from millstream.databases.buckets import Buckets
from millstream.databases.documents.included_documents import PORTION_BYTES, OwnDocuments
from millstream.databases.own_bucket import OwnBucket
from millstream.gateway.core.api.shared import AskedDocument

__all__ = ["Shared"]


class Shared:
    """Implements `gateway.core.api.shared.SharedApi`.

    Args:
        uuid: of the node.
        buckets: of the node.
        own: the served buckets by uuid.
        kv_port: returns the port, 0 if the listener is closed.
    """

    def __init__(
        self,
        uuid: str,
        buckets: Buckets,
        own: Mapping[str, OwnBucket],
        kv_port: Callable[[], int],
    ) -> None:
        self._uuid = uuid
        self._buckets = buckets
        self._own = own
        self._kv_port = kv_port

    def listed(self) -> SharedList:
        """Return the list of buckets."""
        return SharedList(
            self._uuid,
            self._kv_port(),
            [
                ListedBucket(
                    record.name, record.uuid, record.partitions,
                    own.revision if (own := self._own.get(record.uuid)) is not None else "",
                )
                for record in self._buckets.records()
            ],
        )  # fmt: skip

    async def bucket(self, name: str) -> SharedBucket:
        """Return the description of a bucket; raises as `Buckets.engine`."""
        return await self._own[self._buckets.engine(name).bucket.uuid].shared()

    async def documents(self, name: str, asked: Sequence[AskedDocument]) -> list[bytes | None]:
        """Return the texts of the first documents; raises as `Buckets.engine`.

        Raises:
            UnavailableError: `not_my_partition`.
        """
        running = self._buckets.engine(name)
        documents = OwnDocuments(running.bucket, time.time_ns, running.blobs.read)
        found, size = list[bytes | None](), 0
        for one in asked:
            text = await documents.text(one)
            found.append(text)
            size += len(text or b"")
            if size >= PORTION_BYTES:
                break
        return found
