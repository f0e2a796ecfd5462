"""What goes wrong around a streaming query is said clearly, and nothing is lost by it.

Driven through the reader classes; tests/pipelines has the same on real Spark, once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.errors import AccessError, MillstreamError, UsageError
from millstream.model.partitions import partition_of
from millstream.pipelines.source import MillstreamDataSource
from support.kv.bucket_nodes import BUCKET, BucketNodes
from support.kv.nodes_with_map import ask
from support.node.node_process import NodeProcess
from support.pipelines.spark_rows import rows_of
from support.pipelines.spark_stream import SCHEMA, StreamUnderTest

MakeNode = Callable[..., NodeProcess]
ROWS = [["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"]]
COUNT = 200


@pytest.fixture
def make_stream() -> Iterator[Callable[..., StreamUnderTest]]:
    made: list[StreamUnderTest] = []

    def make(**options: object) -> StreamUnderTest:
        made.append(StreamUnderTest(pollMs=0, **options))
        return made[-1]

    yield make
    for stream in made:
        stream.stop()


MakeStream = Callable[..., StreamUnderTest]


def write(address: Any, bucket: str, documents: dict[str, Any], **login: str) -> None:
    with millstream.connect(str(address), bucket=bucket, **login) as client:
        client.apply_many(documents.items()).raise_first()


def expected(documents: dict[str, Any]) -> dict[str, bytes]:
    return {k: json.dumps(v, separators=(",", ":")).encode() for k, v in documents.items()}


def test_a_bucket_that_is_dropped_or_made_anew(
    make_node: MakeNode, make_stream: MakeStream
) -> None:
    node = make_node("--bucket", "default", "--bucket", "b:4").start()
    documents = {f"k{n}": {"n": n} for n in range(COUNT)}
    write(node.ready["kv"], "b", documents)
    stream = make_stream(hosts=node.ready["kv"], bucket="b")
    assert len(stream.run()) >= COUNT
    write(node.ready["kv"], "b", {"late": 1})
    assert stream.plan()
    status, _ = ask(node, "DELETE", "/buckets/b")
    assert status == 200
    with pytest.raises(MillstreamError, match="'b'"):
        stream.read()
    stream.restart()
    with pytest.raises(MillstreamError, match="'b'"):
        stream.read()
    status, _ = ask(node, "POST", "/buckets", {"name": "b", "partitions": 4})
    assert status == 201
    with pytest.raises(UsageError, match="another bucket, or one that was created anew"):
        stream.run()
    assert stream.live() == expected(documents)


def test_a_password_that_is_changed(
    make_node: MakeNode, make_stream: MakeStream, tmp_path: Path
) -> None:
    node = make_node("--user", "ada:first secret", "--bucket", "b:4").start()
    login = {"user": "ada", "password": "first secret"}
    documents = {f"k{n}": {"n": n} for n in range(COUNT)}
    write(node.ready["kv"], "b", documents, **login)
    secret = tmp_path / "secret"
    secret.write_text(login["password"])
    stream = make_stream(hosts=node.ready["kv"], bucket="b", user="ada", passwordFile=secret)
    stream.run()
    write(node.ready["kv"], "b", {"late": 1}, **login)
    assert stream.plan()
    content = {"password": "second secret", "roles": ["admin"]}
    status, said = ask(node, "PUT", "/users/ada", content, login=("ada", "first secret"))
    assert status in (200, 201), said
    with pytest.raises(AccessError, match="'ada'"):
        stream.read()
    secret.write_text("second secret")
    stream.restart()
    stream.read()
    stream.run()
    assert stream.live() == expected(documents | {"late": 1})


def test_partitions_that_move_between_nodes(make_node: MakeNode, make_stream: MakeStream) -> None:
    nodes = BucketNodes([make_node("--no-memcached", name=name) for name in "ab"], ROWS)
    nodes.promote("a")
    hosts = nodes.nodes["a"].ready["kv"]
    documents = {f"k{n}": {"n": n} for n in range(COUNT)}
    write(hosts, BUCKET, documents)
    stream = make_stream(hosts=hosts, bucket=BUCKET, rollback="rows")
    stream.run()
    assert stream.live() == expected(documents)
    _, rows = rows_of(
        MillstreamDataSource, SCHEMA, hosts=hosts, bucket=BUCKET, meta="true", numPartitions=1
    )
    assert {row["key"] for row in rows} == documents.keys()

    late = {f"k{n}": {"n": -n} for n in range(0, COUNT, 2)}
    write(hosts, BUCKET, late)
    assert stream.plan()
    nodes.promote("a", "--to", "b", "--partition", "0", "--partition", "2")
    stream.read()  # planned before they moved
    write(hosts, BUCKET, {"after": 1})
    stream.run()
    assert stream.live() == expected(documents | late | {"after": 1})
    assert nodes.actives(0) == nodes.actives(2) == ["b"]

    def move() -> None:
        nodes.promote("a", "--to", "a", "--partition", str(partition_of(b"after", 4)))

    with pytest.raises(MillstreamError) as moved:
        rows_of(
            MillstreamDataSource, SCHEMA, hosts=hosts, bucket=BUCKET, after_planning=move,
            endingOffsets=stream.log[-1],
        )  # fmt: skip
    assert moved.value.code in ("lease_lost", "not_my_partition")
    assert "partition" in str(moved.value)


def test_offsets_that_are_not_for_this_release_or_bucket(
    node: NodeProcess, make_stream: MakeStream
) -> None:
    write(node.ready["kv"], "default", {"k": 1})
    stream = make_stream(hosts=node.ready["kv"], bucket="default")
    stream.run()
    newer = json.loads(stream.log[-1]) | {"v": 2}
    stream.log[-1] = json.dumps(newer)
    with pytest.raises(UsageError, match="version 2 is not known, only 1"):
        stream.plan()
    newer |= {"v": 1, "bucket": "other"}
    stream.log[-1] = json.dumps(newer)
    with pytest.raises(UsageError, match="the offset is one of bucket 'other'"):
        stream.plan()
    with pytest.raises(UsageError, match="column seqno string is not one of"):
        StreamUnderTest("seqno string", hosts=node.ready["kv"], bucket="default").plan()
