"""The changes of a node's buckets, for readers over HTTP.

Invariants:
1. A bucket that is served no more ends its readers, whatever they wait for.

Elsewhere: the walks (`kv.aio.changes`), the pages (`gateway.aio.changes_pages`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from millstream.kv.aio.changes import BucketChanges
from millstream.kv.core.bucket import Bucket

__all__ = ["NodeChanges"]


class NodeChanges:
    """Has the shape of `gateway.core.host.ChangesHost`.

    Args:
        find: returns a served bucket by its name, or raises why there is none.
        purge_epoch: returns how often documents of it were purged; raises as `find`.
    """

    def __init__(
        self, find: Callable[[str], Bucket], purge_epoch: Callable[[str], int] = lambda _: 0
    ) -> None:
        self._find, self._purge_epoch = find, purge_epoch
        self._of: dict[Bucket, BucketChanges] = {}

    def of(self, bucket: str) -> BucketChanges:
        """Return those of one bucket."""
        found = self._find(bucket)
        changes = self._of.get(found)
        if changes is None:
            changes = self._of[found] = BucketChanges(found, partial(self._purge_epoch, bucket))
        return changes

    def drop(self, bucket: Bucket) -> None:
        """A bucket is served no more."""
        changes = self._of.pop(bucket, None)
        if changes is not None:
            changes.drop()
