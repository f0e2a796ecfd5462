"""The index parts of a node: the real records, states, reports and checks over modelled rows.

What a part has indexed is a piece of the history of the copy that it read (as in
`simulators.cluster.index_parts`); it is durable as it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from millstream.cluster.core import kept_parts
from millstream.cluster.core.admission import AdoptIndex, Freeze, StopPart
from millstream.cluster.core.kept_parts import Indexed, KeptPart
from millstream.cluster.core.orders import Place
from millstream.cluster.core.reports import PartReport
from millstream.errors import RoutingError
from millstream.model.cluster_maps import Floor, IndexMap, IndexRecord
from millstream.views.aio.serving.bucket_order import OwnedParts
from millstream.views.aio.serving.owned_parts import check_asked
from simulators.cluster import index_parts as modelled
from simulators.cluster.index_parts import Part, Shown

if TYPE_CHECKING:
    from simulators.whole_cluster.node import Node

DESIGNS: Final = "designs"


class Index(modelled.Index):
    node: Node

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.kept: dict[Place, KeptPart] = {}
        """Durable."""
        self.lease_ms: int | None = None

    def adopt(self, place: Place, record: IndexRecord) -> None:
        self.world.truth.publish_index(place, record)
        self._keep(place, kept_parts.adopted(self.kept.get(place), record))

    def drop(self, bucket: str) -> None:
        """A bucket is gone, and the files of its indexes."""
        for known in (self.kept, self.records, self.parts):
            for place in [one for one in known if one.bucket == bucket]:
                del known[place]  # type: ignore[attr-defined]

    def carry_out(self, step: AdoptIndex | Freeze | StopPart) -> None:
        if isinstance(step, AdoptIndex):
            self.adopt(step.place, step.record)
        elif step.place in self.kept:
            change = kept_parts.frozen if isinstance(step, Freeze) else kept_parts.stopped
            self._keep(step.place, change(self.kept[step.place]))

    def _keep(self, place: Place, kept: KeptPart) -> None:
        self.kept[place], self.records[place] = kept, kept.record
        state, part = kept_parts.state_of(kept, self.node.name), self.parts.get(place)
        if state is None or not self.node.is_index:
            if part is not None:
                part.state = "cleanup"
            return
        if part is None or part.state == "cleanup":
            part = self.parts[place] = Part()
        part.state, part.is_frozen = state, kept.is_frozen

    def report(self, place: Place) -> PartReport:
        part, kept = self.parts[place], self.kept[place]
        at, has = Floor(part.branch, len(part.log)), self._has_floor(place)
        told = Indexed(kept.record.at, DESIGNS, at, at, has, has)
        is_cleaning = part.state == "cleanup"
        found = kept_parts.report_of(kept, self.node.name, told, is_cleaning=is_cleaning)
        assert found is not None
        return found

    def answer(
        self, asked: dict[Place, IndexRecord], is_update: bool
    ) -> dict[Place, Shown] | None:
        node = self.node
        if not node.is_up or self.lease_ms is None or node.now_ms() >= self.lease_ms:
            return None
        buckets = {place.bucket for place in asked}
        records = {
            place.partition: record for place, record in self.records.items()
            if place.bucket in buckets
        }  # fmt: skip
        order: Any = SimpleNamespace(owned=OwnedParts(node.name, records, {}, []))
        keys = {place.partition: record.at for place, record in asked.items()}
        try:
            check_asked(order, list(keys), keys)
        except RoutingError:
            return None
        found = {}
        for place in asked:
            if place not in self.kept:
                return None
            part, kept = self.parts.get(place), self.kept[place]
            is_active = kept_parts.state_of(kept, node.name) == "active"
            if part is None or not is_active or not self._has_floor(place):
                return None
            if is_update and not self._is_updated(place):
                return None
            found[place] = part.shown
        return found


class ManagedIndex:
    """Implements `IndexParts` of the managed engine."""

    def __init__(self, index: Index) -> None:
        self.index = index

    def parts(self) -> Mapping[str, Mapping[int, PartReport]]:
        found: dict[str, dict[int, PartReport]] = {}
        for place in self.index.parts:
            found.setdefault(place.bucket, {})[place.partition] = self.index.report(place)
        return found

    def index_record(self, place: Place) -> IndexRecord | None:
        return self.index.records.get(place)

    async def carry_out(self, bucket: str, steps: Sequence[Any]) -> None:
        for step in steps:
            self.index.carry_out(step)

    async def take_maps(
        self, uuid: str, index_map: IndexMap | None, data_map: object, nodes: object
    ) -> None:
        for partition, record in enumerate(() if index_map is None else index_map.records):
            self.index.adopt(Place(uuid, partition), record)

    def set_lease(self, lease_ms: int | None) -> None:
        self.index.lease_ms = lease_ms
