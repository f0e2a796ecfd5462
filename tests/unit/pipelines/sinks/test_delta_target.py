"""The Delta table: schedules of the whole pipeline, versions, and what it does not put up with."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from millstream.errors import UnavailableError, UsageError
from millstream.pipelines.sinks.delta_target import DeltaTarget
from millstream.pipelines.sinks.repairing import RepairingSink, Row
from millstream.upr.core.repair import LoadState
from simulators.pipeline_world import TableWorld
from support.budget import budget
from support.pipelines.node_double import FalseNode
from support.streams.keyed_double import FalseOrigin, false_row

deltalake = pytest.importorskip("deltalake", reason="the extra delta is not installed")
SCHEDULES = budget(8)


class DeltaWorld(TableWorld):
    make_table = DeltaTarget


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_the_target_equals_the_source_at_rest(tmp_path: Path, seed: int) -> None:
    DeltaWorld.path = tmp_path
    DeltaWorld(seed, repairs=True).run()


@pytest.fixture
def node() -> FalseNode:
    node = FalseNode(2)
    node.write(0, 1, 1)
    return node


def sink_of(target: DeltaTarget, node: FalseNode) -> RepairingSink:
    return RepairingSink(target, FalseOrigin(node))


def put(partition: int, seqno: int, key: int, value: int | None) -> Row:
    return false_row(partition, 1, seqno, key, value, 2)


def version(path: Path) -> int:
    found: int = deltalake.DeltaTable(str(path)).version()
    return found


def test_a_batch_is_one_version_and_keeps_all_columns(tmp_path: Path, node: FalseNode) -> None:
    target = DeltaTarget(tmp_path)
    row = put(0, 1, 1, 1)._replace(
        cas=-5, rev=3, expiry=4, flags=5, datatype=1, ts=1_700_000_000_000_001, meta=b"m"
    )
    sink_of(target, node).apply([row, put(1, 1, 1, 1)], 0)
    found = {r["partition"]: r for r in target.table().to_pylist()}
    assert found[0]["ts"].isoformat() == "2023-11-14T22:13:20.000001+00:00"
    kept = ("cas", "rev", "expiry", "flags", "datatype", "value", "meta", "load")
    assert tuple(found[0][name] for name in kept) == (-5, 3, 4, 5, 1, b"1", b"m", 1)
    assert version(tmp_path) == 1
    assert deltalake.DeltaTable(str(tmp_path)).history(1)[0]["millstream_batch"] == "0"
    again = DeltaTarget(tmp_path)
    sink_of(again, node).apply([row, put(1, 1, 1, 1)], 0)
    assert version(tmp_path) == 1  # nothing has changed
    sink_of(again, node).apply([put(1, 2, 1, None)], 1)
    assert version(tmp_path) == 2
    assert [r["partition"] for r in target.table().to_pylist()] == [0]


def test_states_are_of_the_same_version_as_the_rows(tmp_path: Path) -> None:
    target = DeltaTarget(tmp_path)
    target.begin([0, 7], 8)
    assert target.state(7) is None
    target.set_state(7, LoadState(3, 9, is_loading=True))
    target.commit(0)
    again = DeltaTarget(tmp_path)
    again.begin([7], 8)
    assert again.state(7) == LoadState(3, 9, is_loading=True)
    assert again.stored_versions(7) == {}
    assert again.table().num_rows == 0


def test_a_second_writer_is_noticed(tmp_path: Path, node: FalseNode) -> None:
    one, other = DeltaTarget(tmp_path), DeltaTarget(tmp_path)
    sink_of(one, node).apply([put(0, 1, 1, 1)])
    for target, value in ((one, 2), (other, 3)):
        target.begin([0], 2)
        target.put(0, [put(0, 2, 1, value)], 1)
    one.commit(1)
    with pytest.raises(UnavailableError, match="another writer") as failed:
        other.commit(1)
    assert failed.value.code == "target_changed"
    assert one.table().column("value").to_pylist() == [b"2"]


def test_reading_the_stamp_does_not_hide_a_second_writer(tmp_path: Path, node: FalseNode) -> None:
    """The log asks between begin and commit."""
    one, other = DeltaTarget(tmp_path), DeltaTarget(tmp_path)
    sink_of(one, node).apply([put(0, 1, 1, 1)])
    before = other.stamp()
    for target, value in ((one, 2), (other, 3)):
        target.begin([0], 2)
        target.put(0, [put(0, 2, 1, value)], 1)
    one.commit(1)
    assert other.stamp() != before
    with pytest.raises(UnavailableError, match="another writer"):
        other.commit(1)


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path), pa.table({"n": [1]}))
    with pytest.raises(UsageError, match="has the columns n, a table of changes") as failed:
        DeltaTarget(tmp_path)
    assert failed.value.code == "bad_schema"


def test_an_unreachable_table_is_an_error() -> None:
    with pytest.raises(UnavailableError, match="cannot be read or written") as failed:
        DeltaTarget("nowhere://x")
    assert failed.value.code == "table_unreachable"


def test_a_missing_package_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(UsageError, match=r"pip install 'millstream\[delta\]'"):
        DeltaTarget(tmp_path)


def test_a_pickled_table_is_opened_again(tmp_path: Path, node: FalseNode) -> None:
    target = pickle.loads(pickle.dumps(DeltaTarget(tmp_path)))
    sink_of(target, node).apply([put(0, 1, 1, 1)], 0)
    assert target.table().num_rows == 1
