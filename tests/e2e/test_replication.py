"""Two nodes of one bucket: what is written on the one is on the other, whatever happens to them.

States are compared key by key: each copy is streamed from its beginning, with lineages.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import select
import socket
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import millstream
from millstream.errors import MillstreamError
from millstream.upr.core.consumer import ChangesReceived, ConsumerCore, StreamEnded, StreamOpened
from millstream.upr.core.follower import StreamOptions
from millstream.wire.frames import change_of
from millstream.wire.mcbp import Opcode, StreamFlag
from support.kv.nodes_with_map import activate_first, ask, give_map, map_of, states
from support.kv.raw_client import RawClient
from support.node.node_process import NodeProcess, free_port
from support.node.waiting import until

PARTITIONS = 4
ROWS = [["a", "b"]] * PARTITIONS
TLS = Path(__file__).parent / "tls"
MakeNode = Callable[..., NodeProcess]
Content = dict[bytes, tuple[bytes, bytes]]
"""Key -> the frame of its newest change, and its lineage."""


class Pair:
    """Node `a` with the active copies of bucket `shared`, `b` with replicas."""

    def __init__(self, make_node: MakeNode, *options: str, a: tuple[str, ...] = ()) -> None:
        self.nodes = {
            name: make_node(
                "--no-memcached", "--kv", f"127.0.0.1:{free_port()}", *options,
                *(a if name == "a" else ()), name=name,
            ).start()
            for name in "ab"
        }  # fmt: skip
        self.a, self.b = self.nodes.values()
        self.rng = random.Random(os.urandom(8))
        self.number = 0

    def begin(self) -> None:
        give_map(self.nodes, "shared", ROWS)
        activate_first(self.nodes, "shared", ROWS)

    @contextlib.contextmanager
    def client(self) -> Iterator[millstream.Client]:
        host, port = self.a.kv
        with millstream.connect(f"{host}:{port}", bucket="shared") as client:
            yield client

    def write(self, client: millstream.Client, count: int, keys: int = 100) -> None:
        rng = self.rng
        for _ in range(count):
            self.number += 1
            key = f"key-{rng.randrange(keys)}"
            match rng.randrange(8):
                case 0 | 1:
                    with contextlib.suppress(MillstreamError):
                        client.remove(key)
                case 2:
                    client.increment(f"counter-{rng.randrange(9)}", initial=1)
                case 3:
                    client.upsert(key, {"n": self.number, "short": True}, expiry=1)
                case _:
                    client.upsert(key, {"n": self.number})

    def figure(self, name: str) -> int:
        with RawClient(self.b.kv, "shared") as client:
            return int(statistics(client, "replication")[f"replication_{name}"])

    def ends(self, node: NodeProcess) -> list[Any]:
        status, answer = ask(node, "GET", "/buckets/shared/partitions")
        assert status == 200, answer
        return [
            (copy["high_seqno"], copy["persisted_seqno"], copy["failover_log"][0], copy["state"])
            for copy in answer["partitions"]
        ]

    def is_caught_up(self) -> bool:
        return all(
            source[0] == copy[0] == copy[1] and source[2] == copy[2]
            for source, copy in zip(self.ends(self.a), self.ends(self.b), strict=True)
        )

    def check_equal(self) -> int:
        """Wait until `b` has all of `a`, on disk; compare both. Return how many documents."""
        until(
            self.is_caught_up,
            lambda: (self.ends(self.a), ask(self.b, "GET", "/buckets/shared/partitions"),
                     self.b.log()[-3000:]),
        )  # fmt: skip
        left = until(self._equal_content, "the copies differ".format)  # some expires in between
        return sum(not change_of(frame).is_deleted for frame, _ in left.values())

    def _equal_content(self) -> Content:
        """What both have; nothing if that is not the same."""
        left, right = content_of(self.a), content_of(self.b)
        return left if left == right else {}


def statistics(client: RawClient, group: str) -> dict[str, str]:
    found, packet = {}, client.ask(Opcode.STAT, key=group.encode())
    while packet.key:
        found[packet.key.decode()] = packet.value.decode()
        packet = client.receive()
    return found


def content_of(node: NodeProcess) -> Content:
    """Read all copies of a node from their beginning, as of now."""
    core, found, ended = ConsumerCore(document_meta=True), Content(), 0
    with RawClient(node.kv, "shared", extended=True) as client:
        core.start(b"check")
        for number in range(PARTITIONS):
            core.follow(number, options=StreamOptions(flags=StreamFlag.TO_LATEST))
        while ended < PARTITIONS:
            client.send(core.take_bytes())
            for event in core.receive_data(client.receive_bytes()):
                if isinstance(event, ChangesReceived):
                    pairs = zip(event.frames, event.sides, strict=True)
                    found |= {change_of(frame).key: (frame, line) for frame, line in pairs}
                elif isinstance(event, StreamEnded):
                    ended += 1
                else:
                    assert not isinstance(event, StreamOpened) or event.failover_log
    return found


def test_everything_that_is_written_is_on_the_replica(make_node: MakeNode) -> None:
    pair = Pair(make_node)
    pair.begin()
    with pair.client() as client:
        pair.write(client, 400)
        client.upsert("gone soon", b"x", expiry=1)
        pair.write(client, 400)
        until(lambda: client.get("gone soon") is None, lambda: "it does not expire")
    assert pair.check_equal() > 20
    wanted = {"sources": 1, "following": PARTITIONS, "streams": PARTITIONS, "behind": 0}

    def figures() -> dict[str, int]:  # while something expires it is behind for a moment
        return {name: pair.figure(name) for name in wanted}

    until(lambda: figures() == wanted, figures)
    status, answer = ask(pair.b, "GET", "/buckets/shared/partitions/0")
    assert (status, answer["follows"]) == (200, {"node": "a", "is_streaming": True, "failure": ""})


def test_a_replica_comes_back_where_it_was(make_node: MakeNode) -> None:
    pair = Pair(make_node)
    pair.begin()
    with pair.client() as client:
        for end in (pair.b.kill, pair.b.stop):
            pair.write(client, 150)
            end()
            pair.write(client, 150)
            pair.b.start()
        pair.check_equal()
        loaded, before = pair.figure("changes_total"), sum(one[0] for one in pair.ends(pair.b))
        pair.b.stop()
        pair.b.start()
        pair.write(client, 10)
        pair.check_equal()
        came = pair.figure("changes_total")
        new = sum(one[0] for one in pair.ends(pair.b)) - before  # some expired meanwhile
        assert came <= new < loaded, "it went on from where it stood"


def test_a_source_that_lost_its_tail_takes_it_from_the_replica_too(make_node: MakeNode) -> None:
    pair = Pair(make_node, a=("--flush-interval", "600000"))
    pair.begin()
    with pair.client() as client:
        pair.write(client, 200)
        until(lambda: pair.figure("streams") == PARTITIONS, pair.b.log)
        client.upsert("last", b"one", durability="persisted")  # and with it all before
        pair.write(client, 200)
    until(lambda: [one[0] for one in pair.ends(pair.a)] == [one[0] for one in pair.ends(pair.b)],
          lambda: pair.ends(pair.b))  # fmt: skip
    ahead = [one[0] for one in pair.ends(pair.b)]
    pair.a.kill()
    pair.a.start()
    assert states(pair.a, "shared") == ["replica"] * PARTITIONS
    activate_first(pair.nodes, "shared", ROWS)
    assert sum(one[0] for one in pair.ends(pair.a)) < sum(ahead)
    with pair.client() as client:
        pair.write(client, 50)
    pair.check_equal()
    assert pair.figure("rollbacks_total") > 0


def test_a_first_load_larger_than_memory(make_node: MakeNode) -> None:
    pair = Pair(make_node, "--memory-quota", "16MiB")
    status, made = ask(pair.a, "PUT", "/buckets/shared", {"partitions": PARTITIONS})
    assert status == 201
    value = b"." * 2000
    with pair.client() as client:
        for first in range(0, 20_000, 1000):
            left = [(f"load-{first + at}", value) for at in range(1000)]
            while left:
                result = client.upsert_many(left)
                left = [failure.item[:2] for failure in result.failures]
    give_map(pair.nodes, "shared", ROWS, uuid=made["uuid"])
    with pair.client() as client:
        pair.write(client, 100)
    assert pair.check_equal() > 20_000
    with RawClient(pair.b.kv, "shared") as raw:
        found = statistics(raw, "memory")
    assert int(found["memory_evicted_total"]) > 5_000


class Proxy:
    """Forwards connections to a port; cuts them when told to."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listening.getsockname()[1]
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self.forwarded = self.accepted = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()
        self.listening.close()
        for pair in self.pairs:
            self._close(pair)

    def cut(self) -> None:
        for pair in list(self.pairs):
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        while not self._is_over:
            ends = [end for pair in self.pairs for end in pair]
            ready, _, _ = select.select([self.listening, *ends], [], [], 0.05)
            if self.listening in ready:
                self.accepted += 1
                accepted = self.listening.accept()[0]
                self.pairs.append((accepted, socket.create_connection(self.target)))
            for pair in list(self.pairs):
                for end, other in (pair, pair[::-1]):
                    if end in ready and pair in self.pairs:
                        self._forward(pair, end, other)

    def _forward(
        self, pair: tuple[socket.socket, socket.socket], end: socket.socket, other: socket.socket
    ) -> None:
        try:
            data = end.recv(1 << 16)
            other.sendall(data)
        except OSError:
            data = b""
        self.forwarded += len(data)
        if not data:
            self.pairs.remove(pair)
            self._close(pair)

    @staticmethod
    def _close(pair: tuple[socket.socket, socket.socket]) -> None:
        for end in pair:
            end.close()


