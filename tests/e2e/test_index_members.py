"""A member of a cluster that only indexes: it holds shares of the index, and no documents."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from typing import Any

from millstream import connect
from support.cluster.managed_nodes import BUCKET, ManagedNodes
from support.node.node_process import NodeProcess
from support.node.waiting import until

Make = Callable[..., NodeProcess]
DESIGN = {"views": {"all": {"map": "function (d) { if (d.n >= 0) emit(d.n) }"}}}
COUNT = 40
VIEW = "/default/_design/d/_view/all?update=true"


def asked(node: NodeProcess, method: str, path: str, content: Any = None) -> Any:
    body = None if content is None else json.dumps(content).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{node.http}{path}", body, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def rows(node: NodeProcess) -> int | str:
    """Return the number of rows that a node answers, or why it refuses."""
    try:
        return len(asked(node, "GET", VIEW)["rows"])
    except OSError as error:
        return str(error)


def shares(nodes: ManagedNodes, at: str) -> dict[str, tuple[int, int, int]]:
    """Return active copies, replicas and index parts by node."""
    return {
        one["name"]: (one["active"], one["replica"], one["index"])
        for one in nodes.status(at)["nodes"]
    }


def test_an_index_member_holds_parts_and_no_documents_and_is_replaced_when_it_dies(
    make_node: Make,
) -> None:
    nodes = ManagedNodes(make_node).found("n1", "n2")
    nodes.start("n3")
    nodes.command("n3", "join", str(nodes.nodes["n1"].ready["http"]), "--roles", "index")
    host, port = nodes.nodes["n3"].kv
    with connect(f"{host}:{port}", bucket=BUCKET) as client:
        for number in range(COUNT):
            client.upsert(f"k{number}", {"n": number}, durability="majority")
    asked(nodes.nodes["n1"], "PUT", "/default/_design/d", DESIGN)

    nodes.command("n1", "rebalance", "--wait")
    assert shares(nodes, "n3")["n3"][:2] == (0, 0)
    assert sorted(index for _, _, index in shares(nodes, "n3").values()) == [5, 5, 6]
    for node in nodes.nodes.values():
        until(lambda node=node: rows(node) == COUNT, lambda node=node: (rows(node), nodes.logs()))
        assert asked(node, "GET", "/default/k7")["n"] == 7

    nodes.nodes["n3"].kill()
    for name in ("n1", "n2"):
        node = nodes.nodes[name]
        until(lambda node=node: rows(node) == COUNT, lambda node=node: (rows(node), nodes.logs()))
    until(lambda: nodes.state_of("n3", "n1") == "failed", nodes.logs)
    assert sum(shares(nodes, "n1")[name][2] for name in ("n1", "n2")) == 16

    nodes.nodes["n3"].start()
    nodes.until_all_in()
    nodes.command("n3", "rebalance", "--wait")
    assert shares(nodes, "n1")["n3"] in [(0, 0, 5), (0, 0, 6)]
    assert rows(nodes.nodes["n3"]) == COUNT

    # Without the role of data nodes, the index stays where it is when one of them comes.
    before = {name: index for name, (_, _, index) in shares(nodes, "n1").items()}
    nodes.start("n4")
    nodes.command("n4", "join", str(nodes.nodes["n1"].ready["http"]), "--roles", "data,coord")
    moves = nodes.command("n1", "rebalance", "--plan")["moves"]
    assert moves["copies"] > 0
    assert moves["bytes"] > 0
    nodes.command("n1", "rebalance", "--wait")
    after = shares(nodes, "n1")
    assert {name: after[name][2] for name in before} == before
    assert after["n4"][0] > 0
    assert after["n4"][2] == 0
