import asyncio
import json
import socket
from contextlib import asynccontextmanager

from millstream.gateway.aio.server import BODY_BYTES_MAX, HttpServer


@asynccontextmanager
async def listening(host):
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    server = HttpServer(host)
    await server.start(bound, None)
    try:
        yield bound.getsockname()[1]
    finally:
        await server.stop()


async def exchange(port, request):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def test_what_is_no_http_is_answered_in_json(open_host):
    async with listening(open_host) as port:
        status, body = await exchange(port, b"\x80\x00\x00\x01nonsense\r\n\r\n")
    assert status == 400
    assert json.loads(body)["error"] == "bad_request"


async def test_a_line_that_never_ends_is_refused(open_host):
    async with listening(open_host) as port:
        status, body = await exchange(port, b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n")
    assert status == 400
    assert json.loads(body)["error"] == "bad_request"


async def test_a_body_over_the_limit_is_refused(open_host):
    request = (
        b"POST /_millstream/buckets HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1)
    ) + b" " * (BODY_BYTES_MAX + 1)
    async with listening(open_host) as port:
        status, body = await exchange(port, request)
    assert status == 413
    assert json.loads(body)["error"] == "too_large"


async def test_a_body_that_does_not_arrive_is_not_waited_for(open_host, monkeypatch):
    monkeypatch.setattr("millstream.gateway.aio.answers.BODY_SECONDS", 0.01)
    monkeypatch.setattr("millstream.gateway.aio.server.LINGER_SECONDS", 0.01)
    request = (
        b"POST /_session HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
    )
    async with listening(open_host) as port:
        status, body = await exchange(port, request)
    assert status == 408
    assert json.loads(body)["error"] == "body_timeout"


async def test_a_server_that_never_started_stops(open_host):
    await HttpServer(open_host).stop()
