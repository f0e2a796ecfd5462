"""A bucket of this node as it is described to the index process and to other nodes.

Invariants:
1. Only persisted design documents are described; while a new version is not persisted, the
   previous one is.
2. If this node has no copy of a design document's partition, or one that is being filled, the
   answers of other nodes count. Until one answers, what was known stays: a copy that moves away
   must not cost an index. To readers it is unknown until then.
3. `revision` changes whenever the description of the bucket may have changed.

Elsewhere: sending the description (`node.indexes`, `databases.shared_answers`), asking other nodes
(`cluster.peers`).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from millstream.cluster.cluster_state import SharedBucket, SharedDesign
from millstream.databases.design_reading import known_design
from millstream.databases.documents.included_documents import (
    DistributedTexts,
    WithDocuments,
)
from millstream.databases.routing import Router
from millstream.errors import UnavailableError, UsageError
from millstream.gateway.core.api.node import ViewAnswer
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.active import place_of
from millstream.kv.core.revisions.design_documents import StoredDesign
from millstream.model.bucket_map import bucket_map_to_json
from millstream.model.partitions import PartitionState
from millstream.views.core.design.design_documents import told_designs

__all__ = ["OwnBucket"]

_LIFE: Final = secrets.token_hex(4)
"""Part of every revision, so that revisions of different processes differ."""
_NOT_HERE: Final = (PartitionState.ABSENT, PartitionState.DEAD)


class OwnBucket:
    """Implements `node.indexes.ToldBucket`.

    Args:
        running: the bucket.
        index_replicas: whether replicas are indexed, too.
        router: of the bucket.
    """

    def __init__(self, running: BucketEngine, index_replicas: bool, router: Router) -> None:
        self._running = running
        self._index_replicas = index_replicas
        self._router = router
        self._subscribers: list[Callable[[], None]] = []
        self._count = 0
        self._warming: set[int] = set()
        """Replicas that are indexed because they are about to become active here."""
        self._persisted: dict[str, SharedDesign] = {}
        self._described: dict[str, SharedDesign] = {}
        """The design documents that were described last, without those that other nodes reported
        before a copy of their partition came here."""
        self._own: frozenset[str] = frozenset()
        """Those of them that were read from a copy here."""
        self._lacked = frozenset[int]()
        """The lacking partitions when the description was last declared changed."""
        self._told = frozenset[int]()
        """The lacking partitions of which an owner has told since they began to lack."""
        self.elsewhere: Mapping[str, SharedDesign] = {}
        """Name -> design document, by the last answers of other nodes."""
        self._heard: frozenset[int] = frozenset()
        self.name = running.bucket.name
        self.uuid = running.bucket.uuid
        running.designs.documents.subscribe(self.changed)
        running.copies.subscribe_moved(self._moved)
        running.bucket.subscribe_map(self.changed)

    @property
    def bucket(self) -> Bucket:
        """The bucket itself."""
        return self._running.bucket

    @property
    def revision(self) -> str:
        """Return the revision of the description."""
        return f"{_LIFE}-{self._count}"

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` after changes; it must only schedule work."""
        self._subscribers.append(callback)

    def close(self) -> None:
        """Stop listening to changes."""
        self._running.designs.documents.unsubscribe(self.changed)
        self._running.copies.unsubscribe_moved(self._moved)
        self._running.bucket.unsubscribe(self.changed)

    def changed(self) -> None:
        """The description has changed."""
        self._count += 1
        lacking, count = self.lacking(), self.bucket.partition_count
        self._lacked = lacking
        self._described = {
            name: one
            for name, one in self._described.items()
            if name in self._own or one.partition(count) in lacking
        }
        for callback in self._subscribers:
            callback()

    def _moved(self, _: object) -> None:
        self.changed()

    def warm(self, partition: int, *, is_wanted: bool) -> None:
        """Start or stop indexing a replica that is about to become active here."""
        before = set(self._warming)
        (self._warming.add if is_wanted else self._warming.discard)(partition)
        if before != self._warming:
            self.changed()

    def set_index_replicas(self, wanted: bool) -> None:
        """Switch the indexing of replicas on or off."""
        self._index_replicas = wanted
        self.changed()

    def set_elsewhere(self, designs: Mapping[str, SharedDesign], heard: Collection[int]) -> None:
        """Store the design documents of other nodes, and the partitions that they cover."""
        self._heard = frozenset(heard)
        if designs != self.elsewhere:
            self.elsewhere = designs
            self.changed()

    def lacking(self) -> frozenset[int]:
        """Return the partitions without a copy on this node, or with one that is being filled.

        Such a copy may lack design documents of the active one, or have old versions of them.
        """
        return frozenset(
            partition.partition_id
            for partition in self.bucket.partitions
            if partition.state in _NOT_HERE
            or not (partition.replica is None or partition.replica.is_filled)
        )

    def lacks_designs(self) -> bool:
        """Return whether a node with partitions missing here has not sent its design documents."""
        return self.bucket.map is not None and bool(self._silent())

    def _silent(self) -> frozenset[int]:
        """Return the lacking partitions whose owners have said nothing; have these asked."""
        lacking = self.lacking()
        if lacking != self._lacked:
            self.changed()
        return lacking - self._heard

    async def designs(self) -> dict[str, SharedDesign]:
        """Return the persisted design documents by name.

        Raises:
            UnavailableError: one cannot be read now.
        """
        own: dict[str, SharedDesign] = {}
        for stored in await self._running.designs.all():
            if stored.is_persisted:
                with suppress(UsageError):  # not written by any known path
                    own[stored.name] = await self._shared(stored)
            elif stored.name in self._persisted:
                own[stored.name] = self._persisted[stored.name]
        self._persisted = dict(own)
        count = self.bucket.partition_count
        lacking = self.lacking() if self.bucket.map is not None else frozenset[int]()
        silent = lacking - self._heard
        self._told = (self._told | self._heard) & lacking
        own = {n: one for n, one in own.items() if one.partition(count) not in self._told}
        self._own = frozenset(own)
        kept = {n: one for n, one in self._described.items() if one.partition(count) in silent}
        told = {n: one for n, one in self.elsewhere.items() if one.partition(count) in lacking}
        self._described = own | kept | told
        return dict(self._described)

    async def _shared(self, stored: StoredDesign) -> SharedDesign:
        known = await known_design(self.uuid, stored)
        body = stored.body if known.shared is None else known.shared
        return SharedDesign(stored.name, stored.rev, msgspec.Raw(body))

    async def stored_designs(self) -> list[StoredDesign]:
        """Return all design documents of the bucket as pages show them, by name.

        Raises:
            UnavailableError: `not_my_partition`: a node that has some has not sent them.
        """
        bucket, count = self.bucket, self.bucket.partition_count
        missing = self._silent()
        if bucket.map is None:  # nobody else has any
            missing = frozenset(p for p in missing if bucket.partitions[p].state in _NOT_HERE)
        if missing:
            place = place_of(bucket, bucket.partitions[min(missing)])
            raise UnavailableError(
                f"this node does not know all design documents of bucket {bucket.name!r} yet: "
                f"{place}",
                code="not_my_partition",
                retry="refresh_map",
            )
        lacking = self._lacked if bucket.map is not None else frozenset[int]()  # just computed
        found = [one for one in await self._running.designs.all() if one.partition not in lacking]
        others = [one for one in self.elsewhere.values() if one.partition(count) in lacking]
        return sorted([*found, *(one.stored(count) for one in others)], key=_name_of)

    async def order(self) -> dict[str, Any]:
        """Return the current description for the index process; raises as `designs`."""
        designs = await self.designs()
        by_state = self._by_state()
        replicas = by_state.get(PartitionState.REPLICA, [])
        indexed = [p for p in replicas if self._index_replicas or p in self._warming]
        active = by_state.get(PartitionState.ACTIVE, [])
        became = {p: self.bucket.partitions[p].activated_seqno for p in active}
        return {
            "uuid": self.uuid,
            "name": self.name,
            "partition_count": self.bucket.partition_count,
            "active": active,
            "passive": indexed,
            "resting": [p for p in replicas if p not in indexed],
            "owed": {} if self.bucket.map is None else {p: at for p, at in became.items() if at},
            "designs": told_designs(
                {
                    name: (
                        await known_design(self.uuid, one.stored(self.bucket.partition_count))
                    ).told
                    for name, one in designs.items()
                }
            ),
            "nodes": _shares(self.bucket),
        }

    async def shared(self) -> SharedBucket:
        """Return the description for other nodes; raises as `designs`."""
        revision = self.revision
        designs = await self.designs()
        bucket = self.bucket
        active = self._by_state().get(PartitionState.ACTIVE, [])
        return SharedBucket(
            self.name, self.uuid, bucket.partition_count, revision, bucket.node_name,
            None if bucket.map is None else bucket_map_to_json(bucket.map), active,
            [
                design
                for _, design in sorted(designs.items())
                if design.partition(bucket.partition_count) in active
            ],
        )  # fmt: skip

    def with_documents(self, answer: ViewAnswer, *, attachments: bool = False) -> ViewAnswer:
        """Return an answer with the document beside each row, from whatever node has it."""
        return WithDocuments(answer, DistributedTexts(self._router), attachments=attachments)

    def _by_state(self) -> dict[PartitionState, list[int]]:
        by_state: dict[PartitionState, list[int]] = {}
        for partition in self.bucket.partitions:
            by_state.setdefault(partition.state, []).append(partition.partition_id)
        return by_state


def _name_of(stored: StoredDesign) -> str:
    return stored.name


def _shares(bucket: Bucket) -> list[dict[str, Any]]:
    """Return which node answers for which partitions; empty if this node has all."""
    if bucket.map is None:
        return []
    owned: dict[str, list[int]] = {}
    for partition in range(bucket.partition_count):
        name = bucket.map.active(partition)
        if name is not None:
            owned.setdefault(name, []).append(partition)
    if list(owned) == [bucket.node_name] and len(owned[bucket.node_name]) == len(bucket.map.rows):
        return []
    nodes = map(bucket.map.node, sorted(owned))
    return [
        {
            "name": node.name,
            "host": node.host,
            "http": node.http,
            "partitions": owned[node.name],
            "is_here": node.name == bucket.node_name,
        }
        for node in nodes
    ]
