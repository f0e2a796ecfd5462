"""`millstream cluster promote` over false nodes: what it prints, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from millstream.cli.serving import cluster_promote
from millstream.model.bucket_map import bucket_map_to_json
from millstream.node.embedded import EmbeddedNode
from support.node.false_nodes import UUID, FalseNodes

ROWS = (("a", "b", "c"),) * 3 + (("b", "c", "a"),)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> FalseNodes:
    made = FalseNodes(ROWS, {name: [5, 5, 5, 5] for name in "abc"})
    content = bucket_map_to_json(made.map) | {"uuid": UUID}
    monkeypatch.setattr(cluster_promote, "_map_of", lambda *_: content)
    monkeypatch.setattr(cluster_promote, "_pages", lambda node, **_: made.open_pages(node))
    monkeypatch.setattr(cluster_promote, "PAUSE_S", 0.0)
    return made


def test_what_was_done_is_shown(nodes: FalseNodes, call: Callable[..., Any]) -> None:
    nodes.down("a")
    ended = call("cluster", "promote", "orders")
    lines = ended.out.decode().splitlines()
    assert (ended.code, ended.err, lines[0]) == (0, "", "bucket orders, map 4")
    assert [line.split() for line in lines if "promoted" in line] == [
        ["0-2", "a", "b", "promoted"]
    ]
    assert [line.split() for line in lines if "served" in line] == [["3", "b", "b", "served"]]
    assert "! a took no part: a does not answer" in lines


def test_the_same_as_json(nodes: FalseNodes, call: Callable[..., Any]) -> None:
    nodes.down("a")
    ended = call("cluster", "promote", "orders", "--partition", "1", "--json")
    found = json.loads(ended.out)
    assert (ended.code, found["bucket"], found["revision"]) == (0, "orders", 4)
    assert found["silent"] == {"a": "a does not answer"}
    one = found["partitions"][0]
    assert one.pop("branch") > 2**52
    assert found["partitions"] == [one]
    assert one == {
        "partition": 1,
        "what": "promoted",
        "was": "a",
        "now": "b",
        "seqno": 5,
        "at_risk": [],
        "reason": "",
    }


def test_what_needs_force_says_so_and_fails(nodes: FalseNodes, call: Callable[..., Any]) -> None:
    nodes.down("a", "b")
    ended = call("cluster", "promote", "orders")
    assert ended.code == 1
    assert "4 of 4 partitions were not promoted: 1 of 3 copies answered" in ended.err
    assert "majority, persisted" in " ".join(ended.out.decode().split())
    ended = call("cluster", "promote", "orders", "--force")
    assert ended.code == 0
    assert "majority, persisted" in " ".join(ended.out.decode().split())


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--to", "x"), "the map has no node 'x', only a, b, c"),
        (("--partition", "4"), "there is no partition 4, only 0 to 3"),
    ],
)
def test_what_the_map_does_not_know_is_a_wrong_use(
    nodes: FalseNodes, call: Callable[..., Any], words: tuple[str, ...], reason: str
) -> None:
    ended = call("cluster", "promote", "orders", *words)
    assert (ended.code, ended.err) == (2, f"millstream: {reason}\n")
    assert nodes.calls == []


def test_another_node_is_wanted_where_it_has_a_place(
    nodes: FalseNodes, call: Callable[..., Any]
) -> None:
    assert call("cluster", "promote", "orders", "--to", "c").code == 0
    assert nodes.nodes["c"].states == ["active"] * 4
    ended = call("cluster", "promote", "orders", "--to", "c", "--json")
    assert {one["what"] for one in json.loads(ended.out)["partitions"]} == {"served"}


def test_a_node_that_is_alone_with_its_bucket_has_nothing_to_promote(
    tmp_path: Any, call: Callable[..., Any]
) -> None:
    with EmbeddedNode(tmp_path / "d", buckets=["orders:4"]) as node:
        address = str(node.kv)
        ended = call("cluster", "promote", "orders", "--connect", address)
        assert (ended.code, "alone with it" in ended.err) == (1, True)
        ended = call("cluster", "promote", "none", "--connect", address)
        assert (ended.code, "no bucket 'none'" in ended.err) == (1, True)
