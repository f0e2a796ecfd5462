from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from millstream.kv.aio.connection import LATE_BYTES_MAX, KvConnection
from millstream.kv.aio.server import KvServer
from millstream.model.limits import FRAME_BYTES_MAX, NOTED_BYTES_MIN, VALUE_BYTES_MAX
from millstream.runtime import guests
from millstream.runtime.shares import SHARED_S, LoopShares
from millstream.wire.mcbp import Opcode, Status, request
from support.kv.server_double import SlowUsers, TransportDouble, connect, new_server
from support.kv.session_double import UserDouble

LARGE = request(Opcode.SET, key=b"k", value=bytes(1_000_000), extras=bytes(8))


def half_sent(server: KvServer, size: int) -> tuple[KvConnection, TransportDouble]:
    connection, transport = connect(server)
    for at in range(0, size, 100_000):
        connection.data_received(LARGE[at : min(size, at + 100_000)])
    return connection, transport


async def test_half_sent_frames_count_and_the_idlest_goes_when_they_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guests, "CLIENT_BYTES_MAX", 3_000_000)
    server = new_server()
    some = [half_sent(server, 900_000) for _ in range(3)]
    assert server.guests.held_bytes == 2_700_000
    some.append(half_sent(server, 900_000))
    assert [transport.is_aborted for _, transport in some] == [True, False, False, False]
    connection, transport = some[1]
    connection.data_received(LARGE[900_000:])
    assert [reply.status for reply in transport.take()] == [0]
    assert server.guests.held_bytes == 1_800_000
    for connection, _ in some:
        connection.connection_lost(None)
    assert server.guests.held_bytes == 0


async def test_a_little_is_not_counted() -> None:
    server = new_server()
    half_sent(server, NOTED_BYTES_MIN - 1)
    assert server.guests.held_bytes == 0


async def test_what_clients_send_and_get_is_counted_for_the_bucket() -> None:
    server = new_server()
    half_sent(server, 100_000)
    connection, _ = connect(server)
    connection.data_received(request(Opcode.NOOP))
    told = server.buckets["default"].published.read("clients")
    assert told == {
        "clients_received_bytes_total": 100_024,
        "clients_sent_bytes_total": 24,
        "clients_reads_total": 0,
    }


async def test_replies_that_are_not_taken_count() -> None:
    server = new_server()
    connection, transport = connect(server)
    transport.buffered = 5_000_000
    connection.pause_writing()
    assert server.guests.held_bytes == 5_000_000
    transport.buffered = 0
    connection.resume_writing()
    assert server.guests.held_bytes == 0


async def test_strangers_go_for_others_and_who_has_logged_in_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guests, "STRANGERS_MAX", 2)
    server = new_server(SlowUsers())
    some = [connect(server, plain=False) for _ in range(2)]
    known = some[0][0]
    known.session.user = UserDouble("read")  # type: ignore[assignment]
    known.session.user.name = "ann"  # type: ignore[union-attr,misc]
    known.data_received(request(Opcode.NOOP))
    some += [connect(server, plain=False) for _ in range(2)]
    assert [transport.is_aborted for _, transport in some] == [False, True, False, False]


async def test_a_write_that_finds_memory_full_is_read_later_and_answered_then() -> None:
    server = new_server()
    bucket = server.buckets["default"]
    connection, transport = connect(server)
    put = request(Opcode.SET, key=b"k", value=b"v", extras=bytes(8))
    bucket.writes.delay()
    connection.data_received(request(Opcode.GET, key=b"k") + put + request(Opcode.NOOP))
    assert [reply.status for reply in transport.take()] == [Status.KEY_ENOENT]
    assert not transport.is_reading_now
    bucket.writes.end_delay()
    assert not bucket.writes.wake_waiting(10)
    connection._advance()
    assert [(r.opcode, r.status) for r in transport.take()] == [(Opcode.SET, 0), (Opcode.NOOP, 0)]
    assert transport.is_reading_now


async def test_writes_that_waited_are_refused_where_no_room_could_be_made() -> None:
    server = new_server()
    bucket = server.buckets["default"]
    connection, transport = connect(server)
    bucket.writes.delay()
    connection.data_received(request(Opcode.DELETE, key=b"k") + request(Opcode.NOOP))
    assert transport.take() == []
    bucket.writes.refuse("memory")
    bucket.writes.end_delay()
    bucket.writes.wake_waiting(10)
    connection._advance()
    assert [reply.status for reply in transport.take()] == [Status.ETMPFAIL, 0]


