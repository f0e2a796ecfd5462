"""Views and partitions as DataFrames, in a real session that finds the formats by itself."""

from __future__ import annotations

import json
from typing import Any

from millstream.client.databases import Database
from millstream.client.http import http_of
from support.pipelines.spark_bucket import BucketUnderTest

DESIGN = {
    "views": {
        "by_parity": {
            "map": "function (doc) { emit([doc.n % 2, doc.n], doc.n); }",
            "reduce": "_sum",
        }
    }
}
COUNT = 4_000


def test_a_view_and_the_partitions_of_a_bucket(spark: Any, bucket: BucketUnderTest) -> None:
    bucket.write({f"k{n}": {"n": n} for n in range(COUNT)})
    with bucket.client() as client:
        http = http_of(client, user=None, password="", tls=None, timeout_s=30)
    Database(http, bucket.name).put("_design/d", DESIGN)

    def view(**more: object) -> Any:
        options = bucket.options(ddoc="d", view="by_parity", **more)
        return spark.read.format("millstream.view").options(**options).load()

    rows = view(reduce="false", startkey="[1]").selectExpr("id", "cast(value as int) n").collect()
    assert {row.id: row.n for row in rows} == {f"k{n}": n for n in range(1, COUNT, 2)}
    assert [row.n for row in rows] == sorted(row.n for row in rows)
    groups = view(group_level="1").collect()
    assert [(row.key, int(row.value), row.id) for row in groups] == [
        (f"[{parity}]", sum(range(parity, COUNT, 2)), None) for parity in (0, 1)
    ]

    entry = ["0" * 12, 0, 0, 0, 0, None, 1, None]
    with bucket.client() as client:
        offset = {
            "v": 1, "bucket": bucket.name, "bucket_uuid": client.cluster_map.bucket_uuid,
            "p": {"0": entry},
        }  # fmt: skip
    options = bucket.options(offset=json.dumps(offset))
    partitions = spark.read.format("millstream.meta").options(**options).load()
    assert partitions.agg({"high_seqno": "sum", "lag": "sum"}).first().asDict() == {
        "sum(high_seqno)": COUNT + 1, "sum(lag)": COUNT + 1,
    }  # fmt: skip
