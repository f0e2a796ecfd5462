"""Partitions move to another node by take-over streams: under writes, and with kills."""

from __future__ import annotations

import contextlib
import http.client
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from millstream.model.limits import PARTITIONS_DEFAULT
from millstream.model.partitions import partition_of
from millstream.model.position import Position
from millstream.upr.core.messages import StreamRequest, encode_stream_request
from millstream.wire import mcbp
from millstream.wire.mcbp import (
    RESPONSE,
    Opcode,
    OpenFlag,
    Packet,
    Status,
    StreamFlag,
    request,
)
from support.kv.nodes_with_map import activate_first, ask, give_map, states
from support.kv.raw_client import Closed, RawClient
from support.node.node_process import NodeProcess
from support.node.waiting import WAIT_S, until

PARTITIONS = 4
ROWS = [["a", "b"]] * PARTITIONS
RETRY = (Status.NOT_MY_VBUCKET, Status.ETMPFAIL)
WRITERS = 2
KILL_AFTER_MS = (3, 8, 14, 22)
Nodes = dict[str, NodeProcess]


@pytest.fixture
def nodes(make_node: Callable[..., NodeProcess]) -> Nodes:
    made = {name: make_node("--no-memcached", name=name).start() for name in "ab"}
    give_map(made, "shared", ROWS)
    activate_first(made, "shared", ROWS)
    return made


def copies(node: NodeProcess, bucket: str = "shared") -> list[dict[str, Any]]:
    _, answer = ask(node, "GET", f"/buckets/{bucket}/partitions")
    found: list[dict[str, Any]] = answer["partitions"]
    return found


def take_over(node: NodeProcess, partition: int, bucket: str = "shared") -> tuple[int, Any]:
    asked = {"state": "active", "take_over": True}
    return ask(node, "PUT", f"/buckets/{bucket}/partitions/{partition}", asked)


def follows(nodes: Nodes, bucket: str = "shared") -> bool:
    """Whether the copies at b have, on disk, what is at a."""
    ends = [(one["high_seqno"], one["persisted_seqno"]) for one in copies(nodes["a"], bucket)]
    there = [(one["high_seqno"], one["persisted_seqno"]) for one in copies(nodes["b"], bucket)]
    return ends == there and all(high == persisted for high, persisted in ends)


class Writer(threading.Thread):
    """Writes keys of its own, one after the other; asks the other node when refused."""

    def __init__(self, nodes: Nodes, name: str) -> None:
        super().__init__(daemon=True)
        self.prefix, self.accepted = name, 0
        self.ended = threading.Event()
        self.nodes = nodes

    def key(self, number: int) -> bytes:
        return f"{self.prefix}{number}".encode()

    def run(self) -> None:
        clients = [RawClient(node.kv, "shared") for node in self.nodes.values()]
        at = 0
        try:
            while not self.ended.is_set():
                key = self.key(self.accepted)
                where = partition_of(key, PARTITIONS)
                value = b"%d" % self.accepted
                answer = clients[at].ask(
                    Opcode.SET, vbucket=where, key=key, extras=bytes(8), value=value
                )
                if answer.status in RETRY:
                    at = 1 - at
                    continue
                assert answer.status == Status.SUCCESS
                self.accepted += 1
        finally:
            for client in clients:
                client.close()


