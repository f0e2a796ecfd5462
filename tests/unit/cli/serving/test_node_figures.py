"""Figures of a real node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream
from millstream.cli.connect import Who
from millstream.cli.serving.node_figures import NodeFigures
from millstream.errors import AccessError
from millstream.node.embedded import EmbeddedNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    path: Path = tmp_path_factory.mktemp("figures") / "d"
    with EmbeddedNode(path, buckets=["a:4", "b:4"], users=["ada:secret"]) as node:
        yield node


def test_figures_are_read_again_and_again_also_after_the_connection_was_lost(
    node: EmbeddedNode,
) -> None:
    with NodeFigures(str(node.kv), Who("ada", "secret"), None) as figures:
        found = figures.read()
        assert [bucket["name"] for bucket in found["buckets"]] == ["a", "b"]
        assert found["connect"] == str(node.kv)
        with millstream.connect(str(node.kv), bucket="b", user="ada", password="secret") as client:
            client.upsert("k", {})
        for _ in range(2):
            found = figures.read()
            _, second = found["buckets"]
            assert second["figures"]["changes_high"] == 1
            assert "uptime" not in second["figures"]
            assert "changes_high" not in found
            figures._connection.close()


def test_a_node_with_users_shows_its_figures_to_them_only(node: EmbeddedNode) -> None:
    with (
        NodeFigures(str(node.kv), Who(None, ""), None) as figures,
        pytest.raises(AccessError, match="--user"),
    ):
        figures.read()
