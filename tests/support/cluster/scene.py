"""A small cluster before a decision: state, reports and clock, to be changed by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

from msgspec.structs import replace

from millstream.cluster.core.deciding import decide
from millstream.cluster.core.elements import (
    PLAN,
    Bucket,
    Cluster,
    ClusterState,
    Live,
    NodeRecord,
    boots_path,
    map_path,
    node_path,
)
from millstream.cluster.core.memory import Memory
from millstream.cluster.core.orders import Order, Place
from millstream.cluster.core.reports import CopyReport, NodeReport, no_copy
from millstream.cluster.core.step import Decision, Step, View
from millstream.cluster.core.writes import Txn
from millstream.model.cluster_maps import (
    DataMap,
    DataRecord,
    IndexMap,
    IndexRecord,
    MapKey,
    data_map_from_json,
)
from millstream.model.partitions import PartitionState
from millstream.model.rows import Row
from millstream.model.standing import Standing
from millstream.vsr.core.versions import Version

KEY = MapKey(1, 5)
TOKEN = Version(1, 1, 9)
HERE = Place("u1", 0)
ACTIVE, REPLICA, DEAD = PartitionState.ACTIVE, PartitionState.REPLICA, PartitionState.DEAD


def copy_report(
    state: PartitionState = REPLICA, end: int = 10, branch: int = 1, **others: Any
) -> CopyReport:
    """Return a healthy copy; `others` are members of its standing or of the report."""
    standing = Standing(0, state, branch, branch, end, end, branch, True, True)
    of_report = {
        name: others.pop(name) for name in list(others) if name in CopyReport.__struct_fields__
    }
    return replace(CopyReport(standing._replace(**others), KEY), **of_report)


class Scene:
    """One bucket of one partition, or as many as rows are given."""

    def __init__(self, *rows: Row, active: str = "a", nodes: str = "abc", **others: Any) -> None:
        record = DataRecord(KEY, active, 1, rows or (("a", "b", "c"),), **others)
        self.memory = Memory()
        self.now_ms, self.is_fresh = 10_000, True
        self.coordinators: frozenset[str] | None = frozenset()
        self.state = ClusterState(
            cluster=Cluster("c1", "c", 1, 0),
            token=TOKEN,
            nodes={name: NodeRecord(name, name, {}, ("data",), "x", "in") for name in nodes},
            live={name: Live("i", {}, 1) for name in nodes},
            boots=dict.fromkeys(nodes, 1),
            buckets={"u1": Bucket("b", 1, len(record.row) - 1)},
            data={"u1": DataMap(KEY, "u1", (record,))},
            index={"u1": IndexMap(KEY, "u1", (IndexRecord(KEY, None),))},
            versions={
                path: Version(1, 1, 3)
                for path in (PLAN, map_path("u1"), *map(node_path, nodes), *map(boots_path, nodes))
            },
        )
        self.answered: set[str] = set()
        for name in nodes:
            if name in record.placed:
                self.hear(name, copy_report(ACTIVE if name == active else REPLICA))
            else:
                self.hear(name, no_copy(0, KEY))

    @property
    def record(self) -> DataRecord:
        return self.state.data["u1"].records[0]

    def set(self, **changes: Any) -> None:
        """Change the state."""
        self.state = dataclasses.replace(self.state, **changes)

    def set_record(self, **changes: Any) -> None:
        new = replace(self.record, **changes)
        self.set(data={"u1": DataMap(max(KEY, new.at), "u1", (new,))})

    def set_node(self, name: str, **changes: Any) -> None:
        self.set(nodes={**self.state.nodes, name: replace(self.state.nodes[name], **changes)})

    def hear(self, name: str, copy: CopyReport, **others: Any) -> None:
        """Have a node answer with this copy."""
        report = NodeReport(name, 1, True, {"u1": {0: copy}})
        self.memory.hear(replace(report, **others))
        self.answered.add(name)

    def lose(self, *names: str) -> None:
        """Have nodes die: no session, no answers."""
        self.silence(*names)
        self.set(live={name: one for name, one in self.state.live.items() if name not in names})

    def silence(self, *names: str) -> None:
        for name in names:
            self.memory.miss(name)
            self.answered.discard(name)

    def view(self) -> View:
        answered = frozenset(self.answered) if self.is_fresh else frozenset()
        return View(
            "a" if "a" in answered else min(answered, default=""),
            TOKEN, self.state, self.is_fresh, answered, self.now_ms, 1_000_000 + self.now_ms, 0, 7,
            coordinators=self.coordinators,
        )  # fmt: skip

    def step(self) -> Step:
        return Step(self.view(), self.memory)

    def decide(self) -> Decision:
        return decide(self.view(), self.memory)


def kinds(orders: list[Order]) -> list[tuple[str, str]]:
    """Return (kind, node) of each order."""
    return sorted((order.kind, order.to) for order in orders)


def written(txn: Txn | None, path: str = map_path("u1")) -> bytes | None:
    """Return what a transaction writes to a path; None: nothing."""
    words = () if txn is None else txn.changes
    return next((one[2] for one in words if one[0] == b"PUT" and one[1] == path.encode()), None)


def record_in(txn: Txn | None) -> DataRecord | None:
    """Return the record that a transaction writes."""
    data = written(txn)
    return None if data is None else data_map_from_json(data).records[0]
