"""What goes wrong with the target while Spark writes: said clearly, and nothing is lost by it.

Driven through the writer classes as Spark drives them; tests/pipelines has the same on real Spark,
once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StringType, StructType

import millstream
from millstream.errors import AccessError, ConditionError, UsageError
from millstream.pipelines.change_stream.patience import again
from millstream.pipelines.sinks.bucket_target import BucketTarget
from millstream.pipelines.sinks.repairing import OP_PUT, Origin, OriginPosition, RepairingSink, Row
from millstream.pipelines.source import MillstreamDataSource
from support.kv.bucket_nodes import BUCKET, BucketNodes
from support.kv.nodes_with_map import ask
from support.node.node_process import NodeProcess, free_port

MakeNode = Callable[..., NodeProcess]
SCHEMA = StructType().add("key", StringType()).add("value", StringType())
COUNT = 4_000
WHOLE = {"transactional": "true", "sinkId": "s"}


class Target:
    """A sink of a stream, driven as Spark does it: writers travel, a commit has one of its own."""

    def __init__(self, **options: object) -> None:
        self.options = {name: str(value) for name, value in options.items()}

    def make(self) -> Any:
        source = MillstreamDataSource(CaseInsensitiveDict(self.options))
        return cloudpickle.loads(cloudpickle.dumps(source.streamWriter(SCHEMA, False)))

    def batch(self, number: int, batches: Iterator[pa.RecordBatch]) -> None:
        message = self.make().write(batches)
        self.make().commit([message], number)


def rows(number: int, count: int = COUNT) -> dict[str, str]:
    return {f"k{n}": f"[{number}, {n}]" for n in range(count)}


def arrow(documents: dict[str, str], *, pieces: int = 1) -> Iterator[pa.RecordBatch]:
    table = pa.table({"key": list(documents), "value": list(documents.values())})
    yield from table.to_batches(max_chunksize=-(-len(table) // pieces))


def held(address: str, bucket: str, keys: Any, **login: str) -> dict[str, str]:
    with millstream.connect(address, bucket=bucket, **login) as client:
        found = client.get_many(list(keys))
    return {key: bytes(document.data).decode() for key, document in found.items()}


def meanwhile(do: Callable[[], object], batches: Iterator[Any]) -> Iterator[Any]:
    """Do something when the first piece is on its way, before the next one comes."""
    yield next(batches)
    do()
    yield from batches


@pytest.fixture
def kept_node(make_node: MakeNode) -> NodeProcess:
    """A node that loses what it has not flushed, and comes back at the same address."""
    address = f"127.0.0.1:{free_port()}"
    return make_node("--kv", address, "--bucket", "b:4", "--flush-interval", "300").start()


SINKS = pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="upserts", marks=pytest.mark.slow),
        pytest.param(WHOLE, id="transactional"),
    ],
)


@SINKS
def test_a_node_that_is_killed_in_the_middle_of_a_batch(
    kept_node: NodeProcess, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.pipelines.sinks.writing.SLICE_ROWS", 500)
    monkeypatch.setattr("millstream.pipelines.sinks.staging.CHUNK_ROWS_MAX", 100)
    kv = kept_node.ready["kv"]
    target = Target(hosts=kv, bucket="b", **options)
    target.batch(0, arrow(rows(0)))
    starting = threading.Timer(1.0, kept_node.start)

    def kill() -> None:
        kept_node.kill()
        starting.start()

    target.batch(1, meanwhile(kill, arrow(rows(1), pieces=4)))
    starting.join()
    assert held(kv, "b", rows(1)) == rows(1)
    kept_node.kill()
    kept_node.start()
    assert held(kv, "b", rows(1)) == rows(1)


@SINKS
def test_a_node_that_stays_away_fails_the_batch_and_a_repetition_is_right(
    kept_node: NodeProcess, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.pipelines.sinks.writing.SLICE_ROWS", 500)
    monkeypatch.setattr("millstream.pipelines.sinks.staging.CHUNK_ROWS_MAX", 100)
    kv = kept_node.ready["kv"]
    target = Target(hosts=kv, bucket="b", reconnectTimeout="200ms", **options)
    with pytest.raises(millstream.errors.UnavailableError, match=r"again for 0\.2 s") as failed:
        target.batch(0, meanwhile(kept_node.kill, arrow(rows(0), pieces=4)))
    assert kv in str(failed.value)
    kept_node.start()
    target.batch(0, arrow(rows(0)))
    assert held(kv, "b", rows(0)) == rows(0)


@pytest.mark.slow
@SINKS
def test_a_password_that_is_changed_and_a_bucket_that_is_dropped(
    make_node: MakeNode, tmp_path: Path, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.pipelines.sinks.writing.SLICE_ROWS", 500)
    monkeypatch.setattr("millstream.pipelines.sinks.staging.CHUNK_ROWS_MAX", 100)
    node = make_node("--user", "ada:first secret", "--bucket", "other", "--bucket", "b:4").start()
    kv, secret = node.ready["kv"], tmp_path / "secret"
    secret.write_text("first secret\n")
    target = Target(hosts=kv, bucket="b", user="ada", passwordFile=secret, **options)
    target.batch(0, arrow(rows(0)))
    content = {"password": "second secret", "roles": ["admin"]}

    def change() -> None:
        status, said = ask(node, "PUT", "/users/ada", content, login=("ada", "first secret"))
        assert status in (200, 201), said

    change()
    with pytest.raises(AccessError, match="does not accept user 'ada'") as refused:
        target.batch(1, arrow(rows(1)))
    assert "write the new one to passwordFile" in str(refused.value)
    assert "first secret" not in str(refused.value)
    secret.write_text("second secret\n")
    target.batch(1, arrow(rows(1)))
    login = {"user": "ada", "password": "second secret"}
    assert held(kv, "b", rows(1), **login) == rows(1)

    def drop() -> None:
        status, said = ask(node, "DELETE", "/buckets/b", login=("ada", "second secret"))
        assert status == 200, said

    with pytest.raises(AccessError, match="no bucket 'b'") as gone:
        target.batch(2, meanwhile(drop, arrow(rows(2), pieces=4)))
    assert "If it was dropped while a query ran" in str(gone.value)
    status, _ = ask(node, "POST", "/buckets", {"name": "b", "partitions": 4},
                    login=("ada", "second secret"))  # fmt: skip
    assert status == 201
    if options:
        with pytest.raises(UsageError, match="has no batch, this is batch 2"):
            target.batch(2, arrow(rows(2)))
        assert held(kv, "b", rows(2), **login) == {}
    else:
        target.batch(2, arrow(rows(2)))
        assert held(kv, "b", rows(2), **login) == rows(2)


@SINKS
def test_partitions_that_move_while_they_are_written(
    make_node: MakeNode, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.pipelines.sinks.writing.SLICE_ROWS", 500)
    monkeypatch.setattr("millstream.pipelines.sinks.staging.CHUNK_ROWS_MAX", 100)
    nodes = BucketNodes(
        [make_node("--no-memcached", name=name) for name in "ab"],
        [["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"]],
    )
    nodes.promote("a")
    hosts = nodes.nodes["a"].ready["kv"]
    target = Target(hosts=hosts, bucket=BUCKET, **options)
    target.batch(0, arrow(rows(0)))

    def move() -> None:
        nodes.promote("a", "--to", "b", "--partition", "0", "--partition", "2")

    target.batch(1, meanwhile(move, arrow(rows(1), pieces=4)))
    assert nodes.actives(0) == ["b"]
    assert held(hosts, BUCKET, rows(1)) == rows(1)


class Nobody(Origin):
    """A source that is never asked for documents."""

    partition_count = 4

    def positions(self, partitions: Any) -> dict[int, OriginPosition]:
        return {p: OriginPosition(1, 0, 0) for p in partitions}


def changes(number: int) -> list[Row]:
    return [
        Row(OP_PUT, int(key[1:]) % 4, 1, number * COUNT + int(key[1:]) + 1, key, datatype=1,
            value=value.encode())
        for key, value in rows(number).items()
    ]  # fmt: skip


@pytest.mark.slow
def test_a_second_bucket_outlives_a_kill_of_its_node(kept_node: NodeProcess) -> None:
    kv = kept_node.ready["kv"]
    target = BucketTarget({"hosts": kv, "bucket": "b"})
    sink = RepairingSink(target, Nobody())
    sink.apply(changes(0), 0)
    starting = threading.Timer(1.0, kept_node.start)
    commit = target.commit

    def killed(batch_id: int) -> None:
        target.commit = commit  # type: ignore[method-assign]
        kept_node.kill()
        starting.start()
        commit(batch_id)

    target.commit = killed  # type: ignore[method-assign]
    again(lambda: sink.apply(changes(1), 1), 30.0)
    starting.join()
    target.close()
    assert held(kv, "b", rows(1)) == rows(1)


def test_a_batch_job_that_may_not_wait_fails_at_once_without_a_node() -> None:
    nobody = {"hosts": f"127.0.0.1:{free_port()}", "bucket": "b", "reconnectTimeout": "0"}
    with pytest.raises(millstream.errors.UnavailableError, match="cannot connect to 127"):
        MillstreamDataSource(CaseInsensitiveDict(nobody)).writer(SCHEMA, False)


def test_existing_documents_are_named_after_a_wait_for_the_node(
    kept_node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.pipelines.sinks.writing.SLICE_ROWS", 500)
    kv = kept_node.ready["kv"]
    with millstream.connect(kv, bucket="b") as client:
        client.upsert(f"k{COUNT - 1}", {"theirs": 1}, durability="persisted")
    source = MillstreamDataSource(CaseInsensitiveDict({"hosts": kv, "bucket": "b"}))

    def restart() -> None:
        kept_node.kill()
        kept_node.start()

    with pytest.raises(ConditionError, match=f"'k{COUNT - 1}': .* that stays"):
        source.writer(SCHEMA, False).write(meanwhile(restart, arrow(rows(0), pieces=4)))
    assert json.loads(held(kv, "b", ["k3999"])["k3999"]) == {"theirs": 1}
