"""Keys by command, on a real node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.cli import keys
from millstream.model.partitions import key_from_text, text_of_key
from millstream.node.embedded import EmbeddedNode

ODD = [b"a b", "é".encode(), b"k/1", b"z%2", rb"\x41", b"li\nne", b"_x", b"_states/y", b"\xff",
       b"\xff" * 250, b"\x00\xfe", b"\xc3", b"k\xff", "\u2028".encode()]  # fmt: skip
KEYS = sorted([*ODD, *(b"k%d" % number for number in range(23))])
TEXTS = [text_of_key(key) for key in KEYS]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    path: Path = tmp_path_factory.mktemp("keys") / "d"
    with EmbeddedNode(path, buckets=["b:4", "empty:4"]) as node:
        with millstream.connect(str(node.kv), bucket="b") as client:
            for key in KEYS:
                client.upsert(key, {"key": text_of_key(key)})
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
    assert [json.loads(line) for line in run("b", "--json").out.splitlines()] == TEXTS
    assert len(run("b").out.splitlines()) == len(KEYS)
    wanted = [key for key in TEXTS if key.startswith("k1")]
    assert run("b", "--prefix", "k1").out.decode().split() == wanted
    assert run("b", "--prefix", "k1", "--limit", "3").out.decode().split() == wanted[:3]
    assert run("b", "--prefix", "nothing").out == b""
    assert run("b", "--prefix", r"\xff").out.decode().split() == [r"\xff", r"\x" + "ff" * 250]
    assert run("empty").out == b""


def test_a_key_is_printed_as_other_commands_take_it(
    run: Any, call: Any, node: EmbeddedNode
) -> None:
    lines = run("b").out.decode().splitlines()
    assert "\\x" + b"li\nne".hex() in lines
    assert [key_from_text(line) for line in lines] == KEYS
    for line, text in zip(lines, TEXTS, strict=True):
        got = call("get", "b", line, "--connect", str(node.kv))
        assert json.loads(got.out) == {"key": text}
        assert run("b", "--prefix", line, "--limit", "1").out.decode() == f"{line}\n"


def test_a_listed_key_can_be_deleted(run: Any, call: Any, node: EmbeddedNode) -> None:
    where = ("--connect", str(node.kv))
    for key in (r"\xfe", "_k"):
        assert call("put", "empty", key, "{}", *where).code == 0
    assert run("empty").out.decode().split() == ["_k", r"\xfe"]
    for key in (r"\xfe", "_k"):
        assert call("delete", "empty", key, *where).code == 0
    assert run("empty").out == b""


def test_what_the_node_refuses_is_one_line(run: Any) -> None:
    for words in [("none",), ("b", "--prefix", "\udcff")]:
        outcome = run(*words)
        assert outcome.code in (1, 2)
        assert outcome.err.count("\n") == 1
