"""Buckets made, changed and dropped with the forms that Couchbase SDKs send."""

from __future__ import annotations

from typing import Any

import pytest

from support.cluster_double import ClusterDouble

PATH = "/pools/default/buckets"


async def test_buckets_come_and_go(client: Any, open_node: Any) -> None:
    form = {"name": "new", "ramQuotaMB": "100", "bucketType": "membase", "replicaNumber": "1"}
    made = await client.post(PATH, data=form)
    assert made.status == 202
    bucket = open_node.buckets["new"]
    assert (bucket.partitions, bucket.memory_quota_bytes) == (64, 100 << 20)
    again = await client.post(PATH, data=form)
    assert again.status == 400
    assert (await again.json())["errors"] == {"name": "Bucket with given name already exists"}
    assert (await client.delete(f"{PATH}/new")).status == 200
    assert (await client.delete(f"{PATH}/new")).status == 404


async def test_a_bucket_is_made_at_either_form_of_the_address(client: Any, open_node: Any) -> None:
    assert (await client.post(f"{PATH}/", data={"name": "new"})).status == 202
    assert "new" in open_node.buckets


@pytest.mark.parametrize("form", [b"name=%ff", b"name=\xff"])
async def test_a_form_that_is_no_text_is_refused(client: Any, body: Any, form: bytes) -> None:
    refused = await body(await client.post(PATH, data=form), 400)
    assert refused["errors"] == {"bad_request": "the form is not UTF-8"}


async def test_copies_are_asked_of_the_cluster(client: Any, open_node: Any) -> None:
    open_node.cluster = cluster = ClusterDouble()
    changed = await client.post(
        f"{PATH}/orders", data={"replicaNumber": "2", "replicaIndex": "1", "ramQuotaMB": "100"}
    )
    assert changed.status == 200
    settings = {"memory_quota_bytes": 100 << 20}
    args = {"name": "orders", "replicas": 2, "index_replicas": 1, "settings": settings}
    assert cluster.asked == [("set_bucket", args, "")]


@pytest.mark.parametrize(
    "form",
    [
        {"name": "_x"},
        {"name": ""},
        {},
        {"name": "x", "numVBuckets": "3"},
        {"name": "x", "ramQuotaMB": "a lot"},
        {"name": "x", "ramQuotaMB": "9" * 10},
    ],
)
async def test_a_bad_form_is_refused_in_the_words_of_couchbase(
    client: Any, body: Any, open_node: Any, form: dict[str, str]
) -> None:
    refused = await body(await client.post(PATH, data=form), 400)
    assert refused["errors"]
    assert list(open_node.buckets) == ["orders"]


async def test_a_node_alone_has_no_copies_elsewhere(client: Any, body: Any) -> None:
    error = await body(await client.post(f"{PATH}/orders", data={"replicaNumber": "1"}), 409)
    assert error["error"] == "not_managed"


async def test_only_administrators_may(guarded: Any, body: Any, bob: Any) -> None:
    await body(await guarded.post(PATH, data={"name": "x"}), 401)
    await body(await guarded.post(PATH, data={"name": "x"}, headers=bob), 403)
    await body(await guarded.post(f"{PATH}/orders", data={}, headers=bob), 403)
    await body(await guarded.delete(f"{PATH}/orders", headers=bob), 403)
