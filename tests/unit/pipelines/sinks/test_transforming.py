from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from millstream.errors import UsageError
from millstream.model.partitions import text_of_key
from millstream.pipelines.sinks import parquet_target
from millstream.pipelines.sinks.parquet_target import ParquetTarget
from millstream.pipelines.sinks.repairing import KeyedTarget, RepairingSink, Row
from millstream.pipelines.sinks.transforming import TransformingTarget
from simulators.pipeline_world import World
from support.budget import budget
from support.pipelines.node_double import FalseNode
from support.streams.keyed_double import DictTarget, FalseOrigin, false_row

SCHEDULES = budget(600)
TABLE_SCHEDULES = budget(25)
MISTAKE_SCHEDULES_MAX = 600


def derive(documents: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """A filter that every third value does not pass, and a map."""
    return {key: b"<%s>" % value for key, value in documents.items() if int(value) % 3}


class DerivedWorld(World):
    """The sink holds what becomes of the documents; batches fail now and then."""

    Transforming = TransformingTarget

    def make_target(self) -> KeyedTarget:
        self.store = self.make_store()
        return self.Transforming(self.store, derive)

    def make_store(self) -> DictTarget | ParquetTarget:
        return DictTarget()

    def apply(self, rows: list[Row]) -> bool:
        fails = self.rng.random() < 0.2
        commit = self.store.commit
        if fails:
            self.store.commit = lambda _: None  # type: ignore[method-assign]
        self.sink.apply(rows)
        self.store.commit = commit  # type: ignore[method-assign]
        return not fails

    def live(self, p: int) -> dict[str, bytes | None]:
        assert isinstance(self.store, DictTarget)
        return self.store.live(p)

    def wanted(self, documents: dict[str, bytes]) -> dict[str, bytes]:
        return dict(derive(documents))


class TableWorld(DerivedWorld):
    """The same with a table, of which a batch that fails changes nothing."""

    path: Path

    def make_store(self) -> ParquetTarget:
        return ParquetTarget(self.path)

    def drop_tombstones(self, p: int, seqno: int) -> None:
        self.origin.durable[p] = seqno

    def live(self, p: int) -> dict[str, bytes | None]:
        found = ParquetTarget(self.path).table().to_pylist()
        return {row["key"]: row["value"] for row in found if row["partition"] == p}


def test_the_target_has_the_transformed_documents_at_rest() -> None:
    for seed in range(SCHEDULES):
        try:
            DerivedWorld(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def test_a_table_has_the_transformed_documents_at_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_target, "sync_directory", lambda _: None)
    monkeypatch.setattr(parquet_target.os, "fsync", lambda _: None)
    for seed in range(TABLE_SCHEDULES):
        TableWorld.path = tmp_path / str(seed)
        try:
            TableWorld(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


class FilteredStays(DerivedWorld):
    """A document that no longer passes is left alone."""

    class Transforming(TransformingTarget):
        def put(self, partition: int, rows: Sequence[Row], load: int) -> None:
            passing = [row for row in rows if row.value is None or derive({row.key: row.value})]
            super().put(partition, passing, load)


class FetchedAsTheyAre(DerivedWorld):
    """Rows are derived before the sink sees them, so those that it fetches are not."""

    def make_target(self) -> KeyedTarget:
        self.store = self.make_store()
        return self.store

    def apply(self, rows: list[Row]) -> bool:
        derived = derive({row.key: row.value for row in rows if row.value is not None})
        return super().apply(
            [
                row._replace(value=derived.get(row.key))
                if row.value is None or row.key in derived
                else Row("delete", row.partition, row.branch, row.seqno, row.key)
                for row in rows
            ]
        )


@pytest.mark.parametrize("mistake", [FilteredStays, FetchedAsTheyAre])
def test_mistakes_are_found(mistake: type[World]) -> None:
    for seed in range(MISTAKE_SCHEDULES_MAX):
        try:
            mistake(seed).run()
        except AssertionError:
            return
    raise AssertionError("no schedule finds it")


@pytest.fixture
def store() -> DictTarget:
    return DictTarget()


def sink_of(store: KeyedTarget, calls: list[Mapping[str, bytes]]) -> RepairingSink:
    def noted(documents: Mapping[str, bytes]) -> Mapping[str, bytes]:
        calls.append(documents)
        return derive(documents)

    return RepairingSink(TransformingTarget(store, noted), FalseOrigin(FalseNode(3)))


def test_a_batch_derives_all_its_documents_at_once(store: DictTarget) -> None:
    calls: list[Mapping[str, bytes]] = []
    rows = [false_row(p, 1, 1, 0, p + 1, 3) for p in range(3)]
    sink_of(store, calls).apply([*rows, false_row(0, 1, 2, 7, None, 3)])
    assert [sorted(call.values()) for call in calls] == [[b"1", b"2", b"3"]]
    assert [sorted(store.live(p).values()) for p in range(3)] == [[b"<1>"], [b"<2>"], []]


def test_a_document_that_no_longer_passes_is_a_tombstone_of_its_version(
    store: DictTarget,
) -> None:
    sink = sink_of(store, [])
    row = Row("put", 0, 1, 4, "k", rev=2, expiry=9, flags=1, value=b"1", meta=b"m")
    sink.apply([row])
    put = store.rows[0]["k"][0]
    assert put.version == (1, 4)
    assert (put.value, put.datatype, put.expiry, put.meta) == (b"<1>", 1, 9, None)
    sink.apply([row._replace(seqno=5, value=b"3")])
    gone = store.rows[0]["k"][0]
    assert (gone.op, gone.version, gone.value) == ("delete", (1, 5), None)


def test_reserved_documents_are_left_out(store: DictTarget) -> None:
    calls: list[Mapping[str, bytes]] = []
    keys = ["_design/x", text_of_key(b"_\xff")]
    assert keys[1].startswith("\\x")
    rows = [Row("put", 0, 1, at, key, value=b"1") for at, key in enumerate(keys, 1)]
    sink_of(store, calls).apply(rows)
    assert not calls
    assert not store.live(0)


def test_a_stream_without_values_is_refused(store: DictTarget) -> None:
    with pytest.raises(UsageError, match="read the stream with its values"):
        sink_of(store, []).apply([Row("put", 0, 1, 1, "k")])


def test_held_back_rows_count_as_stored(store: DictTarget) -> None:
    target = TransformingTarget(store, derive)
    target.begin([0], 1)
    store.put(0, [false_row(0, 1, 8, 1, 1), false_row(0, 1, 9, 2, 1)], 1)
    target.put(0, [false_row(0, 2, 3, 2, 1), false_row(0, 1, 7, 3, 1)], 1)
    assert {key: found.version for key, found in target.versions(0, "123").items()} == {
        "1": (1, 8),
        "2": (2, 3),
        "3": (1, 7),
    }
    assert sorted(target.keys_above(0, 2, 5)) == ["1", "3"]
    target.commit(0)
    assert sorted(target.keys_above(0, 2, 5)) == ["1", "3"]


def test_tombstones_of_filtered_documents_are_dropped_with_deletions(tmp_path: Path) -> None:
    table, node = ParquetTarget(tmp_path), FalseNode(1)
    for n in range(3):
        node.write(0, n, n + 1)
    origin = FalseOrigin(node)
    origin.durable[0] = 3
    sink = RepairingSink(TransformingTarget(table, derive), origin)
    sink.apply([row for rows in origin.everything(0) for row in rows])
    table.begin([0], 1)
    assert table.stored_rows(0, ["key"]).num_rows == 2
    state = table.state(0)
    assert state is not None
    assert state.floor == 3
