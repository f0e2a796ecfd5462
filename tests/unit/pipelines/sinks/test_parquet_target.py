from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from millstream.errors import CorruptionError, UnavailableError, UsageError
from millstream.pipelines.sinks import parquet_target
from millstream.pipelines.sinks.parquet_target import ParquetTarget
from millstream.pipelines.sinks.repairing import RepairingSink, Row
from simulators.pipeline_world import TableWorld
from support.budget import budget
from support.pipelines.node_double import FalseNode
from support.streams.keyed_double import FalseOrigin, false_row

SCHEDULES = budget(40)


class ParquetWorld(TableWorld):
    make_table = ParquetTarget


def test_the_target_equals_the_source_at_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_target, "sync_directory", lambda _: None)
    monkeypatch.setattr(parquet_target.os, "fsync", lambda _: None)
    for seed in range(SCHEDULES):
        ParquetWorld.path = tmp_path / str(seed)
        try:
            ParquetWorld(seed, repairs=True).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


@pytest.fixture
def node() -> FalseNode:
    node = FalseNode(2)
    node.write(0, 1, 1)
    return node


def sink_of(target: ParquetTarget, node: FalseNode) -> RepairingSink:
    return RepairingSink(target, FalseOrigin(node))


def put(partition: int, seqno: int, key: int, value: int | None) -> Row:
    return false_row(partition, 1, seqno, key, value, 2)


def test_all_columns_are_kept(tmp_path: Path, node: FalseNode) -> None:
    target = ParquetTarget(tmp_path / "table")
    row = put(0, 1, 1, 1)._replace(
        cas=-5, rev=3, expiry=4, flags=5, datatype=1, ts=1_700_000_000_000_001, meta=b"m"
    )
    sink_of(target, node).apply([row])
    found = target.table().to_pylist()[0]
    assert found["ts"].isoformat() == "2023-11-14T22:13:20.000001+00:00"
    kept = ("cas", "rev", "expiry", "flags", "datatype", "value", "meta", "load")
    assert tuple(found[name] for name in kept) == (-5, 3, 4, 5, 1, b"1", b"m", 1)


def test_a_batch_writes_the_partitions_it_changes_and_readers_keep_theirs(
    tmp_path: Path, node: FalseNode
) -> None:
    target = ParquetTarget(tmp_path)
    sink = sink_of(target, node)
    sink.apply([put(0, 1, 1, 1), put(1, 1, 1, 1)], 0)
    first = target.files()
    sink.apply([put(1, 2, 1, 2)], 1)
    second = target.files()
    assert len({*first, *second}) == 3
    assert [pq.read_table(file).num_rows for file in first] == [1, 1]
    sink.apply([put(1, 3, 1, 3)], 2)
    assert sorted(tmp_path.glob("part-*")) == sorted({*second, *target.files()})
    assert ParquetTarget(tmp_path).table().column("value").to_pylist() == [b"1", b"3"]


def test_rows_that_come_again_write_nothing(tmp_path: Path, node: FalseNode) -> None:
    target = ParquetTarget(tmp_path)
    sink = sink_of(target, node)
    sink.apply([put(0, 1, 1, 1), put(0, 2, 2, None)], 0)
    before = (tmp_path / "_current").read_bytes()
    sink.apply([put(0, 2, 2, None), put(0, 1, 1, 1)], 0)
    assert (tmp_path / "_current").read_bytes() == before
    assert target.table().num_rows == 1


def test_a_second_writer_is_noticed(tmp_path: Path, node: FalseNode) -> None:
    one, other = ParquetTarget(tmp_path), ParquetTarget(tmp_path)
    one.begin([0], 2)
    one.put(0, [put(0, 1, 1, 1)], 1)
    sink_of(other, node).apply([put(0, 1, 1, 1)])
    one.set_state(0, other.state(0))  # type: ignore[arg-type]
    with pytest.raises(UnavailableError, match="another query"):
        one.commit(0)


def test_a_damaged_pointer_is_an_error(tmp_path: Path) -> None:
    for text in (b"{", b'{"v": 2}'):
        (tmp_path / "_current").write_bytes(text)
        with pytest.raises(CorruptionError, match="_current cannot be read"):
            ParquetTarget(tmp_path)


def test_a_table_without_rows(tmp_path: Path) -> None:
    target = ParquetTarget(tmp_path)
    assert target.files() == []
    assert target.table().num_rows == 0


def test_a_pickled_table_is_opened_at_its_new_place(tmp_path: Path, node: FalseNode) -> None:
    target = ParquetTarget(tmp_path / "table")
    travelling = pickle.dumps(target)
    (tmp_path / "table").rmdir()
    sink_of(pickle.loads(travelling), node).apply([put(0, 1, 1, 1)])
    assert target.table().num_rows == 1


def test_over_spark_connect_a_table_elsewhere_is_not_taken_for_an_empty_one(
    tmp_path: Path,
) -> None:
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(UsageError, match="which this machine does not have"):
        ParquetTarget(tmp_path / "table").read(session)
