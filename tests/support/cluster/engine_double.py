"""A data engine without data: copies as a few numbers, which follow each other at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millstream.cluster.aio.local_engine import ClusterMaps
from millstream.cluster.core import admission
from millstream.cluster.core.admission import (
    Activate,
    Adopt,
    AdoptIndex,
    Follow,
    Freeze,
    Promise,
    Remove,
    Step,
    StopPart,
    TakeOver,
)
from millstream.cluster.core.orders import Place
from millstream.cluster.core.recovery import HeldBucket
from millstream.cluster.core.reports import CopyReport, PartReport, no_copy
from millstream.cluster.core.settings import Settings
from millstream.errors import UnavailableError
from millstream.model.bucket_map import NodeAddress
from millstream.model.cluster_maps import DataMap, DataRecord, IndexRecord, MapKey
from millstream.model.partitions import PartitionState
from millstream.model.standing import Standing

ACTIVE, REPLICA = PartitionState.ACTIVE, PartitionState.REPLICA
DEAD = PartitionState.DEAD


@dataclass
class Copy:
    state: PartitionState = REPLICA
    branch: int = 0
    last_branch: int = 0
    end: int = 0


class EngineDouble:
    """The engine of one node; `others` are the engines that its copies follow."""

    def __init__(self, node: str, others: dict[str, EngineDouble] | None = None) -> None:
        self.node = node
        self.others = {} if others is None else others
        self.others[node] = self
        self.held: dict[Place, Copy] = {}
        self.records: dict[Place, DataRecord] = {}
        self.index_records: dict[Place, IndexRecord] = {}
        self.taken: dict[str, DataMap] = {}
        self.maps: ClusterMaps | None = None
        self.settings = Settings()
        self.lease_ms: int | None = None
        self.is_admitted = False
        self.failing: set[str] = set()
        """Buckets whose disk is broken."""
        self.done: list[Step] = []

    def die(self) -> None:
        """No other engine hears of it any more; its copies come back as replicas."""
        self.others.pop(self.node, None)
        for copy in self.held.values():
            copy.state = REPLICA if copy.state is ACTIVE else copy.state

    # ---- LocalEngine

    def copies(self) -> Mapping[str, Mapping[int, CopyReport]]:
        found: dict[str, dict[int, CopyReport]] = {}
        for place, record in self.records.items():
            found.setdefault(place.bucket, {})[place.partition] = self._report(place, record)
        return found

    def parts(self) -> Mapping[str, Mapping[int, PartReport]]:
        return {}

    def record(self, place: Place) -> DataRecord | None:
        return self.records.get(place)

    def index_record(self, place: Place) -> IndexRecord | None:
        return self.index_records.get(place)

    def adopted(self) -> Mapping[str, HeldBucket]:
        assert self.maps is not None
        found = {}
        for uuid, data_map in self.taken.items():
            records = [self.records[Place(uuid, at)] for at in range(len(data_map.records))]
            addresses = tuple(
                NodeAddress(name, one.host, 0, one.ports["http"])
                for name, one in self.maps.nodes.items()
            )
            parts = {at.partition: one for at, one in self.index_records.items() if at[0] == uuid}
            standings = [one.standing for one in self.copies()[uuid].values()]
            name = self.maps.buckets[uuid].name
            found[uuid] = HeldBucket(
                name, addresses, data_map.key, tuple(records), parts, tuple(standings)
            )
        return found

    def keys(self) -> Mapping[str, MapKey]:
        return {uuid: one.key for uuid, one in self.taken.items()}

    async def carry_out(self, bucket: str, steps: Sequence[Step]) -> None:
        if bucket in self.failing:
            raise UnavailableError("the disk is broken", code="disk_failed")
        for step in steps:
            self.done.append(step)
            self._carry_out(step)

    async def take_maps(self, maps: ClusterMaps) -> None:
        self.maps = maps
        for uuid, data_map in maps.data.items():
            if uuid not in self.taken or self.taken[uuid].key < data_map.key:
                self.taken[uuid] = data_map
            for partition, record in enumerate(data_map.records):
                self._adopt(Place(uuid, partition), record)

    def broken(self) -> Mapping[str, bool]:
        return {}

    def set_right(self, lease_ms: int | None, *, is_admitted: bool) -> None:
        self.lease_ms, self.is_admitted = lease_ms, is_admitted

    def set_settings(self, settings: Settings) -> None:
        self.settings = settings

    def has_space(self, reserve_percent: int) -> bool:
        return True

    # ---- copies

    def serves(self, place: Place) -> bool:
        copy = self.held.get(place)
        is_active = copy is not None and copy.state is ACTIVE
        return is_active and self.is_admitted and self.lease_ms is not None

    def _report(self, place: Place, record: DataRecord) -> CopyReport:
        copy = self.held.get(place)
        if copy is None:
            return no_copy(place.partition, record.at)
        self._follow(place, copy)
        standing = Standing(
            place.partition, copy.state, copy.last_branch, copy.branch, copy.end, copy.end,
            copy.branch, True, True,
        )  # fmt: skip
        return CopyReport(standing, record.at, self.serves(place), is_confirmed=True)

    def _follow(self, place: Place, copy: Copy) -> None:
        if copy.state is not REPLICA:
            return
        for engine in self.others.values():
            source = engine.held.get(place)
            is_active = source is not None and source.state is ACTIVE
            if source is not None and is_active and source.branch >= copy.last_branch:
                copy.branch = copy.last_branch = source.branch
                copy.end = source.end

    def _adopt(self, place: Place, record: DataRecord) -> None:
        if admission.is_news(record, self.records.get(place)):
            self.records[place] = record
            if self.node in record.placed and place not in self.held:
                self.held[place] = Copy(last_branch=record.branch)

    def _carry_out(self, step: Step) -> None:
        if isinstance(step, Adopt):
            self._adopt(step.place, step.record)
        elif isinstance(step, AdoptIndex):
            self.index_records[step.place] = step.record
        elif isinstance(step, Promise):
            copy = self.held[step.place]
            copy.last_branch = step.branch
            copy.state = REPLICA if step.stands_down else copy.state
        elif isinstance(step, Activate):
            copy = self.held[step.place]
            copy.state, copy.branch = ACTIVE, step.branch
        elif isinstance(step, Follow):
            self.held[step.place].state = REPLICA
        elif isinstance(step, Remove):
            del self.held[step.place]
        elif isinstance(step, TakeOver):
            for engine in self.others.values():
                source = engine.held.get(step.place)
                if source is not None and source.state is ACTIVE:
                    source.state = DEAD
                    self.held[step.place].state = ACTIVE
        else:
            assert isinstance(step, Freeze | StopPart), step

    async def stop(self) -> None:
        """Nothing goes on in the background."""