def test_partitions_move_while_clients_write_and_nothing_is_lost(nodes: Nodes) -> None:
    writers = [Writer(nodes, f"w{number}-") for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    until(lambda: all(writer.accepted > 200 for writer in writers))
    logs = [copy["failover_log"] for copy in copies(nodes["a"])]
    positions = [copy["high_seqno"] for copy in copies(nodes["a"])]
    for partition in range(PARTITIONS):
        status, shown = take_over(nodes["b"], partition)
        assert (status, shown["state"]) == (200, "active")
        assert shown["failover_log"] == logs[partition], "the same history goes on"
    before = [writer.accepted for writer in writers]
    until(lambda: all(w.accepted > count + 50 for w, count in zip(writers, before, strict=True)))
    for writer in writers:
        writer.ended.set()
        writer.join()
    assert states(nodes["a"], "shared") == ["dead"] * PARTITIONS
    with RawClient(nodes["b"].kv, "shared") as client:
        for writer in writers:
            for number in range(writer.accepted):
                key = writer.key(number)
                found = client.ask(Opcode.GET, vbucket=partition_of(key, PARTITIONS), key=key)
                assert (found.status, found.value) == (Status.SUCCESS, b"%d" % number)
    check_readers_go_on(nodes["b"], logs, positions)


def check_readers_go_on(
    node: NodeProcess, logs: list[list[dict[str, Any]]], positions: list[int]
) -> None:
    """A reader that stood at the old copy is not told to roll back by the new one."""
    with RawClient(node.kv, "shared") as client:
        extras = bytes(4) + int(OpenFlag.PRODUCER).to_bytes(4, "big")
        assert client.ask(Opcode.DCP_OPEN, extras=extras, key=b"reader").status == 0
        for partition, (log, seqno) in enumerate(zip(logs, positions, strict=True)):
            at = Position(int(log[0]["uuid"], 16), seqno, seqno, seqno)
            client.send(encode_stream_request(StreamRequest(partition, at), 1000 + partition))
            answer = client.receive()
            while answer.opcode != Opcode.DCP_STREAM_REQ:
                answer = client.receive()
            assert answer.status == Status.SUCCESS


def test_a_partition_moves_there_and_back(nodes: Nodes) -> None:
    until(lambda: follows(nodes))
    log = copies(nodes["a"])[0]["failover_log"]
    assert take_over(nodes["b"], 0)[0] == 200
    give_map(nodes, "shared", [["b", "a"], *ROWS[1:]], revision=2)
    path = "/buckets/shared/partitions/0"
    assert ask(nodes["a"], "PUT", path, {"state": "replica"})[0] == 200
    status, answer = take_over(nodes["a"], 0)
    assert status == 200, answer
    assert (states(nodes["a"], "shared")[0], states(nodes["b"], "shared")[0]) == ("active", "dead")
    assert copies(nodes["a"])[0]["failover_log"] == log


def test_only_what_follows_takes_over(nodes: Nodes) -> None:
    assert take_over(nodes["a"], 0)[0] == 200, "it is active"
    path = "/buckets/shared/partitions/0"
    assert ask(nodes["b"], "PUT", path, {"state": "dead"})[0] == 200
    status, answer = take_over(nodes["b"], 0)
    assert (status, answer["error"]) == (400, "not_following")


def filled(nodes: Nodes, bucket: str) -> list[bytes]:
    """Documents that both nodes have on disk."""
    keys = [b"key-%d" % number for number in range(200)]
    with RawClient(nodes["a"].kv, bucket) as client:
        for key in keys:
            where = partition_of(key, PARTITIONS)
            answer = client.ask(Opcode.SET, vbucket=where, key=key, extras=bytes(8), value=key)
            assert answer.status == Status.SUCCESS
    until(lambda: follows(nodes, bucket))
    return keys


@pytest.mark.parametrize("killed", ["a", "b"])
def test_a_node_killed_meanwhile_leaves_one_active_copy_at_most(
    make_node: Callable[..., NodeProcess], killed: str
) -> None:
    nodes = {name: make_node("--no-memcached", name=name).start() for name in "ab"}
    found: list[tuple[str, str]] = []
    for number, after_ms in enumerate(KILL_AFTER_MS):
        found += _killed_meanwhile(nodes, killed, f"shared-{number}", after_ms)
    assert all(pair.count("active") <= 1 for pair in found)


def _killed_meanwhile(
    nodes: Nodes, killed: str, bucket: str, after_ms: int
) -> list[tuple[str, str]]:
    """Kill a node in the course of take-overs, start it again, look at both copies of each."""
    give_map(nodes, bucket, ROWS, uuid=f"{after_ms:032x}")
    activate_first(nodes, bucket, ROWS)
    keys = filled(nodes, bucket)
    takers = [
        threading.Thread(target=_try_taking_over, args=(nodes["b"], number, bucket), daemon=True)
        for number in range(PARTITIONS)
    ]
    for taker in takers:
        taker.start()
    time.sleep(after_ms / 1000)  # wherever that falls
    nodes[killed].kill()
    for taker in takers:
        taker.join(WAIT_S)
    nodes[killed].start()
    found = list(zip(*(states(nodes[name], bucket) for name in "ab"), strict=True))
    for number, (_, state) in enumerate(found):
        winner = nodes["b"] if state == "active" else nodes["a"]
        path = f"/buckets/{bucket}/partitions/{number}"
        assert ask(winner, "PUT", path, {"state": "active"})[0] == 200
        with RawClient(winner.kv, bucket) as client:
            for key in keys:
                if partition_of(key, PARTITIONS) == number:
                    assert client.ask(Opcode.GET, vbucket=number, key=key).value == key
    return found


def _try_taking_over(node: NodeProcess, partition: int, bucket: str) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):  # it was killed
        take_over(node, partition, bucket)


