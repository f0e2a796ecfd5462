"""Which node serves which partition: the config document that every node hands out.

Invariants:
1. The number of partitions of a bucket never changes; only owners do.
2. Of two maps the one with the larger (epoch, revision) is the newer.

Source: the terse bucket config of Couchbase clients. Elsewhere: who fetches it
(`client.routing`, `upr.aio.streams`).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from millstream.errors import RemoteProtocolError

__all__ = ["ClusterMap", "NodeAddress", "cluster_map_from"]


class NodeAddress(NamedTuple):
    """Where a node's kv port is."""

    host: str
    port: int


class ClusterMap(NamedTuple):
    """Owners of the partitions of one bucket.

    `owners[partition_id]` is an index into `nodes`, -1 where nobody serves the partition.
    `here` is the node that sent the map (the first if none says so), `services` are its ports by
    name. `bucket_uuid` tells a bucket from an earlier one of the same name.
    """

    epoch: int
    revision: int
    nodes: tuple[NodeAddress, ...]
    owners: tuple[int, ...]
    services: dict[str, int]
    bucket_uuid: str = ""
    here: NodeAddress = NodeAddress("", 0)
    http: tuple[int, ...] = ()
    """The HTTP port of each of `nodes`; 0: it has none."""

    @property
    def partition_count(self) -> int:
        """Number of partitions of the bucket."""
        return len(self.owners)

    @property
    def version(self) -> tuple[int, int]:
        """What orders maps."""
        return self.epoch, self.revision


class _Node(msgspec.Struct):
    services: dict[str, int] = {}
    hostname: str = ""
    thisNode: bool = False


class _ServerMap(msgspec.Struct):
    serverList: list[str] = []
    vBucketMap: list[list[int]] = []


class _Config(msgspec.Struct):
    rev: int = 0
    uuid: str = ""
    revEpoch: int = 0
    nodesExt: list[_Node] = []
    vBucketServerMap: _ServerMap = msgspec.field(default_factory=_ServerMap)


_decode_config = msgspec.json.Decoder(_Config).decode


def cluster_map_from(config: bytes, *, host: str, port: int) -> ClusterMap:
    """Read a config document.

    Args:
        config: JSON.
        host: of the node that sent it; stands for a node without a host name.
        port: its kv port; stands for a node that lists none.

    Raises:
        RemoteProtocolError: `bad_map`.
    """
    try:
        parsed = _decode_config(config)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(
            f"{host} sent an invalid map: {error}", code="bad_map"
        ) from error
    nodes = tuple(
        NodeAddress(_host(node.hostname, host), node.services.get("kv", port))
        for node in parsed.nodesExt
    )
    owners = tuple(row[0] if row else -1 for row in parsed.vBucketServerMap.vBucketMap)
    if not nodes or not owners or max(owners) >= len(nodes):
        raise RemoteProtocolError(f"{host} sent a map without nodes or owners", code="bad_map")
    at = next((at for at, node in enumerate(parsed.nodesExt) if node.thisNode), 0)
    services = parsed.nodesExt[at].services
    http = tuple(node.services.get("mgmt", 0) for node in parsed.nodesExt)
    return ClusterMap(
        parsed.revEpoch, parsed.rev, nodes, owners, services, parsed.uuid, nodes[at], http
    )


def _host(named: str, connected: str) -> str:
    return connected if named in ("", "$HOST") else named
