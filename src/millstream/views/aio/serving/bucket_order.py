"""The order that the engine sends to the index process for one bucket, and the nodes to read.

Invariants:
1. Each order is complete, so a process that missed one needs only the next.
2. The index process logs in to other nodes as a node of the cluster.
3. In a managed cluster the index map decides what is indexed here and who answers for what
   (`OwnedParts`). The data map decides where each partition is read.

Elsewhere: who sends orders (`node.indexes`), what is done with them (`hosted_bucket`).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from millstream.access.kv_login import Login
from millstream.errors import UsageError
from millstream.model.cluster_maps import NO_FLOOR, Floor, IndexRecord
from millstream.upr.aio.link import TIMEOUT_S, Link
from millstream.views.aio.indexing.index_sources import Source
from millstream.views.aio.serving.gathering import NodeAccess
from millstream.views.core.design.design_documents import DesignDocument, parse_design

__all__ = [
    "BucketOrder",
    "FollowedNode",
    "Member",
    "NodeShare",
    "OwnedParts",
    "designs_of",
    "sources_of",
]

_NAME: Final = "millstream-index"


class NodeShare(msgspec.Struct, frozen=True):
    """A node, and the partitions that are active there by the bucket's map."""

    name: str
    host: str
    http: int
    partitions: list[int]
    is_here: bool


class FollowedNode(msgspec.Struct, frozen=True):
    """Another node that is followed, for the partitions that are active there."""

    host: str
    kv: int
    partitions: list[int]


class Member(NamedTuple):
    """A node of a managed cluster, as it is asked for its part of an answer."""

    name: str
    """What people call it."""
    host: str
    http: int


class OwnedParts(msgspec.Struct, frozen=True):
    """The node that answers for each partition of a bucket in a managed cluster."""

    node: str
    """The id of this node."""
    records: dict[int, IndexRecord]
    """The newest that are known here, by partition."""
    members: dict[str, Member]
    """By id."""
    here: list[int]
    """Partitions that are read from the engine beside this process."""
    frozen: list[int] = []
    """Partitions that are not indexed any more, though they may be answered from."""

    def floor(self, partition: int) -> Floor:
        """Return what an index must have reached before it answers for a partition."""
        record = self.records.get(partition)
        return NO_FLOOR if record is None else record.floor


class BucketOrder(msgspec.Struct, frozen=True):
    """What the engine says of a bucket: all of it, each time."""

    uuid: str
    name: str
    partition_count: int
    active: list[int]
    """Partitions that queries are answered from."""
    passive: list[int]
    """Partitions that are indexed and not answered from."""
    resting: list[int]
    """Partitions whose copy here is not active: an index that has them keeps them, passive."""
    designs: dict[str, dict[str, Any]]
    """Name without `_design/` -> the document; only those that are persisted."""
    nodes: list[NodeShare] = []
    """The nodes of the bucket's map. Empty if all partitions are here."""
    follows: list[FollowedNode] | None = None
    """Which nodes are read, on a node without data; None: the engine beside this process."""
    owed: dict[int, int] = {}
    """Active partitions that came from another node -> the seqno that they came with: below it the
    index lacks rows that others had."""
    owned: OwnedParts | None = None
    """Of a managed cluster; `active` and `passive` follow from it then. None: the nodes' own maps
    and copies decide."""

    @property
    def reads(self) -> tuple[list[FollowedNode] | None, list[int] | None]:
        """Return the values that decide which nodes are read for which partitions."""
        return self.follows, None if self.owned is None else self.owned.here


def designs_of(order: BucketOrder) -> tuple[dict[str, DesignDocument], dict[str, UsageError]]:
    """Return the design documents of a bucket by name, and why others are invalid."""
    designs, refusals = dict[str, DesignDocument](), dict[str, UsageError]()
    for name, document in sorted(order.designs.items()):
        try:
            designs[name] = parse_design(document, name)
        except UsageError as error:
            refusals[name] = error
    return designs, refusals


def sources_of(order: BucketOrder, kv: str, access: NodeAccess) -> list[Source]:
    """Return the nodes that a bucket's indexes are read from.

    Args:
        order: of the bucket.
        kv: address of the engine's socket.
        access: how other nodes are logged in to.
    """
    followed = [_followed(node, order.name, access) for node in order.follows or ()]
    is_read = order.follows is None if order.owned is None else bool(order.owned.here)
    if not is_read:
        return followed
    login = Login(kv, bucket=order.name, name=_NAME)
    here = None if order.owned is None else frozenset(order.owned.here)
    beside = Source(kv, lambda: Link(login, kv, 0, tls=None, timeout_s=TIMEOUT_S), here)
    return [beside, *followed]


def _followed(node: FollowedNode, bucket: str, access: NodeAccess) -> Source:
    shown = f"[{node.host}]" if ":" in node.host else node.host
    login = Login(
        f"{shown}:{node.kv}", access.user if access.password else None, access.password,
        bucket, access.tls is not None, _NAME,
    )  # fmt: skip
    return Source(
        login.address,
        lambda: Link(login, node.host, node.kv, tls=access.tls, timeout_s=TIMEOUT_S),
        frozenset(node.partitions),
    )
