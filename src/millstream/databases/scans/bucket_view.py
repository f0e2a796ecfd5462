"""The state of a whole bucket, as reported by the nodes that have its partitions active.

Invariants:
1. The state of every partition comes from a node on which it was active.
2. The purge epoch changes after each purge on any node and after each change of owner, and never
   returns to an earlier value. It consists of the newest branch of every partition and the purge
   text of its owner (`databases.purges`). An owner counts each of its purges, a moved partition
   comes with another map, and a failover begins a branch.

Elsewhere: which nodes to ask (`databases.routing`), feeds
(`databases.scans.distributed_feeds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b

from millstream.databases.purges import is_none
from millstream.databases.routing import Router, ask_owners
from millstream.documents.tokens import SPREAD_EPOCH, SPREAD_PURGED, History
from millstream.errors import UnavailableError
from millstream.gateway.core.bucket_parts import Histories, PartHistory, WantedHistories
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.revisions.changes_feed import history_of, lasting_mark

__all__ = ["BucketView", "OwnerState", "own_histories"]


@dataclass(slots=True)
class OwnerState:
    """The parts of a purge epoch: the owners' purge texts and branches, by partition."""

    branches: list[int]
    purges: list[str]
    _epoch: int = field(default=0, init=False)

    def take(self, partition: int, branch: int, purges: str) -> None:
        """Store the latest report of a partition's owner. Hot path."""
        if self.branches[partition] != branch or self.purges[partition] != purges:
            self.branches[partition], self.purges[partition] = branch, purges
            self._epoch = 0

    @property
    def epoch(self) -> int:
        """Return the purge epoch."""
        if not self._epoch:
            text = ",".join(
                f"{branch} {purges}"
                for branch, purges in zip(self.branches, self.purges, strict=True)
            )
            number = int.from_bytes(blake2b(text.encode(), digest_size=6).digest(), "big")
            is_purged = not all(map(is_none, self.purges))
            number = number | SPREAD_PURGED if is_purged else number & ~SPREAD_PURGED
            self._epoch = number | SPREAD_EPOCH
        return self._epoch


def own_histories(bucket: Bucket, numbers: Sequence[int], purges: str) -> Histories:
    """Return the state of the partitions that are active here."""
    return Histories(purges, [_history(bucket, number) for number in numbers])


def _history(bucket: Bucket, number: int) -> PartHistory:
    partition = bucket.partitions[number]
    return PartHistory(number, *history_of(partition), lasting_mark(partition))


class BucketView:
    """The reported state by partition; created by `look`."""

    def __init__(self, said: Sequence[Histories]) -> None:
        by_number = {one.partition: (one, each.purges) for each in said for one in each.partitions}
        found = [by_number[number] for number in sorted(by_number)]
        self.histories = [History(one.log, one.high_seqno, one.purge_seqno) for one, _ in found]
        self.marks = [one.mark for one, _ in found]
        self.state = OwnerState(
            [one.log[0].uuid for one, _ in found], [purges for _, purges in found]
        )

    @classmethod
    async def look(cls, router: Router) -> BucketView:
        """Ask all nodes that have partitions of a bucket; raises as `ask_owners`."""
        said = await ask_owners(router, partial(WantedHistories, router.uuid), Histories)
        found = [one for each in said for one in each.partitions]
        numbers = sorted(one.partition for one in found)
        if numbers != list(range(router.bucket.partition_count)) or not all(o.log for o in found):
            raise UnavailableError(
                "a node sent the state of other partitions than requested: ask again",
                code="node_failed",
            )
        return cls(said)
