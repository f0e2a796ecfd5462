"""One random schedule of the real planner, ranges and repairing sink: writes, fail-overs, lost
leases, purges, restarts of the driver, offsets as text, batches replayed, dropped tombstones.

With a sink that repairs, what it holds equals the source whenever the query rests. With one that
does not, the same is true, or the planner has refused, naming partition and seqno, and rightly.
What is planted wrong to see that it is found overrides a method of `World` or of the false node.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from millstream.errors import RollbackRequiredError
from millstream.pipelines.change_stream.offsets import (
    Offset,
    OffsetEntry,
    offset_from_json,
    offset_to_json,
)
from millstream.pipelines.change_stream.planner import Planner
from millstream.pipelines.change_stream.ranges import RangeRead, range_between, read_committed
from millstream.pipelines.change_stream.reading import mark_rows
from millstream.pipelines.sinks.repairing import (
    OP_ROLLBACK,
    OP_SWEEP,
    KeyedTarget,
    RepairingSink,
    Row,
)
from millstream.wire.frames import iter_frames
from support.pipelines.node_double import FalseNode, FalseRanges, key_and_value
from support.streams.keyed_double import DictTarget, FalseOrigin, false_row, name_of

MARKER: Final = 0x56


def text_of(entries: Mapping[int, OffsetEntry]) -> str:
    return json.dumps(offset_to_json(Offset("b", "1", entries)))


class PlainSink:
    """Keyed latest state that knows nothing of rollbacks; tombstones are kept."""

    def __init__(self) -> None:
        self.target = DictTarget()

    def apply(self, rows: list[Row], _: int = 0) -> None:
        for row in rows:
            if row.op not in (OP_ROLLBACK, OP_SWEEP):
                self.target.begin([row.partition])
                held = self.target.versions(row.partition, [row.key]).get(row.key)
                if held is None or row.version >= held.version:
                    self.target.put(row.partition, [row], 1)


class World:
    """One schedule: node, driver, logs and sink."""

    limits: Sequence[int | None] = (None, 1, 2, 5, 9)
    Planner, Sink, Target, Origin = Planner, RepairingSink, DictTarget, FalseOrigin

    def __init__(
        self,
        seed: int,
        *,
        repairs: bool = True,
        loses_histories: bool = False,
        is_durable_only: bool = False,
    ) -> None:
        self.rng = random.Random(seed)
        self.repairs, self.loses_histories = repairs, loses_histories
        self.is_durable_only = is_durable_only
        self.node = FalseNode(self.rng.randint(1, 3), is_durable_only=is_durable_only)
        for part in self.node.partitions.values() if is_durable_only else ():
            part.durable_seqno = 0
        self.durable = dict.fromkeys(self.node.partitions, 0)  # is, whatever the node knows of it
        self.origin = self.Origin(self.node)
        self.target: Any = self.make_target()
        self.sink: RepairingSink | PlainSink = PlainSink()
        if repairs:
            self.sink = self.make_sink()
        else:
            self.target = self.sink.target
        self.committed: dict[int, OffsetEntry] = {p: OffsetEntry() for p in self.node.partitions}
        self.logged: dict[int, OffsetEntry] | None = None
        self.planner: Planner | None = None
        self.finished: dict[int, tuple[int, int]] = {}
        self.histories: dict[int, list[int]] = {p: [] for p in self.node.partitions}  # promised
        self.refusal: RollbackRequiredError | None = None

    def run(self) -> None:
        for _ in range(self.rng.randint(15, 80)):
            self.step()
            if self.refusal is not None:
                self.check_refusal()
                return
        self.come_to_rest()

    def step(self) -> None:
        """Something happens."""
        steps = [self.write] * 9 + [self.plan] * 5 + [self.execute] * 5 + [self.disturb] * 5
        self.rng.choice(steps)()

    def come_to_rest(self) -> None:
        """Nothing happens any more; the query goes on until it sees nothing new."""
        self.planner = None
        for p in self.node.partitions if self.is_durable_only else ():
            self.node.partitions[p].durable_seqno = self.durable[p]
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
        if self.is_durable_only and self.rng.random() < 0.5:
            part.durable_seqno = max(part.durable_seqno or 0, seqno)
            self.durable[p] = max(self.durable[p], seqno)
        elif event == "fail-over":
            kept = max(part.purge_seqno, part.high_seqno - 9, self.durable[p])
            part.fail_over(self.rng.randint(kept, part.high_seqno))
            if part.durable_seqno is not None:  # the new history has to learn it anew
                part.durable_seqno = self.rng.choice((0, part.durable_seqno // 2, self.durable[p]))
        elif event == "driver stops":
            self.planner = None
        elif event == "leases lost":
            part.leases.clear()
        elif event == "purge":
            part.purge(seqno if part.durable_seqno is None else min(seqno, part.durable_seqno))
        elif event == "copy" and part.copy is None:
            part.keep_copy()
        elif event == "copy":
            part.promote_copy(seqno)
        elif self.repairs:
            self.drop_tombstones(p, seqno)

    def drop_tombstones(self, p: int, seqno: int) -> None:
        """By hand, whatever is durable, or by the sink with its next batch."""
        self.origin.durable[p] = seqno if self.rng.random() < 0.5 else 0
        state = self.target.state(p)
        if not self.origin.durable[p] and state is not None:
            dropped = self.target.drop_tombstones(p, seqno)
            self.target.set_state(p, state._replace(floor=max(state.floor, dropped)))

    def plan(self, available_now: bool | None = None) -> bool:
        """Ask for the next offset and log it; False when Spark sees nothing new."""
        if self.logged is not None:
            return True
        planner = self.process(available_now)
        rows_max = self.rng.choice(self.limits)
        try:
            end = planner.plan(self.committed, rows_max)
        except RollbackRequiredError as error:
            self.refusal = error
            return True
        if rows_max is not None:
            self.check_limit(end, rows_max)
        if self.text_of(end) == self.text_of(self.committed):
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
            self.planner = self.make_planner()
            if self.rng.random() < 0.5 if available_now is None else available_now:
                self.planner.begin_available_now()
        return self.planner

    def make_planner(self) -> Planner:
        return self.Planner(
            self.node, "b", repairs=self.repairs, is_durable_only=self.is_durable_only
        )

    def make_target(self) -> KeyedTarget:
        return self.Target()

    def make_sink(self) -> RepairingSink:
        return self.Sink(self.target, self.origin)

    def read(self, read: RangeRead) -> Iterator[bytes]:
        return read_committed([read], FalseRanges(self.node))

    def text_of(self, entries: Mapping[int, OffsetEntry]) -> str:
        return text_of(entries)

    def range_between(self, p: int, start: OffsetEntry, end: OffsetEntry) -> RangeRead | None:
        return range_between(p, start, end)

    def execute(self) -> None:
        """Run or replay the logged batch; the driver may die before the commit log."""
        if self.logged is None:
            return
        rows: list[Row] = []
        for p, end in self.logged.items():
            read = self.range_between(p, self.committed[p], end)
            if read is not None:
                rows += rows_of(read, self.read(read), len(self.node.partitions))
        self.rng.shuffle(rows)
        if not self.apply(rows):
            return
        if self.rng.random() < 0.15:
            self.planner = None
        else:
            self.committed, self.logged = self.logged, None

    def apply(self, rows: list[Row]) -> bool:
        """Have the sink apply a batch; False if it failed, so that the batch comes again."""
        self.sink.apply(rows, 0)
        return True

    def check_limit(self, end: dict[int, OffsetEntry], rows_max: int) -> None:
        ranges = {p: range_between(p, self.committed[p], entry) for p, entry in end.items()}
        again = {p for p, read in ranges.items() if read and read.begin < self.committed[p].seqno}
        if again and not self.repairs:
            return  # what goes back is read again as a whole
        rows = sum(self.row_count(read) for read in ranges.values() if read is not None)
        assert rows <= rows_max

    def row_count(self, read: RangeRead) -> int:
        """How many change rows a reader gets of a range."""
        part = self.node.partitions[read.partition_id]
        if read.lease_id not in part.leases:
            return 0  # it goes by what it could know
        return len(part.frames(read.begin, read.end, part.leases[read.lease_id][0]))

    def check_goes_on(self, p: int, entry: OffsetEntry) -> None:
        """A finished run is gone on from, unless a fail-over or a purge forbids it."""
        branch, seqno = self.finished.pop(p, (0, 0))
        part = self.node.partitions[p]
        if branch == part.branch and part.purge_seqno <= seqno:
            assert entry.snap_start >= seqno

    def check_rest(self, planner: Planner) -> None:
        known = {
            p: self.committed[p]
            for p, part in self.node.partitions.items()
            if part.durable_seqno is None or part.durable_seqno >= self.durable[p]
        }
        if planner.is_available_now:
            self.finished = {p: (e.branch, e.seqno) for p, e in known.items()}
            for entry in known.values():
                assert entry.is_closed
            self.planner = None
            return
        for p, entry in known.items():
            part = self.node.partitions[p]
            assert entry.is_closed
            end = part.high_seqno if part.durable_seqno is None else part.durable_seqno
            assert (entry.branch, entry.seqno) == (part.branch, end)
            newest = part.newest(end)
            count = len(self.node.partitions)
            assert self.live(p) == self.wanted(
                {name_of(p, k, count): b"%d" % v for k, (_, v) in newest.items() if v is not None}
            )

    def wanted(self, documents: dict[str, bytes]) -> dict[str, bytes]:
        """What the sink has to hold of the documents of a partition."""
        return documents

    def live(self, p: int) -> dict[str, bytes | None]:
        return self.target.live(p)

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


class TableWorld(World):
    """The sink is a table, of which a batch that fails changes nothing.

    Batches fail before or after `commit`. If `restarts`, processes end between batches.
    """

    path: Path
    make_table: Any
    restarts = True

    def make_target(self) -> KeyedTarget:
        made: KeyedTarget = type(self).make_table(self.path)
        return made

    def drop_tombstones(self, p: int, seqno: int) -> None:
        self.origin.durable[p] = seqno

    def apply(self, rows: list[Row]) -> bool:
        fails = self.rng.random() < 0.2
        commit = self.target.commit
        if fails:
            self.target.commit = lambda _: None
        self.sink.apply(rows)
        self.target.commit = commit
        if self.restarts and self.rng.random() < 0.2:
            self.target = self.make_target()
            self.sink = self.make_sink()
        return not fails

    def live(self, p: int) -> dict[str, bytes | None]:
        found = type(self).make_table(self.path).table().to_pylist()
        return {row["key"]: row["value"] for row in found if row["partition"] == p}


def rows_of(read: RangeRead, chunks: Iterable[bytes], count: int) -> list[Row]:
    """The rows of a range as the executor makes them."""
    marks = [
        Row(mark.op, mark.partition, mark.branch, mark.seqno, rev=mark.load)
        for mark in mark_rows([read])
    ]
    frames = [frame for chunk in chunks for frame in iter_frames(chunk) if frame[1] != MARKER]
    return marks + [
        false_row(read.partition_id, read.branch, *key_and_value(frame), count) for frame in frames
    ]
