"""A cluster that runs itself: real nodes are killed, added and removed while clients go on."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from support.budget import budget
from support.cluster.managed_nodes import ManagedNodes, Poller, Writer
from support.node.node_process import NodeProcess
from support.node.waiting import until

ROUNDS = budget(9)
Make = Callable[..., NodeProcess]


@pytest.fixture
def nodes(make_node: Make) -> ManagedNodes:
    return ManagedNodes(make_node).found("n1", "n2", "n3", replicas=2)


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
    # The connection is lost, and what was under way may or may not have been done.
    assert len(writer.errors) <= 2, writer.errors


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


@pytest.mark.slow
def test_random_faults_lose_no_acknowledged_write_and_no_row(make_node: Make) -> None:
    """One node at a time is killed or stopped for a while; views are polled all the time."""
    nodes = ManagedNodes(make_node).found("n1", "n2", "n3", replicas=2)
    random = Random(20261127)
    with Writer(nodes) as writer, Poller(nodes) as poller:
        for _ in range(ROUNDS):
            name = random.choice(["n1", "n2", "n3"])
            before = writer.count
            until(lambda at=before: writer.count > at + 20, lambda: (writer.errors, nodes.logs()))
            if random.random() < 0.5:
                nodes.nodes[name].kill()
                nodes.until_served([one for one in nodes.nodes if one != name])
                nodes.nodes[name].start()
            else:
                with nodes.nodes[name].standing_still():
                    nodes.until_served([one for one in nodes.nodes if one != name])
            nodes.until_all_in()
            nodes.command(nodes.running()[0], "failover", "--reset")
    writer.check(nodes)
    assert poller.short == []
    assert poller.count > 0
