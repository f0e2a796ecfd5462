"""The real planner and range reader under random schedules: writes, fail-overs, lost leases,
purges, restarts of the driver, offsets as text, batches replayed.

With a sink that repairs, what it holds equals the source whenever the query rests. With one that
does not, the same is true, or the planner has refused, naming partition and seqno, and rightly.
"""

from __future__ import annotations

import json
import random
from typing import NamedTuple

import pytest

from millstream.errors import RollbackRequiredError
from millstream.pipelines.offsets import (
    Offset,
    OffsetEntry,
    offset_from_json,
    offset_to_json,
)
from millstream.pipelines.planner import Planner
from millstream.pipelines.ranges import RangeRead, range_between, read_committed
from millstream.wire.frames import iter_frames
from node_double import FalseNode, FalseRanges, key_and_value

SCHEDULES = 1_500
BLOCKS = 3


def text_of(entries: dict[int, OffsetEntry]) -> str:
    return json.dumps(offset_to_json(Offset("b", "1", entries)))


class Stored(NamedTuple):
    branch: int
    seqno: int
    value: int | None
    load: int


class PlainSink:
    """Keyed latest state that knows nothing of rollbacks; tombstones are kept."""

    def __init__(self) -> None:
        self.rows: dict[int, Stored] = {}
        self.load = 1

    def take(
        self, node: FalseNode, read: RangeRead, rows: list[tuple[int, int, int | None]]
    ) -> None:
        for seqno, key, value in rows:
            self.upsert(key, Stored(read.branch, seqno, value, self.load))

    def upsert(self, key: int, row: Stored) -> None:
        held = self.rows.get(key)
        if held is None or row[:2] >= held[:2]:
            self.rows[key] = row

    def live(self) -> dict[int, int]:
        return {key: row.value for key, row in self.rows.items() if row.value is not None}


class RepairingSink(PlainSink):
    """The rules of a sink that repairs: fetch what is above a rollback, sweep older loads."""

    def __init__(self) -> None:
        super().__init__()
        self.dropped = 0

    def take(
        self, node: FalseNode, read: RangeRead, rows: list[tuple[int, int, int | None]]
    ) -> None:
        if read.rollback_to is not None:
            self.roll_back(node, read, read.rollback_to)
        if read.sweep_seqno is not None:
            self.rows = {k: row for k, row in self.rows.items() if row.load >= read.load}
        super().take(node, read, rows)

    def roll_back(self, node: FalseNode, read: RangeRead, seqno: int) -> None:
        part = node.partitions[read.partition_id]
        found = part.newest()
        if seqno == 0:
            self.load = read.load
        elif seqno < self.dropped:
            for key, (at, value) in found.items():
                self.upsert(key, Stored(part.branch, at, value, self.load))
            self.rows = {key: row for key, row in self.rows.items() if key in found}
        else:
            for key, row in list(self.rows.items()):
                if row.branch < read.branch and row.seqno > seqno:
                    at, value = found.get(key, (seqno, None))
                    self.rows[key] = Stored(read.branch, at, value, self.load)

    def drop_tombstones(self, durable_seqno: int) -> None:
        for key, row in list(self.rows.items()):
            if row.value is None and row.seqno <= durable_seqno:
                del self.rows[key]
                self.dropped = max(self.dropped, row.seqno)


