"""Joins of two buckets stay right through kills, with planted mistakes; Spark is left out."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from millstream.errors import CorruptionError, UsageError
from millstream.pipelines.sinks import parquet_target, relating
from millstream.pipelines.sinks.relating import (
    MARKER,
    PARTS,
    RelatingSink,
    SideTable,
    Snapshot,
)
from millstream.pipelines.sinks.repairing import OP_PUT, KeyedTarget, RepairingSink, Row
from millstream.pipelines.sinks.transforming import TransformingTarget
from millstream.upr.core.repair import LoadState
from simulators.pipeline_world import World
from support.budget import budget
from support.streams.keyed_double import DictTarget

SCHEDULES = budget(24)
MISTAKE_SCHEDULES_MAX = 100


class Killed(Exception):
    """The process ends here."""


def accepted(documents: Mapping[str, bytes]) -> dict[str, bytes]:
    """A filter by value."""
    return {key: value for key, value in documents.items() if int(value) % 3}


def joined(left: Mapping[str, bytes], right: Mapping[str, bytes]) -> dict[str, bytes]:
    """A left join by the last digit."""
    rows = {}
    for key, value in left.items():
        found = [pair for pair in right.items() if int(pair[1]) % 5 == int(value) % 5]
        for other, partner in found or [("", b"")]:
            rows[f"{key}|{other}"] = value + b"+" + partner
    return rows


class Side(World):
    """One of the two buckets; what is applied to its table is applied to the join."""

    def __init__(self, seed: int, pair: Pair, path: Path) -> None:
        self.pair, self.path = pair, path
        super().__init__(seed)

    def make_target(self) -> KeyedTarget:
        self.table = self.pair.Table(self.path)
        return self.table

    def make_sink(self) -> RepairingSink:
        return RepairingSink(TransformingTarget(self.table, accepted), self.origin)

    def drop_tombstones(self, p: int, seqno: int) -> None:
        self.origin.durable[p] = seqno

    def apply(self, rows: list[Row]) -> bool:
        self.sink.apply(rows)
        return self.pair.update()

    def live(self, p: int) -> dict[str, bytes | None]:
        found = SideTable(self.path).table().to_pylist()
        return {row["key"]: row["value"] for row in found if row["partition"] == p}

    def wanted(self, documents: dict[str, bytes]) -> dict[str, bytes]:
        return accepted(documents)


class Pair:
    """Two buckets and their join, in a store that keeps what it is given at once."""

    Table, Sink = SideTable, RelatingSink

    def __init__(self, seed: int, path: Path) -> None:
        self.rng, self.path = random.Random(seed), path
        path.mkdir()
        self.target = DictTarget()
        self.writes_left: int | None = None
        self.sides = [Side(seed * 2 + n, self, path / str(n)) for n in range(2)]
        self.start()

    def start(self) -> None:
        """A driver begins: nothing is left but what is on disk and in the store."""
        for side in self.sides:
            side.target = side.make_target()
            side.sink = side.make_sink()
        tables = [side.table for side in self.sides]
        self.sink = self.Sink(tables, self.target, self.derive, self.path)

    def rows_of(self, snapshot: Sequence[Sequence[str]]) -> dict[str, bytes]:
        sides: list[dict[str, bytes]] = []
        for side, names in zip(self.sides, snapshot, strict=True):
            rows = [row for name in names for row in pq.read_table(side.path / name).to_pylist()]
            sides.append({row["key"]: row["value"] for row in rows if row["op"] == OP_PUT})
        return joined(*sides)

    def derive(
        self, before: Sequence[Snapshot], now: Snapshot
    ) -> Iterator[tuple[str, bytes | None]]:
        olds, new = [self.rows_of(snapshot) for snapshot in before], self.rows_of(now)
        for key in sorted({*new}.union(*olds)):
            if any(old.get(key) != new.get(key) for old in olds):
                yield key, new.get(key)
                if self.writes_left is not None:
                    self.writes_left -= 1
                    if self.writes_left < 0:
                        raise Killed

    def update(self) -> bool:
        """Bring the join up to date; False if the process was killed somewhere."""
        killed_at = self.rng.choice((None, None, "before", "writes", "writes", "commit"))
        self.writes_left = self.rng.randrange(3) if killed_at == "writes" else None
        commit = self.target.commit
        if killed_at == "commit":
            self.target.commit = raise_killed  # type: ignore[method-assign]
        try:
            if killed_at != "before":
                self.sink.update(0)
        except Killed:
            pass
        finally:
            self.target.commit = commit  # type: ignore[method-assign]
        if killed_at is not None:
            self.start()
        return killed_at is None

    def run(self) -> None:
        for _ in range(self.rng.randint(15, 80)):
            side = self.rng.choice(self.sides)
            side.step()
            for _ in range(self.rng.randrange(4)):  # most batches have something new
                side.write()
            if side.plan(available_now=False):
                side.execute()
        for side in self.sides:
            side.come_to_rest()
        while not self.update():
            pass
        left, right = (
            {key: value for p in side.node.partitions for key, value in side.live(p).items()}
            for side in self.sides
        )
        found = {key: row for p in range(PARTS) for key, row in self.target.live(p).items()}
        assert found == joined(left, right)  # type: ignore[arg-type]
        files = [file.name for side in self.sides for file in side.path.glob("part-*")]
        assert len(files) <= 3 * sum(len(side.node.partitions) for side in self.sides)


def raise_killed(_: int) -> None:
    raise Killed


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_target, "sync_directory", lambda _: None)
    monkeypatch.setattr(parquet_target.os, "fsync", lambda _: None)
    monkeypatch.setattr(relating, "ROWS_OF_A_PUT", 1)


def test_a_join_is_that_of_the_documents_at_rest(tmp_path: Path) -> None:
    for seed in range(SCHEDULES):
        try:
            Pair(seed, tmp_path / str(seed)).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


class NoDoubt(Pair):
    """A batch is not named before it writes."""

    class Sink(RelatingSink):
        def _mark(self, marker: Any) -> None:
            if len(marker.snapshots) == 1:
                super()._mark(marker)

        def _load(self) -> int:
            state = self._target.state(0)
            return 0 if state is None else state.load


class KeepsNoFiles(Pair):
    """Files that the store stands for are removed."""

    class Sink(RelatingSink):
        def _pin(self) -> None:
            pass


class DoesNotRetract(Pair):
    """Rows that are gone are left alone."""

    class Sink(RelatingSink):
        def _put(self, rows: Sequence[tuple[str, bytes | None]], load: int) -> None:
            super()._put([row for row in rows if row[1] is not None], load)


class BelievesTheFirst(Pair):
    """What a batch that was cut off has written is not looked for."""

    class Sink(RelatingSink):
        def update(self, batch_id: int) -> None:
            first = self._marker.snapshots[:1]
            self._marker = type(self._marker)(self._load(), first)
            super().update(batch_id)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "first"),
    [(NoDoubt, 24), (KeepsNoFiles, 25), (DoesNotRetract, 0), (BelievesTheFirst, 24)],
)
def test_mistakes_are_found(mistake: type[Pair], first: int, tmp_path: Path) -> None:
    for seed in range(first, first + MISTAKE_SCHEDULES_MAX):
        try:
            mistake(seed, tmp_path / str(seed)).run()
        except (AssertionError, FileNotFoundError):
            return
    raise AssertionError("no schedule finds it")


def test_another_store_is_refused(tmp_path: Path) -> None:
    table, target = SideTable(tmp_path / "0"), DictTarget()

    def sink(store: KeyedTarget) -> RelatingSink:
        return RelatingSink([table], store, lambda *_: [("a", b"1")], tmp_path)

    sink(target).update(0)
    assert not target.live(0)
    table.begin([0], 1)
    table.set_state(0, LoadState())
    table.put(0, [Row(OP_PUT, 0, 1, 1, "a", value=b"1")], 1)
    table.commit(1)
    sink(target).update(1)
    sink(target).update(2)
    with pytest.raises(UsageError, match="the target was emptied or is another one"):
        sink(DictTarget()).update(3)
    (tmp_path / MARKER).unlink()
    with pytest.raises(UsageError, match="the target was emptied or is another one"):
        sink(target).update(3)
    (tmp_path / MARKER).write_bytes(b"{")
    with pytest.raises(CorruptionError, match="cannot be read"):
        sink(target)
