"""What the engine tells the index process of a bucket, and which nodes are read because of it.

Invariants:
1. An order says everything, each time: whoever missed one needs nothing but the next.
2. Other nodes are logged in to as nodes of the cluster are.

Elsewhere: who tells (`node.indexes`), what is done about it (`hosted_bucket`).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from millstream.access.kv_login import Login
from millstream.errors import UsageError
from millstream.upr.aio.link import TIMEOUT_S, Link
from millstream.views.aio.indexing.index_sources import Source
from millstream.views.aio.serving.gathering import NodeAccess
from millstream.views.core.design.design_documents import DesignDocument, parse_design

__all__ = ["BucketOrder", "FollowedNode", "NodeShare", "designs_of", "sources_of"]

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
    if order.follows is not None:
        return [_followed(node, order.name, access) for node in order.follows]
    login = Login(kv, bucket=order.name, name=_NAME)
    return [Source(kv, lambda: Link(login, kv, 0, tls=None, timeout_s=TIMEOUT_S))]


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
