"""States and rollback of partitions from outside: wire, HTTP, clients, kills and restarts."""

from __future__ import annotations

import json
from typing import Any

import pytest

import millstream
from millstream.errors import RoutingError
from millstream.model.partitions import partition_of
from millstream.wire.mcbp import Opcode, Packet, Status
from support.http import http_calls
from support.kv.raw_client import RawClient
from support.node.node_process import NodeProcess

ACTIVE, REPLICA, PENDING, DEAD = b"\1", b"\2", b"\3", b"\4"
DURABLE = b"\x11\3"
KEY = b"k"


def call(node: NodeProcess, method: str, path: str, content: Any = None) -> tuple[int, Any]:
    return http_calls.call(f"{node.http}/_millstream/buckets/default", method, path, content)


def put(client: RawClient, key: bytes, value: bytes, *, framing: bytes = b"") -> Packet:
    partition_id = partition_of(key, 8)
    return client.ask(
        Opcode.SET, vbucket=partition_id, key=key, value=value, extras=bytes(8), framing=framing
    )


def get(client: RawClient, key: bytes) -> Packet:
    return client.ask(Opcode.GET, vbucket=partition_of(key, 8), key=key)


def owners(packet: Packet) -> list[int]:
    return [row[0] for row in json.loads(packet.value)["vBucketServerMap"]["vBucketMap"]]


@pytest.fixture
def node(make_node: Any) -> NodeProcess:
    return make_node("--bucket", "default:8").start()


def test_a_copy_that_stood_down_stays_so(node: NodeProcess) -> None:
    mine = partition_of(KEY, 8)
    with RawClient(node.kv, "default") as client:
        assert put(client, KEY, b"v").status == 0
        before = json.loads(client.ask(Opcode.GET_CLUSTER_CONFIG).value)["rev"]
        assert client.ask(Opcode.SET_VBUCKET_STATE, vbucket=mine, extras=DEAD).status == 0
        refused = get(client, KEY)
        assert (refused.status, owners(refused)[mine]) == (Status.NOT_MY_VBUCKET, -1)
        assert json.loads(refused.value)["rev"] > before
        assert put(client, KEY, b"w").status == Status.NOT_MY_VBUCKET
        assert client.ask(Opcode.GET_VBUCKET, vbucket=mine).value == b"\0\0\0\4"
    for end in (node.kill, node.stop):
        end()
        node.start()
        with RawClient(node.kv, "default") as client:
            assert get(client, KEY).status == Status.NOT_MY_VBUCKET
    with RawClient(node.kv, "default") as client:
        log = client.ask(Opcode.GET_FAILOVER_LOG, vbucket=mine).value
        assert client.ask(Opcode.SET_VBUCKET_STATE, vbucket=mine, extras=ACTIVE).status == 0
        assert client.ask(Opcode.GET_FAILOVER_LOG, vbucket=mine).value[16:] == log
        assert get(client, KEY).value == b"v"


def test_clients_wait_for_an_owner_and_find_one(node: NodeProcess) -> None:
    mine = partition_of(KEY, 8)
    with millstream.connect(f"127.0.0.1:{node.kv[1]}", bucket="default") as client:
        wait_and_find(node, client, mine)


def wait_and_find(node: NodeProcess, client: millstream.Client, mine: int) -> None:
    client.upsert(KEY, b"1")
    assert call(node, "PUT", f"/partitions/{mine}", {"state": "replica"})[0] == 200
    with pytest.raises(RoutingError, match="no node serves partition"):
        client.upsert(KEY, b"2")
    assert call(node, "PUT", f"/partitions/{mine}", {"state": "active"})[0] == 200
    client.upsert(KEY, b"3")
    found = client.get(KEY)
    assert found is not None
    assert found.value == b"3"


def test_a_partition_is_deleted_and_made_anew(node: NodeProcess) -> None:
    mine = partition_of(KEY, 8)
    with RawClient(node.kv, "default") as client:
        put(client, KEY, b"v")
        assert client.ask(Opcode.DEL_VBUCKET, vbucket=mine).status == Status.EINVAL
        client.ask(Opcode.SET_VBUCKET_STATE, vbucket=mine, extras=DEAD)
        assert client.ask(Opcode.DEL_VBUCKET, vbucket=mine, value=b"async=0").status == 0
        assert client.ask(Opcode.GET_VBUCKET, vbucket=mine).status == Status.NOT_MY_VBUCKET
        assert client.ask(Opcode.SET_VBUCKET_STATE, vbucket=mine, extras=ACTIVE).status == 0
        assert get(client, KEY).status == Status.KEY_ENOENT
        assert put(client, KEY, b"new").status == 0


def test_a_partition_is_rolled_back(node: NodeProcess) -> None:
    mine = partition_of(KEY, 8)
    with RawClient(node.kv, "default") as client:
        assert put(client, KEY, b"1", framing=DURABLE).status == 0
        assert put(client, KEY, b"2", framing=DURABLE).status == 0
        put(client, KEY, b"3")
        status, shown = call(node, "POST", f"/partitions/{mine}/rollback", {"seqno": 1})
        assert (status, shown["high_seqno"], shown["state"]) == (200, 1, "active")
        assert len(shown["failover_log"]) == 2
        assert get(client, KEY).value == b"1"
        assert put(client, KEY, b"4", framing=DURABLE).status == 0
    node.kill()
    node.start()
    with RawClient(node.kv, "default") as client:
        assert get(client, KEY).value == b"4"
    status, shown = call(node, "GET", f"/partitions/{mine}")
    assert (shown["high_seqno"], shown["persisted_seqno"]) == (2, 2)
    assert [entry["seqno"] for entry in shown["failover_log"]] == [2, 1, 0]
    assert call(node, "POST", f"/partitions/{mine}/rollback", {"seqno": 0})[1]["high_seqno"] == 0
    assert call(node, "PUT", f"/partitions/{mine}", {"state": "absent"})[0] == 409
