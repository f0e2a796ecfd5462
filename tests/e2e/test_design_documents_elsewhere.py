"""Design documents of a bucket on two nodes: either answers, wherever they are active."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

import millstream
from millstream.model.partitions import partition_of
from support.http.http_calls import call as ask
from support.kv.nodes_with_map import activate_first, give_map
from support.node.node_process import NodeProcess
from support.node.waiting import until

ROWS = [["a", "b"]] * 4 + [["b", "a"]] * 4
DESIGN = {"views": {"v": {"map": "d => emit(d._id)"}}}
Nodes = dict[str, NodeProcess]


@pytest.fixture
def nodes(make_node: Callable[..., NodeProcess]) -> Nodes:
    nodes = {name: make_node("--no-memcached", name=name).start() for name in "ab"}
    give_map(nodes, "shared", ROWS)
    activate_first(nodes, "shared", ROWS)
    return nodes


def run(node: NodeProcess, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MILLSTREAM_CONNECT": str(node.ready["kv"])}
    return subprocess.run(
        [sys.executable, "-m", "millstream", *words], input=stdin, env=environment,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_commands_find_the_node_and_views_ask_both(nodes: Nodes) -> None:
    assert run(nodes["a"], "put", "shared", "k0", "{}").returncode == 0
    with millstream.connect(str(nodes["a"].ready["kv"]), bucket="shared") as client:
        client.upsert_many({f"k{n}": b"{}" for n in range(1, 20)}).raise_first()
    for name in ("d0", "d1"):  # one for each node
        for asked in nodes.values():  # one of the two does not have it active
            put = run(asked, "put", "shared", f"_design/{name}", stdin=json.dumps(DESIGN))
            assert (put.returncode, put.stderr) == (0, "")
            got = json.loads(run(asked, "get", "shared", f"_design/{name}").stdout)
            assert got["views"] == DESIGN["views"]
    for node in nodes.values():

        def has_all(node: NodeProcess = node) -> bool:  # the other node's copy has to be there
            found = run(node, "view", "shared", "d0/v", "--json")
            return found.returncode == 0 and len(json.loads(found.stdout)["rows"]) == 20

        until(has_all)
        shown = run(node, "view", "shared", "d0/v", "--include-docs", "--json")
        assert all(row["doc"]["_id"] == row["id"] for row in json.loads(shown.stdout)["rows"])


def test_either_node_is_asked_and_copies_are_listed(nodes: Nodes) -> None:
    at = {"a": "", "b": ""}
    for number in range(40):  # a name for each node
        name = f"d{number}"
        at[ROWS[partition_of(f"_design/{name}".encode(), 8)][0]] = name
    for here, there in (("a", "b"), ("b", "a")):
        path = f"/shared/_design/{at[here]}"
        assert ask(nodes[there], "GET", path)[0] == 404
        status, made = ask(nodes[there], "PUT", path, DESIGN)
        assert status == 201
        for node in nodes.values():
            assert ask(node, "GET", path)[1]["_rev"] == made["rev"]
        assert ask(nodes[there], "PUT", path, DESIGN)[0] == 409
    wanted = sorted(f"_design/{name}" for name in at.values())

    def listed(node: NodeProcess) -> list[str]:
        return [row["id"] for row in ask(node, "GET", "/shared/_design_docs")[1]["rows"]]

    for node in nodes.values():
        until(lambda node=node: listed(node) == wanted)  # copies follow
