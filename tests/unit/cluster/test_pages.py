"""The pages of a real node as a program asks for them, and what is no node."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.client.connection import Connection
from millstream.cluster.pages import Pages, http_port_of
from millstream.errors import (
    AccessError,
    ConditionError,
    MillstreamError,
    RemoteProtocolError,
    UnavailableError,
    UsageError,
)
from millstream.node.embedded import EmbeddedNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    path: Path = tmp_path_factory.mktemp("pages") / "d"
    with EmbeddedNode(path, buckets=["a/b:4"], users=["ada:secret"]) as node:
        yield node


def pages(node: EmbeddedNode, bucket: str = "a/b", password: str = "secret") -> Pages:
    host, _, port = str(node.http).rpartition(":")
    return Pages(
        host, int(port), bucket, user="ada", password=password, tls=None, timeout_s=5.0
    )  # fmt: skip


def test_answers_are_objects(node: EmbeddedNode) -> None:
    found = pages(node).ask("GET", "standings")["standings"]
    assert [one["state"] for one in found] == ["active"] * 4
    content = {"branch": 1, "partitions": [0]}
    assert pages(node).ask("POST", "promises", content)["promised"] == []


@pytest.mark.parametrize(
    ("bucket", "password", "page", "kind", "code"),
    [
        ("a/b", "wrong", "standings", AccessError, "unauthorized"),
        ("none", "secret", "standings", ConditionError, "bucket_not_found"),
        ("a/b", "secret", "promises", UnavailableError, "method_not_allowed"),
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
        pages(node, bucket, password).ask("GET", page)
    assert caught.value.code == code
    assert "127.0.0.1:" in str(caught.value)


def test_a_wrong_request_is_a_wrong_use(node: EmbeddedNode) -> None:
    with pytest.raises(UsageError, match="branch"):
        pages(node).ask("POST", "promises", {"branch": -1})


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", UnavailableError),
        (b"SSH-2.0-x\r\n\r\n", UnavailableError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nab", RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", RemoteProtocolError),
        (b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nab", UnavailableError),
    ],
)
def test_what_is_no_node_is_an_error(answer: bytes, kind: type[MillstreamError]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        one = Pages("127.0.0.1", port, "b", user=None, password="", tls=None, timeout_s=5.0)
        with pytest.raises(kind):
            one.ask("GET", "map")
        thread.join()


def test_nobody_there_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    one = Pages("127.0.0.1", port, "b", user=None, password="", tls=None, timeout_s=5.0)
    with pytest.raises(UnavailableError) as caught:
        one.ask("GET", "map")
    assert caught.value.code == "unreachable"


def test_the_kv_port_tells_where_http_is(node: EmbeddedNode) -> None:
    host, _, port = str(node.kv).rpartition(":")
    with Connection(host, int(port), user="ada", password="secret") as connection:
        assert http_port_of(connection) == int(str(node.http).rpartition(":")[2])
    with Connection(host, int(port)) as connection, pytest.raises(AccessError, match="log-in"):
        http_port_of(connection)
