"""A backup of a false node whose files are lists of rows: the real rules, without Parquet.

`FalseBackup` plans parts, reads them under their leases and keeps manifests; `restored` puts a
chain together again. It may be torn: what was read of some partitions is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Event
from typing import Any, NamedTuple

from millstream.client.bulk import Range
from millstream.client.columns import Columns, cut_columns
from millstream.client.extensions import LeaseHold
from millstream.model.position import Position
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.lake.chain import Manifests, Newest, chain_of, parts_of
from millstream.pipelines.lake.increment import PartPlan, Selection, plan_part
from millstream.pipelines.lake.manifest import (
    DataFile,
    Manifest,
    manifest_from_json,
    manifest_to_json,
)
from millstream.wire.frames import described, iter_frames
from millstream.wire.mcbp import Opcode
from support.pipelines.node_double import FalseNode, FalseRanges

LINEAGE = b"\1\1"
HELD = LeaseHold(1, 0, 0, 0, 0, 0)


class Row(NamedTuple):
    key: str
    branch: int
    seqno: int
    value: bytes | None
    """None of a deletion."""


class FalseSpark:
    """Runs what a session would, in this process."""

    defaultParallelism = 2

    def __init__(self) -> None:
        self.is_cancelled = Event()

    def cancelAllJobs(self) -> None:
        self.is_cancelled.set()

    @property
    def sparkContext(self) -> FalseSpark:
        return self

    def parallelize(self, groups: list[list[Any]], count: int) -> FalseSpark:
        assert len(groups) == count <= self.defaultParallelism
        self.groups = groups
        return self

    def flatMap(self, function: Any) -> FalseSpark:
        self.results = [result for group in self.groups for result in function(group)]
        return self

    def collect(self) -> list[Any]:
        return self.results


class DescribedRanges:
    """Frames as a node sends them to who asked for descriptions."""

    def __init__(self, node: FalseNode) -> None:
        self._node = node
        self.sidecar = b""
        """Of every change."""
        self.is_held = True

    def renew_lease(self, lease_id: int, partition_ids: Sequence[int]) -> dict[int, LeaseHold]:
        return dict.fromkeys(partition_ids, HELD) if self.is_held else {}

    def stream(self, ranges: Sequence[Range]) -> Iterator[bytes]:
        for chunk in FalseRanges(self._node).stream(ranges):
            for frame in iter_frames(chunk):
                is_change = frame[1] != Opcode.DCP_SNAPSHOT_MARKER
                yield described(frame, LINEAGE, self.sidecar) if is_change else frame


class FalseControl:
    """A `control.NodeControl` of the false node; `on_lease` runs when leases were opened."""

    bucket_uuid = "b0"

    def __init__(self, node: FalseNode) -> None:
        self._node = node
        self.partition_ids = tuple(node.partitions)
        self.on_lease: Callable[[], None] = lambda: None
        self.failover_log = node.failover_log
        self.release_lease = node.release_lease

    def open_lease(self, partition_ids: Any) -> Any:
        held = self._node.open_lease(partition_ids)
        self.on_lease()
        return held

    def close(self) -> None: ...


class FalseSource(DescribedRanges):
    def close(self) -> None: ...


class FalseKeeper:
    def __init__(self, options: SourceOptions, leases: Callable[[], Any]) -> None:
        leases()

    def stop(self) -> None: ...


class FalseBackup:
    def __init__(self, node: FalseNode) -> None:
        self.node = node
        self.manifests = Manifests()
        self.files: dict[str, list[Row]] = {}
        self.kinds: list[str] = []

    @property
    def tip(self) -> Manifest | None:
        return self.manifests[max(self.manifests)] if self.manifests else None

    def run(self, *, is_incremental: bool, torn_after: int | None = None) -> int | None:
        """Back up; return the id. Torn: stop after some partitions, without a manifest."""
        parent = self.tip if is_incremental else None
        id_ = 1 + max(self.manifests, default=0)
        held = self.node.open_lease(list(self.node.partitions))
        plans = [
            plan_part(parent.part(p) if parent else None, lease, self.node.failover_log(p))
            for p, lease in held.items()
        ]
        parts = []
        for count, plan in enumerate(plans):
            if count == torn_after:
                return None
            p = plan.lease.partition_id
            rows = list(self.read(plan))
            path = f"data-{id_}-{len(self.files)}/{p}"
            self.files[path] = rows
            file = DataFile(path=path, row_count=len(rows), byte_count=1, sha256="0" * 64)
            parts.append(plan.part([file] if rows else []))
            self.kinds.append(plan.kind)
            self.node.release_lease(plan.lease.lease_id, [p])
        self.keep(id_, parent.id if parent else None, parts)
        return id_

    def keep(self, id_: int, parent: int | None, parts: Iterable[object]) -> None:
        manifest = Manifest(
            id=id_, parent=parent, created="2026-01-01T00:00:00Z", bucket="b", bucket_uuid="b0",
            partition_count=len(self.node.partitions), parts=tuple(parts),  # type: ignore[arg-type]
        )  # fmt: skip
        self.manifests[id_] = manifest_from_json(manifest_to_json(manifest), "test")

    def read(self, plan: PartPlan) -> Iterable[Row]:
        lease, begin = plan.lease, plan.begin
        selection = None
        if plan.rollback_to is not None:
            tip = self.tip
            assert tip is not None
            undone = [
                row.key
                for row in self.newest(tip.id, lease.partition_id)
                if row.seqno > plan.rollback_to
            ]
            selection = Selection(plan.rollback_to, undone)
            begin = Position() if undone else begin
        if begin.seqno == lease.at:
            return
        wanted = Range(lease.partition_id, begin, lease.at, lease.lease_id)
        for chunk in FalseRanges(self.node).stream([wanted]):
            columns = Columns()
            cut_columns(chunk, columns)
            for index in selection.rows(columns) if selection else range(len(columns)):
                yield Row(
                    columns.key[index], lease.branch, columns.seqno[index], columns.value[index]
                )
        for key in selection.unknown if selection else ():
            assert plan.rollback_to is not None
            yield Row(key, lease.branch, plan.rollback_to, None)

    def newest(self, id_: int, partition_id: int) -> list[Row]:
        """Return the newest version of each key, deletions included."""
        newest, found = Newest(), []
        for part in parts_of(chain_of(self.manifests, id_), partition_id):
            for file in part.files:
                rows = self.files[file.path]
                found += [rows[i] for i in newest.rows(part, [row.key for row in rows])]
        return found

    def restored(self, id_: int) -> dict[int, dict[int, int]]:
        """Return partition -> key -> value."""
        return {
            p: {int(r.key): int(r.value) for r in self.newest(id_, p) if r.value is not None}
            for p in self.node.partitions
        }

    def compact(self) -> int:
        """Write the newest state as a full backup at the same positions."""
        tip = self.tip
        assert tip is not None
        id_, parts = tip.id + 1, []
        for old in tip.parts:
            path = f"data-{id_}/{old.partition}"
            self.files[path] = rows = sorted(
                self.newest(tip.id, old.partition), key=lambda row: row.seqno
            )
            file = DataFile(path=path, row_count=len(rows), byte_count=1, sha256="0" * 64)
            parts.append(old.as_full([file] if rows else []))
        self.keep(id_, None, parts)
        return id_
