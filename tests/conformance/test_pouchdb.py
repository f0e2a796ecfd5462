"""PouchDB, as others wrote it, with a node: it pushes, pulls and stays in step."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from support.kv.nodes_with_map import activate_first, give_map
from support.node.node_process import NodeProcess, kept_ports
from support.node.npm_peers import FOLDER, node_program
from support.node.token_issuer import RULES, claims, jwks, token

SECONDS_MAX = 120


@pytest.fixture(scope="module")
def open_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node without users, as a program of one's own machine meets it."""
    with NodeProcess(tmp_path_factory.mktemp("pouchdb") / "node") as running:
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="module")
def guarded_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with an administrator, that takes tokens, too."""
    folder = tmp_path_factory.mktemp("pouchdb-users")
    (folder / "keys.json").write_bytes(jwks())
    options = (
        "--user", "ada:secret", "--bucket", "bearer:4", "--oidc-issuer", RULES.issuer,
        "--oidc-audience", RULES.audience, "--oidc-jwks", str(folder / "keys.json"),
    )  # fmt: skip
    with NodeProcess(folder / "node", *options) as running:
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, NodeProcess]]:
    """Nodes that share what buckets they are given."""
    folder = tmp_path_factory.mktemp("pouchdb-nodes")
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(NodeProcess(folder / name, "--no-memcached", *kept_ports()))
            for name in "ab"
        }


def play(node: NodeProcess, scene: str, *more: str) -> Any:
    """Play a scene against a database of its own."""
    done = subprocess.run(
        [node_program(), str(Path("pouchdb.js")), scene, f"{node.http}/{scene}", *more],
        capture_output=True, cwd=FOLDER, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_it_pushes_everything_it_has(open_node: NodeProcess) -> None:
    seen = play(open_node, "push")
    assert seen["first"]["ok"]
    assert seen["first"]["failures"] == seen["first"]["denied"] == 0
    assert seen["first"]["written"] >= 62
    assert seen["again"]["written"] == 0
    assert seen["same"]


def test_it_pulls_everything_there_is(open_node: NodeProcess) -> None:
    seen = play(open_node, "pull")
    assert seen["first"]["written"] >= 42
    assert seen["again"]["written"] == 0
    assert seen["more"]["written"] == 1
    assert seen["same"]


def test_two_of_them_stay_in_step(open_node: NodeProcess) -> None:
    assert play(open_node, "live") == {"same": True}


@pytest.mark.parametrize("scene", ["push", "pull", "live"])
def test_any_node_will_do(two_nodes: dict[str, NodeProcess], scene: str) -> None:
    rows = [["a"], ["b"], ["a"], ["b"]]
    give_map(two_nodes, scene, rows, uuid=uuid4().hex)
    activate_first(two_nodes, scene, rows)
    seen = play(two_nodes["a"], scene, f"{two_nodes['b'].http}/{scene}")
    assert seen["same"]


def test_it_pulls_a_part(open_node: NodeProcess) -> None:
    seen = play(open_node, "filtered")
    assert seen == {"named": ["d3", "d7"], "chosen": ["d1", "d3", "d5", "d7", "d9"]}


def test_it_sees_conflicts(open_node: NodeProcess) -> None:
    seen = play(open_node, "conflicts")
    assert seen == {"refused": 409, "winner": "2-y", "conflicts": ["2-x"], "left": []}


def test_it_keeps_attachments(open_node: NodeProcess) -> None:
    seen = play(open_node, "attachments")
    assert seen["data"] == ["Zmlyc3Q=", "c2Vjb25k"]
    assert all(digest.startswith("md5-") for digest in seen["digests"])
    assert seen["left"] == ["y"]


def test_it_makes_and_changes_users(guarded_node: NodeProcess) -> None:
    assert play(guarded_node, "users") == {
        "roles": ["staff"], "shown": ["_id", "_rev", "name", "roles", "type"],
        "old_password": 401, "other": 404, "roles_refused": 403, "stale": 409,
        "all": ["org.couchdb.user:ada", "org.couchdb.user:bob"], "gone": 404, "then": 401,
    }  # fmt: skip


def test_it_replicates_by_a_token(guarded_node: NodeProcess) -> None:
    said = claims(exp=time.time_ns() / 1e9 + 600, groups=["read:bearer", "write:bearer"])
    seen = play(guarded_node, "bearer", token(said).decode())
    assert seen["first"]["ok"]
    assert seen["first"]["denied"] == 0
    assert seen["again"]["written"] >= 12
    assert seen["same"]
