"""An HTTP proxy: tunnels for who asks to CONNECT, and requests with absolute addresses.

Invariants:
1. What it was asked for is written down, with the headers that it read.
2. It hands on no header that is meant for proxies.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

_PIECE = 65_536


class ProxyDouble:
    """Listens on a free port of this machine; `wanted` is `user:password`, or nothing."""

    def __init__(self, wanted: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.wanted = wanted
        self.tunnels: list[str] = []
        self.requests: list[str] = []
        """The request lines of others than tunnels."""
        self.refused = 0
        self.closed: set[str] = set()
        """Places that it does not reach."""
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._began, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def url(self, user: str = "") -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{user + '@' if user else ''}127.0.0.1:{port}"

    def _began(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._request(reader, writer)
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        method, target, _ = head[0].split()
        ours = [line for line in head[1:] if line.lower().startswith("proxy-")]
        if self.wanted:
            known = f"proxy-authorization: basic {b64encode(self.wanted.encode()).decode()}"
            if known.lower() not in [line.lower() for line in ours]:
                self.refused += 1
                await _refuse(writer, "407 Proxy Authentication Required")
                return
        place = target if method == "CONNECT" else urlsplit(target).netloc
        if place in self.closed:
            await _refuse(writer, "403 Forbidden")
            return
        host, _, port = place.rpartition(":")
        there, to = await asyncio.open_connection(host, int(port))
        if method == "CONNECT":
            self.tunnels.append(target)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            self.requests.append(head[0])
            path = target.partition(place)[2] or "/"
            left = [line for line in head[1:] if line not in ours]
            left = [line for line in left if not line.lower().startswith("connection:")]
            lines = [f"{method} {path} HTTP/1.1", *left, "Connection: close", "", ""]
            to.write("\r\n".join(lines).encode())
        try:
            await asyncio.gather(_pass(reader, to), _pass(there, writer))
        finally:
            to.close()


async def _refuse(writer: asyncio.StreamWriter, status: str) -> None:
    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
    await writer.drain()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()
    writer.close()