# -- fed by whoever runs the cluster


class Proxy(threading.Thread):
    """Passes frames between a producer and a consumer, which is told to take partition 0 over."""

    def __init__(self, source: NodeProcess, target: NodeProcess) -> None:
        super().__init__(daemon=True)
        self.source = RawClient(source.kv, "default")
        self.target = RawClient(target.kv, "default")
        producer = bytes(4) + int(OpenFlag.PRODUCER).to_bytes(4, "big")
        assert self.source.ask(Opcode.DCP_OPEN, key=b"proxy", extras=producer).status == 0
        assert self.target.ask(Opcode.DCP_OPEN, key=b"proxy", extras=bytes(8)).status == 0
        self.answers: queue.Queue[Packet] = queue.Queue()

    def run(self) -> None:
        """Everything the source says goes to the target."""
        with contextlib.suppress(Closed, OSError):
            while True:
                self.target.send(again(self.source.receive()))

    def listen(self) -> None:
        """Everything the target says goes to the source, but answers to what was asked here."""
        with contextlib.suppress(Closed, OSError):
            while True:
                packet = self.target.receive()
                if packet.magic == RESPONSE and packet.opcode == Opcode.DCP_ADD_STREAM:
                    self.answers.put(packet)
                else:
                    self.source.send(again(packet))

    def close(self) -> None:
        for client in (self.source, self.target):
            client.close_sending()
            client.close()


def again(packet: Packet) -> bytes:
    parts = packet._asdict()
    return mcbp.packet(parts.pop("magic"), parts.pop("opcode"), **parts)


def test_a_proxy_moves_a_partition_between_nodes_that_know_nothing_of_each_other(
    make_node: Callable[..., NodeProcess],
) -> None:
    a, b = (make_node("--no-memcached", "--bucket", "default", name=name).start() for name in "ab")
    path = "/buckets/default/partitions/0"
    for state in ("dead", "replica"):
        assert ask(b, "PUT", path, {"state": state})[0] == 200
    keys = [key for key in (b"%d" % number for number in range(9000)) if is_of_0(key)]
    with RawClient(a.kv, "default") as client:
        for key in keys:
            answer = client.ask(Opcode.SET, key=key, extras=bytes(8), value=b"of " + key)
            assert answer.status == Status.SUCCESS
    proxy = Proxy(a, b)
    proxy.start()
    listener = threading.Thread(target=proxy.listen, daemon=True)
    listener.start()
    add = request(
        Opcode.DCP_ADD_STREAM, opaque=5, extras=int(StreamFlag.TAKEOVER).to_bytes(4, "big")
    )
    proxy.target.send(add)
    answer = proxy.answers.get(timeout=WAIT_S)
    assert (answer.status, answer.opaque, answer.extras) == (Status.SUCCESS, 5, bytes(4))
    until(lambda: copies(b, "default")[0]["state"] == "active")
    proxy.close()
    assert copies(a, "default")[0]["state"] == "dead"
    before, after = copies(a, "default")[0], copies(b, "default")[0]
    assert [entry["uuid"] for entry in after["failover_log"]] == [
        entry["uuid"] for entry in before["failover_log"]
    ]
    with RawClient(b.kv, "default") as client:
        for key in keys:
            assert client.ask(Opcode.GET, key=key).value == b"of " + key
        assert client.ask(Opcode.SET, key=keys[0], extras=bytes(8)).status == Status.SUCCESS


def is_of_0(key: bytes) -> bool:
    return partition_of(key, PARTITIONS_DEFAULT) == 0
