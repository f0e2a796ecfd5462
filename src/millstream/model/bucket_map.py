"""The map of a bucket: which nodes hold copies of its partitions, and where these nodes are.

Invariants:
1. A row has one place for each copy that a partition should have; the first is that of the active
   one. A place is empty (None) while no node has that copy, and it still counts for a majority.
2. All rows of a map have the same number of places, a row names a node once at most, and only
   nodes that are listed.
3. A map never changes; the next one has a larger key (generation, revision). Maps made by hand
   have generation 0. The map of a bucket in a managed cluster is made from its records, and
   replaces every map made by hand.

Elsewhere: the file (`data_directory.map_file`), what a node does about a new map
(`databases.buckets`), what clients are shown of it (`kv.core.copies.cluster_config`), records
(`model.cluster_maps`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from millstream.errors import UsageError

__all__ = [
    "BUCKET_NODES_MAX",
    "COPIES_MAX",
    "MAP_REVISION_MAX",
    "NODE_NAME_BYTES_MAX",
    "BucketMap",
    "NodeAddress",
    "bucket_map_from_json",
    "bucket_map_to_json",
    "checked_node_name",
]

COPIES_MAX: Final = 4
"""Most copies of one partition, the active one included. SDKs support no more."""
BUCKET_NODES_MAX: Final = 64
NODE_NAME_BYTES_MAX: Final = 32
"""Two of them and the bucket's name must fit into the name of a stream."""
MAP_REVISION_MAX: Final = 2**53 - 1
"""What every JSON reader takes for a whole number."""
_HOST_BYTES_MAX: Final = 255
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_HOST: Final = re.compile(r"[A-Za-z0-9_.:%-]+")


class NodeAddress(NamedTuple):
    """A node that has copies, and where clients and other nodes reach it."""

    name: str
    host: str
    """A name or a number, IPv6 without brackets."""
    kv: int
    http: int


@dataclass(frozen=True, slots=True)
class BucketMap:
    """One revision of a bucket's map; `rows` by partition."""

    revision: int
    nodes: tuple[NodeAddress, ...]
    rows: tuple[tuple[str | None, ...], ...]
    generation: int = 0
    """0: the map was made by hand."""

    @property
    def key(self) -> tuple[int, int]:
        """Return the age of the map; a larger one is newer."""
        return self.generation, self.revision

    def active(self, partition_id: int) -> str | None:
        """Return the node with the active copy, None if no node has it."""
        return self.rows[partition_id][0]

    def copies(self, partition_id: int) -> tuple[str, ...]:
        """Return the nodes that have a copy, that with the active one first."""
        return tuple(name for name in self.rows[partition_id] if name is not None)

    def majority(self, partition_id: int) -> int:
        """Return how many copies are more than half; an empty place is one that never answers."""
        return len(self.rows[partition_id]) // 2 + 1

    def node(self, name: str) -> NodeAddress:
        """Return where a node is that the map lists."""
        return next(node for node in self.nodes if node.name == name)

    def has_node(self, name: str) -> bool:
        """Whether the map lists a node."""
        return any(node.name == name for node in self.nodes)

    @property
    def is_alone(self) -> bool:
        """Whether no partition is meant to have a second copy."""
        return all(len(row) == 1 for row in self.rows)


def checked_node_name(name: object) -> str:
    """Return the name if it may be a node's.

    Raises:
        UsageError: `bad_node_name`.
    """
    if (
        not isinstance(name, str)
        or not _NODE_NAME.fullmatch(name)
        or len(name) > NODE_NAME_BYTES_MAX
    ):
        raise UsageError(
            f"node name {_shown(name)}: 1 to {NODE_NAME_BYTES_MAX} characters, beginning with a "
            "letter or digit, of letters, digits and _ . -",
            code="bad_node_name",
        )
    return name