def test_a_replica_with_cut_connections(make_node: MakeNode) -> None:
    pair = Pair(make_node)
    with Proxy(pair.a.kv) as proxy:
        content = map_of(pair.nodes, ROWS)
        assert ask(pair.a, "PUT", "/buckets/shared/map", {**content, "this": "a"})[0] == 200
        content["nodes"][0]["kv"] = proxy.port
        assert ask(pair.b, "PUT", "/buckets/shared/map", {**content, "this": "b"})[0] == 200
        activate_first(pair.nodes, "shared", ROWS)
        with pair.client() as client:
            for _ in range(8):
                before, accepted = proxy.forwarded, proxy.accepted
                pair.write(client, 60)
                client.upsert("large", b"." * 300_000)
                until(lambda before=before: proxy.forwarded > before, pair.b.log)
                proxy.cut()
                until(lambda accepted=accepted: proxy.accepted > accepted, pair.b.log)
        pair.check_equal()
        assert pair.figure("reconnects_total") >= 8


def test_nodes_with_users_and_encryption(make_node: MakeNode) -> None:
    secret = "sixteen letters or more"
    nodes = {
        name: make_node(
            "--no-memcached", "--kv", f"127.0.0.1:{free_port()}", "--user", "ada:secret",
            "--tls-cert", str(TLS / "node.pem"), "--tls-ca", str(TLS / "authority.pem"),
            name=name, env={"MILLSTREAM_CLUSTER_SECRET": secret},
        ).start()
        for name in "ab"
    }  # fmt: skip
    trust = ssl.create_default_context(cafile=str(TLS / "authority.pem"))
    login = base64.b64encode(f"@node:{secret}".encode()).decode()

    def call(name: str, method: str, path: str, content: Any = None) -> Any:
        asked = urllib.request.Request(
            f"https://{nodes[name].ready['http']}/_millstream/buckets/shared{path}",
            None if content is None else json.dumps(content).encode(),
            {"Content-Type": "application/json", "Authorization": f"Basic {login}"},
            method=method,
        )
        with urllib.request.urlopen(asked, context=trust) as answer:
            return json.load(answer)

    for name in nodes:
        call(name, "PUT", "/map", {**map_of(nodes, ROWS), "this": name})
    for number in range(PARTITIONS):
        call("a", "PUT", f"/partitions/{number}", {"state": "active"})
    host, port = nodes["a"].kv
    who = {"user": "ada", "password": "secret", "tls": trust}
    with millstream.connect(f"{host}:{port}", bucket="shared", **who) as client:
        for number in range(50):
            client.upsert(f"key-{number}", b"x")

    def durable(name: str) -> int:
        copies = call(name, "GET", "/partitions")["partitions"]
        return sum(copy["persisted_seqno"] for copy in copies)

    until(lambda: durable("b") == durable("a") == 50, nodes["b"].log)
    assert call("b", "GET", "/partitions/0")["follows"]["is_streaming"]
    nodes["b"].stop()
    nodes["b"].env["MILLSTREAM_CLUSTER_SECRET"] = "another one, of a stranger"
    login = base64.b64encode(b"ada:secret").decode()
    nodes["b"].start()
    until(lambda: "password" in call("b", "GET", "/partitions/0")["follows"]["failure"],
          nodes["b"].log)  # fmt: skip
    assert secret not in nodes["b"].log()
