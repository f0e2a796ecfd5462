"""Partitions of a bucket in a managed cluster: which the indexes here answer for, and since when.

Invariants:
1. This node answers for a partition if the newest index record that it knows names it as the
   owner, and is not older than the one by which it was asked.
2. It does so only once the index that is asked has reached the floor of that record.

Elsewhere: what is told of them (`bucket_order`), how far indexes are (`views.core.index.floors`),
which records a node has adopted (`node.index_parts`).
"""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.errors import RoutingError
from millstream.model.cluster_maps import IndexRecord, MapKey
from millstream.views.aio.serving.bucket_order import BucketOrder, NodeShare, OwnedParts
from millstream.views.core.design.design_documents import DesignDocument
from millstream.views.core.index.floors import below_floor, digest_of, position_in
from millstream.views.core.index.header import Header, members_of

if TYPE_CHECKING:
    from millstream.views.aio.indexing.indexing import BucketIndexer
    from millstream.views.aio.serving.hosted_index import HostedIndex
    from millstream.views.core.index.commits import IndexSnapshot

__all__ = [
    "ASK_S_MAX",
    "MOVE_S_MAX",
    "RECORDS_TOLD_MAX",
    "RECORD_S_MAX",
    "Asked",
    "PartsTold",
    "check_asked",
    "index_nodes",
    "is_kept_fresh",
    "records_in",
    "refused",
    "shares_of",
    "snapshot_at_floor",
    "until_settled",
    "updated",
    "with_newer",
]

Asked = Mapping[int, MapKey]
"""By partition, the key of the index record by which a node was chosen."""
ASK_S_MAX: Final = 1.0
"""How long a query that is below a floor waits for what the sources say of their histories."""
RECORD_S_MAX: Final = 1.0
"""How long a query waits for an index record that must be on its way."""
MOVE_S_MAX: Final = 2.0
"""How long a query with update=true waits for the end of a move of the data or of the index."""
_PAUSE_S: Final = 0.02
RECORDS_TOLD_MAX: Final = 256
"""Most index records in a refusal. Each has some 150 bytes; more are told in the next try."""
_SHOWN_MAX: Final = 5
"""Partitions named in an error."""


def refused(
    partitions: Collection[int],
    why: str,
    records: Mapping[int, IndexRecord] = MappingProxyType({}),
) -> RoutingError:
    """Return the error of a query for partitions that are not answered for here now.

    Args:
        partitions: of the query.
        why: they are not.
        records: that the asker should know.
    """
    some = ", ".join(map(str, sorted(partitions)[:_SHOWN_MAX]))
    more = f" and {len(partitions) - _SHOWN_MAX} more" if len(partitions) > _SHOWN_MAX else ""
    error = RoutingError(f"the index here does not answer for partitions {some}{more}: {why}")
    error.records = dict(islice(records.items(), RECORDS_TOLD_MAX))
    return error


def with_newer(
    owned: OwnedParts, learned: Mapping[int, IndexRecord]
) -> tuple[OwnedParts, dict[int, IndexRecord]]:
    """Return the parts by the newest records, and which of the learned ones are still newer."""
    newer = {
        partition: record
        for partition, record in learned.items()
        if (own := owned.records.get(partition)) is None or own.at < record.at
    }
    if not newer:
        return owned, newer
    return msgspec.structs.replace(owned, records={**owned.records, **newer}), newer


def records_in(error: RoutingError) -> dict[int, IndexRecord]:
    """Return the index records that a refusal tells; of an unknown form: none."""
    try:
        return msgspec.convert(dict(error.records), dict[int, IndexRecord], str_keys=True)
    except msgspec.ValidationError:
        return {}


