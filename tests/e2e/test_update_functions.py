"""Update functions of design documents, in the sandbox of a whole node."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from typing import Any

import pytest

from support.http.http_calls import call
from support.node.node_process import NodeProcess

DESIGN = {
    "validate_doc_update": (
        "function (doc, old, user) {"
        " if (doc.n > 2) throw {forbidden: 'no more than 2, ' + user.name}; }"
    ),
    "updates": {
        "count": (
            "function (doc, req) {"
            " doc = doc || {_id: req.id || req.uuid, n: 0}; doc.n += 1;"
            " doc.by = req.headers['X-Who']; doc.form = req.form; doc.at = req.path;"
            " return [doc, {headers: {'X-N': String(doc.n)}, json: {n: doc.n}}]; }"
        ),
        "look": "function (doc, req) { return [null, toJSON(req.headers) + req.body]; }",
        "loop": "function () { for (;;) {} }",
        "odd": "function () { return 1; }",
        "answers_oddly": "(doc, req) => [{_id: 'odd'}, {code: 1}]",
    },
}
PATH = "/shop/_design/d/_update/"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("update") / "node", "--bucket", "shop:4") as running:
        assert call(running.http, "PUT", "/shop/_design/d", DESIGN)[0] == 201
        yield running
        assert running.stop() == 0


def update(
    node: NodeProcess, name: str, data: bytes = b"", method: str = "POST"
) -> tuple[int, Message, Any]:
    headers = {
        "X-Who": "me", "Authorization": "Bearer secret",
        "Content-Type": "application/x-www-form-urlencoded",
    }  # fmt: skip
    asked = urllib.request.Request(node.http + PATH + name, data, headers, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def test_a_function_makes_and_changes_a_document(node: NodeProcess) -> None:
    status, headers, text = update(node, "count/apple", b"a=1", "PUT")
    assert (status, json.loads(text), headers["X-N"]) == (201, {"n": 1}, "1")
    _, found = call(node.http, "GET", "/shop/apple")
    assert found["_rev"] == headers["X-Couch-Update-NewRev"]
    assert (found["by"], found["form"]) == ("me", {"a": "1"})
    assert found["at"] == ["shop", "_design", "d", "_update", "count", "apple"]
    assert update(node, "count/apple")[0] == 201
    status, _, text = update(node, "count/apple")
    assert (status, json.loads(text)["error"]) == (403, "forbidden")
    assert call(node.http, "GET", "/shop/apple")[1]["n"] == 2
    status, headers, _ = update(node, "count")
    assert call(node.http, "GET", f"/shop/{headers['X-Couch-Id']}")[1]["n"] == 1


def test_a_function_that_stores_nothing(node: NodeProcess) -> None:
    status, headers, text = update(node, "look", b"said")
    assert (status, text[-4:]) == (200, b"said")
    assert b"secret" not in text
    assert headers["X-Couch-Update-NewRev"] is None


@pytest.mark.parametrize(
    ("name", "status"),
    [
        # `test_function_attacks` has another that does not end.
        pytest.param("loop", 500, marks=pytest.mark.nightly),
        ("odd", 500),
        ("answers_oddly", 500),
        ("none", 404),
    ],
)
def test_functions_that_fail(node: NodeProcess, name: str, status: int) -> None:
    assert update(node, name)[0] == status
    assert call(node.http, "GET", "/shop/odd")[0] == 404
    assert update(node, "look")[0] == 200


def test_requests_with_bytes_that_are_no_text(node: NodeProcess) -> None:
    host, port = node.address("http")
    for line, header in (
        (b"look?a=%ff%00&b=%ed%a0%80", b"X-Odd: \xff\xfe"), (b"look/%ff", b"X-Odd: x"),
        (b"look?\xff", b"X-Odd: x"), (b"l%ffk", b"X-Odd: x"), (b"count/%00", b"X-Who: \xff"),
    ):  # fmt: skip
        with socket.create_connection((host, port), timeout=60) as client:
            client.sendall(
                b"POST " + PATH.encode() + line + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n" + header
                + b"\r\nContent-Length: 2\r\nConnection: close\r\n\r\n\xff\xfe"
            )  # fmt: skip
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        status = int(answer.split(b" ")[1])
        assert status in (200, 201, 400, 404), answer
    assert "Traceback" not in node.log()
