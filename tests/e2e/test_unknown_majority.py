"""Where it is not known what a majority of the copies has, nothing is shown as empty."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from support.http import http_calls
from support.kv.bucket_nodes import BUCKET, BucketNodes
from support.node.node_process import NodeProcess

AT_ONCE_S = 3.0
"""Far below the ten seconds for which a majority is waited for where it can be reached."""
PAGES = (
    "", "/_changes", "/_changes?feed=longpoll&timeout=100", "/_changes?since=now",
    "/_changes?filter=_design", "/_changes?style=all_docs&limit=1", "/_all_docs",
    "/_all_docs?limit=5", "/_design_docs",
)  # fmt: skip


def call(node: NodeProcess, method: str, path: str, content: Any = None) -> tuple[int, Any]:
    return http_calls.call(f"{node.http}/{BUCKET}", method, path, content)


def test_after_a_promotion_without_a_majority_nothing_unknown_is_answered_as_empty(
    make_node: Callable[..., NodeProcess],
) -> None:
    pair = [make_node("--no-memcached", name=name) for name in "ab"]
    nodes = BucketNodes(pair, ["ab"] * 4)
    nodes.promote("a")
    nodes.until_whole("a", "b")
    a, b = pair
    for number in range(20):
        assert call(a, "PUT", f"/d{number}", {"n": number})[0] == 201
    nodes.until(lambda: call(a, "GET", "")[1].get("doc_count") == 20)
    b_has = [nodes.standing("b", p)["persisted_end"] for p in range(4)]
    assert sum(b_has) == 20

    a.kill()
    assert {one["now"] for one in nodes.promote("b")["partitions"]} == {"b"}
    for path in PAGES:
        status, answer = call(b, "GET", path)
        if path == "/_design_docs" and status == 200:
            continue  # these are the node's own, as single documents are
        assert (status, answer.get("error")) == (503, "majority_unknown"), (path, answer)
        assert "1 of 2 copies" in answer["reason"]
    assert call(b, "GET", "/d3")[1]["n"] == 3

    began = time.monotonic()
    for method, path, content in (
        ("PUT", "/new", {}), ("POST", "", {"_id": "new"}), ("PUT", "/_local/x", {}),
        ("DELETE", f"/d3?rev={call(b, 'GET', '/d3')[1]['_rev']}", None),
    ):  # fmt: skip
        status, answer = call(b, method, path, content)
        assert status == 503, (method, path, answer)
    status, answer = call(b, "POST", "/_bulk_docs", {"docs": [{"_id": "new"}]})
    assert status == 503 or "majority" in json.dumps(answer)
    status, answer = call(b, "POST", "/_bulk_get", {"docs": [{"id": "d3"}]})
    assert status == 503 or "error" in json.dumps(answer)
    assert time.monotonic() - began < AT_ONCE_S
    assert call(b, "GET", "/new")[0] == 404
    assert call(b, "PUT", "/kept?batch=ok", {})[0] == 202  # asks for no copy

    nodes.promote("b", "--drop", "a")
    nodes.until(lambda: call(b, "GET", "")[0] == 200)
    assert call(b, "GET", "")[1]["doc_count"] == 21
    assert len(call(b, "GET", "/_changes")[1]["results"]) == 21
    assert call(b, "GET", "/_all_docs")[1]["total_rows"] == 21
    assert call(b, "PUT", "/new", {})[0] == 201
