"""A node that only indexes what another one has: learned, followed, asked, killed, outlived."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.model.partitions import partition_of
from support.http import http_calls
from support.kv.bucket_nodes import BUCKET, BucketNodes
from support.kv.nodes_with_map import activate_first, give_map
from support.node.node_process import NodeProcess, free_port
from support.node.waiting import until

MakeNode = Callable[..., NodeProcess]
TLS = Path(__file__).parent / "tls"
ADMIN = ("ada", "secret word")
SECRET = {"MILLSTREAM_CLUSTER_SECRET": "a secret of nodes"}
DESIGN = {"views": {"by": {"map": "doc => emit(doc.n % 3, doc.n)", "reduce": "_sum"}}}
FRESH = "/_design/d/_view/by?timeout=60000&update=true"


def call(
    node: NodeProcess,
    method: str,
    path: str,
    content: Any = None,
    login: Any = ADMIN,
    tls: ssl.SSLContext | None = None,
) -> tuple[int, Any]:
    return http_calls.call(node, method, path, content, login=login or None, tls=tls)


def put(node: NodeProcess, bucket: str, numbers: range, **more: object) -> Any:
    host, port = node.kv
    address = f"{host}:{port}"
    with millstream.connect(address, bucket=bucket, user=ADMIN[0], password=ADMIN[1]) as client:
        for n in numbers:
            last = client.upsert(f"doc-{n}", {"n": n, **more}, durability="persisted")
    return last


def rows(node: NodeProcess, bucket: str, more: str = "") -> list[Any]:
    status, answer = call(node, "GET", f"/{bucket}{FRESH}&reduce=false{more}")
    assert status == 200, answer
    return sorted(row["value"] for row in answer["rows"])


def indexing(make_node: MakeNode, joined: NodeProcess, name: str = "index") -> NodeProcess:
    options = ("--roles", "index", "--no-kv", "--no-memcached", "--user", ":".join(ADMIN))
    return make_node(*options, "--join", str(joined.ready["http"]), name=name, env=SECRET)


def answers(node: NodeProcess, path: str) -> bool:
    return call(node, "GET", path)[0] == 200


def test_an_index_node_follows_and_survives_restarts(make_node: MakeNode) -> None:
    data = make_node(
        "--user", ":".join(ADMIN), "--no-memcached", "--bucket", "b:8", name="data", env=SECRET
    ).start()
    index = indexing(make_node, data).start()
    assert index.ready["kv"] is None
    assert call(data, "PUT", "/b/_design/d", DESIGN)[0] == 201
    put(data, "b", range(60))
    until(lambda: answers(index, "/b/_design/d/_info"))
    assert rows(index, "b") == list(range(60))
    status, answer = call(index, "GET", f"/b{FRESH}&group=true")
    assert [row["value"] for row in answer["rows"]] == [sum(range(n, 60, 3)) for n in range(3)]
    assert call(index, "GET", "/b/_design/d", login=None)[0] == 401

    # A bucket and a design document that come later, and a definition that changes.
    assert call(data, "PUT", "/later", None)[0] == 201
    assert call(data, "PUT", "/later/_design/d", DESIGN)[0] == 201
    put(data, "later", range(5))
    until(lambda: answers(index, "/later/_design/d/_info"))
    assert rows(index, "later") == list(range(5))
    design = call(index, "GET", "/b/_design/d")[1]
    assert design == call(data, "GET", "/b/_design/d")[1]
    changed = {**design, "views": {"by": {"map": "doc => emit(1, -doc.n)"}}}
    assert call(data, "PUT", "/b/_design/d", changed)[0] == 201
    until(lambda: call(index, "GET", "/b/_design/d")[1].get("views") == changed["views"])
    assert rows(index, "b") == list(range(-59, 1))
    listed = call(index, "GET", "/b/_design_docs")[1]["rows"]
    assert [row["id"] for row in listed] == ["_design/d"]

    # Read your own write, by its mutation token.
    put(data, "b", range(60, 70))
    status, shown = call(data, "GET", f"/b{FRESH}&limit=0&update_seq=true")
    at = shown["update_seq"]
    status, answer = call(index, "POST", "/b/_design/d/_view/by", {"at": at, "update": "false"})
    assert (status, len(answer["rows"])) == (200, 70), answer

    # Documents beside rows come from the node that has them; other pages name it.
    status, answer = call(index, "GET", f"/b{FRESH}&include_docs=true&limit=3&descending=true")
    assert [row["doc"]["n"] for row in answer["rows"]] == [-row["value"] for row in answer["rows"]]
    for method, path in (
        ("GET", "/b/doc-1"), ("PUT", "/b/doc-1"), ("PUT", "/b/_design/d"), ("DELETE", "/b"),
        ("GET", "/_millstream/buckets/b/partitions"), ("GET", "/b"),
    ):  # fmt: skip
        content = DESIGN if method == "PUT" else None
        status, answer = call(index, method, path, content)
        assert (status, answer["error"]) == (503, "no_data_role"), path
        assert str(data.ready["http"]) in answer["reason"]

    # It goes on after its own end, and after that of the node it follows.
    index.kill()
    put(data, "b", range(70, 80))
    index.start()
    until(lambda: answers(index, "/b/_design/d/_info"))
    assert rows(index, "b") == list(range(-79, 1))
    metrics_of = urllib.request.Request(f"{index.http}/_metrics")
    metrics_of.add_header("Authorization", "Basic " + b64encode(":".join(ADMIN).encode()).decode())
    with urllib.request.urlopen(metrics_of) as answered:
        assert b'millstream_index_rows{bucket="b"}' in answered.read()
    data.kill()
    check_that_rows_are_kept_without_the_followed_node(index)


def check_that_rows_are_kept_without_the_followed_node(index: NodeProcess) -> None:
    index.kill()
    index.start()
    stale = "/b/_design/d/_view/by?update=false&reduce=false"
    until(lambda: answers(index, stale))
    assert len(call(index, "GET", stale)[1]["rows"]) == 80
    status, answer = call(index, "GET", "/b/_design/d/_view/by?update=true&timeout=500")
    assert status in (503, 504), answer
    assert call(index, "GET", "/never/_design/d/_info")[1]["error"] == "not_joined"
    assert index.stop() == 0
    checked = subprocess.run(
        [sys.executable, "-m", "millstream", "check", str(index.data_dir), "--json"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    found = {one["name"]: one for one in json.loads(checked.stdout)["buckets"]}
    assert [one["rows"] for one in found["b"]["indexes"]] != []


@pytest.mark.slow
def test_several_nodes_are_followed_where_partitions_are_active(make_node: MakeNode) -> None:
    map_rows = [["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"]]
    options = ("--user", ":".join(ADMIN), "--no-memcached")
    nodes = {name: make_node(*options, name=name, env=SECRET).start() for name in "ab"}
    give_map(nodes, "shared", map_rows, login=ADMIN)
    activate_first(nodes, "shared", map_rows, login=ADMIN)
    owner = nodes[map_rows[partition_of(b"_design/d", 4)][0]]
    assert call(owner, "PUT", "/shared/_design/d", DESIGN)[0] == 201
    for name, node in nodes.items():
        host, port = node.kv
        with millstream.connect(
            f"{host}:{port}", bucket="shared", user=ADMIN[0], password=ADMIN[1]
        ) as client:
            for n in range(40):
                if map_rows[partition_of(b"doc-%d" % n, 4)][0] == name:
                    client.upsert(f"doc-{n}", {"n": n})
    index = indexing(make_node, nodes["a"]).start()
    until(lambda: answers(index, "/shared/_design/d/_info"))
    assert rows(index, "shared") == list(range(40))
    status, answer = call(index, "GET", f"/shared{FRESH}&reduce=false&include_docs=true")
    assert sorted(row["doc"]["n"] for row in answer["rows"]) == list(range(40))
    for node in nodes.values():  # whoever is asked asks the other one
        until(lambda node=node: answers(node, "/shared/_design/d/_info"))
    for node in nodes.values():  # each has the other's documents for its answers
        status, answer = call(node, "GET", f"/shared{FRESH}&reduce=false&include_docs=true")
        assert status == 200, answer
        assert sorted(row["doc"]["n"] for row in answer["rows"]) == list(range(40))

    for name, node in nodes.items():  # a value that is no JSON is an attachment, with its data
        host, port = node.kv
        with millstream.connect(
            f"{host}:{port}", bucket="shared", user=ADMIN[0], password=ADMIN[1]
        ) as client:
            keys = [f"raw-{n}" for n in range(99)]
            key = next(k for k in keys if map_rows[partition_of(k.encode(), 4)][0] == name)
            client.upsert(key, name.encode() * 3)
    for node in (index, *nodes.values()):
        options = "&reduce=false&include_docs=true&attachments=true"
        status, answer = call(node, "GET", f"/shared{FRESH}{options}")
        found = [row["doc"]["_attachments"]["value"] for row in answer["rows"] if not row["key"]
                 and row["id"].startswith("raw")]  # fmt: skip
        assert sorted(b64decode(value["data"]) for value in found) == [b"aaa", b"bbb"]


@pytest.mark.slow
def test_partitions_that_move_are_followed_where_they_are(
    make_node: MakeNode,
) -> None:
    nodes = BucketNodes(
        [make_node("--no-memcached", name=name) for name in "ab"], [["a", "b"], ["b", "a"]]
    )
    nodes.promote("a")
    index = make_node(
        "--roles", "index", "--no-kv", "--no-memcached", "--join",
        str(nodes.nodes["a"].ready["http"]), name="index",
    ).start()  # fmt: skip
    owner = {p: nodes.nodes["ab"[p]] for p in range(2)}
    at = partition_of(b"_design/d", 2)
    assert call(owner[at], "PUT", f"/{BUCKET}/_design/d", DESIGN)[0] == 201
    for n in range(30):
        nodes.put("ab"[partition_of(b"doc-%d" % n, 2)], b"doc-%d" % n, b'{"n":%d}' % n)
    until(lambda: answers(index, f"/{BUCKET}/_design/d/_info"))
    assert rows(index, BUCKET) == list(range(30))
    for p in range(2):  # each partition to the other node
        nodes.promote("a", "--to", "ba"[p], "--partition", str(p))
    for n in range(30, 40):
        nodes.put("ba"[partition_of(b"doc-%d" % n, 2)], b"doc-%d" % n, b'{"n":%d}' % n)
    until(lambda: answers(index, f"/{BUCKET}{FRESH}&reduce=false"))
    until(lambda: rows(index, BUCKET) == list(range(40)), index.log)


@pytest.mark.slow
def test_an_index_node_rolls_back_over_tls(
    make_node: MakeNode,
) -> None:
    trust = ssl.create_default_context(cafile=str(TLS / "authority.pem"))
    encrypted = (
        "--no-memcached", "--user", ":".join(ADMIN),
        "--tls-cert", str(TLS / "node.pem"), "--tls-ca", str(TLS / "authority.pem"),
    )  # fmt: skip
    http = f"127.0.0.1:{free_port()}"
    data = make_node(
        *encrypted, "--roles", "data", "--bucket", "b:4", "--flush-interval", "600000",
        "--kv", f"127.0.0.1:{free_port()}", "--http", http, name="data", env=SECRET,
    ).start()  # fmt: skip
    index = make_node(
        *encrypted, "--roles", "index", "--no-kv", "--join", http, name="index", env=SECRET
    ).start()
    assert call(data, "PUT", "/b/_design/d", DESIGN, tls=trust)[0] == 201

    def write(numbers: range, durability: Any) -> None:
        host, port = data.kv
        with millstream.connect(
            f"{host}:{port}", bucket="b", user=ADMIN[0], password=ADMIN[1], tls=trust
        ) as client:
            for n in numbers:
                client.upsert(f"doc-{n}", {"n": n}, durability=durability)

    def seen() -> list[Any]:
        status, answer = call(index, "GET", f"/b{FRESH}&reduce=false", tls=trust)
        return sorted(row["value"] for row in answer["rows"]) if status == 200 else [answer]

    write(range(10), "persisted")
    write(range(10, 20), "memory")
    until(lambda: seen() == list(range(20)), seen)
    data.kill()
    data.start()
    until(lambda: seen() == list(range(10)), seen)
    write(range(30, 35), "memory")
    until(lambda: seen() == [*range(10), *range(30, 35)], seen)
    _status, answer = call(
        index, "GET", f"/b{FRESH}&limit=2&include_docs=true&reduce=false", tls=trust
    )
    assert [row["doc"]["n"] for row in answer["rows"]] == [row["value"] for row in answer["rows"]]
