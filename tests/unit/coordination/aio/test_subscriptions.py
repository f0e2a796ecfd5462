"""Subscriptions, notices and stale reads over sockets, on a group of three whose primary goes."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count, groupby
from pathlib import Path
from typing import Any

from millstream.coordination.core.client.wire import Replies, is_push, packed
from support.coordination.coordinators import WAIT_S, Nodes, until
from support.kv.talking import done

PATH = b"/ns/a"


class Line:
    """A client's connection, in RESP3; pushes wait apart from replies."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._replies, self._found = Replies(), deque[Any]()
        self.pushes: list[list[Any]] = []

    async def _next(self) -> Any:
        """Return the next reply; None if a push came."""
        while not self._found:
            data = await asyncio.wait_for(self._reader.read(65536), WAIT_S)
            assert data, "the node closed the connection"
            self._found.extend(self._replies.feed(data))
        value = self._found.popleft()
        if is_push(value):
            self.pushes.append(list(value))
            return None
        return value

    def send(self, *words: bytes) -> None:
        self._writer.write(packed(words))

    async def ask(self, *words: bytes) -> Any:
        """Return the reply, which is an exception for an error."""
        self.send(*words)
        return await self.reply()

    async def reply(self) -> Any:
        pushes = len(self.pushes)
        while (value := await self._next()) is None and len(self.pushes) > pushes:
            pushes = len(self.pushes)
        return value

    async def push(self) -> list[Any]:
        while not self.pushes:
            refused = await self._next()
            assert refused is None, refused
        return self.pushes.pop(0)

    async def puts(self) -> tuple[int, bytes]:
        """Return LSN and data of the next update; what is no update is passed over."""
        while True:
            kind, _, payload = await self.push()
            if kind == b"message" and (told := json.loads(payload))["op"] == "put":
                return told["lsn"], told["data"]

    async def puts_to(self, value: bytes) -> list[tuple[int, bytes]]:
        """Return the next updates, up to the first that has a value."""
        heard = [await self.puts()]
        while b64decode(heard[-1][1]) != value:
            heard.append(await self.puts())
        return heard


@asynccontextmanager
async def connected(nodes: Nodes, number: int) -> AsyncIterator[Line]:
    reader, writer = await asyncio.open_connection("127.0.0.1", nodes.coord_ports[number])
    try:
        line = Line(reader, writer)
        await line.ask(b"HELLO", b"3")
        yield line
    finally:
        writer.close()


async def test_a_backup_tells_all_in_order_while_the_primary_changes(tmp_path: Path) -> None:
    async with Nodes(tmp_path) as nodes:
        await done(nodes, b"CREATENAMESPACE", b"/ns")
        await done(nodes, b"CREATE", b"BINARY", PATH)
        first = await nodes.leader()
        one, other = (number for number in nodes.running if number != first)
        async with connected(nodes, first) as marking, connected(nodes, one) as hearing:
            marking.send(b"SUBSCRIBE", PATH)
            assert (await marking.push())[0] == b"subscribe"
            lsn = nodes.group(first).replica.commit_lsn
            await until(lambda: nodes.group(one).replica.commit_lsn >= lsn)
            hearing.send(b"SUBSCRIBE", PATH, b"MODE", b"DATA")
            assert (await hearing.push())[:2] == [b"subscribe", PATH]
            for number in range(10):
                await done(nodes, b"PUT", PATH, b"%d" % number)
            await nodes.stop(first)
            for number in range(10, 20):
                await done(nodes, b"PUT", PATH, b"%d" % number)
            heard = await hearing.puts_to(b"14")
        async with connected(nodes, other) as resumed:
            last = heard[-1][0]
            resumed.send(b"SUBSCRIBE", PATH, b"MODE", b"DATA", b"FROM", b"%d" % last)
            heard += await resumed.puts_to(b"19")
        lsns = [lsn for lsn, _ in heard]
        assert lsns == sorted(set(lsns))
        # A change that was asked for again may have been made twice: next to each other.
        told = [value for value, _ in groupby(b64decode(data) for _, data in heard)]
        assert told == [b"%d" % n for n in range(20)]


async def test_a_backup_shows_nothing_older_than_what_was_seen(tmp_path: Path) -> None:
    async with Nodes(tmp_path) as nodes:
        await done(nodes, b"CREATENAMESPACE", b"/ns")
        await done(nodes, b"CREATE", b"BINARY", PATH)

        async def write_and_read(first: int) -> None:
            backup = next(number for number in nodes.running if number != first)
            async with connected(nodes, first) as writing, connected(nodes, backup) as reading:
                for number in range(50):
                    assert await writing.ask(b"PUT", PATH, b"%d" % number) == b"OK"
                    version, _ = await writing.ask(b"GET", PATH, b"CAS")
                    shown = await reading.ask(b"SEEN", version, b"GET", PATH, b"STALEREAD")
                    assert shown == b"%d" % number
                    assert await reading.ask(b"GET", PATH, b"STALEREAD") == b"%d" % number
                later = b"0:0:%d" % (nodes.group(first).replica.commit_lsn + 1000)
                refused = await reading.ask(b"SEEN", later, b"GET", PATH, b"STALEREAD")
                assert str(refused).startswith("BEHIND ")
                reading.send(b"SEEN", later, b"SUBSCRIBE", PATH)
                assert str(await reading._next()).startswith("BEHIND ")

        await nodes.while_one_leads(write_and_read)


async def test_a_waiting_client_is_notified_by_the_primary(tmp_path: Path) -> None:
    async with Nodes(tmp_path) as nodes:
        await done(nodes, b"CREATENAMESPACE", b"/ns")
        names = count()

        async def wait_in_turn(first: int) -> None:
            path = b"/ns/%d" % next(names)
            await done(nodes, b"CREATE", b"BINARY", path)
            async with (
                connected(nodes, first) as holding,
                connected(nodes, first) as pushed,
                connected(nodes, first) as asking,
            ):
                assert await holding.ask(b"LOCK", path) == b"OK"
                assert await pushed.ask(b"LOCK", path) == b"PENDING"
                await asking.ask(b"HELLO", b"2")
                assert await asking.ask(b"LOCK", path) == b"PENDING"
                assert await asking.ask(b"NOTIFY", b"NEXT") is None
                assert await asking.ask(b"NOTIFY", b"NEXT", b"BLOCK", b"20") is None
                assert await holding.ask(b"LOCK", b"RELEASE", path) == b"OK"
                assert await pushed.push() == [b"retry", path, b"LOCK"]
                assert await pushed.ask(b"LOCK", path) == b"OK"
                asking.send(b"NOTIFY", b"NEXT", b"BLOCK", b"60000")
                assert await pushed.ask(b"LOCK", b"RELEASE", path) == b"OK"
                assert await asking.reply() == [b"retry", path, b"LOCK"]
                assert await asking.ask(b"LOCK", path) == b"OK"

        await nodes.while_one_leads(wait_in_turn)
