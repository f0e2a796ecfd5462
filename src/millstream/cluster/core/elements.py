"""The state of a cluster: its elements in the coordination namespace, and their JSON.

    state = state_from_elements(elements)   # read linearizably, path -> version and content

Invariants:
1. `ClusterState` is what was read, and nothing else. Nothing is computed while reading.
2. An element of unknown form is damage: `bad_cluster_element` names its path.
3. Members that a newer version of Millstream added are ignored, except in `settings`.

Elsewhere: data maps and index maps (`model.cluster_maps`), settings (`cluster.core.settings`),
how elements are written, and under which guards (`cluster.core.writes`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from millstream.cluster.core.settings import Settings, settings_from_json
from millstream.errors import CorruptionError
from millstream.model.bucket_map import COPIES_MAX
from millstream.model.cluster_maps import (
    DataMap,
    IndexMap,
    data_map_from_json,
    index_map_from_json,
)
from millstream.model.rows import Row
from millstream.vsr.core.configuration import generation
from millstream.vsr.core.versions import NEVER, Version

__all__ = [
    "CLUSTER",
    "FAILOVERS",
    "FAILOVERS_KEPT_MAX",
    "FAILOVER_COUNT",
    "NOT_RECOVERED",
    "ORCHESTRATOR",
    "PLAN",
    "REQUESTS",
    "RESULT_KEPT_S",
    "ROOT",
    "SETTINGS",
    "Bucket",
    "Cluster",
    "ClusterState",
    "Element",
    "FailOver",
    "FailedBy",
    "Leader",
    "Live",
    "NodeRecord",
    "NodeState",
    "Plan",
    "PlanKind",
    "Request",
    "Role",
    "boots_path",
    "bucket_path",
    "index_map_path",
    "live_path",
    "map_path",
    "name_path",
    "node_path",
    "result_path",
    "state_from_elements",
    "to_json",
]

ROOT: Final = "/.system"
CLUSTER: Final = f"{ROOT}/cluster"
SETTINGS: Final = f"{ROOT}/settings"
ORCHESTRATOR: Final = f"{ROOT}/orchestrator"
PLAN: Final = f"{ROOT}/plan"
REQUESTS: Final = f"{ROOT}/requests"
FAILOVERS: Final = f"{ROOT}/failovers"
FAILOVER_COUNT: Final = f"{ROOT}/failover_count"
FAILOVERS_KEPT_MAX: Final = 100
NOT_RECOVERED: Final = (
    "the coordination service was restored, or forced to go on, and may have lost changes: run "
    "`millstream cluster recover`"
)
RESULT_KEPT_S: Final = 3600
"""How long the answer to a request can be read."""

NodeState = Literal["joining", "in", "leaving", "failed", "out"]
Role = Literal["data", "index", "coord"]
FailedBy = Literal["", "auto", "graceful", "hard", "force"]
PlanKind = Literal["rebalance", "failover", "replace"]
_T = TypeVar("_T")


class Cluster(msgspec.Struct, frozen=True):
    """Identity of the cluster."""

    uuid: str
    name: str
    generation: int
    created_ms: int
    format: int = 1


class NodeRecord(msgspec.Struct, frozen=True):
    """A member."""

    name: str
    host: str
    ports: dict[str, int]
    roles: tuple[Role, ...]
    zone: str = ""
    state: NodeState = "joining"
    by: FailedBy = ""
    """Who or what made it fail."""
    version: str = ""
    """The node's version of Millstream."""
    since_ms: int = 0
    """When the state changed; Unix time of the orchestrator."""
    boots: int = 0
    """Sessions that it had opened when it failed: a later one says that it has returned."""
    leaves: bool = False
    """Of a failed node: it was asked to leave, so it never becomes a member again."""

    @property
    def is_given_up(self) -> bool:
        """Whether the operator said that its copies never come back."""
        return self.state == "failed" and self.by == "force"


class Live(msgspec.Struct, frozen=True):
    """A node's session."""

    incarnation: str
    """The id of the process. No two processes have the same."""
    addresses: dict[str, str]
    boots: int
    """Number of this session: the node's sessions are counted from 1."""
    is_ending: bool = False
    """An orchestrator ends it: the node closes it, or it runs out after the lease."""


class Leader(msgspec.Struct, frozen=True):
    """The node that leads the election of the orchestrator, and its address for peers."""

    node: str
    address: str


