"""What an orchestrator and a node send each other: `POST /_millstream/cluster/orders`.

Elsewhere: the orders (`cluster.core.orders`), who takes them (`cluster.aio.order_taker`), who
gives them (`cluster.aio.orchestrator`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from millstream.cluster.aio.local_engine import ClusterMaps
from millstream.cluster.core.orders import Order, Reply
from millstream.cluster.core.reports import NodeReport

__all__ = ["ORDERS_PATH", "OrdersReply", "OrdersRequest"]

ORDERS_PATH: Final = "/_millstream/cluster/orders"


class OrdersRequest(msgspec.Struct, frozen=True):
    """Orders to one node, to be carried out in this sequence."""

    orders: tuple[Order, ...] = ()
    maps: ClusterMaps | None = None
    """To be taken first."""


class OrdersReply(msgspec.Struct, frozen=True):
    """A reply to each order, in the same sequence."""

    replies: tuple[Reply, ...]
    process: str
    """Of the node: another one has begun to count anew."""
    number: int
    """Of the request at this process; what a larger one tells is newer."""
    report: NodeReport | None = None
    """If an order asked for it."""
