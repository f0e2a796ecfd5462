"""Rows that tasks bring into PostgreSQL in a real session; the source is a double."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millstream.pipelines import SqlTarget, apply_changes
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
