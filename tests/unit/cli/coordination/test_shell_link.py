"""`cli.coordination.shell_link`: one connection, with a false node at its other end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.cli.coordination.shell_link import Link
from millstream.coordination.core.shell.replies import Reply
from millstream.errors import UnavailableError

WAIT_S = 60.0


class Other:
    """The node's end."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.told: list[Reply] = []
            self.has_told = threading.Event()
            self.link = Link("127.0.0.1", server.getsockname()[1], None, self._tell)
            self.socket = server.accept()[0]
        self.socket.settimeout(WAIT_S)

    def _tell(self, reply: Reply) -> None:
        self.told.append(reply)
        self.has_told.set()


@pytest.fixture
def other() -> Iterator[Other]:
    made = Other()
    yield made
    made.link.close()
    made.socket.close()


def test_silence_is_broken_by_empty_lines(other: Other) -> None:
    assert other.socket.recv(2) == b"\r\n"


def test_replies_are_told_from_what_is_said_unasked(other: Other) -> None:
    other.socket.sendall(b">2\r\n+message\r\n+x\r\n>3\r\n+subscribe\r\n+/a\r\n:1\r\n+OK\r\n")
    found = other.link.ask((b"SUBSCRIBE", b"/a"), lambda said: len(said) == 2)
    assert [reply.text or reply.words[0] for reply in found] == [b"subscribe", b"OK"]
    assert other.has_told.wait(WAIT_S)
    assert [reply.words[0] for reply in other.told] == [b"message", b"subscribe"]


def test_a_lost_connection_leaves_it_open_what_was_done(other: Other) -> None:
    other.socket.close()
    with pytest.raises(UnavailableError, match="read to find out") as lost:
        other.link.ask((b"PUT", b"/a", b"x"), bool)
    assert lost.value.code == "lost"
    assert other.link.is_lost


def test_what_is_no_reply_ends_the_connection(other: Other) -> None:
    other.socket.sendall(b"HTTP/1.1 400\r\n")
    with pytest.raises(UnavailableError, match="does not speak RESP"):
        other.link.ask((b"PING",), bool)


def test_nobody_is_there() -> None:
    tell: Any = None
    with pytest.raises(UnavailableError, match="not reached"):
        Link("127.0.0.1", 1, None, tell)
