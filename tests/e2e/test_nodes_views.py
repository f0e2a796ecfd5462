"""Views of a bucket whose active copies lie on two nodes: each answers for both."""

from __future__ import annotations

import ssl
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import millstream
from millstream.model.partitions import partition_of
from support.http import http_calls
from support.kv.bucket_nodes import BUCKET, BucketNodes
from support.kv.nodes_with_map import activate_first, ask, give_map, map_of
from support.node.node_process import NodeProcess, free_port
from support.node.waiting import until

MakeNode = Callable[..., NodeProcess]
ROWS = [["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"]]
TLS = Path(__file__).parent / "tls"
ADMIN = ("ada", "secret word")
DESIGN = {
    "views": {
        "by": {"map": "function (doc) { emit([doc.n % 3, doc.n], doc.n); }", "reduce": "_sum"},
        "own": {
            "map": "function (doc) { emit(doc.n % 3, doc.n); }",
            "reduce": "function (keys, values, again) { return Math.max.apply(null, values); }",
        },
    }
}
COUNT = 90
PATH = "/_design/d/_view/by?reduce=false&timeout=5000"


def call(
    node: NodeProcess,
    method: str,
    path: str,
    content: Any = None,
    bucket: str = "shared",
    tls: ssl.SSLContext | None = None,
) -> tuple[int, Any]:
    return http_calls.call(f"{node.http}/{bucket}", method, path, content, login=ADMIN, tls=tls)


def query(node: NodeProcess, view: str, parameters: str = "") -> list[Any]:
    status, answer = call(node, "GET", f"/_design/d/_view/{view}?{parameters}")
    assert status == 200, answer
    return [(row["key"], row["value"]) for row in answer["rows"]]


def test_either_node_answers_for_all_partitions(
    make_node: MakeNode,
) -> None:
    env = {"MILLSTREAM_CLUSTER_SECRET": "a secret of nodes"}
    options = ("--user", ":".join(ADMIN), "--no-memcached")
    nodes = {name: make_node(*options, name=name, env=env).start() for name in "ab"}
    give_map(nodes, "shared", ROWS, login=ADMIN)
    activate_first(nodes, "shared", ROWS, login=ADMIN)
    owner = nodes[ROWS[partition_of(b"_design/d", 4)][0]]
    assert call(owner, "PUT", "/_design/d", DESIGN)[0] == 201
    host, port = nodes["a"].kv
    with millstream.connect(
        f"{host}:{port}", bucket="shared", user=ADMIN[0], password=ADMIN[1]
    ) as client:
        for n in range(COUNT):
            client.upsert(f"doc-{n}", {"n": n})
    expected = sorted(([n % 3, n], n) for n in range(COUNT))

    def is_everywhere() -> bool:
        return all(call(node, "GET", "/_design/d/_info")[0] == 200 for node in nodes.values())

    until(is_everywhere)
    for node in nodes.values():
        assert query(node, "by", "reduce=false") == expected
        assert (
            query(node, "by", "reduce=false&descending=true&skip=7&limit=5")
            == (expected[::-1][7:12])
        )
        sums = [([n], sum(range(n, COUNT, 3))) for n in range(3)]
        assert query(node, "by", "group_level=1") == sums
        assert query(node, "own", "group=true") == [(n, COUNT - 3 + n) for n in range(3)]
        assert query(node, "by", "startkey=[5]") == []
        status, answer = call(node, "GET", "/_design/d/_view/by?reduce=false&limit=0")
        assert (answer["total_rows"], answer["offset"]) == (COUNT, 0)
    status, refusal = ask(nodes["a"], "POST", "/buckets/shared/part", {})
    assert (status, refusal["error"]) == (401, "unauthorized")

    nodes["b"].kill()
    status, answer = call(nodes["a"], "GET", "/_design/d/_view/by?group=true")
    assert (status, answer["error"]) == (503, "node_failed")
    status, answer = call(nodes["a"], "GET", "/_design/d/_view/by?reduce=false&on_error=continue")
    assert [error["from"] for error in answer["errors"]] == ["b"]
    left = [n for n in range(COUNT) if ROWS[partition_of(b"doc-%d" % n, 4)][0] == "a"]
    assert sorted(row["value"] for row in answer["rows"]) == left


