"""Rules of the pipeline broken one by one: schedules of `pipeline_world` must find each of them.

The rules of the node are not among them: these classes would be right if a lease did not hold
purging up, because they take no range for read that was refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from millstream.client.extensions import PartitionPosition
from millstream.errors import UsageError
from millstream.model.position import FailoverLog, Position
from millstream.pipelines.change_stream import planner
from millstream.pipelines.change_stream.offsets import OffsetEntry
from millstream.pipelines.change_stream.planner import Planner
from millstream.pipelines.change_stream.ranges import RangeRead
from millstream.pipelines.sinks.repairing import RepairingSink, Row
from simulators.pipeline_world import World, text_of
from support.streams.keyed_double import DictTarget, FalseOrigin

SCHEDULES_MAX = 12_000
FOUND_AT = {"FetchedTombstone": 5_300}
"""A rare mistake is looked for from here on."""


class Pin(World):
    """Ranges are read as of the present, not as of the end of their snapshot."""

    def read(self, read: RangeRead) -> Iterator[bytes]:
        lease_id, part = read.lease_id, self.node.partitions[read.partition_id]
        if lease_id in part.leases:
            part.leases[lease_id][0], held = part.high_seqno, part.leases[lease_id][0]
            yield from super().read(read)
            if lease_id in part.leases:
                part.leases[lease_id][0] = held
        else:
            yield from super().read(read)


class LeaseId(World):
    """The lease of a range is known to the process that planned it, and to nobody else."""

    def text_of(self, entries: Mapping[int, OffsetEntry]) -> str:
        return text_of({p: entry._replace(lease_id=None) for p, entry in entries.items()})

    def plan(self, available_now: bool | None = None) -> bool:
        if self.planner is None:
            self.committed = {p: e._replace(lease_id=None) for p, e in self.committed.items()}
        return super().plan(available_now)


class ConfirmedEnd(World):
    """The end of a snapshot is complete, whether it is confirmed or not."""

    class Planner(Planner):
        def _judge(self, position: PartitionPosition, entry: OffsetEntry, is_held: bool):  # type: ignore[no-untyped-def]
            return super()._judge(position, entry, True)


class AskAgain(World):
    """The answer of a rollback is believed at once."""

    class Planner(Planner):
        def _judge(self, position: PartitionPosition, entry: OffsetEntry, is_held: bool):  # type: ignore[no-untyped-def]
            judged = planner._judged
            answers: list[int | None] = []

            def once(
                position: PartitionPosition, log: FailoverLog, reader: Position
            ) -> int | None:
                is_again = bool(answers) and answers[0] is not None
                answers.append(None if is_again else judged(position, log, reader))
                return answers[-1]

            planner._judged = once  # type: ignore[assignment]
            try:
                return super()._judge(position, entry, is_held)
            finally:
                planner._judged = judged  # type: ignore[assignment]


class RollbackRow(World):
    """A branch that cost nothing begins without a rollback row."""

    class Planner(Planner):
        def _judge(self, position: PartitionPosition, entry: OffsetEntry, is_held: bool):  # type: ignore[no-untyped-def]
            found = super()._judge(position, entry, is_held)
            if found is None or found.load != entry.load:
                return found
            begin = Position(entry.uuid, found.begin, found.begin, found.begin)
            is_rollback = found.begin not in (entry.seqno, entry.snap_start) or (
                planner._judged(position, found.log, begin) is not None
            )
            return found if is_rollback else found._replace(rollback_to=None)


class LoadGoingBack(World):
    """Going back to 0 without having been told to is no new load."""

    class Planner(Planner):
        def _judge(self, position: PartitionPosition, entry: OffsetEntry, is_held: bool):  # type: ignore[no-untyped-def]
            found = super()._judge(position, entry, is_held)
            if found is not None and found.load != entry.load and entry.snap_start == 0:
                has_branch = position.branch != entry.branch
                return found._replace(
                    load=entry.load, rollback_to=found.rollback_to if has_branch else None
                )
            return found


class LeasedGoal(World):
    """The goal of a run is a number, not a state that is held."""

    class Planner(Planner):
        targets: dict[int, int] | None = None

        def begin_available_now(self) -> None:
            positions = self._source.positions()
            self.targets = {p: found.high_seqno for p, found in positions.items()}

        @property
        def is_available_now(self) -> bool:
            return self.targets is not None

        def plan(
            self, start: Mapping[int, OffsetEntry], rows_max: int | None
        ) -> dict[int, OffsetEntry]:
            end = super().plan(start, rows_max)
            for p, target in (self.targets or {}).items():
                if start[p].seqno >= target:
                    end[p] = start[p]
                elif end[p].seqno > target >= end[p].snap_start:
                    end[p] = end[p]._replace(seqno=target)
            return end

    def check_rest(self, planner: Planner) -> None:
        if planner.is_available_now:
            self.finished = {p: (e.branch, e.seqno) for p, e in self.committed.items()}
            self.planner = None
        else:
            super().check_rest(planner)


class EmptySweep(World):
    """A load that finds nothing is not swept."""

    def range_between(self, p: int, start: OffsetEntry, end: OffsetEntry) -> RangeRead | None:
        read = super().range_between(p, start, end)
        if read is not None and read.rollback_to == read.end == 0:
            return read._replace(sweep_seqno=None)
        return read


class PurgeMember(World):
    """The purge seqno of a load is not told to the node: a load of several batches never ends."""

    limits = (1,)

    def range_between(self, p: int, start: OffsetEntry, end: OffsetEntry) -> RangeRead | None:
        read = super().range_between(p, start, end)
        return None if read is None else read._replace(purge_seqno=None)


class SweepByLoad(World):
    """A sweep takes what is of a lower branch."""

    class Target(DictTarget):
        def sweep(self, partition: int, load: int) -> None:
            held = self.rows[partition]
            newest = max((row.branch for row, _ in held.values()), default=0)
            self.rows[partition] = {
                k: pair for k, pair in held.items() if pair[0].branch >= newest
            }


class Tombstones(World):
    """Deletions are not kept."""

    class Target(DictTarget):
        def put(self, partition: int, rows: Sequence[Row], load: int) -> None:
            super().put(partition, rows, load)
            for row in rows:
                if row.is_deleted:
                    del self.rows[partition][row.key]


class TombstoneBound(World):
    """Nobody remembers which tombstones were dropped."""

    class Target(DictTarget):
        def set_state(self, partition: int, state) -> None:  # type: ignore[no-untyped-def]
            super().set_state(partition, state._replace(floor=0))


class Fetch(World):
    """What is above a rollback is deleted, not fetched."""

    class Origin(FalseOrigin):
        def newest(self, partition: int, keys: object) -> dict[str, Row]:
            return {}


class FetchedTombstone(World):
    """A deletion that was fetched takes the seqno of the rollback."""

    class Origin(FalseOrigin):
        def newest(self, partition: int, keys):  # type: ignore[no-untyped-def]
            found = super().newest(partition, keys)
            return {key: row for key, row in found.items() if not row.is_deleted}


class RollbacksFirst(World):
    """Rows are applied in the order in which a shuffle left them."""

    class Sink(RepairingSink):
        def apply(self, rows, batch_id: int = 0):  # type: ignore[no-untyped-def]
            for row in rows:
                super().apply([row], batch_id)


class EqualIsPut(World):
    """A row that is there already keeps its old load."""

    class Target(DictTarget):
        def put(self, partition: int, rows: Sequence[Row], load: int) -> None:
            held = self.rows[partition]
            fresh = [r for r in rows if r.key not in held or held[r.key][0] != r]
            super().put(partition, fresh, load)


class NoSweep(World):
    """The first batch after a fall to zero removes what is there at once, and nothing later."""

    class Target(DictTarget):
        def sweep(self, partition: int, load: int) -> None:
            pass


PLANTS = {
    plant.__name__: plant
    for plant in (
        Pin, LeaseId, ConfirmedEnd, AskAgain, RollbackRow, LoadGoingBack, LeasedGoal, EmptySweep,
        PurgeMember, SweepByLoad, Tombstones, TombstoneBound, Fetch,
        FetchedTombstone, RollbacksFirst, EqualIsPut, NoSweep,
    )
}  # fmt: skip


def first_wrong(plant: type[World], begin: int, most: int = SCHEDULES_MAX) -> int | None:
    for seed in range(begin, begin + most):
        try:
            plant(seed).run()
        except (AssertionError, UsageError, KeyError):
            return seed
    return None


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_mistake_is_found(name: str) -> None:
    assert first_wrong(PLANTS[name], FOUND_AT.get(name, 0)) is not None