class Bucket(msgspec.Struct, frozen=True):
    """A database that is spread over the data nodes."""

    name: str
    partitions: int
    replicas: int
    index_replicas: int = 0
    settings: dict[str, Any] = {}
    state: Literal["open", "dropping"] = "open"

    def __post_init__(self) -> None:
        if not 0 <= self.replicas < COPIES_MAX or not 0 <= self.index_replicas <= 1:
            raise ValueError(f"bucket {self.name} has {self.replicas} replicas")
        if not 0 < self.partitions <= 1024:
            raise ValueError(f"bucket {self.name} has {self.partitions} partitions")


class Plan(msgspec.Struct, frozen=True):
    """The wanted layout."""

    id: int
    kind: PlanKind
    basis: dict[str, str]
    """Nodes that were `in`, with roles and zone; see `ClusterState.basis`."""
    rows: dict[str, tuple[Row, ...]]
    """By the bucket's uuid and by partition."""
    index: dict[str, tuple[str | None, ...]]
    """Owners, in the same way."""
    started_ms: int
    by: str = ""
    is_cancelled: bool = False
    failing: tuple[str, ...] = ()
    """Nodes that are `failed` when the plan is done: a graceful fail-over."""


class Request(msgspec.Struct, frozen=True):
    """What somebody wants to be so."""

    id: str
    op: str
    args: dict[str, Any]
    by: str = ""


class FailOver(msgspec.Struct, frozen=True):
    """A node that was failed over."""

    node: str
    at_ms: int
    why: str
    partitions: int
    at_risk: tuple[str, ...] = ()
    is_counted: bool = True
    """False: its zone was counted already."""


class Element(NamedTuple):
    """An element of the namespace as it was read."""

    version: Version
    data: bytes
    """The data of the element. A counter's data is its value in decimal digits."""


@dataclass(frozen=True, kw_only=True)
class ClusterState:
    """All of it, of one linearizable read; by id of the node, by uuid of the bucket."""

    cluster: Cluster | None = None
    settings: Settings = field(default_factory=Settings)
    leader: Leader | None = None
    token: Version = NEVER
    """The grant of the orchestrator's lock. `NEVER`: no node holds it."""
    nodes: Mapping[str, NodeRecord] = field(default_factory=dict)
    live: Mapping[str, Live] = field(default_factory=dict)
    boots: Mapping[str, int] = field(default_factory=dict)
    buckets: Mapping[str, Bucket] = field(default_factory=dict)
    data: Mapping[str, DataMap] = field(default_factory=dict)
    index: Mapping[str, IndexMap] = field(default_factory=dict)
    plan: Plan | None = None
    failover_count: int = 0
    versions: Mapping[str, Version] = field(default_factory=dict)
    """The version of every element that was read, by path."""
    epoch: int = 0
    """Of the group that has the state; 0: not asked for."""

    @functools.cached_property
    def is_forked(self) -> bool:
        """Whether the group was restored, or forced to go on, after this state was made.

        Changes that nodes have adopted may be missing then, so nothing is decided by it. Only the
        foundation of the cluster and its recovery write the element `cluster`.
        """
        if self.cluster is None:
            return False
        newest = max(self.epoch, self.token.epoch, *(one.epoch for one in self.versions.values()))
        return generation(newest) > generation(self.version(CLUSTER).epoch)

    @property
    def basis(self) -> dict[str, str]:
        """Return what a plan is made from: the `in` nodes with their roles and zones."""
        return {
            name: f"{','.join(sorted(node.roles))}@{node.zone}"
            for name, node in sorted(self.nodes.items())
            if node.state == "in"
        }

    def members(self, role: Role) -> dict[str, str]:
        """Return the `in` nodes of this role, with their zones."""
        return {
            name: node.zone
            for name, node in self.nodes.items()
            if node.state == "in" and role in node.roles
        }

    def is_named(self, name: str) -> bool:
        """Return whether any map names the node."""
        return any(name in one.names() for one in self.data.values()) or any(
            name in one.names() for one in self.index.values()
        )

    def without_dropped(self) -> ClusterState:
        """Return the state without the buckets that are being dropped."""
        opened = {uuid: one for uuid, one in self.buckets.items() if one.state == "open"}
        if len(opened) == len(self.buckets):
            return self
        return dataclasses.replace(
            self,
            buckets=opened,
            data={uuid: self.data[uuid] for uuid in opened},
            index={uuid: self.index[uuid] for uuid in opened},
        )

    def bucket_named(self, name: str) -> str | None:
        """Return the uuid of a bucket; None if there is none of this name."""
        return next((uuid for uuid, one in self.buckets.items() if one.name == name), None)

    def version(self, path: str) -> Version:
        """Return the version of an element; `NEVER` if it was not there."""
        return self.versions.get(path, NEVER)