def bucket_map_from_json(content: Mapping[str, object]) -> BucketMap:
    """Return the map in an object with the members revision, nodes and rows; others are ignored.

    Without a generation it is a map made by hand.

    Raises:
        UsageError: `bad_map_revision`; `bad_map_nodes`, `bad_node_name`, `bad_node_address`,
            `node_listed_twice`; `bad_map_rows`, `unknown_node`, `two_copies_on_a_node`.
    """
    revision = _number(content.get("revision"), 1, MAP_REVISION_MAX)
    if revision is None:
        raise UsageError(
            f'"revision" {_shown(content.get("revision"))}: a number from 1 to '
            f"{MAP_REVISION_MAX} is wanted",
            code="bad_map_revision",
        )
    generation = _number(content.get("generation", 0), 0, MAP_REVISION_MAX)
    if generation is None:
        raise UsageError(
            f'"generation" {_shown(content.get("generation"))}: a number from 0 to '
            f"{MAP_REVISION_MAX} is wanted",
            code="bad_map_revision",
        )
    nodes = _nodes(content.get("nodes"))
    rows = _rows(content.get("rows"), {node.name for node in nodes})
    return BucketMap(revision, nodes, rows, generation)


def bucket_map_to_json(bucket_map: BucketMap) -> dict[str, Any]:
    """Reverse `bucket_map_from_json`."""
    generation = {"generation": bucket_map.generation} if bucket_map.generation else {}
    return generation | {
        "revision": bucket_map.revision,
        "nodes": [node._asdict() for node in bucket_map.nodes],
        "rows": [list(row) for row in bucket_map.rows],
    }


def _nodes(content: object) -> tuple[NodeAddress, ...]:
    if not isinstance(content, list) or not 1 <= len(content) <= BUCKET_NODES_MAX:
        raise UsageError(
            f'"nodes" must be a list of 1 to {BUCKET_NODES_MAX} nodes, each with name, host, kv '
            "and http",
            code="bad_map_nodes",
        )
    nodes = tuple(map(_node, content))
    for member, values in (
        ("name", [node.name for node in nodes]),
        ("kv address", [f"{node.host}:{node.kv}" for node in nodes]),
        ("http address", [f"{node.host}:{node.http}" for node in nodes]),
    ):
        twice = _first_repeated(values)
        if twice is not None:
            raise UsageError(
                f'two of the "nodes" have the {member} {twice}', code="node_listed_twice"
            )
    return nodes


def _node(content: object) -> NodeAddress:
    if not isinstance(content, dict):
        raise UsageError(
            f"node {_shown(content)}: must be an object with name, host, kv and http",
            code="bad_map_nodes",
        )
    name, host = checked_node_name(content.get("name")), content.get("host")
    if not isinstance(host, str) or not _HOST.fullmatch(host) or len(host) > _HOST_BYTES_MAX:
        raise UsageError(
            f'node {name}: "host" {_shown(host)} is no name or number of a host',
            code="bad_node_address",
        )
    return NodeAddress(name, host, _port(name, "kv", content), _port(name, "http", content))


def _port(name: str, member: str, content: Mapping[str, object]) -> int:
    port = _number(content.get(member), 1, 65535)
    if port is None:
        raise UsageError(
            f'node {name}: "{member}" {_shown(content.get(member))} is no port; 1 to 65535 is '
            "wanted",
            code="bad_node_address",
        )
    return port


def _rows(content: object, known: set[str]) -> tuple[tuple[str | None, ...], ...]:
    if not isinstance(content, list) or not content:
        raise UsageError(
            '"rows" must be a list with a row for each partition', code="bad_map_rows"
        )
    rows = tuple(_row(number, row, known) for number, row in enumerate(content))
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise UsageError(
                f"row {number} has {len(row)} places, row 0 has {len(rows[0])}: all have as many "
                "as a partition should have copies",
                code="bad_map_rows",
            )
    return rows


def _row(number: int, content: object, known: set[str]) -> tuple[str | None, ...]:
    if not isinstance(content, list) or not 1 <= len(content) <= COPIES_MAX:
        raise UsageError(
            f"row {number} must be a list of 1 to {COPIES_MAX} places, each the name of a node "
            "or null",
            code="bad_map_rows",
        )
    for name in content:
        if name is not None and (not isinstance(name, str) or name not in known):
            raise UsageError(
                f'row {number}: {_shown(name)} is not one of "nodes"', code="unknown_node"
            )
    twice = _first_repeated([name for name in content if name is not None])
    if twice is not None:
        raise UsageError(
            f"row {number} names {twice} twice: a node has one copy of a partition",
            code="two_copies_on_a_node",
        )
    return tuple(content)


def _first_repeated(values: list[str]) -> str | None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None


def _number(value: object, least: int, most: int) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return value
    return None


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else shown[:37] + "..."
