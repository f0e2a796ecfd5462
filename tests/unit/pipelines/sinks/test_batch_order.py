"""Which batch may come next, and that every store asks: its second checkpoint changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import UsageError
from millstream.pipelines.sinks import bucket_target
from millstream.pipelines.sinks.batch_order import Writer, next_writer
from millstream.pipelines.sinks.bucket_target import BucketTarget
from millstream.pipelines.sinks.delta_target import DeltaTarget
from millstream.pipelines.sinks.grouping import GroupingSink, StateTable
from millstream.pipelines.sinks.parquet_target import CURRENT, ParquetTarget
from millstream.pipelines.sinks.repairing import RepairingSink, Row
from support.kv.bucket_double import FalseBucket
from support.pipelines.node_double import FalseNode
from support.streams.keyed_double import DictTarget, FalseOrigin, false_row


def following(last: Writer | None, this: Writer, gap: str = "") -> Writer:
    return next_writer(last, this, "table t", "begin anew", gap=gap)


@pytest.mark.parametrize(
    ("last", "this", "kept"),
    [
        (None, Writer(7, "q"), Writer(7, "q")),
        (Writer(3, "q"), Writer(4, "q"), Writer(4, "q")),
        (Writer(3, "q"), Writer(3, "q"), Writer(3, "q")),
        (Writer(3, "q"), Writer(9, "q"), Writer(9, "q")),
        (Writer(3), Writer(4, "q"), Writer(4, "q")),
        (Writer(3, "q"), Writer(4), Writer(4, "q")),
    ],
)
def test_a_batch_that_may_come_next(last: Writer | None, this: Writer, kept: Writer) -> None:
    assert following(last, this) == kept


@pytest.mark.parametrize(
    ("last", "this", "said"),
    [
        (Writer(3, "q"), Writer(4, "r"), "by the query q, up to batch 3. This is query r, which"),
        (Writer(3, "q"), Writer(2, "q"), "table t has batch 3, this is batch 2: .*older copy"),
        (Writer(3), Writer(2, "q"), "older copy, or another one. Go on with the newest, or begin"),
        (Writer(3, "q"), Writer(5, "q"), "those between are not there. restored?"),
        (Writer(-1), Writer(1, "q"), "table t has no batch, this is batch 1"),
    ],
)
def test_a_batch_that_may_not(last: Writer, this: Writer, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        following(last, this, gap="restored?")
    assert refused.value.code == "other_checkpoint"


@pytest.fixture(params=["parquet", "delta", "bucket"])
def make(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Any]:
    if request.param == "parquet":
        return lambda: ParquetTarget(tmp_path / "table")
    if request.param == "delta":
        pytest.importorskip("deltalake", reason="the extra delta is not installed")
        return lambda: DeltaTarget(tmp_path / "table")
    bucket = FalseBucket()
    monkeypatch.setattr(bucket_target, "open_again", lambda _: bucket)
    monkeypatch.setattr(bucket_target, "live_keys", bucket.live_keys)
    return lambda: BucketTarget({"bucket": "copy"})


def put(seqno: int, value: int) -> Row:
    return false_row(0, 1, seqno, 1, value)


def content(target: Any) -> Any:
    if isinstance(target, BucketTarget):
        return dict(target._client.documents)  # type: ignore[attr-defined]
    return target.table().to_pylist(), target.stamp()


def test_a_store_has_one_checkpoint(make: Callable[[], Any]) -> None:
    node = FalseNode(1)
    node.write(0, 1, 1)

    def apply(batch_id: int, query_id: str, *rows: Row) -> None:
        sink = RepairingSink(make(), FalseOrigin(node))
        sink.apply(rows, batch_id, query_id=query_id)

    apply(0, "one", put(1, 1))
    apply(1, "one", put(2, 2))
    before = content(make())
    for batch_id, query_id, said in (
        (0, "two", "another checkpoint"),
        (2, "two", "another checkpoint"),
        (0, "one", "older copy"),
        (0, "", "older copy"),
    ):
        with pytest.raises(UsageError, match=said) as refused:
            apply(batch_id, query_id, put(9, 9))
        assert refused.value.code == "other_checkpoint"
        assert content(make()) == before
    apply(1, "one", put(2, 2))  # comes again
    apply(2, "one")
    assert content(make()) == before  # what changes nothing leaves no record
    apply(3, "", put(4, 4))
    with pytest.raises(UsageError, match="up to batch 3"):
        apply(4, "two", put(9, 9))


def test_a_store_of_an_earlier_release_is_taken_over(make: Callable[[], Any]) -> None:
    node = FalseNode(1)
    node.write(0, 1, 1)
    sink = RepairingSink(make(), FalseOrigin(node))
    sink.apply([put(1, 1)], 0)  # of an unknown query
    sink.apply([put(2, 2)], 1, query_id="one")
    with pytest.raises(UsageError, match="by the query one"):
        sink.apply([put(9, 9)], 2, query_id="two")


def test_a_table_whose_file_names_no_query_goes_on(tmp_path: Path) -> None:
    node = FalseNode(1)
    node.write(0, 1, 1)
    target = ParquetTarget(tmp_path)
    sink = RepairingSink(target, FalseOrigin(node))
    sink.apply([], 0)
    sink.apply([put(1, 1)], 4)
    written = json.loads((tmp_path / CURRENT).read_text())
    del written["query"]
    (tmp_path / CURRENT).write_text(json.dumps(written))
    with pytest.raises(UsageError, match="older copy"):
        sink.apply([put(2, 2)], 3, query_id="one")
    sink.apply([put(2, 2)], 5, query_id="one")
    assert json.loads((tmp_path / CURRENT).read_text())["query"] == "one"


def test_a_store_of_groups_has_one_checkpoint(make: Callable[[], Any], tmp_path: Path) -> None:
    def update(batch_id: int, query_id: str, value: bytes) -> None:
        GroupingSink(StateTable(tmp_path / "s"), make(), lambda _: {"g": value}).update(
            batch_id, query_id
        )

    update(0, "one", b"1")
    before = content(make())
    with pytest.raises(UsageError, match="another checkpoint"):
        update(1, "two", b"2")
    assert content(make()) == before
    update(1, "one", b"2")
    assert content(make()) != before


def test_the_store_is_asked_before_anything_is_done() -> None:
    target = DictTarget()
    RepairingSink(target, FalseOrigin(FalseNode(1))).apply([], 0, query_id="one")
    assert target.entered == [(0, "one")]
