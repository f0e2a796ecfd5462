"""Elements with items, over asyncio: counters, lists, sets, and queues with their workers.

Invariants: handles hold no state but a path; a handler of `Queue.work` that ends well has its item
acknowledged, any other gives it back: each item is handled at least once.

Elsewhere: the client that makes them (`async_client`), what they do (the node).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, cast

from millstream.coordination.aio.client.group_clients import GroupClients
from millstream.coordination.core.client.replies import Count, Page, Taken, count_of
from millstream.errors import MillstreamError

__all__ = ["AT_ONCE_MAX", "Counter", "Items", "Members", "Queue"]

AT_ONCE_MAX: Final = 64
"""Items of one queue that one worker may handle at a time."""


class _Element:
    """An element with items, of one family of commands."""

    _family: bytes = b""

    def __init__(self, client: GroupClients, path: str) -> None:
        self._client = client
        self.path = path

    async def _do(self, name: bytes, *words: bytes, is_change: bool = True) -> Any:
        command = (self._family, name, self.path.encode(), *words)
        return await self._client.execute_at(self.path, *command, is_change=is_change)


class Counter(_Element):
    """A COUNTER: a number with limits.

    For example:

        await client.create("/app/visits", type="COUNTER", options=["UNSIGNED", "BIT", "32"])
        visits = await client.counter("/app/visits").add(3)
        assert visits.value == 3
    """

    _family = b"COUNTER"

    async def get(self) -> int:
        """Return its value."""
        return int(await self._do(b"GET", is_change=False))

    async def add(self, count: int = 1) -> Count:
        """Add to it, or take away; at a limit it stops, unless it was made to `WRAP`."""
        name = b"INC" if count >= 0 else b"DEC"
        words = (b"COUNTER", name, b"%d" % abs(count), self.path.encode())
        return count_of(await self._client.execute_at(self.path, *words, is_change=True))

    async def reset(self) -> None:
        """Set it to 0."""
        await self._do(b"RESET")


class Items(_Element):
    """A LIST: values by index, from 0, or from the end if negative.

    For example:

        await client.create("/app/steps", b"cut", b"glue", type="LIST")
        steps = client.items("/app/steps")
        await steps.append(b"paint")
        assert await steps.range(-2, -1) == [b"glue", b"paint"]
    """

    _family = b"LIST"

    async def append(self, *values: bytes) -> int:
        """Add values at the end; return the length then."""
        return cast(int, await self._do(b"APPEND", *values))

    async def prepend(self, *values: bytes) -> int:
        """Add values at the beginning; return the length then."""
        return cast(int, await self._do(b"PREPEND", *values))

    async def insert(self, index: int, value: bytes) -> int:
        """Add a value before the one at an index; return the length then."""
        return cast(int, await self._do(b"INSERT", b"%d" % index, value))

    async def set(self, index: int, value: bytes) -> None:
        """Replace the value at an index."""
        await self._do(b"SET", b"%d" % index, value)

    async def remove(self, index: int, count: int = 1) -> list[bytes]:
        """Remove values from an index on; return them."""
        return cast(list[bytes], await self._do(b"REMOVE", b"%d" % index, b"%d" % count))

    async def range(self, first: int = 0, last: int = -1) -> list[bytes]:
        """Return the values from one index to another one, both included."""
        words = (b"%d" % first, b"%d" % last)
        return cast(list[bytes], await self._do(b"RANGE", *words, is_change=False))

    async def length(self) -> int:
        """Return how many values there are."""
        return cast(int, await self._do(b"LEN", is_change=False))


class Members(_Element):
    """A SET: values without order, each once.

    For example:

        await client.create("/app/hosts", type="SET")
        hosts = client.members("/app/hosts")
        assert await hosts.add(b"a", b"b", b"a") == 2
        assert [host async for host in hosts.all()] == [b"a", b"b"]
    """

    _family = b"SET"

    async def add(self, *members: bytes) -> int:
        """Add members; return how many are new."""
        return cast(int, await self._do(b"ADD", *members))

    async def remove(self, *members: bytes) -> int:
        """Remove members; return how many there were."""
        return cast(int, await self._do(b"REM", *members))

    async def has(self, member: bytes) -> bool:
        """Return whether this is one."""
        return bool(await self._do(b"HAS", member, is_change=False))

    async def pop(self) -> bytes | None:
        """Remove and return the smallest member, None if the set is empty."""
        return cast(bytes | None, await self._do(b"POP"))

    async def length(self) -> int:
        """Return how many there are."""
        return cast(int, await self._do(b"LEN", is_change=False))

    async def page(self, token: bytes | None = None, count: int = 1000) -> Page:
        """Return some members in order, from the first or from what an earlier page has named."""
        start = () if token is None else (b"TOKEN", token)
        words = (*start, b"COUNT", b"%d" % count)
        following, members = await self._do(b"MEMBERS", *words, is_change=False)
        return Page(members, following)

    async def all(self) -> AsyncIterator[bytes]:
        """Yield all members in order, page by page."""
        token: bytes | None = None
        while True:
            found = await self.page(token)
            for member in found.items:
                yield member
            if (token := found.token) is None:
                return


class Queue(_Element):
    """A QUEUE: the highest priority first, then what was pushed first.

    For example:

        await client.create("/app/orders", type="QUEUE")
        orders = client.queue("/app/orders")
        await orders.push(b"later", b"latest")
        await orders.push(b"now", priority=1)
        for order in await orders.take(2):
            print(order.value)
            await orders.ack(order.id)
    """

    _family = b"QUEUE"

    async def push(self, *values: bytes, priority: int = 0) -> list[bytes]:
        """Add values; return their ids."""
        words = (*values, b"PRIORITY", b"%d" % priority) if priority else values
        return cast(list[bytes], await self._do(b"PUSH", *words))

    async def pop(self, count: int = 1) -> list[bytes]:
        """Remove up to `count` values and return them: each at most once, whatever happens."""
        return cast(list[bytes], await self._do(b"POP", b"%d" % count))

    async def take(self, count: int = 1) -> list[Taken]:
        """Take up to `count` items. Nobody else gets them until `nack`, or the session's end."""
        return [Taken(*item) for item in await self._do(b"TAKE", b"%d" % count)]

    async def ack(self, *ids: bytes) -> int:
        """Report items as done. Return how many of them this client had taken."""
        return cast(int, await self._do(b"ACK", *ids))

    async def nack(self, *ids: bytes) -> int:
        """Give items back, in front; return how many this client had taken."""
        return cast(int, await self._do(b"NACK", *ids))

    async def length(self) -> tuple[int, int]:
        """Return how many items are ready, and how many are taken."""
        ready, taken = await self._do(b"LEN", is_change=False)
        return ready, taken

    async def wait(self) -> None:
        """Return once something is ready; somebody else may take it first."""
        words = (b"QUEUE", b"WAIT", self.path.encode())
        raw = await self._client.at(self.path)
        await raw.execute(*words, is_change=True, deadline_s=float("inf"), may_wait=True)

    async def work(
        self, handler: Callable[[Taken], Awaitable[object]], *, at_once: int = 1,
        stop: asyncio.Event | None = None,
    ) -> None:  # fmt: skip
        """Take items and handle them until `stop` is set; then finish those that were begun.

        An item is acknowledged when its handler returns. If the handler raises, the item is given
        back, `work` ends as if stopped, and the error is raised. If it is cancelled, items that
        are under way are given back. Each item is handled at least once, perhaps by somebody else.

        Args:
            handler: of one item.
            at_once: so many items at a time, up to `AT_ONCE_MAX`.
            stop: set it to end in good order.

        For example:

            await client.create("/app/orders", b"first", type="QUEUE")
            done = asyncio.Event()

            async def handle(order):
                print(order.value)
                done.set()

            await client.queue("/app/orders").work(handle, stop=done)
        """
        assert 0 < at_once <= AT_ONCE_MAX, f"at_once is from 1 to {AT_ONCE_MAX}"
        stop = stop or asyncio.Event()
        errors: list[BaseException] = []
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(self._work(handler, stop, errors))
        if errors:
            raise errors[0]

    async def _work(
        self, handler: Callable[[Taken], Awaitable[object]], stop: asyncio.Event,
        errors: list[BaseException],
    ) -> None:  # fmt: skip
        while not stop.is_set():
            for item in await self.take():
                try:
                    await handler(item)
                except asyncio.CancelledError:
                    await asyncio.shield(self.nack(item.id))
                    raise
                except Exception as error:  # noqa: BLE001 - it is raised by `work`
                    await self.nack(item.id)
                    errors.append(error)
                    stop.set()
                else:
                    await self.ack(item.id)
                break
            else:
                await self._until_ready(stop)

    async def _until_ready(self, stop: asyncio.Event) -> None:
        ready, stopped = asyncio.ensure_future(self.wait()), asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((ready, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            if not ready.done():
                ready.cancel()
        if ready.done() and not ready.cancelled() and (error := ready.exception()):
            assert isinstance(error, MillstreamError), error
            raise error
