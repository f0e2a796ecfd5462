"""What this node tells other nodes about its buckets.

Invariants:
1. A bucket that is not served stays in the list, without a revision, so other nodes keep what they
   know of it.

Elsewhere: the pages (`gateway.aio.peers.shared_pages`), one bucket (`databases.own_bucket`), how
other nodes use it (`cluster.cluster_state`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millstream.cluster.cluster_state import ListedBucket, SharedBucket, SharedList
from millstream.databases.buckets import Buckets
from millstream.databases.own_bucket import OwnBucket

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
