"""The pages of a real node as a program asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.client.connection import Connection
from millstream.cluster.pages import Pages, http_port_of
from millstream.errors import AccessError, ConditionError
from millstream.node.embedded import EmbeddedNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    path: Path = tmp_path_factory.mktemp("pages") / "d"
    with EmbeddedNode(path, buckets=["a/b:4"], users=["ada:secret"]) as node:
        yield node


def pages(node: EmbeddedNode, bucket: str = "a/b") -> Pages:
    host, _, port = str(node.http).rpartition(":")
    return Pages(
        host, int(port), bucket, user="ada", password="secret", tls=None, timeout_s=60.0
    )  # fmt: skip


def test_answers_are_objects(node: EmbeddedNode) -> None:
    found = pages(node).ask("GET", "standings")["standings"]
    assert [one["state"] for one in found] == ["active"] * 4
    content = {"branch": 1, "partitions": [0]}
    assert pages(node).ask("POST", "promises", content)["promised"] == []
    with pytest.raises(ConditionError) as caught:
        pages(node, "none").ask("GET", "standings")
    assert caught.value.code == "bucket_not_found"


def test_the_kv_port_tells_where_http_is(node: EmbeddedNode) -> None:
    host, _, port = str(node.kv).rpartition(":")
    with Connection(host, int(port), user="ada", password="secret") as connection:
        assert http_port_of(connection) == int(str(node.http).rpartition(":")[2])
    with Connection(host, int(port)) as connection, pytest.raises(AccessError, match="log-in"):
        http_port_of(connection)
