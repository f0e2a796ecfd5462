"""`millstream cluster recover`: coordination is lost for good, and the survivors keep the data."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from millstream import connect
from support.cluster.managed_nodes import ManagedNodes, Writer, run
from support.node.authorities import Authority
from support.node.node_process import NodeProcess
from support.node.waiting import until

Make = Callable[..., NodeProcess]


def copied(nodes: ManagedNodes) -> bool:
    """Return whether all copies of every partition are equally far."""
    told = [nodes.standings(name) for name in nodes.running()]
    ends = [{one["partition"]: one["complete_end"] for one in standings} for standings in told]
    return all(one == ends[0] for one in ends)


def lose(nodes: ManagedNodes, *names: str) -> None:
    for name in names:
        nodes.nodes[name].kill()
        shutil.rmtree(nodes.nodes[name].data_dir)


@pytest.mark.slow
def test_the_survivor_of_three_keeps_every_majority_write_and_two_new_nodes_join_it(
    make_node: Make,
) -> None:
    nodes = ManagedNodes(make_node).found("n1", "n2", "n3", replicas=2)
    nodes.command("n1", "recover", "--yes", code=1)  # not_lost: the cluster runs
    with Writer(nodes) as writer:
        until(lambda: writer.count > 100, lambda: writer.errors)
    until(lambda: copied(nodes))
    generation = nodes.status("n1")["cluster"]["generation"]
    lose(nodes, "n2", "n3")
    nodes.command("n1", "recover", "--yes", code=1)  # node_failed: they are not given up
    wanted = ("recover", "--without", "n2", "--without", "n3")
    told = nodes.command("n1", *wanted, code=2)
    assert not told["is_done"]
    assert [one["name"] for one in told["nodes"] if one["is_given_up"]] == ["n2", "n3"]
    assert any("majority" in text for text in told["may_be_lost"])
    told = nodes.command("n1", *wanted, "--yes")
    assert told["is_done"]
    assert told["generation"] > generation
    nodes.until_served(["n1"])
    for name in ("n4", "n5"):
        nodes.join(name, "n1")
    nodes.command("n1", "rebalance", "--wait")
    nodes.until_whole("n1")
    until(lambda: {nodes.state_of(name, "n1") for name in ("n2", "n3")} == {"out"}, nodes.logs)
    until(lambda: nodes.may_fail("n1") == 1, nodes.logs)
    writer.check(nodes)
    with Writer(nodes) as later:
        until(lambda: later.count > 20, lambda: (later.errors, nodes.logs()))
    later.check(nodes)


@pytest.mark.slow
def test_a_cluster_with_users_and_tls_is_recovered_with_its_users(
    make_node: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Authority(tmp_path, "ours")
    files = ("--tls-cert", str(ours.issue("node")), "--tls-ca", str(ours.file))
    secret = {"MILLSTREAM_CLUSTER_SECRET": "a secret of the cluster"}
    make = partial(make_node, *files, "--user", "ada:secret", env=secret)
    for name, value in (("USER", "ada"), ("PASSWORD", "secret"), ("TLS_CA", str(ours.file))):
        monkeypatch.setenv(f"MILLSTREAM_{name}", value)
    tls = ssl.create_default_context(cafile=str(ours.file))
    nodes = ManagedNodes(make, login=("ada", "secret"), tls=tls)
    nodes.start("n1")
    password = tmp_path / "password"
    password.write_text("of bob")
    at = str(nodes.nodes["n1"].ready["kv"])
    added = run(
        "user", "add", "bob", "--role", "read:default", "--new-password-file", str(password),
        "--connect", at,
    )  # fmt: skip
    assert added.returncode == 0, added.stderr
    nodes.command("n1", "init", "--name", "test")
    for name in ("n2", "n3"):
        nodes.join(name, "n1")
    nodes.bucket("n1", "set", "default", "--replicas", "2")
    nodes.command("n1", "rebalance", "--wait")
    nodes.until_whole("n1")
    until(lambda: nodes.may_fail("n1") == 1, nodes.logs)
    keys = [f"k{number}" for number in range(40)]
    options = {"bucket": "default", "user": "ada", "password": "secret", "tls": tls}
    with connect([at], **options) as client:
        for key in keys:
            client.upsert(key, {"n": key}, durability="majority")
    lose(nodes, "n2", "n3")
    told = nodes.command("n1", "recover", "--without", "n2", "--without", "n3", "--yes")
    assert told["is_done"]
    nodes.until_served(["n1"])
    nodes.join("n4", "n1")
    nodes.command("n1", "rebalance", "--wait")
    for name in ("n1", "n4"):
        until(
            lambda name=name: nodes.ask(name, "/default", ("bob", "of bob"))[0] == 200, nodes.logs
        )
        assert nodes.ask(name, "/default", ("bob", "another"))[0] == 401
    with connect([str(nodes.nodes["n4"].ready["kv"])], **options) as client:
        assert [client.get(key).value for key in keys] == [{"n": key} for key in keys]


@pytest.mark.slow
def test_data_nodes_rebuild_a_cluster_whose_only_coordinator_is_lost(make_node: Make) -> None:
    nodes = ManagedNodes(make_node).found("n1", "n2", "n3", replicas=2, coordinators=1)
    with Writer(nodes) as writer:
        until(lambda: writer.count > 50, lambda: writer.errors)
        lose(nodes, "n1")
        wanted = ("recover", "--without", "n1")
        until(lambda: nodes.status("n2") == {})
        nodes.command("n2", *wanted, "--yes", code=1)  # no_state: only with --from-nodes
        told = nodes.command("n2", *wanted, "--from-nodes", "--yes")
        assert told["is_done"]
        assert not any("majority" in text for text in told["may_be_lost"])
        nodes.until_served(["n2", "n3"])
        before = writer.count
        until(lambda: writer.count > before + 20, lambda: (writer.errors, nodes.logs()))
        nodes.nodes["n3"].kill()  # it finds the new pool again
        nodes.nodes["n3"].start()
        until(lambda: nodes.state_of("n3", "n2") == "in", nodes.logs)
        nodes.join("n4", "n2")
        nodes.command("n2", "rebalance", "--wait")
        nodes.until_whole("n2")
        until(lambda: nodes.state_of("n1", "n2") == "out", nodes.logs)
    writer.check(nodes)
