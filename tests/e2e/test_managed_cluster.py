"""A cluster that runs itself: real nodes are killed, added and removed while clients go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.cluster.managed_nodes import ManagedNodes, Writer
from support.node.node_process import NodeProcess
from support.node.waiting import until

Make = Callable[..., NodeProcess]


@pytest.fixture
def nodes(make_node: Make) -> ManagedNodes:
    return ManagedNodes(make_node).found("n1", "n2", "n3")


def test_a_killed_node_is_failed_over_and_is_a_member_again_when_it_returns(
    nodes: ManagedNodes,
) -> None:
    with Writer(nodes) as writer:
        until(lambda: writer.count > 20, lambda: writer.errors)
        nodes.nodes["n2"].kill()
        nodes.until_served(["n1", "n3"])
        before = writer.count
        until(lambda: writer.count > before + 20, lambda: (writer.errors, nodes.logs()))
        nodes.nodes["n2"].start()
        nodes.until_whole("n1")
        until(lambda: nodes.state_of("n2", "n1") == "in", nodes.logs)
    writer.check(nodes)
    assert writer.errors == []


def test_nodes_are_added_and_removed_while_a_client_writes(nodes: ManagedNodes) -> None:
    with Writer(nodes) as writer:
        nodes.join("n4", "n1")
        nodes.command("n1", "rebalance", "--wait")
        nodes.until_whole("n1")
        assert any("n4" in at for at in nodes.actives().values())
        nodes.command("n1", "remove", "n1")
        until(lambda: nodes.state_of("n1", "n2") == "out", nodes.logs)
        nodes.nodes["n1"].kill()
        before = writer.count
        until(lambda: writer.count > before + 20, lambda: (writer.errors, nodes.logs()))
    writer.check(nodes)
    assert writer.errors == []
    assert all("n1" not in at for at in nodes.actives().values())