def shares_of(owned: OwnedParts, partition_count: int) -> list[NodeShare]:
    """Return which owner is asked for which partitions: each partition is in one share.

    An owner whose address is not known has no host; partitions without an owner have a share of
    their own like that.
    """
    by_owner: dict[str | None, list[int]] = {}
    for partition in range(partition_count):
        record = owned.records.get(partition)
        by_owner.setdefault(record.owner if record is not None else None, []).append(partition)
    shares = []
    for owner in sorted(by_owner, key=str):
        member = owned.members.get(owner) if owner is not None else None
        name, host, http = member or (owner or "no owner", "", 0)
        shares.append(NodeShare(name, host, http, by_owner[owner], owner == owned.node))
    return shares


def check_asked(order: BucketOrder, partitions: Collection[int], keys: Asked | None) -> None:
    """Check that this node is the owner of partitions, by records as new as those of the asker.

    Args:
        order: of the bucket.
        partitions: that are asked for.
        keys: of the records; None: whoever asks knows of no index map.

    Raises:
        RoutingError: `not_my_partition`.
    """
    owned = order.owned
    if owned is None and keys is None:
        return
    if owned is None or keys is None:
        raise refused(partitions, "one of both nodes has no index map yet")
    wrong = [
        partition
        for partition in partitions
        if (own := owned.records.get(partition)) is None
        or own.owner != owned.node
        or own.at < keys.get(partition, own.at)
    ]
    if wrong:
        newer = {
            partition: own
            for partition in wrong
            if (own := owned.records.get(partition)) is not None
            and own.at > keys.get(partition, own.at)
        }
        why = "another node is their owner, or the map is older than the asker's"
        raise refused(wrong, why, newer)


async def until_settled(
    order: Callable[[], BucketOrder], partitions: Collection[int], keys: Asked | None
) -> None:
    """Wait a moment for records that must be on their way.

    These are newer ones of parts that have stopped here, and those that the asker has already.

    Args:
        order: returns what the engine said last.
        partitions: that are asked for.
        keys: of the asker's records.
    """
    until = time.monotonic() + RECORD_S_MAX
    while (owned := order().owned) is not None and time.monotonic() < until:
        active = set(order().active)
        if not any(_is_unsettled(owned, active, p, keys or {}) for p in partitions):
            return
        await asyncio.sleep(_PAUSE_S)


def _is_unsettled(owned: OwnedParts, active: set[int], partition: int, keys: Asked) -> bool:
    own = owned.records.get(partition)
    if own is None or own.at < keys.get(partition, own.at):
        return True
    return own.owner == owned.node and partition not in active


async def updated(
    order: Callable[[], BucketOrder],
    indexer: BucketIndexer,
    signature: str,
    partitions: Collection[int],
    keys: Asked | None,
    timeout_s: float,
) -> None:
    """Wait until an index has everything that some partitions have now.

    In a managed cluster it also waits a moment for a partition that moves between data nodes, and
    for the end of a hand-over of the index.

    Raises:
        RoutingError: `not_my_partition`: also if this node is not the owner any more.
        MillstreamError: as `BucketIndexer.updated`.
    """
    began = time.monotonic()
    while True:
        passed_s = time.monotonic() - began
        try:
            return await indexer.updated(signature, partitions, timeout_s - passed_s)
        except RoutingError:
            if order().owned is None or passed_s > min(timeout_s, MOVE_S_MAX):
                raise
        check_asked(order(), partitions, keys)
        await asyncio.sleep(_PAUSE_S)


async def snapshot_at_floor(
    hosted: HostedIndex,
    order: Callable[[], BucketOrder],
    indexer: BucketIndexer,
    partitions: Collection[int],
    on_late: Callable[[HostedIndex], None],
) -> IndexSnapshot:
    """Open the newest commit of an index for reading, if it has reached the floors.

    Args:
        hosted: the index.
        order: returns what the engine said last of its bucket.
        indexer: of the bucket.
        partitions: that are answered for.
        on_late: called if it has not.

    Raises:
        RoutingError: `not_my_partition`: it has not.
        UnavailableError: `too_many_snapshots`.
    """
    for is_new in (False, True):  # what was heard of the sources may be old
        with suppress(TimeoutError):
            async with asyncio.timeout(ASK_S_MAX):
                await indexer.judged(is_new=is_new)
        judged = await indexer.judged(is_new=False)
        snapshot = hosted.snapshot()
        owned = order().owned
        if owned is None:
            return snapshot
        floors = {partition: owned.floor(partition) for partition in partitions}
        late = below_floor(snapshot.header, floors, judged, partitions)
        if not late:
            return snapshot
        snapshot.close()
    on_late(hosted)
    raise refused(late, "it has not reached yet what was shown before")


