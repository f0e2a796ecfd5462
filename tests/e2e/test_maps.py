"""Buckets shared by two nodes, from outside: maps over HTTP, what clients are told, kills."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import millstream
from millstream.model.partitions import partition_of
from millstream.wire.mcbp import Opcode, Status
from support.kv.nodes_with_map import UUID, activate_first, ask, give_map, map_of, states
from support.kv.raw_client import RawClient
from support.node.node_process import NodeProcess
from support.node.waiting import until

ROWS = [["a", "b"]] * 4 + [["b", "a"]] * 4
Nodes = dict[str, NodeProcess]


@pytest.fixture
def nodes(make_node: Callable[..., NodeProcess]) -> Nodes:
    return {name: make_node("--no-memcached", name=name).start() for name in "ab"}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Two nodes for all tests that neither stop nor kill them."""
    made = {
        name: NodeProcess(tmp_path_factory.mktemp("maps") / name, "--no-memcached")
        for name in "ab"
    }
    with made["a"], made["b"]:
        yield made


@pytest.fixture
def pair(both: Nodes) -> Nodes:
    for node in both.values():
        ask(node, "DELETE", "/buckets/shared")
    return both


def config_of(node: NodeProcess) -> dict[str, Any]:
    with RawClient(node.kv, "shared") as client:
        config: dict[str, Any] = json.loads(client.ask(Opcode.GET_CLUSTER_CONFIG).value)
    return config


def seqnos(node: NodeProcess) -> list[int]:
    _, answer = ask(node, "GET", "/buckets/shared/partitions")
    return [copy["high_seqno"] for copy in answer["partitions"]]


def test_a_bucket_is_shared_by_two_nodes(pair: Nodes) -> None:
    give_map(pair, "shared", ROWS)
    assert states(pair["a"], "shared") == ["absent"] * 4 + ["replica"] * 4
    assert states(pair["b"], "shared") == ["replica"] * 4 + ["absent"] * 4
    activate_first(pair, "shared", ROWS)
    shown = [config_of(node) for node in pair.values()]
    assert [config["vBucketServerMap"]["vBucketMap"] for config in shown] == [
        [[0, 1]] * 4 + [[1, 0]] * 4
    ] * 2
    keys = [b"key-%d" % number for number in range(200)]
    host, port = pair["a"].kv
    with millstream.connect(f"{host}:{port}", bucket="shared") as client:
        for key in keys:
            client.upsert(key, b"of " + key)
        assert [client.get(key).value for key in keys] == [b"of " + key for key in keys]
    accepted = 0
    for name, node in pair.items():
        _, answer = ask(node, "GET", "/buckets/shared/partitions")
        active = [copy for copy in answer["partitions"] if copy["state"] == "active"]
        assert [copy["partition"] for copy in active] == [
            number for number, row in enumerate(ROWS) if row[0] == name
        ]
        assert all(copy["high_seqno"] for copy in active), "writes reached both nodes"
        accepted += sum(copy["high_seqno"] for copy in active)
        assert [copy["places"] for copy in answer["partitions"]] == ROWS
    assert accepted == len(keys)


def test_a_client_goes_on_where_a_node_is_gone(nodes: Nodes) -> None:
    give_map(nodes, "shared", ROWS)
    activate_first(nodes, "shared", ROWS)
    host, port = nodes["a"].kv
    with millstream.connect(f"{host}:{port}", bucket="shared") as client:
        for number in range(20):
            client.upsert(b"%d" % number, b"before")
        newest = map_of(nodes, [["b", "a"]] * 8, revision=2)
        nodes["a"].kill()
        for number in range(4):
            place = f"/buckets/shared/partitions/{number}"
            assert ask(nodes["b"], "PUT", place, {"state": "active"})[0] == 200
        status, _ = ask(nodes["b"], "PUT", "/buckets/shared/map", {**newest, "this": "b"})
        assert status == 200
        for number in range(20):
            client.upsert(b"%d" % number, b"after")
            found = client.get(b"%d" % number)
            assert found is not None
            assert found.value == b"after"


def test_who_asks_the_wrong_node_is_told_of_the_right_one(pair: Nodes) -> None:
    give_map(pair, "shared", ROWS)
    activate_first(pair, "shared", ROWS)
    key = next(b"%d" % n for n in range(100) if partition_of(b"%d" % n, 8) >= 4)
    with RawClient(pair["a"].kv, "shared") as client:
        refused = client.ask(Opcode.GET, vbucket=partition_of(key, 8), key=key)
    assert refused.status == Status.NOT_MY_VBUCKET
    told = json.loads(refused.value)
    server_map = told["vBucketServerMap"]
    owner = server_map["serverList"][server_map["vBucketMap"][partition_of(key, 8)][0]]
    assert owner == "{}:{}".format(*pair["b"].kv)


