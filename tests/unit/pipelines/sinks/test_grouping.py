from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from millstream.model.limits import KEY_BYTES_MAX
from millstream.pipelines.sinks import parquet_target
from millstream.pipelines.sinks.grouping import GroupingSink, StateTable, group_name
from millstream.pipelines.sinks.parquet_target import ParquetTarget
from millstream.pipelines.sinks.repairing import KeyedTarget, RepairingSink, Row
from millstream.pipelines.sinks.transforming import TransformingTarget
from simulators.pipeline_world import World
from support.budget import budget
from support.pipelines.node_double import FalseNode
from support.streams.keyed_double import DictTarget, FalseOrigin, false_row

SCHEDULES = budget(40)
MISTAKE_SCHEDULES_MAX = 60


def as_document(documents: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Filtered by value, and in a group by its last digit."""
    return {
        key: json.dumps({"group": int(value) % 4, "value": int(value)}).encode()
        for key, value in documents.items()
        if int(value) % 3
    }


def counted(documents: Sequence[bytes]) -> dict[str, bytes]:
    """Count and sum of groups, by the words of a group's name."""
    found: dict[str, Counter[str]] = {}
    for text in documents:
        document = json.loads(text)
        totals = found.setdefault(json.dumps([document["group"]]), Counter())
        totals.update(n=1, total=document["value"])
    return {name: json.dumps(totals).encode() for name, totals in found.items()}


class Results:
    """What Spark computes, over a table."""

    def __init__(self, state: ParquetTarget) -> None:
        self.state = state
        self.asked: list[int | None] = []

    def __call__(self, touched: Sequence[bytes] | None) -> Mapping[str, bytes | None]:
        everything = counted(self.state.table().column("value").to_pylist())
        self.asked.append(None if touched is None else len(touched))
        if touched is None:
            return everything
        return {name: everything.get(name) for name in counted(touched)}


class GroupedWorld(World):
    """Documents in a table, their groups in a store; killed between any two commits."""

    path: Path
    State, Grouping = StateTable, GroupingSink

    def make_target(self) -> KeyedTarget:
        self.groups = self.make_groups()
        self.start()
        return self.state

    def make_groups(self) -> DictTarget:
        return DictTarget()

    def start(self) -> None:
        """A driver begins: nothing is left but the stores."""
        self.state = self.State(self.path)
        self.grouping = self.Grouping(self.state, self.groups, Results(self.state))

    def make_sink(self) -> RepairingSink:
        return RepairingSink(TransformingTarget(self.state, as_document), self.origin)

    def drop_tombstones(self, p: int, seqno: int) -> None:
        self.origin.durable[p] = seqno

    def apply(self, rows: list[Row]) -> bool:
        killed_at = self.rng.choice((None, None, None, "documents", "groups"))
        self.sink.apply(rows)
        if killed_at != "groups":
            self.grouping.update(0)
        if killed_at is not None:
            self.start()
            self.sink = self.make_sink()
        return killed_at is None

    def check_rest(self, planner: Any) -> None:
        super().check_rest(planner)
        documents = [
            value for p in self.node.partitions for value in self.live(p).values() if value
        ]
        assert self.groups.live(0) == counted(documents)

    def live(self, p: int) -> dict[str, bytes | None]:
        found = ParquetTarget(self.path).table().to_pylist()
        return {row["key"]: row["value"] for row in found if row["partition"] == p}

    def wanted(self, documents: dict[str, bytes]) -> dict[str, bytes]:
        return dict(as_document(documents))


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_target, "sync_directory", lambda _: None)
    monkeypatch.setattr(parquet_target.os, "fsync", lambda _: None)


