"""A small client of the file service: sends any message, and takes replies in any order."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Self

from millstream.coordination.core.ninep.packets import (
    NO_FID,
    NO_TAG,
    Kind,
    Packet,
    decode,
    encode,
)

WAIT_S = 60.0
"""Far longer than anything takes; a busy machine may be slow."""


class Refused(Exception):
    """An error reply; `why`: an errno, or text."""

    def __init__(self, why: Any) -> None:
        super().__init__(why)
        self.why = why


class NinepClient:
    """One connection with one attach, whose root is fid 0; a context manager."""

    def __init__(self, port: int, aname: str = "/", version: bytes = b"9P2000.L") -> None:
        self.port, self.aname, self.version = port, aname.encode(), version
        self.msize = 65_536
        self._tag = self._fid = 0
        self._replies: dict[int, Packet] = {}

    async def __aenter__(self) -> Self:
        await self.connect()
        await self.attach(0, self.aname)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Connect, and agree on a version."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writer.write(encode(Packet(Kind.Tversion, NO_TAG, (self.msize, self.version))))
        self.greeting = await self.reply(NO_TAG)

    async def attach(self, fid: int, aname: bytes, user: bytes = b"", afid: int = NO_FID) -> Any:
        """Attach a tree."""
        number = (0,) if self.version == b"9P2000.L" else ()
        return await self.ask(Kind.Tattach, fid, afid, user, aname, *number)

    async def close(self) -> None:
        """Cut the connection."""
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    def send(self, kind: Kind, *values: Any) -> int:
        """Send a request; return its tag."""
        self._tag = (self._tag + 1) % 60_000
        self.writer.write(encode(Packet(kind, self._tag, values)))
        return self._tag

    async def reply(self, tag: int) -> tuple[Any, ...]:
        """Return the values of the reply to a request."""
        async with asyncio.timeout(WAIT_S):
            while tag not in self._replies:
                packet = await self._receive()
                self._replies[packet.tag] = packet
        found = self._replies.pop(tag)
        if found.kind in (Kind.Rlerror, Kind.Rerror):
            raise Refused(found.values[0])
        return found.values

    def has_reply(self, tag: int) -> bool:
        """Whether a reply has come while others were waited for."""
        return tag in self._replies

    async def _receive(self) -> Packet:
        head = await self.reader.readexactly(4)
        rest = await self.reader.readexactly(int.from_bytes(head, "little") - 4)
        return decode(head + rest)

    async def ask(self, kind: Kind, *values: Any) -> tuple[Any, ...]:
        """Send a request and return the values of its reply."""
        return await self.reply(self.send(kind, *values))

    # ---- files, by paths from the root of the attach

    async def walk(self, path: str) -> int:
        """Return a new fid of a file."""
        self._fid += 1
        names = tuple(name.encode() for name in path.split("/") if name)
        found = await self.ask(Kind.Twalk, 0, self._fid, names)
        if len(found[0]) < len(names):
            raise Refused(2)  # as Linux takes it
        return self._fid

    async def open(self, path: str, flags: int = 0) -> int:
        """Return a new fid of a file that is open."""
        fid = await self.walk(path)
        kind = Kind.Tlopen if self.version == b"9P2000.L" else Kind.Topen
        await self.ask(kind, fid, flags)
        return fid

    async def read_fid(self, fid: int) -> bytes:
        """Return all of an open file."""
        found = b""
        while True:
            (data,) = await self.ask(Kind.Tread, fid, len(found), 8192)
            if not data:
                return found
            found += data

    async def cat(self, path: str) -> bytes:
        """Return what a file has."""
        fid = await self.open(path)
        found = await self.read_fid(fid)
        await self.ask(Kind.Tclunk, fid)
        return found

    async def put(self, path: str, data: bytes, flags: int = 0o1001) -> None:
        """Write a file."""
        fid = await self.open(path, flags)
        try:
            await self.ask(Kind.Twrite, fid, 0, data)
        finally:
            await self.ask(Kind.Tclunk, fid)

    async def ctl(self, path: str, line: str) -> bytes:
        """Give a command to an element's control file; return its reply."""
        fid = await self.open(f"{path}/.ctl", 2)
        try:
            await self.ask(Kind.Twrite, fid, 0, line.encode() + b"\n")
            return await self.read_fid(fid)
        finally:
            await self.ask(Kind.Tclunk, fid)

    async def ls(self, path: str, count: int = 8192) -> dict[str, tuple[int, int]]:
        """Return names in a directory, with numbers of files and types of entries."""
        fid, offset, found = await self.open(path), 0, {}
        while True:
            (data,) = await self.ask(Kind.Treaddir, fid, offset, count)
            if not data:
                break
            while data:
                size = int.from_bytes(data[22:24], "little")
                offset = int.from_bytes(data[13:21], "little")
                name = data[24 : 24 + size].decode()
                assert name not in found
                found[name] = (int.from_bytes(data[5:13], "little"), data[21])
                data = data[24 + size :]
        await self.ask(Kind.Tclunk, fid)
        return found

    async def lock(self, fid: int, kind: int, flags: int = 0) -> int:
        """Lock a whole file; return the status."""
        (status,) = await self.ask(Kind.Tlock, fid, kind, flags, 0, 0, 1, b"test")
        return int(status)