@pytest.mark.parametrize("size", [VALUE_BYTES_MAX + 1, FRAME_BYTES_MAX + 1, 30 * 2**20])
async def test_a_value_that_is_too_long_is_answered_and_not_kept(size: int) -> None:
    server = new_server()
    connection, transport = connect(server)
    data = request(Opcode.SET, key=b"k", value=bytes(size), extras=bytes(8), opaque=1)
    data += request(Opcode.NOOP, opaque=2)
    most = 0
    for at in range(0, len(data), 2**20):
        connection.data_received(data[at : at + 2**20])
        most = max(most, connection.session.pending_bytes)
    assert [(r.opaque, r.status) for r in transport.take()] == [(1, Status.E2BIG), (2, 0)]
    assert most <= FRAME_BYTES_MAX
    assert not transport.is_closed


@pytest.mark.parametrize("data", [b"get k\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"v"])
async def test_other_protocols_are_closed_at_once_with_one_line(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    connection, transport = connect(new_server())
    connection.data_received(data)
    assert transport.is_closed
    assert transport.data == b"" or (data[:3] == b"GET" and transport.data[:5] == b"HTTP/")
    (record,) = caplog.records
    assert "binary protocol" in record.getMessage()


@pytest.mark.parametrize("method", [b"GET", b"PUT", b"POST", b"HEAD"])
async def test_a_client_that_speaks_http_is_answered_in_http(method: bytes) -> None:
    connection, transport = connect(new_server(), plain=False)
    connection.data_received(method + b" / HTTP/1.1\r\nHost: x\r\n\r\n")
    said = transport.data
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"HTTP port" in said


GET, NOOP = request(Opcode.GET, key=b"k"), request(Opcode.NOOP)


class Rounds:
    """A loop that is shared, whose first turn is over."""

    def __init__(self, server: KvServer) -> None:
        self.now_s, self.soon = 100.0, list[Callable[[], None]]()
        self.shares = server.shares = LoopShares(self, lambda: self.now_s)
        self.shares.share()
        assert not self.shares.is_over()
        self.now_s += SHARED_S / 2

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def next(self) -> None:
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()


def opcodes(transport: TransportDouble) -> list[int]:
    return [reply.opcode for reply in transport.take()]


async def test_requests_wait_for_a_turn_while_the_loop_is_shared_and_keep_their_order() -> None:
    server = new_server()
    rounds = Rounds(server)
    connection, transport = connect(server)
    connection.data_received(GET + NOOP[:10])
    connection.data_received(NOOP[10:] + GET)
    connection.advance()
    await asyncio.sleep(0)
    assert opcodes(transport) == []
    rounds.next()
    assert opcodes(transport) == [Opcode.GET, Opcode.NOOP, Opcode.GET]
    connection.data_received(NOOP)
    assert opcodes(transport) == [Opcode.NOOP], "its turn is not over"


async def test_what_waits_for_a_turn_counts_and_is_bounded() -> None:
    server = new_server()
    rounds = Rounds(server)
    connection, transport = connect(server)
    connection.data_received(GET * (LATE_BYTES_MAX // len(GET)))
    assert transport.is_reading_now
    assert server.guests.held_bytes > LATE_BYTES_MAX - len(GET)
    connection.data_received(GET)
    assert not transport.is_reading_now
    while rounds.soon:
        rounds.next()
        await asyncio.sleep(0)
    assert transport.is_reading_now
    assert server.guests.held_bytes == 0
    assert len(opcodes(transport)) == LATE_BYTES_MAX // len(GET) + 1


async def test_requests_of_a_client_that_sends_nothing_more_are_answered_at_once() -> None:
    server = new_server()
    rounds = Rounds(server)
    connection, transport = connect(server)
    connection.data_received(GET)
    connection.eof_received()
    assert opcodes(transport) == [Opcode.GET]
    gone, transport = connect(server)
    gone.data_received(GET)
    gone.connection_lost(None)
    rounds.next()
    assert opcodes(transport) == []


async def test_a_client_that_does_not_read_is_not_answered_although_its_turn_comes() -> None:
    server = new_server()
    rounds = Rounds(server)
    connection, transport = connect(server)
    connection.data_received(GET)
    connection.pause_writing()
    rounds.next()
    assert opcodes(transport) == []
    connection.resume_writing()
    await asyncio.sleep(0)
    assert opcodes(transport) == [Opcode.GET]
    assert transport.is_reading_now
