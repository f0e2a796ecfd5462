"""The reader classes of Spark's formats, driven as Spark drives them, against real nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import millstream
from millstream.client.databases import Database
from millstream.client.http import http_of
from millstream.errors import MillstreamError, UsageError
from millstream.model.partitions import partition_of
from millstream.pipelines.change_stream.meta_source import MetaDataSource
from millstream.pipelines.views.source import ViewDataSource
from support.kv.bucket_nodes import BUCKET, BucketNodes
from support.node.node_process import NodeProcess
from support.pipelines.spark_rows import rows_of

MakeNode = Callable[..., NodeProcess]
ROWS = [["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"]]
DESIGN = {
    "views": {
        "by": {"map": "function (doc) { emit([doc.n % 3, doc.n], doc.n); }", "reduce": "_sum"},
        "flat": {"map": "function (doc) { emit(doc.n, null); }"},
    }
}
COUNT = 90


@pytest.fixture
def nodes(make_node: MakeNode) -> Iterator[BucketNodes]:
    """Two nodes with two of four partitions each, documents and a design document."""
    made = BucketNodes([make_node("--no-memcached", name=name) for name in "ab"], ROWS)
    made.promote("a")
    owner = made.nodes[ROWS[partition_of(b"_design/d", 4)][0]]
    with millstream.connect(owner.ready["kv"], bucket=BUCKET) as client:
        http = http_of(client, user=None, password="", tls=None, timeout_s=30)
    Database(http, BUCKET).put("_design/d", DESIGN)
    for n in range(COUNT):
        key = b"doc-%d" % n
        made.put(ROWS[partition_of(key, 4)][0], key, b'{"n":%d}' % n)
    return made


def is_indexed(nodes: BucketNodes) -> bool:
    """Whether all rows are answered; the index process may not have begun yet."""
    try:
        return len(view(nodes, "flat")[1]) == COUNT
    except MillstreamError:
        return False


def view(nodes: BucketNodes, name: str, **given: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of tasks, and their rows."""
    given = {"hosts": nodes.nodes["a"].ready["kv"], "bucket": BUCKET, "ddoc": "d", **given}
    return rows_of(ViewDataSource, view=name, **given)


def test_rows_of_a_view_come_from_each_node_and_groups_from_one(nodes: BucketNodes) -> None:
    nodes.until(lambda: is_indexed(nodes))
    tasks, rows = view(nodes, "flat", startkey="10", endkey="19")
    assert tasks == 2
    assert sorted((row["id"], row["key"], row["value"]) for row in rows) == sorted(
        (f"doc-{n}", str(n), "null") for n in range(10, 20)
    )
    tasks, rows = view(nodes, "flat", numPartitions="1", descending="true", limit="3")
    assert (tasks, [row["key"] for row in rows]) == (1, ["89", "88", "87"])
    tasks, rows = view(nodes, "by", group_level="1")
    assert (tasks, [(row["key"], row["value"], row["id"]) for row in rows]) == (
        1, [(f"[{n}]", str(sum(range(n, COUNT, 3))), None) for n in range(3)],
    )  # fmt: skip
    assert view(nodes, "by")[1] == [{"key": "null", "value": str(sum(range(COUNT))), "id": None}]


def test_a_task_planned_before_its_partitions_moved_reads_them_where_they_are(
    nodes: BucketNodes,
) -> None:
    given = {"hosts": nodes.nodes["a"].ready["kv"], "bucket": BUCKET, "ddoc": "d", "view": "flat"}
    nodes.until(lambda: is_indexed(nodes))

    def move() -> None:
        nodes.promote("a", "--to", "b", "--partition", "0")

    tasks, rows = rows_of(ViewDataSource, after_planning=move, **given)
    assert tasks == 2
    assert sorted(int(row["key"]) for row in rows) == list(range(COUNT))


@pytest.mark.slow
def test_waits_of_a_view_query(nodes: BucketNodes) -> None:
    nodes.until(lambda: is_indexed(nodes))
    with millstream.connect(nodes.nodes["a"].ready["kv"], bucket=BUCKET) as client:
        stored = client.upsert("late", {"n": 1000})
    vector = json.dumps({stored.partition_id: [f"{stored.uuid:x}", stored.seqno]})
    rows = view(nodes, "flat", stale=f"wait:{vector}", key="1000")[1]
    assert [row["id"] for row in rows] == ["late"]


@pytest.mark.slow
def test_where_partitions_are_and_how_far_behind_an_offset_is(nodes: BucketNodes) -> None:
    given = {"hosts": nodes.nodes["b"].ready["kv"], "bucket": BUCKET}
    _, rows = rows_of(MetaDataSource, **given)
    at = {name: str(node.ready["kv"]) for name, node in nodes.nodes.items()}
    assert [(row["partition"], row["node"], row["state"]) for row in rows] == [
        (p, at[row[0]], "active") for p, row in enumerate(ROWS)
    ]
    assert sum(row["high_seqno"] for row in rows) == COUNT + 1
    with millstream.connect(given["hosts"], bucket=BUCKET) as client:
        uuid = client.cluster_map.bucket_uuid
    entry = [rows[1]["uuid"], 2, 2, 2, rows[1]["branch"], None, 1, None]
    offset = {"v": 1, "bucket": BUCKET, "bucket_uuid": uuid, "p": {"1": entry}}
    _, compared = rows_of(MetaDataSource, offset=json.dumps(offset), **given)
    assert [row["position"] for row in compared] == [0, 2, 0, 0]
    assert [row["lag"] for row in compared] == [
        row["high_seqno"] - 2 * (row["partition"] == 1) for row in rows
    ]
    offset["bucket_uuid"] = "00"
    with pytest.raises(UsageError, match="the offset is one of bucket"):
        rows_of(MetaDataSource, offset=json.dumps(offset), **given)
