"""Buckets of a managed cluster: asked of the orchestrator, and told of once they are served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from millstream.errors import ConditionError, UnavailableError
from millstream.gateway.aio.databases import making
from millstream.gateway.core.api.node import BucketStatus
from support.cluster_double import ClusterDouble, bucket_shown

PAGE = "/_millstream/buckets"


class Cluster(ClusterDouble):
    """Makes buckets at the node of the pages; `delay` statuses pass before one is served."""

    def __init__(self, host: Any, delay: int = 1) -> None:
        super().__init__()
        self.host, self.delay = host, delay
        self.on_request = self._carry_out

    async def status(self) -> Mapping[str, Any]:
        self.delay -= 1
        if self.delay < 0:
            for one in self.shown["buckets"]:
                one["served"] = one["partitions"]
        return self.shown

    def _carry_out(self, op: str, args: Mapping[str, Any]) -> None:
        name = args["name"]
        if op == "create_bucket":
            if name in self.host.buckets:
                raise ConditionError("exists", code="bucket_exists")
            uuid, partitions = args["uuid"], args["partitions"]
            quota = args.get("settings", {}).get("memory_quota_bytes", 7)
            self.host.buckets[name] = BucketStatus(
                name, uuid, partitions, "2026-01-01", "ready", memory_quota_bytes=quota
            )
            bucket = bucket_shown(name, uuid, partitions=partitions, served=0)
            self.shown["buckets"].append(bucket)
            self.answer = {"uuid": uuid, "replicas": 1, "replicas_wanted": 1}
        elif op == "drop_bucket":
            status = self.host.buckets.pop(name, None)
            if status is None:
                raise ConditionError("none", code="bucket_not_found")
            self.shown["buckets"] = []
            self.answer = {"uuid": status.uuid, "name": name}


@pytest.fixture
def cluster(open_node: Any, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(making, "_POLL_S", 0.001)
    open_node.cluster = Cluster(open_node)
    return open_node.cluster


async def test_a_bucket_is_made_for_the_whole_cluster_from_any_node(
    client: Any, body: Any, cluster: Cluster
) -> None:
    asked = {"name": "new", "partitions": 8, "replicas": 1, "memory_quota_bytes": 1 << 30}
    made = await body(await client.post(PAGE, json=asked), 201)
    assert (made["name"], made["replicas"], made["memory_quota_bytes"]) == ("new", 1, 1 << 30)
    (op, args, _) = cluster.asked[0]
    assert (op, args["replicas"], args["partitions"]) == ("create_bucket", 1, 8)
    assert args["settings"] == {"memory_quota_bytes": 1 << 30}
    await body(await client.put(f"{PAGE}/new"), 412)


async def test_a_database_is_made_and_dropped_for_the_whole_cluster(
    client: Any, body: Any, cluster: Cluster
) -> None:
    await body(await client.put("/db?q=4"), 201)
    assert cluster.asked[0][1]["partitions"] == 4
    await body(await client.put("/db"), 412)
    await body(await client.delete("/db"))
    assert cluster.asked[-1][:2] == ("drop_bucket", {"name": "db"})
    await body(await client.delete("/db"), 404)


async def test_what_is_not_served_in_time_is_told_as_accepted(
    client: Any, body: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "SERVED_S", 0.05)
    cluster.delay = 1 << 30
    told = await body(await client.put(f"{PAGE}/new"), 202)
    assert "not served here" in told["reason"]
    await body(await client.put("/other"), 202)
    cluster.shown["buckets"].append(bucket_shown("new", "older"))
    cluster.on_request = lambda _, __: None
    cluster.answer = {"uuid": "older"}
    assert "not gone" in (await body(await client.delete(f"{PAGE}/new"), 202))["reason"]
    await body(await client.delete("/new"), 202)


async def test_a_status_that_fails_meanwhile_is_asked_for_again(
    client: Any, body: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, failures = cluster.status, [1, 2]

    async def status() -> Mapping[str, Any]:
        if failures:
            failures.pop()
            raise UnavailableError("no", code="no_quorum")
        return await whole()

    monkeypatch.setattr(cluster, "status", status)
    await body(await client.put("/db"), 201)


async def test_copies_and_settings_of_a_bucket_are_changed(
    client: Any, body: Any, cluster: Cluster
) -> None:
    changes = {"replicas": 2, "strict": True, "memory_quota_bytes": 1 << 30}
    await body(await client.patch(f"{PAGE}/orders", json=changes))
    settings = {"memory_quota_bytes": 1 << 30}
    args = {"name": "orders", "replicas": 2, "strict": True, "settings": settings}
    assert cluster.asked == [("set_bucket", args, "")]
    await body(await client.put(f"{PAGE}/orders/index_replicas", json={"wanted": True}))
    assert cluster.asked[-1][1] == {"name": "orders", "index_replicas": 1}
    await body(await client.patch(f"{PAGE}/orders", json={"speed": 1}), 400)


async def test_a_node_alone_has_no_copies_elsewhere(client: Any, body: Any) -> None:
    error = await body(await client.patch(f"{PAGE}/orders", json={"replicas": 1}), 409)
    assert error["error"] == "not_managed"
    error = await body(await client.put(f"{PAGE}/new", json={"replicas": 1}), 409)
    assert error["error"] == "not_managed"
