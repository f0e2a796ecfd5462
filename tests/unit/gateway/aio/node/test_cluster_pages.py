"""Pages of the cluster: for administrators alone, and bad bodies never reach it."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.errors import ConditionError, UnavailableError, UsageError
from support.cluster_double import ClusterDouble

PATH = "/_millstream/cluster"


@pytest.fixture
def cluster(open_node: Any) -> ClusterDouble:
    open_node.cluster = ClusterDouble()
    return open_node.cluster


async def test_the_status_is_told(client: Any, body: Any, cluster: ClusterDouble) -> None:
    assert await body(await client.get(PATH)) == cluster.shown


async def test_init_join_and_requests_reach_the_cluster(
    client: Any, body: Any, cluster: ClusterDouble
) -> None:
    cluster.is_managed = False
    made = await body(await client.post(f"{PATH}/init", json={"name": "f", "coordinators": 5}))
    assert made["name"] == "f"
    joined = {"address": "10.0.0.1:5984", "zone": "x", "roles": ["data"]}
    await body(await client.post(f"{PATH}/join", json=joined))
    cluster.answer = {"moves": {"copies": 3}}
    asked = {"op": "rebalance", "args": {"add": ["n3"]}}
    assert await body(await client.post(f"{PATH}/requests", json=asked)) == cluster.answer
    wanted = {"without": ["n1"], "trial": True}
    assert not (await body(await client.post(f"{PATH}/recover", json=wanted)))["is_done"]
    assert cluster.asked == [
        ("init", "f", 5),
        ("join", "10.0.0.1:5984", "x", ("data",)),
        ("rebalance", {"add": ["n3"]}, ""),
        ("recover", ("n1",), False, True),
    ]


@pytest.mark.parametrize(
    ("page", "content"),
    [
        ("init", {"name": 1}),
        ("init", {"name": "a\n"}),
        ("init", {"name": "x" * 101}),
        ("init", {"coordinators": 2}),
        ("init", {"coordinators": True}),
        ("init", {"speed": 1}),
        ("join", {}),
        ("join", {"address": 1}),
        ("join", {"address": "a:1", "roles": ["king"]}),
        ("join", {"address": "a:1", "roles": [{}]}),
        ("recover", {"without": "n1"}),
        ("recover", {"force": True}),
        ("requests", {}),
        ("requests", {"op": "rebalance", "args": []}),
        ("requests", {"op": "rebalance", "timeout_s": 0}),
        ("requests", {"op": "rebalance", "timeout_s": 1e9}),
        ("requests", {"op": "rebalance", "now": 1}),
    ],
)
async def test_a_bad_body_is_refused_and_asks_nobody(
    client: Any, body: Any, cluster: ClusterDouble, page: str, content: dict[str, Any]
) -> None:
    await body(await client.post(f"{PATH}/{page}", json=content), 400)
    assert cluster.asked == []


async def test_init_without_a_name_is_repeated_for_the_cluster_that_is_there(
    client: Any, body: Any, cluster: ClusterDouble
) -> None:
    await body(await client.post(f"{PATH}/init"))
    assert cluster.asked == [("init", "flights", 3)]
    error = await body(await client.post(f"{PATH}/init", json={"name": "other"}), 403)
    assert error["error"] == "other_cluster"
    cluster.is_managed = False
    assert (await body(await client.post(f"{PATH}/init")))["name"] == "millstream"


async def test_a_node_in_no_cluster_says_so(client: Any, body: Any, open_node: Any) -> None:
    for cluster in (None, ClusterDouble(is_managed=False)):
        open_node.cluster = cluster
        error = await body(await client.get(PATH), 409)
        assert error["error"] == "not_managed"
        asked = {"op": "rebalance"}
        error = await body(await client.post(f"{PATH}/requests", json=asked), 409)
        assert error["error"] == "not_managed"
    open_node.cluster = None
    assert (await body(await client.post(f"{PATH}/init"), 409))["error"] == "not_managed"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("last", code="too_few_nodes"), 409),
        (UsageError("who", code="unknown_node"), 400),
        (ConditionError("no", code="unsafe"), 409),
        (ConditionError("no", code="has_data"), 409),
        (ConditionError("no", code="other_cluster"), 403),
        (ConditionError("no", code="removed"), 403),
        (UnavailableError("no", code="no_quorum"), 503),
        (UnavailableError("no", code="timeout"), 504),
        (UnavailableError("no", code="no_space"), 507),
    ],
)
async def test_a_refusal_has_the_status_of_its_code(
    client: Any, body: Any, cluster: ClusterDouble, error: Exception, status: int
) -> None:
    cluster.refusal = error
    asked = {"op": "rebalance"}
    found = await body(await client.post(f"{PATH}/requests", json=asked), status)
    assert found["error"] == error.code  # type: ignore[attr-defined]


async def test_only_administrators_are_answered(
    guarded: Any, guarded_node: Any, body: Any, ada: Any, bob: Any
) -> None:
    guarded_node.cluster = ClusterDouble()
    await body(await guarded.get(PATH), 401)
    await body(await guarded.get(PATH, headers=bob), 403)
    await body(await guarded.get(PATH, headers=ada))
    for page in ("init", "join", "recover", "requests"):
        await body(await guarded.post(f"{PATH}/{page}", json={}, headers=bob), 403)
    asked = {"op": "reset"}
    await body(await guarded.post(f"{PATH}/requests", json=asked, headers=ada))
    assert guarded_node.cluster.asked == [("reset", {}, "ada")]


async def test_a_node_without_data_has_the_pages_too(
    dataless: Any, open_node: Any, body: Any
) -> None:
    open_node.cluster = ClusterDouble()
    await body(await dataless.get(PATH))