def test_nodes_ask_only_verified_nodes_over_tls(
    make_node: MakeNode,
) -> None:
    trust = ssl.create_default_context(cafile=str(TLS / "authority.pem"))
    nodes = {
        name: make_node(
            "--user", ":".join(ADMIN), "--no-memcached", "--kv", f"127.0.0.1:{free_port()}",
            "--http", f"127.0.0.1:{free_port()}", "--tls-cert", str(TLS / "node.pem"),
            "--tls-ca", str(TLS / "authority.pem"),
            name=name, env={"MILLSTREAM_CLUSTER_SECRET": "a secret of nodes"},
        ).start()
        for name in "ab"
    }  # fmt: skip

    def tell(name: str, path: str, content: Any) -> None:
        told = call(nodes[name], "PUT", path, content, "_millstream/buckets/shared", trust)
        assert told[0] == 200, told

    for name in nodes:
        tell(name, "/map", {**map_of(nodes, ROWS), "this": name})
    for number, (owner, _) in enumerate(ROWS):
        tell(owner, f"/partitions/{number}", {"state": "active"})
    owner = ROWS[partition_of(b"_design/d", 4)][0]
    assert call(nodes[owner], "PUT", "/_design/d", DESIGN, tls=trust)[0] == 201
    host, port = nodes["a"].kv
    with millstream.connect(
        f"{host}:{port}", bucket="shared", user=ADMIN[0], password=ADMIN[1], tls=trust
    ) as client:
        for n in range(COUNT):
            client.upsert(f"doc-{n}", {"n": n})

    def found(name: str) -> tuple[int, Any]:
        status, answer = call(nodes[name], "GET", "/_design/d/_view/by", tls=trust)
        return (status, answer["rows"][0]["value"]) if status == 200 else (status, answer["error"])

    for name in nodes:  # the design document has to have reached both
        until(lambda name=name: found(name) == (200, sum(range(COUNT))), nodes[name].log)

    nodes["a"].stop()
    options = [str(TLS / "stranger.pem") if word.endswith("authority.pem") else word
               for word in nodes["a"].options]  # fmt: skip
    nodes["a"].options = tuple(options)
    nodes["a"].start()
    until(lambda: found("a") == (503, "node_failed"), lambda: found("a"))
    _, answer = call(nodes["a"], "GET", "/_design/d/_view/by", tls=trust)
    assert "node b cannot be reached" in answer["reason"]
    assert "certificate" in answer["reason"].lower()
    assert found("b") == (503, "node_failed"), "nor does node a take its certificate"


def test_rows_are_complete_and_unique_while_partitions_move(make_node: MakeNode) -> None:
    rows = [["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"]]
    nodes = BucketNodes([make_node("--no-memcached", name=name) for name in "ab"], rows)
    nodes.promote("a")
    owner = nodes.nodes[rows[partition_of(b"_design/d", 4)][0]]
    assert call(owner, "PUT", "/_design/d", DESIGN, bucket=BUCKET)[0] == 201
    for n in range(COUNT):
        key = b"doc-%d" % n
        nodes.put(rows[partition_of(key, 4)][0], key, b'{"n":%d}' % n)
    nodes.until(
        lambda: all(
            len(call(node, "GET", PATH, bucket=BUCKET)[1].get("rows", ())) == COUNT
            for node in nodes.nodes.values()
        )
    )
    asker = Asker([*nodes.nodes.values()])
    asker.start()
    try:
        for turn in range(4):
            nodes.promote("a", "--to", "ba"[turn % 2], "--partition", str(turn % 4))
        until(lambda: asker.answered > 5 or not asker.is_alive(), lambda: asker.refused)
    finally:
        asker.is_over = True
        asker.join()
    assert [nodes.actives(p) for p in range(4)] == [["b"], ["a"], ["b"], ["a"]]
    assert asker.answered > 5
    assert asker.wrong == []
    assert asker.refused.keys() <= {"not_my_partition", "index_unavailable", "timeout"}


def test_stale_queries_are_complete_during_hand_overs(
    make_node: MakeNode,
) -> None:
    """The new node's index begins a partition when it moves; the rows were there before."""
    count, rows = 2000, ["ab"] * 8
    nodes = BucketNodes([make_node("--no-memcached", name=name) for name in "ab"], rows)
    nodes.promote("a")
    a, b = nodes.nodes.values()
    assert call(a, "PUT", "/_design/d", DESIGN, bucket=BUCKET)[0] == 201
    with millstream.connect(a.ready["kv"], bucket=BUCKET) as client:
        client.upsert_many((f"k{n}", b'{"n":%d}' % n) for n in range(count))
    nodes.until_level("a", "b")
    nodes.until(lambda: len(call(a, "GET", PATH, bucket=BUCKET)[1].get("rows", ())) == count)
    asker = Asker([a, b], PATH + "&stale=ok", count)
    asker.start()
    try:
        nodes.until(lambda: asker.answered > 2)
        nodes.promote("a", "--to", "b", *(f"--partition={p}" for p in range(0, 8, 2)))
        asked = asker.answered
        nodes.until(lambda: asker.answered > asked + 4 or not asker.is_alive())
        nodes.promote("b", "--to", "a")
        asked = asker.answered
        nodes.until(lambda: asker.answered > asked + 4 or not asker.is_alive())
    finally:
        asker.is_over = True
        asker.join()
    assert asker.wrong == []
    assert asker.refused.keys() <= {"not_my_partition", "index_unavailable", "timeout"}


class Asker(threading.Thread):
    """Asks one node after the other for all rows, until told to stop."""

    def __init__(self, nodes: list[NodeProcess], path: str = PATH, count: int = COUNT) -> None:
        super().__init__()
        self.nodes, self.path, self.count = nodes, path, count
        self.is_over = False
        self.answered, self.wrong = 0, list[Any]()
        self.refused: Counter[str] = Counter()

    def run(self) -> None:
        while not self.is_over:
            for node in self.nodes:
                status, answer = call(node, "GET", self.path, bucket=BUCKET)
                if status != 200:
                    self.refused[answer["error"]] += 1
                elif sorted(row["value"] for row in answer["rows"]) == list(range(self.count)):
                    self.answered += 1
                else:
                    self.wrong.append(len(answer["rows"]))
