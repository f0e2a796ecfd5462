"""`cli.coordination.coord`: one connection, over a false socket."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from millstream.cli.connect import Who
from millstream.cli.coordination import coord
from millstream.cli.coordination.coord import Coordination, ask_primary, error_of
from millstream.errors import (
    AccessError,
    RemoteProtocolError,
    UnavailableError,
    UsageError,
)
from simulators.pool_world import joined, led
from support.coordination.pool_over_resp import FalseCoordination

HELLO = b"%1\r\n$5\r\nproto\r\n:3\r\n"


class FalseSocket:
    def __init__(self, *replies: bytes) -> None:
        self.replies = list(replies)
        self.sent: list[bytes] = []
        self.is_closed = False

    def settimeout(self, _: float) -> None:
        pass

    def sendall(self, data: bytes) -> None:
        self.sent.append(data)

    def recv(self, _: int) -> bytes:
        return self.replies.pop(0)

    def close(self) -> None:
        self.is_closed = True


def connected(monkeypatch: pytest.MonkeyPatch, *replies: bytes, who: Who) -> Any:
    made = FalseSocket(*replies)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: made)
    return made, lambda: Coordination("h", 1, who)


def test_replies_come_in_pieces_and_become_values(monkeypatch: pytest.MonkeyPatch) -> None:
    made, connect = connected(
        monkeypatch, HELLO[:7], HELLO[7:], b"*2\r\n:1\r\n", b"_\r\n", who=Who("ada", "secret")
    )
    with connect() as node:
        assert node.ask("ADMIN", "NODES") == [1, None]
    assert made.sent[0] == (
        b"*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$3\r\nada\r\n$6\r\nsecret\r\n"
    )
    assert made.is_closed


def test_a_log_in_that_fails_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    made, connect = connected(monkeypatch, b"-WRONGPASS no\r\n", who=Who("ada", "x"))
    with pytest.raises(AccessError):
        connect()
    assert made.is_closed


def test_what_is_no_reply_or_none_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _, connect = connected(monkeypatch, HELLO, b"HTTP/1.1 400\r\n", who=Who(None, ""))
    with pytest.raises(RemoteProtocolError):
        connect().ask("PING")
    _, connect = connected(monkeypatch, HELLO, b"", who=Who(None, ""))
    with pytest.raises(UnavailableError, match="closed"):
        connect().ask("PING")


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
