"""Rows that steps make on executors, on their way into PostgreSQL; the source is a double."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millstream.pipelines import SqlTarget, apply_changes, changes
from millstream.pipelines.sinks import applying
from millstream.pipelines.sinks.change_rows import table_of
from millstream.pipelines.sinks.repairing import OP_ROLLBACK, Applied, Row
from support.pipelines.node_double import FalseNode
from support.pipelines.postgres import IS_INSTALLED, Postgres
from support.streams.keyed_double import FalseOrigin

pytest.importorskip("psycopg", reason="the extra postgres is not installed")
pytestmark = pytest.mark.skipif(not IS_INSTALLED, reason="PostgreSQL is not installed")


class Origin(FalseOrigin):
    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.close()


def put(seqno: int, key: str, value: bytes | None, partition: int = 0) -> Row:
    return Row("delete" if value is None else "put", partition, 1, seqno, key, value=value)


def found_in(target: SqlTarget) -> dict[str, bytes]:
    table = target.table().to_pydict()
    return dict(zip(table["key"], table["value"], strict=True))


def test_steps_run_in_tasks_and_the_newest_row_of_a_key_counts(
    spark: Any, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applying, "BucketOrigin", lambda _: Origin(FalseNode(2)))
    target = SqlTarget(server.address, "late")
    steps = changes(spark, "n int", bucket="b").filter("n > 1").select("n * 2 as m")

    def apply(rows: list[Row], batch_id: int) -> None:
        steps.apply(spark.createDataFrame(table_of(rows)), batch_id, target)

    apply(
        [
            put(1, "a", b'{"n": 1}'), put(2, "b", b'{"n": 2}'), put(3, "b", b'{"n": 3}'),
            put(4, "_design/d", b'{"n": 9}'), put(1, "c", b'{"n": 4}', 1), put(2, "d", None, 1),
        ],
        0,
    )  # fmt: skip
    assert found_in(target) == {"b": b'{"m":6}', "c": b'{"m":8}'}
    apply([put(5, "b", b'{"n": 0}'), put(6, "a", b'{"n": 5}'), put(3, "c", None, 1)], 1)
    assert found_in(target) == {"a": b'{"m":10}'}
    twice = spark.createDataFrame([(7, "x"), (7, "y")], "n int, t string")
    wrong = changes(spark, "n int", bucket="b").join(twice, "n")
    frame = spark.createDataFrame(table_of([put(7, "a", b'{"n": 7}')]))
    with pytest.raises(Exception, match="several rows of this document"):
        wrong.apply(frame, 2, target)
    renamed = changes(spark, "n int", bucket="b").map(lambda f: f.selectExpr("'z' as _id", "n"))
    with pytest.raises(Exception, match="a step has changed _id"):
        renamed.apply(frame, 2, target)
    assert found_in(target) == {"a": b'{"m":10}'}


def test_rows_and_marks_of_a_stream_reach_the_table_by_tasks(
    spark: Any, server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applying, "BucketOrigin", lambda _: Origin(FalseNode(1)))
    target, source = SqlTarget(server.address, "raw"), {"bucket": "b"}
    rows = [put(n, f"k{n}", b"%d" % n) for n in range(1, 5)]
    frame = spark.createDataFrame(table_of(rows))
    assert apply_changes(frame, 0, target, source) == Applied(puts=4)
    assert len(found_in(target)) == 4
    frame = spark.createDataFrame(table_of([Row(OP_ROLLBACK, 0, 2, 2), put(3, "k9", b"9")]))
    assert apply_changes(frame, 1, target, source) == Applied(puts=1, rollbacks=1, fetched=2)
    assert found_in(target) == {"k1": b"1", "k2": b"2", "k9": b"9"}
