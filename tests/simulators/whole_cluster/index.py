"""The index parts of a node, as its managed engine uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from millstream.cluster.core.admission import AdoptIndex
from millstream.cluster.core.orders import Place
from millstream.cluster.core.reports import PartReport
from millstream.model.cluster_maps import DataMap, IndexMap, IndexRecord
from simulators.cluster import index_parts as modelled


class Index(modelled.Index):
    """Implements `IndexParts` of the managed engine."""

    lease_ms: int | None = None

    def parts_by_uuid(self) -> dict[str, dict[int, PartReport]]:
        found: dict[str, dict[int, PartReport]] = {}
        for place in self.parts:
            found.setdefault(place.bucket, {})[place.partition] = self.report(place)
        return found


class ManagedIndex:
    """What the managed engine calls."""

    def __init__(self, index: Index) -> None:
        self.index = index

    def parts(self) -> Mapping[str, Mapping[int, PartReport]]:
        return self.index.parts_by_uuid()

    def index_record(self, place: Place) -> IndexRecord | None:
        return self.index.records.get(place)

    async def carry_out(self, bucket: str, steps: Sequence[Any]) -> None:
        for step in steps:
            if isinstance(step, AdoptIndex) or step.place in self.index.parts:
                self.index.carry_out(step)

    async def take_maps(
        self, uuid: str, index_map: IndexMap | None, data_map: DataMap | None, nodes: object
    ) -> None:
        for partition, record in enumerate(() if index_map is None else index_map.records):
            self.index.adopt(Place(uuid, partition), record)

    def set_lease(self, lease_ms: int | None) -> None:
        self.index.lease_ms = lease_ms