def is_kept_fresh(order: BucketOrder, design: DesignDocument) -> bool:
    """Return whether an index is kept up to date without waiting queries.

    One that is being made here for a hand-over always is: else the hand-over would never end.
    """
    return design.autoupdate or (order.owned is not None and bool(order.passive))


def index_nodes(owned: OwnedParts | None) -> list[str]:
    """Return the HTTP addresses of nodes that have parts of the index, or are making them."""
    if owned is None:
        return []
    placed = {node for record in owned.records.values() for node in record.placed}
    members = (owned.members[node] for node in sorted(placed & owned.members.keys()))
    return [
        f"[{one.host}]:{one.http}" if ":" in one.host else f"{one.host}:{one.http}"
        for one in members
    ]


class PartsTold:
    """How far the indexes of a bucket are, for the node that this process belongs to.

    What was told before is not computed again while nothing has happened.
    """

    def __init__(self) -> None:
        self._seen: tuple[object, ...] = ()
        self._told: dict[str, Any] = {}
        self._count = 0

    async def told(
        self,
        order: BucketOrder,
        opened: Sequence[HostedIndex],
        indexer: BucketIndexer,
        *,
        is_opening: bool,
        known: int,
    ) -> dict[str, Any]:
        """Return how far the indexes are in each part.

        Args:
            order: of the bucket.
            opened: the open indexes.
            indexer: of the bucket.
            is_opening: there are others that are not open yet.
            known: `count` of the answer that the asker has.

        Returns:
            `count`; `outside_s`, since when no writer outside was heard, None without an index
                that one keeps; and, if `count` is another one than `known`, `designs`, `parts`
                (key of the record, what `position_in` returns, and what all complete indexes have
                that are kept here, None without any), `own_designs` of these, and `cleaning`.
        """
        owned = order.owned
        silent = [each.staging.silent_s for each in opened if each.design.engine == "spark"]
        outside = {"outside_s": min(silent, default=None)}
        if owned is None:
            return {"count": 0, "designs": "", "parts": {}, "cleaning": []}
        judged = await indexer.judged(is_new=False)
        complete, others, own = list[Header](), list[Header](), list[Header]()
        for hosted in opened:
            is_built = indexer.is_built(hosted.signature)
            (complete if is_built else others).append(hosted.index.newest)
            if is_built and hosted.design.engine == "node":
                own.append(hosted.index.newest)
        seen = (order, judged, is_opening, len(complete), *complete, *others)
        if len(seen) == len(self._seen) and all(map(operator.is_, seen, self._seen)):
            told = {"count": self._count} if known == self._count else self._told
            return told | outside
        every = [*complete, *others]
        self._count += 1
        self._seen = seen
        self._told = {
            "count": self._count,
            "designs": "" if is_opening else digest_of(one.signature for one in complete),
            "own_designs": "" if is_opening else digest_of(one.signature for one in own),
            "parts": {
                p: (
                    owned.records[p].at,
                    *position_in(p, complete, others, judged.get(p), owned.floor(p)),
                    position_in(p, own, (), judged.get(p), owned.floor(p)).least if own else None,
                )
                for p in (*order.active, *order.passive)
            },
            "cleaning": sorted({p for one in every for p in members_of(one.bitmap("cleanup"))}),
        }
        return self._told | outside
