"""Functions of design documents that attack over HTTP: filters, validation, updates, views.

Each fails by itself, in bounded time and memory; while it runs others are served, and the honest
functions of the same database work afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.views.aio.sandbox.process import MEMORY_BYTES_MAX
from support.http.raw_http import RawHttp
from support.node.bystander import Bystander
from support.node.node_process import NodeProcess

pytestmark = pytest.mark.slow

GROWTH_BYTES_MAX = 2 * MEMORY_BYTES_MAX
"""Of the whole node: what a function makes is in a process of its own, and bounded there."""
SERVED_S = 5.0
LIMIT = """
from millstream.views.aio.sandbox import process
process.TIME_LIMIT_S = process.Sandbox.__init__.__kwdefaults__["time_limit_s"] = 2.0
"""
"""Of the node's functions: less processor time than by default, else most of it is waiting."""
ATTACKS = {
    "a string of 256 MiB": "const s = 'x'.repeat(2 ** 28);",
    "recursion": "(function f(n) { return f(n + 1) + 1; })(0);",
    "an expression that goes back": "/^(a+)+$/.test('a'.repeat(60) + 'b');",
    "typed arrays": "const a = []; for (;;) a.push(new Float64Array(1e7).fill(1));",
}
RESULTS = {
    "toJSON that grows": "({ toJSON() { return 'x'.repeat(2 ** 28); } })",
    "a proxy that grows": "new Proxy([], { get: (t, k) => (k === 'length' ? 2 ** 32 - 1 : 1) })",
    "a deep one": "(() => { let a = []; for (let i = 0; i < 1e6; i++) a = [a]; return a; })()",
    "large text": "'x'.repeat(5e7)",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    made = tmp_path_factory.mktemp("functions")
    (made / "sitecustomize.py").write_text(LIMIT)
    options, env = ("--bucket", "db:4", "--bucket", "judged:4"), {"PYTHONPATH": str(made)}
    with NodeProcess(made / "node", *options, env=env) as running:
        with RawHttp(running.address("http")) as client:
            for bucket in ("db", "judged"):
                assert client.ask("PUT", f"/{bucket}/kept", b'{"kept":1}').status == 201
            ids = {"ids": {"map": "function (doc) { emit(doc._id, 1); }"}}
            put_design(client, "db", "honest", views=ids)
        yield running
        assert running.stop() == 0


@pytest.fixture
def client(node: NodeProcess) -> Iterator[RawHttp]:
    with RawHttp(node.address("http"), timeout_s=120) as one:
        yield one


def put_design(client: RawHttp, bucket: str, name: str, **members: Any) -> None:
    found = client.ask("GET", f"/{bucket}/_design/{name}")
    known = {"_rev": found.json["_rev"]} if found.status == 200 else {}
    body = json.dumps({**members, **known}).encode()
    answer = client.ask("PUT", f"/{bucket}/_design/{name}", body)
    assert answer.status == 201, answer


def served(node: NodeProcess, client: RawHttp, bucket: str) -> Bystander:
    return Bystander(node, f"/{bucket}/kept", client.ask("GET", f"/{bucket}/kept").body)


def check(other: Bystander) -> None:
    assert other.answers > 0
    assert other.slowest_s < SERVED_S
    assert other.growth_bytes < GROWTH_BYTES_MAX


@pytest.mark.parametrize("name", ATTACKS)
def test_filters_updates_and_validation_that_attack(
    node: NodeProcess, client: RawHttp, name: str
) -> None:
    attack = ATTACKS[name]
    put_design(
        client, "db", "attack",
        filters={"f": f"function (doc, req) {{ if (doc.kept) {{ {attack} }} return true; }}"},
        updates={"u": f"function (doc, req) {{ {attack} return [null, 'done']; }}"},
    )  # fmt: skip
    condition = "if (doc.attack) { " + attack + " }"
    put_design(
        client, "judged", "judge", validate_doc_update=f"function (doc, old) {{ {condition} }}"
    )
    with served(node, client, "db") as other:
        statuses = [
            client.ask("GET", "/db/_changes?filter=attack/f").status,
            client.ask("POST", "/db/_design/attack/_update/u", b"{}").status,
            client.ask("PUT", "/judged/bad", b'{"attack":1}').status,
        ]
    assert statuses == [500, 500, 500]
    check(other)
    assert client.ask("PUT", "/judged/good-" + name.replace(" ", "-"), b"{}").status == 201


@pytest.mark.parametrize("name", RESULTS)
def test_results_that_attack(node: NodeProcess, client: RawHttp, name: str) -> None:
    result = RESULTS[name]
    put_design(
        client, "db", "results",
        views={
            "keys": {"map": f"function (doc) {{ if (doc.kept) emit({result}, 1); }}"},
            "values": {"map": f"function (doc) {{ if (doc.kept) emit(1, {result}); }}"},
            "reduced": {
                "map": "function (doc) { emit(1, 1); }",
                "reduce": f"function (keys, values) {{ return {result}; }}",
            },
        },
        filters={"f": f"function (doc, req) {{ return {result}; }}"},
        updates={"u": f"function (doc, req) {{ return [{result}, {result}]; }}"},
    )  # fmt: skip
    with served(node, client, "db") as other:
        statuses = [
            client.ask("GET", "/db/_design/results/_view/keys").status,
            client.ask("GET", "/db/_design/results/_view/values").status,
            client.ask("GET", "/db/_design/results/_view/reduced").status,
            client.ask("GET", "/db/_changes?filter=results/f").status,
            client.ask("POST", "/db/_design/results/_update/u", b"{}").status,
        ]
        honest = client.ask("GET", "/db/_design/honest/_view/ids")
    assert set(statuses) <= {200, 500}
    check(other)
    assert [row["id"] for row in honest.json["rows"]] == ["kept"]
