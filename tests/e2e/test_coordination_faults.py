"""Three nodes in one group under faults from outside; and that their clients would notice lies."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from simulators.coordination_faults.callers import Shared
from simulators.coordination_faults.clients import Client
from simulators.coordination_faults.network import Proxies
from simulators.coordination_faults.stand_in import LIES, StandIn
from simulators.coordination_faults.stand_in_tree import TREE_LIES
from simulators.coordination_faults.workloads import WORKLOADS, Queueing
from simulators.histories.check import Verdict, check
from simulators.histories.events import Recorder, operations, read_events
from simulators.histories.versions import pinned
from support.node.node_process import free_port
from support.node.waiting import until

ANSWERS = 1_500


def seen_through(server: StandIn, path: Path) -> Verdict:
    host, port = server.server_address[:2]
    recorder = Recorder(path)
    shared = Shared(recorder, lambda: [(str(host), int(port))], ("tester", "word"))
    kinds = [Client] * 6 + [kind for kind in WORKLOADS for _ in range(3)]
    clients = [kind(shared, f"{number}") for number, kind in enumerate(kinds)]
    for client in clients:
        client.start()
    until(lambda: shared.counts["ok"] >= ANSWERS or any(one.failure for one in clients))
    shared.stop.set()
    for client in clients:
        client.join()
        assert client.failure is None
    shared.go_on()
    queueing = Queueing(shared, "last")
    assert queueing.rest(60)
    queueing.hang_up()
    recorder.close()
    with path.open() as lines:
        events = list(read_events(lines))
    assert events == recorder.events
    return check(pinned(operations(events)))


def test_an_honest_server_is_right(tmp_path: Path) -> None:
    with StandIn() as server:
        verdict = seen_through(server, tmp_path / "history.jsonl")
        server.shutdown()
    assert verdict.holds, str(verdict)
    assert verdict.operations >= ANSWERS


@pytest.mark.slow
@pytest.mark.parametrize("lie", [*LIES, *TREE_LIES])
def test_lies_are_found(lie: str, tmp_path: Path) -> None:
    with StandIn(lie) as server:
        verdict = seen_through(server, tmp_path / "history.jsonl")
        server.shutdown()
    assert verdict.wrong


def test_a_proxy_loses_what_one_side_says_until_it_is_healed() -> None:
    port = free_port()
    heard: list[bytes] = []
    with socket.create_server(("127.0.1.1", port + 1)) as server:

        def listen() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"welcome")
                while data := connection.recv(100):
                    heard.append(data)

        thread = threading.Thread(target=listen)
        thread.start()
        proxies = Proxies(1, port, lambda _: [])  # who dials is no node: number 0
        try:
            with socket.create_connection(proxies.peers_address(1), 10) as client:
                proxies.cut(0, 1)
                assert client.recv(100) == b"welcome"
                client.sendall(b"lost")
                proxies.cut(1, 0)
                proxies.slow(1)
                assert not heard
                proxies.heal()
                until(lambda: b"".join(heard) == b"lost")
            thread.join()
        finally:
            proxies.close()