class World:
    """One schedule: node, driver, logs and sink."""

    def __init__(self, seed: int, *, repairs: bool, loses_histories: bool = False) -> None:
        self.rng = random.Random(seed)
        self.repairs, self.loses_histories = repairs, loses_histories
        self.node = FalseNode(self.rng.randint(1, 3))
        self.sinks = {p: RepairingSink() if repairs else PlainSink() for p in self.node.partitions}
        self.committed: dict[int, OffsetEntry] = {p: OffsetEntry() for p in self.node.partitions}
        self.logged: dict[int, OffsetEntry] | None = None
        self.planner: Planner | None = None
        self.finished: dict[int, tuple[int, int]] = {}
        self.histories: dict[int, list[int]] = {p: [] for p in self.node.partitions}  # promised
        self.refusal: RollbackRequiredError | None = None

    def run(self) -> None:
        steps = [self.write] * 9 + [self.plan] * 5 + [self.execute] * 5 + [self.disturb] * 5
        for _ in range(self.rng.randint(15, 80)):
            self.rng.choice(steps)()
            if self.refusal is not None:
                self.check_refusal()
                return
        self.planner = None
        bound = 20 + 4 * sum(part.high_seqno for part in self.node.partitions.values())
        for _ in range(bound):
            if not self.plan(available_now=False):
                return
            if self.refusal is not None:
                self.check_refusal()
                return
            self.execute()
        raise AssertionError(f"{bound} batches and not at rest")

    def write(self) -> None:
        p = self.rng.choice(list(self.node.partitions))
        value = self.rng.randrange(1000) if self.rng.random() < 0.7 else None
        self.node.write(p, self.rng.randrange(4), value)

    def disturb(self) -> None:
        p, part = self.rng.choice(list(self.node.partitions.items()))
        events = ["fail-over", "driver stops", "leases lost", "purge", "tombstones"]
        if self.loses_histories:
            events += ["copy"] * 3
        event = self.rng.choice(events)
        seqno = self.rng.randint(0, part.high_seqno)
        if event == "fail-over":
            part.fail_over(
                self.rng.randint(max(part.purge_seqno, part.high_seqno - 9), part.high_seqno)
            )
        elif event == "driver stops":
            self.planner = None
        elif event == "leases lost":
            part.leases.clear()
        elif event == "purge":
            part.purge(seqno)
        elif event == "copy" and part.copy is None:
            part.keep_copy()
        elif event == "copy":
            part.promote_copy(seqno)
        elif isinstance(sink := self.sinks[p], RepairingSink):
            sink.drop_tombstones(seqno)

    def plan(self, available_now: bool | None = None) -> bool:
        """Ask for the next offset and log it; False when Spark sees nothing new."""
        if self.logged is not None:
            return True
        planner = self.process(available_now)
        rows_max = self.rng.choice([None, 1, 2, 5, 9])
        try:
            end = planner.plan(self.committed, rows_max)
        except RollbackRequiredError as error:
            self.refusal = error
            return True
        if rows_max is not None:
            self.check_limit(end, rows_max)
        if text_of(end) == text_of(self.committed):
            self.check_rest(planner)
            return False
        if self.rng.random() < 0.05:
            self.planner = None  # the driver dies before the offset is logged
        else:
            self.logged = dict(offset_from_json(json.loads(text_of(end))).entries)
            for p, entry in end.items():
                self.check_goes_on(p, entry)
                if entry != self.committed[p]:
                    numbers = [made.number for made in self.node.partitions[p].changes]
                    self.histories[p] = numbers[: entry.seqno]
        return True

    def process(self, available_now: bool | None) -> Planner:
        if self.planner is None:
            self.planner = Planner(self.node, "b", repairs=self.repairs)
            if self.rng.random() < 0.5 if available_now is None else available_now:
                self.planner.begin_available_now()
        return self.planner

    def execute(self) -> None:
        """Run or replay the logged batch; the driver may die before the commit log."""
        if self.logged is None:
            return
        for p, end in self.logged.items():
            read = range_between(p, self.committed[p], end)
            if read is not None:
                chunks = read_committed([read], FalseRanges(self.node))
                self.sinks[p].take(self.node, read, rows_of(chunks))
        if self.rng.random() < 0.15:
            self.planner = None
        else:
            self.committed, self.logged = self.logged, None

    def check_limit(self, end: dict[int, OffsetEntry], rows_max: int) -> None:
        ranges = {p: range_between(p, self.committed[p], entry) for p, entry in end.items()}
        again = {p for p, read in ranges.items() if read and read.begin < self.committed[p].seqno}
        if again and not self.repairs:
            return  # what goes back is read again as a whole
        rows = sum(read.row_count_max for read in ranges.values() if read is not None)
        assert rows <= max(2 * rows_max, rows_max + len(end))

    def check_goes_on(self, p: int, entry: OffsetEntry) -> None:
        """A finished run is gone on from, unless a fail-over or a purge forbids it."""
        branch, seqno = self.finished.pop(p, (0, 0))
        part = self.node.partitions[p]
        if branch == part.branch and part.purge_seqno <= seqno:
            assert entry.snap_start >= seqno

    def check_rest(self, planner: Planner) -> None:
        if planner.is_available_now:
            self.finished = {p: (e.branch, e.seqno) for p, e in self.committed.items()}
            for entry in self.committed.values():
                assert entry.is_closed
            self.planner = None
            return
        for p, part in self.node.partitions.items():
            entry = self.committed[p]
            assert entry.is_closed
            assert (entry.branch, entry.seqno) == (part.branch, part.high_seqno)
            assert self.sinks[p].live() == part.live()

    def check_refusal(self) -> None:
        """A refusal names a partition that lost what was promised, and no seqno beyond that."""
        error = self.refusal
        assert error is not None
        assert not self.repairs
        part, entry = self.node.partitions[error.partition_id], self.committed[error.partition_id]
        assert f"partition {error.partition_id} " in str(error)
        assert f"seqno {error.seqno}:" in str(error)
        numbers = [made.number for made in part.changes]
        promised = self.histories[error.partition_id]
        common = next(
            (
                n
                for n, pair in enumerate(zip(numbers, promised, strict=False))
                if pair[0] != pair[1]
            ),
            min(len(numbers), len(promised)),
        )
        is_purged = entry.snap_start < part.purge_seqno
        # The uuid is that of the snapshot's end: a node that lost it forgot part of the snapshot.
        is_forgotten = entry.uuid not in {known.uuid for known in part.failover_log}
        assert common < entry.seqno or (error.seqno == 0 and (is_purged or is_forgotten))
        assert error.seqno <= min(common, entry.seqno)
        with pytest.raises(RollbackRequiredError) as again:
            Planner(self.node, "b").plan(self.committed, None)
        assert again.value.seqno <= error.seqno or again.value.partition_id != error.partition_id


def rows_of(chunks: object) -> list[tuple[int, int, int | None]]:
    return [
        key_and_value(frame)
        for chunk in chunks  # type: ignore[attr-defined]
        for frame in iter_frames(chunk)
        if frame[1] != 0x56
    ]


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_sink_that_repairs_equals_the_source_at_rest(block: int) -> None:
    for seed in range(block * SCHEDULES, (block + 1) * SCHEDULES):
        try:
            World(seed, repairs=True).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("loses_histories", [False, True])
def test_a_sink_that_does_not_repair_is_right_or_refused(loses_histories: bool) -> None:
    refused = 0
    for seed in range(SCHEDULES):
        world = World(seed, repairs=False, loses_histories=loses_histories)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        refused += world.refusal is not None
    assert SCHEDULES * 0.1 < refused < SCHEDULES * 0.9
