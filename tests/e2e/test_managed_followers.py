"""Followers of a managed cluster go on while a node dies, returns, and partitions move."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from millstream import connect
from support.cluster.managed_followers import Consuming, Reading, Tailing
from support.cluster.managed_nodes import BUCKET, ManagedNodes, Writer
from support.node.node_process import NodeProcess
from support.node.waiting import until

Make = Callable[..., NodeProcess]


def truth(nodes: ManagedNodes, keys: list[str]) -> dict[str, Any]:
    seeds = [str(nodes.nodes[name].ready["kv"]) for name in nodes.running()]
    with connect(seeds, bucket=BUCKET, timeout_s=30.0) as client:
        return {key: one.value for key, one in client.get_many(keys).items()}


@pytest.mark.slow
def test_readers_consumers_and_tail_outlive_a_fail_over_and_a_rebalance(
    make_node: Make, tmp_path: Path
) -> None:
    nodes = ManagedNodes(make_node).found("n1", "n2", "n3", replicas=2)
    seed = str(nodes.nodes["n2"].ready["kv"])  # the node that dies: the map names the others
    reading, consuming = Reading(seed, tmp_path / "read.db"), Consuming(seed)
    tailing = Tailing(seed, tmp_path / "tail.jsonl")
    followers = (reading, consuming, tailing)
    with ExitStack() as stack:
        with Writer(nodes, keys=100) as writer:
            for follower in followers:
                stack.enter_context(follower)
            until(lambda: all(len(one.state()) > 20 for one in followers), nodes.logs)
            nodes.go_through_changes(writer, writes=20)
        writer.check(nodes)
        expected = truth(nodes, sorted(writer.tried))
        for follower in followers:
            until(
                lambda one=follower: one.check() or one.state() == expected,  # type: ignore[misc]
                lambda one=follower: (type(one).__name__, differences(one.state(), expected)),  # type: ignore[misc]
            )
        assert consuming.losses  # it met the death of the node


def differences(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    return {
        key: (found.get(key), expected.get(key))
        for key in sorted(found.keys() | expected.keys())
        if found.get(key) != expected.get(key)
    }