def node_path(node: str) -> str:
    """Return the path of a member."""
    return f"{ROOT}/nodes/{node}"


def boots_path(node: str) -> str:
    """Return the path of the counter of a node's sessions."""
    return f"{ROOT}/boots/{node}"


def live_path(node: str) -> str:
    """Return the path of a node's session."""
    return f"{ROOT}/live/{node}"


def name_path(bucket_name: str) -> str:
    """Return the path that makes the name of a bucket unique; no name has a `|`."""
    return f"{ROOT}/names/{bucket_name.replace('/', '|')}"


def bucket_path(uuid: str) -> str:
    """Return the path of a bucket."""
    return f"{ROOT}/buckets/{uuid}"


def map_path(uuid: str) -> str:
    """Return the path of a bucket's data map."""
    return f"{bucket_path(uuid)}/map"


def index_map_path(uuid: str) -> str:
    """Return the path of a bucket's index map."""
    return f"{bucket_path(uuid)}/index"


def result_path(request: str) -> str:
    """Return the path of the answer to a request."""
    return f"{ROOT}/results/{request}"


def to_json(value: msgspec.Struct | None) -> bytes:
    """Return the content of the element that has this value; of None, nothing."""
    return b"" if value is None else msgspec.json.encode(value)


def state_from_elements(
    elements: Mapping[str, Element], token: Version = NEVER, epoch: int = 0
) -> ClusterState:
    """Return the state.

    Args:
        elements: all below `ROOT`, by path, as of one read.
        token: of the lock on `ORCHESTRATOR`.
        epoch: of the group, as it is told after that read.

    Raises:
        CorruptionError: `bad_cluster_element`, `bad_cluster_map`.
        UsageError: `bad_cluster_setting`.
    """
    found = _Elements(elements)
    settings, count = found.data(SETTINGS), found.data(FAILOVER_COUNT)
    buckets = found.below("buckets", Bucket)
    return ClusterState(
        cluster=found.one(CLUSTER, Cluster),
        settings=settings_from_json(settings) if settings else Settings(),
        leader=found.one(ORCHESTRATOR, Leader),
        token=token,
        nodes=found.below("nodes", NodeRecord),
        live=found.below("live", Live),
        boots={name: found.count(data) for name, data in found.children("boots").items()},
        buckets=buckets,
        data={one: data_map_from_json(found.data(map_path(one))) for one in buckets},
        index={one: index_map_from_json(found.data(index_map_path(one))) for one in buckets},
        plan=found.one(PLAN, Plan),
        failover_count=found.count(count) if count else 0,
        versions={path: element.version for path, element in elements.items()},
        epoch=epoch,
    )


class _Elements:
    def __init__(self, elements: Mapping[str, Element]) -> None:
        self._elements = elements

    def data(self, path: str) -> bytes:
        found = self._elements.get(path)
        return b"" if found is None else found.data

    def one(self, path: str, kind: type[_T]) -> _T | None:
        data = self.data(path)
        return _decoded(path, data, kind) if data else None

    def children(self, folder: str) -> dict[str, bytes]:
        """Return the contents of the children, in the order of their names."""
        root = f"{ROOT}/{folder}/"
        paths = (path for path in sorted(self._elements) if path.startswith(root))
        return {
            path[len(root) :]: self._elements[path].data
            for path in paths
            if "/" not in path[len(root) :]
        }

    def below(self, folder: str, kind: type[_T]) -> dict[str, _T]:
        return {
            name: _decoded(f"{ROOT}/{folder}/{name}", data, kind)
            for name, data in self.children(folder).items()
        }

    @staticmethod
    def count(data: bytes) -> int:
        if not data.isdigit():
            raise _bad("a counter", f"its value is {data[:20]!r}")
        return int(data)


def _decoded(path: str, data: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise _bad(path, str(error)) from error


def _bad(what: str, why: str) -> CorruptionError:
    return CorruptionError(
        f"{what} of the coordination service cannot be used: {why}; restore a backup of it and "
        "run `millstream cluster recover`",
        code="bad_cluster_element",
    )
