"""Several nodes that share a bucket by a map, for the suites that test from outside.

Invariants:
1. The map names the nodes as the test does, at the ports of their ready lines.
2. Nothing here waits for copies to catch up: a map moves no document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from support.http.http_calls import call
from support.node.node_process import NodeProcess

UUID = "0123456789abcdef0123456789abcdef"
Rows = Sequence[Sequence[str | None]]


def ask(
    node: NodeProcess,
    method: str,
    path: str,
    content: Any = None,
    *,
    login: tuple[str, str] | None = None,
) -> tuple[int, Any]:
    """One request to `/_millstream/...`; (status, JSON)."""
    return call(f"{node.http}/_millstream", method, path, content, login=login)


def map_of(
    nodes: Mapping[str, NodeProcess], rows: Rows, *, revision: int = 1, uuid: str = UUID
) -> dict[str, Any]:
    """The body of PUT map, without `this`."""
    listed = [
        {"name": name, "host": node.kv[0], "kv": node.kv[1], "http": node.address("http")[1]}
        for name, node in nodes.items()
    ]
    return {
        "revision": revision,
        "uuid": uuid,
        "partitions": len(rows),
        "nodes": listed,
        "rows": [list(row) for row in rows],
    }


def give_map(
    nodes: Mapping[str, NodeProcess],
    bucket: str,
    rows: Rows,
    *,
    login: tuple[str, str] | None = None,
    **options: Any,
) -> None:
    """Give all nodes one map; new buckets have nothing active then."""
    content = map_of(nodes, rows, **options)
    for name, node in nodes.items():
        path = f"/buckets/{bucket}/map"
        status, answer = ask(node, "PUT", path, {**content, "this": name}, login=login)
        assert status == 200, answer


def activate_first(
    nodes: Mapping[str, NodeProcess],
    bucket: str,
    rows: Rows,
    *,
    login: tuple[str, str] | None = None,
) -> None:
    """Make each partition active on the node that its row names first."""
    for number, row in enumerate(rows):
        assert row[0] is not None
        path = f"/buckets/{bucket}/partitions/{number}"
        status, answer = ask(nodes[row[0]], "PUT", path, {"state": "active"}, login=login)
        assert status == 200, answer


def states(node: NodeProcess, bucket: str, *, login: tuple[str, str] | None = None) -> list[str]:
    """The states of a node's copies, by partition."""
    status, answer = ask(node, "GET", f"/buckets/{bucket}/partitions", login=login)
    assert status == 200, answer
    return [copy["state"] for copy in answer["partitions"]]
