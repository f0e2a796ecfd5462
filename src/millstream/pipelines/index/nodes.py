"""Which nodes have an index of a bucket: those of its map, and those that only index.

A node has the index of the partitions that are active there; one that only indexes, of all.

Elsewhere: each node's index (`shard`), the threads that keep them (`shards`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from millstream.errors import UnavailableError
from millstream.model.addresses import parse_address
from millstream.pipelines.index.shard import IndexAddress
from millstream.wire.cluster_map import ClusterMap

__all__ = ["HTTP_PORT_DEFAULT", "hosts_of", "http_at", "index_addresses", "shown"]

HTTP_PORT_DEFAULT: Final = 5984


def index_addresses(
    base: IndexAddress, map_: ClusterMap, also: Sequence[str] = ()
) -> list[IndexAddress]:
    """Return where the indexes of a design document are.

    Args:
        base: one of them: who asks, for which design document.
        map_: of the bucket.
        also: HTTP addresses of nodes that only index.

    Raises:
        UsageError: `bad_address`.
    """
    places = [(node.host, port) for node, port in zip(map_.nodes, map_.http, strict=True) if port]
    places += [parse_address(each, default_port=HTTP_PORT_DEFAULT) for each in also]
    return [replace(base, host=host, port=port) for host, port in dict.fromkeys(places)]


def http_at(map_: ClusterMap, partition: int) -> tuple[str, int]:
    """Return host and HTTP port of the node that has a partition active, else of the one asked.

    Raises:
        UnavailableError: `no_http`.
    """
    owner = map_.owners[partition]
    at = owner if owner >= 0 else map_.nodes.index(map_.here)
    host, port = map_.nodes[at].host, map_.http[at]
    if not port:
        raise UnavailableError(
            f"{host} has no HTTP listener: design documents and views need one", code="no_http"
        )
    return host, port


def hosts_of(hosts: str, map_: ClusterMap) -> str:
    """Return the nodes that may be asked, those first that were given: any may go."""
    known = [f"[{node.host}]:{node.port}" if ":" in node.host else f"{node.host}:{node.port}"
             for node in map_.nodes]  # fmt: skip
    return ",".join(dict.fromkeys([*(each.strip() for each in hosts.split(",")), *known]))


def shown(address: IndexAddress) -> str:
    """Return a node as people write it."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.port}"
