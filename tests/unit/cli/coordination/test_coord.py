"""`cli.coordination.coord`: one connection, with a false node at its other end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from millstream.cli.connect import Who
from millstream.cli.coordination import coord
from millstream.cli.coordination.coord import REPLIES_MAX, Coordination, ask_primary, error_of
from millstream.coordination.core.shell.replies import Reply
from millstream.errors import (
    AccessError,
    UnavailableError,
    UsageError,
)
from support.coordination.pool_driver import joined, led
from support.coordination.pool_over_resp import FalseCoordination

WAIT_S = 60.0
HELLO = b"%1\r\n$5\r\nproto\r\n:3\r\n"


class Node:
    """A false node: says some things to whoever connects."""

    def __init__(self, *said: bytes) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._said = said
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        self.socket = self._server.accept()[0]
        self.socket.settimeout(WAIT_S)
        self._server.close()
        for data in self._said:
            self.socket.sendall(data)

    def heard(self, until: bytes) -> bytes:
        """Return what came, once this is there."""
        self._thread.join(WAIT_S)
        found = b""
        while until not in found:
            data = self.socket.recv(4096)
            assert data, found
            found += data
        return found

    def is_left(self) -> bool:
        """Whether the connection ends."""
        self._thread.join(WAIT_S)
        with suppress(OSError), self.socket:  # it may be closed, or reset
            while self.socket.recv(4096):
                pass
        return True


@contextmanager
def connected(told: Any = lambda _: None) -> Iterator[tuple[Node, Coordination]]:
    node = Node(HELLO)
    with Coordination(node.address, Who(None, ""), told=told) as coordination:
        yield node, coordination
    assert node.is_left()
    assert not [one for one in threading.enumerate() if one.name == "coordination"]


def test_replies_come_in_pieces_and_become_values() -> None:
    said = HELLO[:7], HELLO[7:], b"*2\r\n:1\r\n", b"_\r\n", b"%1\r\n+a\r\n#t\r\n$1\r\nx\r\n"
    node = Node(*said)
    with Coordination(node.address, Who("ada", "secret")) as coordination:
        assert coordination.ask("ADMIN", "NODES") == [1, None]
        assert coordination.ask("VDS") == {b"a": True}
        assert coordination.ask("ECHO", "x") == b"x"
    hello = b"*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$3\r\nada\r\n$6\r\nsecret\r\n"
    assert hello in node.heard(b"ECHO")
    assert node.is_left()


def test_a_log_in_that_fails_closes_the_connection() -> None:
    node = Node(b"-WRONGPASS no\r\n")
    with pytest.raises(AccessError):
        Coordination(node.address, Who("ada", "x"))
    assert node.is_left()


def test_silence_is_broken_by_empty_lines() -> None:
    with connected() as (node, _):
        assert node.heard(b"\r\n\r\n")


def test_replies_are_told_from_what_is_said_unasked() -> None:
    told: list[Reply] = []
    said = b">2\r\n+message\r\n+x\r\n>3\r\n+subscribe\r\n+/a\r\n:1\r\n+OK\r\n"
    with connected(told.append) as (node, coordination):
        node.socket.sendall(said)
        found = coordination.say((b"SUBSCRIBE", b"/a"), lambda said: len(said) == 2)
    assert [reply.text or reply.words[0] for reply in found] == [b"subscribe", b"OK"]
    assert [reply.words[0] for reply in told] == [b"message", b"subscribe"]


def test_a_lost_connection_leaves_it_open_what_was_done() -> None:
    with connected() as (node, coordination):
        node.heard(b"HELLO")
        node.socket.shutdown(socket.SHUT_RDWR)
        for _ in range(2):
            with pytest.raises(UnavailableError, match="read to find out") as lost:
                coordination.say((b"PUT", b"/a", b"x"))
            assert lost.value.code == "lost"
        assert coordination.is_lost


def test_what_is_no_reply_ends_the_connection() -> None:
    with connected() as (node, coordination):
        node.socket.sendall(b"+OK\r\nHTTP/1.1 400\r\n")
        with pytest.raises(UnavailableError, match="does not speak RESP"):
            [coordination.ask("PING") for _ in range(2)]


def test_what_is_not_answered_in_time_ends_the_connection() -> None:
    with connected() as (_, coordination):
        with pytest.raises(UnavailableError, match="no answer came"):
            coordination.ask("PING", timeout_s=0.01)
        assert coordination.is_lost


def test_more_replies_than_are_kept_end_the_connection() -> None:
    with connected() as (node, coordination):
        node.socket.sendall(b"+OK\r\n" * (2 * REPLIES_MAX))
        assert node.is_left()
        with pytest.raises(UnavailableError, match="lost"):
            coordination.ask("PING")


def test_nobody_is_there() -> None:
    with pytest.raises(UnavailableError, match="not reached"):
        Coordination("127.0.0.1:1", Who(None, ""))


def test_errors_say_whose_fault_it_is() -> None:
    assert isinstance(error_of("NOPERM no"), AccessError)
    assert isinstance(error_of("BADCONFIG no"), UsageError)
    error = error_of("NOTREADY 0102 17")
    assert (error.code, str(error)) == ("notready", "NOTREADY: 0102 17")


def test_the_primary_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coord, "_PAUSE_S", 0.0)
    world = joined(3)
    leader = led(world, 1)
    node: Any = FalseCoordination(world, world.nodes[2])
    assert node.node is not leader
    assert ask_primary(node, "ADMIN", "SNAPSHOT", "1") == b"1"
    with pytest.raises(UsageError):
        ask_primary(node, "ADMIN", "SNAPSHOT", "9")


def test_a_primary_that_nobody_finds_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coord, "_PAUSE_S", 0.0)
    monkeypatch.setattr(coord, "PRIMARY_S", 0.0)
    node: Any = FalseCoordination(joined(1), joined(1).nodes[0])
    with pytest.raises(UnavailableError, match="1 0:0"):
        ask_primary(node, "ADMIN", "SNAPSHOT", "1")