def test_groups_are_those_of_the_documents_at_rest(tmp_path: Path) -> None:
    for seed in range(SCHEDULES):
        GroupedWorld.path = tmp_path / str(seed)
        try:
            GroupedWorld(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


class OnlyNew(GroupedWorld):
    """The groups of documents that were replaced are not computed."""

    class State(StateTable):
        def commit(self, batch_id: int) -> None:
            changed = [row for rows in self.changed.values() for row, _ in rows.values()]
            super().commit(batch_id)
            self.touched = [row.value for row in changed if row.value is not None]


class GoesOn(GroupedWorld):
    """A new process believes that the groups are right."""

    class Grouping(GroupingSink):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self._is_whole = True


class KeepsOthers(GroupedWorld):
    """The first batch of a process leaves groups alone that it does not find."""

    def make_groups(self) -> DictTarget:
        class Keeping(DictTarget):
            def retain(self, partition: int, keys: object) -> None:
                pass

        return Keeping()


@pytest.mark.slow
@pytest.mark.parametrize("mistake", [OnlyNew, GoesOn, KeepsOthers])
def test_mistakes_are_found(mistake: type[GroupedWorld], tmp_path: Path) -> None:
    for seed in range(MISTAKE_SCHEDULES_MAX):
        mistake.path = tmp_path / str(seed)
        try:
            mistake(seed).run()
        except AssertionError:
            return
    raise AssertionError("no schedule finds it")


class Kept:
    """A table of documents with groups in another table."""

    def __init__(self, path: Path) -> None:
        self.state, self.groups = StateTable(path / "state"), ParquetTarget(path / "groups")
        self.results = Results(self.state)
        self.grouping = GroupingSink(self.state, self.groups, self.results)
        target = TransformingTarget(self.state, as_document)
        self.sink = RepairingSink(target, FalseOrigin(FalseNode(1)))

    def take(self, *rows: Row) -> None:
        self.sink.apply(rows)
        self.grouping.update(0)

    def held(self) -> dict[str, bytes]:
        return {row["key"]: row["value"] for row in self.groups.table().to_pylist()}


def test_a_batch_computes_only_affected_groups(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.take(*(false_row(0, 1, n + 1, n, 1 + 4 * (n % 3)) for n in range(9)))
    kept.take(false_row(0, 1, 20, 0, 2))
    kept.take(false_row(0, 1, 20, 0, 2))
    kept.take(false_row(0, 1, 21, 0, None))
    assert kept.results.asked == [None, 2, 1]
    assert kept.held() == counted(kept.state.table().column("value").to_pylist())
    assert list(kept.held()) == ["[1]"]


def test_a_table_of_groups_is_right_in_random_schedules(tmp_path: Path) -> None:
    rng, kept = random.Random(5), Kept(tmp_path)
    for seqno in range(60):
        values = [rng.choice([None, *range(10)]) for _ in range(2)]
        keys = rng.sample(range(5), 2)
        kept.take(*(false_row(0, 1, 1 + seqno, *pair) for pair in zip(keys, values, strict=True)))
        assert kept.held() == counted(kept.state.table().column("value").to_pylist())
        if rng.random() < 0.2:
            kept = Kept(tmp_path)


def test_a_group_is_named_by_its_keys_as_they_are_written() -> None:
    texts = [b"1234567890.12345678901", b"1234567890.12345678902", b'"M\xc3\xbcnchen"', b"1e22"]
    names = [group_name(b'{"n":1,"k":%b,"a.b":null}' % text, ["a.b", "k"]) for text in texts]
    assert names == [f"[null,{text.decode()}]" for text in texts]


def test_a_name_that_is_too_long_for_a_key_is_cut_and_told_apart() -> None:
    texts = ["ü" * 200 + last for last in "ab"]
    names = [
        group_name(json.dumps({"k": text}, ensure_ascii=False).encode(), "k") for text in texts
    ]
    assert len(set(names)) == 2
    for name in names:
        assert name.startswith('["ü')
        assert 200 < len(name.encode()) <= KEY_BYTES_MAX
    longest = "x" * (KEY_BYTES_MAX - 4)
    assert group_name(json.dumps({"k": longest}).encode(), "k") == json.dumps([longest])
