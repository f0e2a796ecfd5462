"""Buckets by command, on a real node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.node.embedded import EmbeddedNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    path: Path = tmp_path_factory.mktemp("buckets") / "d"
    with EmbeddedNode(path, buckets=["b:4"]) as node:
        yield node


@pytest.fixture
def run(node: EmbeddedNode, call: Any) -> Any:
    def run(*words: str, **options: Any) -> Any:
        return call("bucket", *words, "--connect", str(node.kv), **options)

    return run


def test_a_bucket_is_made_listed_shown_and_dropped(run: Any) -> None:
    assert run("create", "new", "--partitions", "8").code == 0
    assert run("list").out.decode().split() == ["b", "new"]
    assert json.loads(run("info", "new", "--json").out)["partitions"] == 8
    assert "ready" in run("info", "new").out.decode()
    assert run("drop", "new", "--yes").code == 0
    assert run("list").out.decode().split() == ["b"]


def test_a_bucket_is_dropped_only_if_that_is_confirmed(run: Any) -> None:
    outcome = run("drop", "b")
    assert outcome.code == 2
    assert "--yes" in outcome.err
    assert run("list").out.decode().split() == ["b"]


@pytest.mark.parametrize(
    "words", [("info", "none"), ("drop", "none", "--yes"), ("create", "b"), ("create", "a/b c")]
)
def test_what_the_node_refuses_is_one_line(run: Any, words: tuple[str, ...]) -> None:
    outcome = run(*words)
    assert outcome.code in (1, 2)
    assert outcome.err.count("\n") == 1
