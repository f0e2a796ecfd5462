"""Views on two nodes of one bucket: replicas are indexed, and a fail-over finds them ready."""

import json
from collections.abc import Callable

from millstream import connect
from support.http.http_calls import call
from support.kv.nodes_with_map import activate_first, ask, give_map, map_of, states
from support.node.node_process import NodeProcess, free_port
from support.node.waiting import until

PARTITIONS = 4
ROWS = [["a", "b"]] * PARTITIONS
DOCUMENTS = 500
DESIGN = {"views": {"v": {"map": "function (doc) { emit(doc.kind, doc.n); }", "reduce": "_sum"}}}
MakeNode = Callable[..., NodeProcess]


def rows(node: NodeProcess) -> int:
    status, answer = call(node.http, "GET", "/shared/_design/d/_info")
    return answer["view_index"]["rows"]["v"] if status == 200 else -1


def test_a_fail_over_finds_the_index_of_replicas_ready(make_node: MakeNode) -> None:
    nodes = {
        name: make_node("--no-memcached", "--kv", f"127.0.0.1:{free_port()}", name=name).start()
        for name in "ab"
    }
    a, b = nodes.values()
    give_map(nodes, "shared", ROWS)
    activate_first(nodes, "shared", ROWS)
    status, answer = ask(b, "PUT", "/buckets/shared/index_replicas", {"wanted": True})
    assert status == 200, answer
    with connect(a.ready["kv"], bucket="shared") as client:
        client.upsert_many(
            (f"k{n}", json.dumps({"kind": "x", "n": 1}).encode()) for n in range(DOCUMENTS)
        )
    status, answer = call(a.http, "PUT", "/shared/_design/d", DESIGN)
    assert status == 201, answer
    status, answer = call(a.http, "GET", "/shared/_design/d/_view/v")
    assert answer["rows"][0]["value"] == DOCUMENTS
    until(lambda: rows(b) == DOCUMENTS)
    a.kill()
    status, answer = call(b.http, "GET", "/shared/_design/d/_view/v?timeout=1000")
    assert status == 503, "nothing is active here, and the other node is gone"
    for number in range(PARTITIONS):
        status, answer = ask(b, "PUT", f"/buckets/shared/partitions/{number}", {"state": "active"})
        assert status == 200, answer
    assert states(b, "shared") == ["active"] * PARTITIONS
    turned = map_of(nodes, [["b", "a"]] * PARTITIONS, revision=2)
    status, answer = ask(b, "PUT", "/buckets/shared/map", {**turned, "this": "b"})
    assert status == 200, answer
    status, answer = call(b.http, "GET", "/shared/_design/d/_view/v?update=false")
    assert status == 200, answer
    assert answer["rows"][0]["value"] == DOCUMENTS, "states were flipped, nothing was built"
    with connect(b.ready["kv"], bucket="shared") as client:
        client.upsert("k0", b'{"kind": "x", "n": 11}')
    status, answer = call(b.http, "GET", "/shared/_design/d/_view/v")
    assert answer["rows"][0]["value"] == DOCUMENTS + 10