@pytest.mark.parametrize("end", ["kill", pytest.param("stop", marks=pytest.mark.slow)])
def test_a_map_outlives_the_process(nodes: Nodes, end: str) -> None:
    give_map(nodes, "shared", ROWS)
    activate_first(nodes, "shared", ROWS)
    node = nodes["a"]
    before = ask(node, "GET", "/buckets/shared/map")
    getattr(node, end)()
    node.start()
    assert ask(node, "GET", "/buckets/shared/map") == before
    own = "active" if end == "stop" else "replica"
    assert states(node, "shared") == [own] * 4 + ["replica"] * 4
    assert config_of(node)["revEpoch"] == 2


def test_a_bucket_that_there_is_is_given_a_second_node(nodes: Nodes) -> None:
    a, b = nodes.values()
    status, made = ask(a, "PUT", "/buckets/shared", {"partitions": 8})
    assert status == 201
    with RawClient(a.kv, "shared") as client:
        for number in range(50):
            key = b"%d" % number
            where = partition_of(key, 8)
            assert client.ask(Opcode.SET, vbucket=where, key=key, extras=bytes(8)).status == 0
    before = config_of(a)
    rows = [["a", "b"]] * 8
    give_map(nodes, "shared", rows, uuid=made["uuid"])
    assert states(a, "shared") == ["active"] * 8
    assert states(b, "shared") == ["replica"] * 8
    until(lambda: seqnos(b) == seqnos(a))
    assert sum(seqnos(b)) == 50
    after = config_of(a)
    assert (after["revEpoch"], after["rev"]) > (before["revEpoch"], before["rev"])
    a.kill()
    a.start()
    assert states(a, "shared") == ["replica"] * 8, "another may have taken its place"


def test_maps_that_are_refused(pair: Nodes) -> None:
    give_map(pair, "shared", ROWS, revision=3)
    path, node = "/buckets/shared/map", pair["a"]
    good = {**map_of(pair, ROWS, revision=3), "this": "a"}
    before = ask(node, "GET", path)
    for change, status, code in (
        ({"revision": 2}, 409, "older_map"),
        ({"rows": [["b", "a"]] * 8}, 409, "other_map"),
        ({"this": "b"}, 409, "other_node_name"),
        ({"uuid": "f" * 32}, 409, "other_uuid"),
        ({"uuid": "../x"}, 400, "bad_bucket_uuid"),
        ({"partitions": 4, "rows": ROWS[:4]}, 409, "other_partitions"),
        ({"partitions": 4}, 400, "bad_map_rows"),
        ({"nodes": "a"}, 400, "bad_map_nodes"),
    ):
        got, answer = ask(node, "PUT", path, {**good, **change})
        assert (got, answer["error"]) == (status, code)
    assert ask(node, "PUT", path, good) == before == ask(node, "GET", path)
    assert ask(node, "PUT", "/buckets/other/map", good)[1]["error"] == "uuid_taken"
    assert ask(node, "GET", "/buckets/default/map")[0] == 404


def test_a_bucket_without_its_map_is_not_served_until_it_has_one(nodes: Nodes) -> None:
    give_map(nodes, "shared", ROWS)
    activate_first(nodes, "shared", ROWS)
    node = nodes["a"]
    node.stop()
    (node.data_dir / "buckets" / UUID / "map.json").write_bytes(b"rubbish")
    node.start()
    _, listed = ask(node, "GET", "/buckets/shared")
    assert listed["state"] == "failed"
    assert "map.json" in listed["reason"]
    assert ask(node, "GET", "/buckets/default")[1]["state"] == "ready"
    give_map(nodes, "shared", ROWS, revision=2)
    assert ask(node, "GET", "/buckets/shared")[1]["state"] == "ready"
    assert states(node, "shared") == ["active"] * 4 + ["replica"] * 4


def test_nodes_log_in_to_each_other(make_node: Callable[..., NodeProcess]) -> None:
    secret = "a secret of sixteen letters and more"
    env = {"MILLSTREAM_CLUSTER_SECRET": secret}
    options = ("--no-memcached", "--user", "ada:lovelace")
    nodes = {name: make_node(*options, name=name, env=env).start() for name in "ab"}
    login = ("@node", secret)
    give_map(nodes, "shared", ROWS, login=login)
    activate_first(nodes, "shared", ROWS, login=login)
    assert ask(nodes["a"], "GET", "/buckets/shared/map")[0] == 401
    wrong = ("@node", secret + "!")
    assert ask(nodes["a"], "GET", "/buckets/shared/map", login=wrong)[0] == 401
    host, port = nodes["a"].kv
    with millstream.connect(
        f"{host}:{port}", bucket="shared", user="@node", password=secret
    ) as client:
        for number in range(20):
            client.upsert(b"%d" % number, b"v")
    for node in nodes.values():
        assert secret not in node.log()
        children = [pid for pid in node.pids() if pid != node.pid]
        assert children
        for pid in children:
            with open(f"/proc/{pid}/environ", "rb") as environment:
                assert secret.encode() not in environment.read()
            with open(f"/proc/{pid}/cmdline", "rb") as command:
                assert secret.encode() not in command.read()
    _, users = ask(nodes["a"], "GET", "/users", login=login)
    assert "@node" not in json.dumps(users)
