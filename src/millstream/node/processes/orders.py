"""What the processes beside the engine are told at their start.

The engine writes an order, the child reads it: this module is all that both of them import, since
the engine runs without most of what a child needs.

Elsewhere: how an order reaches the child (`child_process`, `child_start`).
"""

from __future__ import annotations

import msgspec

from millstream.node.token_order import TokenOrder
from millstream.views.core.reduce.reductions import ReduceLimit

__all__ = ["CoordOrder", "IndexOrder"]


class CoordOrder(msgspec.Struct, frozen=True):
    """What the coordination process is told at its start."""

    parent_pid: int
    log_level: str
    log_json: bool
    directory: str
    """Directory of coordination, in the data directory."""
    users: str
    """The users' file of the node."""
    coord: int | None = None
    """Descriptor of the bound socket for clients."""
    peer: int | None = None
    """Descriptor of the bound socket for other nodes."""
    ninep: int | None = None
    """Descriptor of the bound socket of the file service."""
    advertise: tuple[str, int, int] = ("", 0, 0)
    """Host, port for clients and port for nodes that others are told."""
    join: tuple[str, int] | None = None
    """Peer address of a node of the pool that a new node joins."""
    cluster_secret: str = ""
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    tokens: TokenOrder | None = None


class IndexOrder(msgspec.Struct, frozen=True):
    """What the index process is told at its start."""

    parent_pid: int
    buckets: str
    """The directory `buckets` of the data directory."""
    kv: str
    """Address of the engine's socket, as for `upr.aio.link.Link`."""
    socket: str
    """Path of its own socket."""
    modules: tuple[str, ...]
    """Python modules to import; they register functions for views."""
    log_level: str
    log_json: bool
    cluster_secret: str = ""
    """Secret for requests to other nodes for their parts of answers."""
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    reduce_limit: ReduceLimit = "true"
    """Handling of reduce results that do not shrink."""
