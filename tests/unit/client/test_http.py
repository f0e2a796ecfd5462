"""HTTP of a real node as a program asks it, and what is no node."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from millstream.client.http import HttpClient, http_of
from millstream.client.kv import connect
from millstream.errors import (
    AccessError,
    ConditionError,
    MillstreamError,
    RemoteProtocolError,
    UnavailableError,
    UsageError,
)
from millstream.node.embedded import EmbeddedNode
from support.node.node_process import free_port


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    path: Path = tmp_path_factory.mktemp("pages") / "d"
    with EmbeddedNode(path, buckets=["a/b:4"], users=["ada:secret"]) as node:
        yield node


def http(node: EmbeddedNode, password: str = "secret") -> HttpClient:
    host, _, port = str(node.http).rpartition(":")
    return HttpClient(host, int(port), user="ada", password=password, tls=None, timeout_s=60.0)


def path_of(bucket: str, page: str) -> str:
    return f"/_millstream/buckets/{quote(bucket, safe='')}/{page}"


def nobody(port: int) -> HttpClient:
    return HttpClient("127.0.0.1", port, user=None, password="", tls=None, timeout_s=60.0)


def test_answers_are_objects(node: EmbeddedNode) -> None:
    found = http(node).request("GET", path_of("a/b", "standings"))["standings"]
    assert [one["state"] for one in found] == ["active"] * 4
    content = {"branch": 1, "partitions": [0]}
    assert http(node).request("POST", path_of("a/b", "promises"), content)["promised"] == []


@pytest.mark.parametrize(
    ("bucket", "password", "page", "kind", "code"),
    [
        ("a/b", "wrong", "standings", AccessError, "unauthorized"),
        ("none", "secret", "standings", ConditionError, "bucket_not_found"),
        ("a/b", "secret", "promises", UsageError, "method_not_allowed"),
        ("a/b", "secret", "partitions/x", ConditionError, "partition_not_found"),
    ],
)
def test_errors_are_those_of_the_node(
    node: EmbeddedNode,
    bucket: str,
    password: str,
    page: str,
    kind: type[MillstreamError],
    code: str,
) -> None:
    with pytest.raises(kind) as caught:
        http(node, password).request("GET", path_of(bucket, page))
    assert caught.value.code == code
    assert "127.0.0.1:" in str(caught.value)


def test_a_wrong_request_is_a_wrong_use(node: EmbeddedNode) -> None:
    with pytest.raises(UsageError, match="branch"):
        http(node).request("POST", path_of("a/b", "promises"), {"branch": -1})


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", UnavailableError),
        (b"SSH-2.0-x\r\n\r\n", UnavailableError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", RemoteProtocolError),
        (b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nab", UnavailableError),
    ],
)
def test_what_is_no_node_is_an_error(answer: bytes, kind: type[MillstreamError]) -> None:
    with answering(answer) as port, pytest.raises(kind):
        nobody(port).request("GET", "/")


CHUNKED = b"\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n",
        b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"a":',
        b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"a": 1}',
        b'HTTP/1.1 200 OK%b9\r\n{"a":' % CHUNKED,
        b"HTTP/1.1 409 No\r\nContent-Length: 99\r\n\r\n",
        b'HTTP/1.1 409 No\r\nContent-Length: 99\r\n\r\n{"error":',
        b'HTTP/1.1 409 No%b9\r\n{"error":' % CHUNKED,
    ],
)
def test_a_node_that_ends_within_its_answer_is_unreachable(answer: bytes) -> None:
    with answering(answer) as port, pytest.raises(UnavailableError) as caught:
        nobody(port).request("GET", "/")
    assert caught.value.code == "unreachable"
    with answering(answer) as port, pytest.raises(UnavailableError) as caught:
        list(nobody(port).pieces("GET", "/"))
    assert caught.value.code == "unreachable"


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """Within `with`, a port where one request is answered so, and no more is said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def test_nobody_there_is_unreachable() -> None:
    port = free_port()
    with pytest.raises(UnavailableError) as caught:
        nobody(port).request("GET", "/")
    assert caught.value.code == "unreachable"


def test_the_http_port_is_learned_from_the_kv_port(node: EmbeddedNode, tmp_path: Path) -> None:
    options: dict[str, Any] = {"user": "ada", "password": "secret", "tls": None}
    with connect(node.kv, bucket="a/b", **options) as client:
        found = http_of(client, timeout_s=60.0, **options)
    assert found.address == node.http
    with (
        EmbeddedNode(tmp_path, http=None) as other,
        connect(other.kv, bucket="default") as client,
        pytest.raises(UnavailableError) as caught,
    ):
        http_of(client, user=None, password="", tls=None, timeout_s=60.0)
    assert caught.value.code == "no_http"


def test_pages_have_etags_and_come_in_pieces(node: EmbeddedNode) -> None:
    one = http(node)
    assert one.etag("/a%2Fb/_design/x") is None
    made = one.request("PUT", "/a%2Fb/_design/x", {"views": {}})
    assert one.etag("/a%2Fb/_design/x") == made["rev"]
    assert b'"_id":"_design/x"' in b"".join(one.pieces("GET", "/a%2Fb/_design/x"))
    headers = {"If-Match": made["rev"]}
    assert one.request("DELETE", "/a%2Fb/_design/x", headers=headers)["ok"]
