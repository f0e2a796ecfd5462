"""`aio.client.link`: what is sent, what comes, and what moves on a slow line."""

from __future__ import annotations

import asyncio
import socket
from typing import NamedTuple

from millstream.coordination.aio.client.link import LONG_BYTES, Link, _unacknowledged


class SlowTransport(asyncio.Transport):
    """Takes as much of what is written as it is told."""

    def __init__(self, found: socket.socket | None = None) -> None:
        super().__init__({"socket": found})
        self.waiting = 0
        self.largest = 0

        self.is_gone = False

    def abort(self) -> None:
        self.is_gone = True

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.waiting += len(data)
        self.largest = max(self.largest, len(data))


class Watched(NamedTuple):
    link: Link
    transport: SlowTransport
    heard: list[object]


def watched(found: socket.socket | None = None) -> Watched:
    heard: list[object] = []
    link = Link(
        lambda _, reply: heard.append(reply), lambda *_: None, lambda _: heard.append("part")
    )
    transport = SlowTransport(found)
    link.connection_made(transport)
    return Watched(link, transport, heard)


def test_sending_a_long_request_is_progress() -> None:
    link, transport, _ = watched()
    link.send(b"x" * 3 * LONG_BYTES)
    assert transport.largest <= LONG_BYTES
    assert not link.has_moved()
    transport.waiting -= 1
    assert link.has_moved()
    assert not link.has_moved()
    transport.waiting = 0
    assert link.has_moved()
    assert not link.has_moved()


def test_short_or_answered_requests_are_no_progress() -> None:
    link, transport, _ = watched()
    link.send(b"x" * LONG_BYTES)
    transport.waiting = 0
    assert not link.has_moved()
    link.send(b"x" * LONG_BYTES)
    link.data_received(b"+OK\r\n")
    transport.waiting = 0
    assert not link.has_moved()


def test_a_part_of_a_reply_is_a_sign() -> None:
    link, _, heard = watched()
    link.data_received(b"$6\r\nabc")
    link.data_received(b"def\r\n")
    link.data_received(b"+OK\r\n$3\r\n")
    assert heard == ["part", b"abcdef", b"OK"]


def test_bytes_in_the_socket_buffer_were_not_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with socket.create_connection(server.getsockname()) as here:
            here.setblocking(False)
            link, transport, _ = watched(here)
            link.send(b"x" * 4_000_000)
            assert not link.has_moved()
            transport.waiting -= here.send(b"x" * 4_000_000)
            there, _ = server.accept()
            with there:
                taken = here.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
                assert _unacknowledged(transport) <= taken
                assert _unacknowledged(transport) > 0
                assert _unacknowledged(SlowTransport()) == 0


def test_replies_before_what_is_no_reply_are_handed_on() -> None:
    link, transport, heard = watched()
    link.data_received(b"+OK\r\n+OK\r\n!bad\r\n")
    assert heard == [b"OK", b"OK"]
    assert transport.is_gone
