"""Keys by command, on a real node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.cli import keys
from millstream.node.embedded import EmbeddedNode

ODD = ["a b", "é", "k/1", "z%2", r"\x41", "li\nne"]
KEYS = sorted([*ODD, *(f"k{number}" for number in range(23))], key=str.encode)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    path: Path = tmp_path_factory.mktemp("keys") / "d"
    with EmbeddedNode(path, buckets=["b:4", "empty:4"]) as node:
        with millstream.connect(str(node.kv), bucket="b") as client:
            for key in KEYS:
                client.upsert(key, {})
            client.upsert("gone", {})
            client.remove("gone")
        yield node


@pytest.fixture
def run(node: EmbeddedNode, call: Any) -> Any:
    return lambda *words: call("keys", *words, "--connect", str(node.kv))


@pytest.mark.parametrize("page_rows", [1, 2, 7, 29, 1000])
def test_all_keys_come_once_in_the_order_of_their_bytes(
    run: Any, monkeypatch: pytest.MonkeyPatch, page_rows: int
) -> None:
    monkeypatch.setattr(keys, "PAGE_ROWS", page_rows)
    assert [json.loads(line) for line in run("b", "--json").out.splitlines()] == KEYS
    assert len(run("b").out.splitlines()) == len(KEYS)
    wanted = [key for key in KEYS if key.startswith("k1")]
    assert run("b", "--prefix", "k1").out.decode().split() == wanted
    assert run("b", "--prefix", "k1", "--limit", "3").out.decode().split() == wanted[:3]
    assert run("b", "--prefix", "nothing").out == b""
    assert run("empty").out == b""


def test_a_key_is_printed_as_other_commands_take_it(
    run: Any, call: Any, node: EmbeddedNode
) -> None:
    lines = run("b").out.decode().splitlines()
    assert "\\x" + b"li\nne".hex() in lines
    for line in lines:
        assert call("get", "b", line, "--connect", str(node.kv)).code == 0, line


def test_what_the_node_refuses_is_one_line(run: Any) -> None:
    for words in [("none",), ("b", "--prefix", "\udcff")]:
        outcome = run(*words)
        assert outcome.code in (1, 2)
        assert outcome.err.count("\n") == 1
