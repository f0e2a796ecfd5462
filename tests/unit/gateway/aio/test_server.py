import asyncio
import json
import socket
from base64 import b64encode
from contextlib import asynccontextmanager, suppress

from millstream.gateway.aio import server
from millstream.gateway.aio.server import BODY_BYTES_MAX, UNREAD_SECONDS, HttpServer
from millstream.runtime import guests
from millstream.runtime.shares import LoopShares


@asynccontextmanager
async def listening(host, shares=None):
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    listener = HttpServer(host, shares=shares)
    await listener.start(bound, None)
    try:
        yield bound.getsockname()[1]
    finally:
        await listener.stop()


async def exchange(port, request):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def test_what_is_no_http_is_answered_in_json(open_node):
    async with listening(open_node) as port:
        status, body = await exchange(port, b"\x80\x00\x00\x01nonsense\r\n\r\n")
    assert status == 400
    assert json.loads(body)["error"] == "bad_request"


async def test_a_plus_in_a_path_is_a_space_and_one_that_is_encoded_is_none(open_node):
    sent = (
        b"PUT %b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    )
    async with listening(open_node) as port:
        for path in (b"/orders/a+b", b"/orders/c%2Bd", b"/orders/e%20f?x=1+1"):
            assert (await exchange(port, sent % path))[0] == 201
    assert set(open_node.documents.database("orders").documents) == {"a b", "c+d", "e f"}


async def test_a_line_that_never_ends_is_refused(open_node):
    async with listening(open_node) as port:
        status, body = await exchange(port, b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n")
    assert status == 400
    assert json.loads(body)["error"] == "bad_request"


async def test_a_body_over_the_limit_is_refused(open_node):
    request = (
        b"POST /_millstream/buckets HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1)
    ) + b" " * (BODY_BYTES_MAX + 1)
    async with listening(open_node) as port:
        status, body = await exchange(port, request)
    assert status == 413
    assert json.loads(body)["error"] == "too_large"


async def test_a_body_that_does_not_arrive_is_not_waited_for(open_node, monkeypatch):
    monkeypatch.setattr("millstream.gateway.aio.answers.BODY_SECONDS", 0.01)
    monkeypatch.setattr("millstream.gateway.aio.server.LINGER_SECONDS", 0.01)
    request = (
        b"POST /_session HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
    )
    async with listening(open_node) as port:
        status, body = await exchange(port, request)
    assert status == 408
    assert json.loads(body)["error"] == "body_timeout"


async def test_an_expectation_that_is_not_met_is_told_in_json(open_node):
    for path in (b"/", b"/nothing/here"):
        request = b"GET %b HTTP/1.1\r\nHost: localhost\r\nExpect: more\r\n" % path
        async with listening(open_node) as port:
            status, body = await exchange(port, request + b"Connection: close\r\n\r\n")
        assert status == 417
        assert json.loads(body)["error"] == "expectation_failed"


async def test_who_does_not_read_is_cut_off(open_node, monkeypatch):
    """The system does it; here is seen that it was told to."""
    told = []
    begin = server._RequestHandler.connection_made

    def noted(handler, transport):
        begin(handler, transport)
        connection = transport.get_extra_info("socket")
        told.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))

    monkeypatch.setattr(server._RequestHandler, "connection_made", noted)
    async with listening(open_node) as port:
        await exchange(port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert told == [UNREAD_SECONDS * 1000]


async def test_slow_connections_shut_nobody_out(open_node, monkeypatch):
    monkeypatch.setattr(guests, "CONNECTIONS_MAX", 3)
    async with listening(open_node) as port:
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for _, writer in slow:
            writer.write(b"GET / HTT")  # and nothing more
        status, _ = await exchange(
            port, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        assert status == 200
        assert await slow[0][0].read() == b""  # who has been idle longest has gone
        for _, writer in slow:
            writer.close()


async def test_strangers_go_for_newcomers_and_who_has_logged_in_stays(guarded_node, monkeypatch):
    monkeypatch.setattr(guests, "STRANGERS_MAX", 2)
    basic = b64encode(b"ada:secret")
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic " + basic + b"\r\n\r\n"
    async with listening(guarded_node) as port:
        known, sends = await asyncio.open_connection("127.0.0.1", port)
        sends.write(request)
        assert b" 200 " in await known.readline()
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        with suppress(ConnectionError):
            assert await slow[0][0].read() == b""
        sends.write(request)
        await known.readuntil(b" 200 ")
        for _, writer in (*slow, (known, sends)):
            writer.close()


async def test_who_does_not_log_in_in_time_is_cut_off(guarded_node, monkeypatch):
    monkeypatch.setattr(guests, "LOGIN_S_MAX", 0.05)
    monkeypatch.setattr(guests, "LOOK_S", 0.01)
    async with listening(guarded_node) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTT")
        async with asyncio.timeout(60):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()


async def test_a_client_that_leaves_in_its_body_is_no_error(open_node, caplog):
    half = (
        b"PUT /orders/x HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 50\r\n\r\n{"
    )
    async with listening(open_node) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(half)
        await writer.drain()
        await asyncio.sleep(0)
        writer.transport.abort()
        await exchange(port, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_body_in_chunks_that_are_none_is_refused(open_node):
    request = (
        b"PUT /orders/x HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}"
    )
    async with listening(open_node) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        await writer.drain()
        writer.write(b"   \r\nzz\r\n\r\n")
        answer = await reader.read()
        writer.close()
    assert answer.split()[1] == b"400"
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"] == "bad_request"


async def test_a_server_that_never_started_stops(open_node):
    await HttpServer(open_node).stop()


async def test_a_request_has_kv_clients_leave_it_a_share_of_the_loop(open_node):
    shares = LoopShares(asyncio.get_running_loop())
    async with listening(open_node, shares) as port:
        assert not shares.is_shared
        await exchange(port, b"GET / HTTP/1.0\r\n\r\n")
        assert shares.is_shared
