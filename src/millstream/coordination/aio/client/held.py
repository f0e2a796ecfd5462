"""What a client holds for a time: locks, units of semaphores, places at barriers, leadership.

    async with client.lock("/app/job") as lock:
        await client.put("/app/job/state", b"begun", token=lock.token)

Invariants:
1. A call that is cancelled or times out while it waits holds nothing afterwards, and no longer
   waits: the request is withdrawn before the error is raised, or its session has ended.
2. `is_held` is True only while the session certainly exists, by the clock of this machine. It does
   not protect other systems: these have to compare the token.
3. A client can hold a path once: locks belong to its session, so a second holder in the same
   client would not exclude the first.

Elsewhere: repeating while it waits (`core.client.caller`), who is next (the node).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from millstream.coordination.aio.client.group_clients import GroupClients
from millstream.coordination.core.client.errors import (
    MissingError,
    NotHeldError,
    SessionLostError,
)
from millstream.coordination.core.client.replies import Leader, version_of
from millstream.errors import ConditionError, OutcomeUnknownError, UnavailableError, UsageError
from millstream.vsr.core.versions import Version

__all__ = ["Barrier", "Election", "Lock", "Semaphore"]

_FOREVER_S = float("inf")
_NOT_NOW = frozenset(("locked",))


class _Waiting:
    """Asks for something until it has it, and withdraws."""

    _family: bytes
    _withdrawn_by: tuple[bytes, ...] = (b"CANCEL", b"RELEASE")

    def __init__(self, client: GroupClients, paths: tuple[str, ...]) -> None:
        if not paths:
            raise UsageError("name a path at least", code="badarg")
        self._client, self._raw = client, client.raw  # the group's, once it is known
        self._paths = tuple(path.encode() for path in paths)

    async def _obtain(self, argv: tuple[bytes, ...], timeout_s: float | None) -> Any:
        """Ask until there is an answer. Withdraw the request on time-out or cancellation."""
        if taken := self._client.held & set(self._paths):
            path = min(taken).decode()
            raise UsageError(f"this client already holds or waits for {path}", code="already_held")
        self._raw = await self._client.at(self._paths[0].decode())
        self._client.held |= set(self._paths)
        asking = asyncio.ensure_future(
            self._raw.execute(*argv, is_change=True, deadline_s=_FOREVER_S, may_wait=True)
        )
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(asking)
        except BaseException as error:  # also when cancelled: nobody else withdraws
            await self._withdraw(asking)
            self._forget()
            if isinstance(error, TimeoutError):
                name = b" ".join(argv[:2]).decode(errors="replace")
                raise UnavailableError(f"waiting for {name} timed out", code="timeout") from None
            if isinstance(error, OutcomeUnknownError):  # the only way to it without a deadline
                raise SessionLostError("the session ended while the call waited") from error
            raise

    async def _withdraw(self, asking: asyncio.Future[Any]) -> None:
        """See to it that nothing is held or awaited; also if this, too, is cancelled."""
        if asking.done() and not asking.cancelled() and asking.exception() is not None:
            return
        settling = asyncio.ensure_future(self._settle(asking))
        is_cancelled = False
        while not settling.done():
            try:
                await asyncio.shield(settling)
            except asyncio.CancelledError:
                is_cancelled = True
        if is_cancelled:
            raise asyncio.CancelledError

    async def _settle(self, asking: asyncio.Future[Any]) -> None:
        """End the wait; its number then has an answer, which says whether there is a grant."""
        for verb in self._withdrawn_by:
            with suppress(ConditionError, UnavailableError, UsageError):
                await self._say(verb)
        try:
            async with asyncio.timeout(self._raw.deadline_s):
                await asyncio.shield(asking)
        except (ConditionError, UnavailableError, UsageError, TimeoutError):
            asking.cancel()
            return
        if b"RELEASE" in self._withdrawn_by:  # it was granted between the two
            with suppress(ConditionError, UnavailableError, UsageError):
                await self._say(b"RELEASE")

    async def _say(self, verb: bytes) -> Any:
        return await self._raw.execute(self._family, verb, *self._paths, is_change=True)

    async def _here(self, *words: bytes, is_change: bool = True) -> Any:
        path = self._paths[0].decode()
        return await self._client.execute_at(path, *words, is_change=is_change)

    def _forget(self) -> None:
        self._client.held -= set(self._paths)


class _Holding(_Waiting):
    """Something that is held, from `acquire` to `release`."""

    def __init__(self, client: GroupClients, paths: tuple[str, ...]) -> None:
        super().__init__(client, paths)
        self.token: Version | None = None
        """The version of the grant, while it is held: it only grows, so that what is outside can
        refuse older ones. None of what is not held."""
        self._session: str | None = None

    @property
    def is_held(self) -> bool:
        """Whether the lock is certainly held, by the clock of this machine and with a margin."""
        return self._is_ours and self._raw.sure_s > 0

    @property
    def _is_ours(self) -> bool:
        return self._session is not None and self._session == self._raw.client_id

    async def _acquire(self, argv: tuple[bytes, ...], timeout_s: float | None) -> None:
        reply = await self._obtain(argv, timeout_s)
        self.token = version_of(reply[1]) if isinstance(reply, list) else None
        self._session = self._raw.client_id

    async def release(self) -> None:
        """Release it.

        Raises:
            SessionLostError: it was lost before, with the session.
            NotHeldError: it is not held.
        """
        if self._session is None:
            raise NotHeldError("this is not held", code="notheld")
        was_ours = self._is_ours
        self._session = self.token = None
        try:
            if was_ours:
                await self._say(b"RELEASE")
        except NotHeldError:
            was_ours = False
        finally:
            self._forget()
        if not was_ours:
            raise SessionLostError("it was lost before its end: the session that held it ended")

    async def acquire(self, timeout_s: float | None = None) -> None:
        """Wait until it is held."""
        raise AssertionError("every kind has its own")

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        try:
            await self.release()
        except (SessionLostError, NotHeldError):
            if kind is None:
                raise


class Lock(_Holding):
    """A lock of one element and all below it, or of several elements, all or none.

    As a context manager it is held inside. If the session was lost meanwhile, the end of the
    block raises `SessionLostError`; look at `is_held` before what must not be done without it.

        lock = client.lock("/app/job", "/app/leader")
        if await lock.try_acquire():
            print("both or none", lock.token)
            await lock.release()
    """

    _family = b"LOCK"

    def __init__(self, client: GroupClients, paths: tuple[str, ...], *, shared: bool) -> None:
        super().__init__(client, paths)
        mode = b"READ" if shared else b"WRITE"
        group = (b"GROUP",) if len(paths) > 1 else ()
        self._argv = (b"LOCK", mode, *group, *self._paths, b"TOKEN")

    async def acquire(self, timeout_s: float | None = None) -> None:
        """Wait for the lock.

        Args:
            timeout_s: for so long at most; None: as long as it takes.

        Raises:
            UnavailableError: `timeout`; nothing is held, and nothing awaited.
            SessionLostError: the session has ended while it waited.
            MissingError: there is no such element.
            UsageError: `already_held`, by this client.
        """
        await self._acquire(self._argv, timeout_s)

    async def try_acquire(self) -> bool:
        """Take the lock if it is free. Return whether it is held."""
        try:
            await self._acquire((*self._argv, b"NOWAIT"), None)
        except ConditionError as error:
            if error.code in _NOT_NOW:
                return False
            raise
        return True


class Semaphore(_Holding):
    """One unit of a semaphore; a client has one at most.

    For example:

        await client.create("/app/seats")
        seat = client.semaphore("/app/seats")
        await seat.init(2)
        async with seat:
            print("one of two", seat.token)
    """

    _family = b"SEMAPHORE"

    def __init__(self, client: GroupClients, path: str) -> None:
        super().__init__(client, (path,))

    async def init(self, size: int) -> bool:
        """Make the element a semaphore with `size` units; return False if it is one of this size.

        Raises:
            ConditionError: `synctype`, there is something else.
        """
        words = (b"SEMAPHORE", b"INIT", b"%d" % size, *self._paths)
        return bool(await self._here(*words) == b"OK")

    async def acquire(self, timeout_s: float | None = None) -> None:
        """Wait for a unit; raises as `Lock.acquire`."""
        await self._acquire((b"SEMAPHORE", b"ACQUIRE", *self._paths, b"TOKEN"), timeout_s)

    async def destroy(self) -> None:
        """End the semaphore; returns once all that have units or wait for them have left."""
        words = (b"SEMAPHORE", b"DESTROY", *self._paths)
        raw = await self._client.at(self._paths[0].decode())
        await raw.execute(*words, is_change=True, deadline_s=_FOREVER_S, may_wait=True)


class Barrier(_Waiting):
    """Where so many clients wait for each other; it begins anew each time.

    For example:

        await client.create("/app/start")
        start = client.barrier("/app/start")
        await start.init(1)
        is_last = await start.wait(timeout_s=60)
    """

    _family = b"BARRIER"
    _withdrawn_by = (b"CANCEL",)

    def __init__(self, client: GroupClients, path: str) -> None:
        super().__init__(client, (path,))

    async def init(self, size: int) -> bool:
        """Make the element a barrier for `size` clients; False if it is one of this size."""
        words = (b"BARRIER", b"INIT", b"%d" % size, *self._paths)
        return bool(await self._here(*words) == b"OK")

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until as many clients as its size do; return whether this one was the last.

        Raises:
            UnavailableError: `timeout`; this client does not count any more.
            SessionLostError: the session has ended while it waited.
            ConditionError: `destroyed`.
        """
        reply = await self._obtain((b"BARRIER", b"WAIT", *self._paths), timeout_s)
        self._forget()
        return bool(reply == b"GO")

    async def destroy(self) -> None:
        """End it; those who wait get `destroyed`."""
        await self._here(b"BARRIER", b"DESTROY", *self._paths)


class Election(_Holding):
    """A candidate for leading by the WRITE lock of an element.

    For example:

        async with client.election("/app/leader", b"host-a") as leadership:
            await client.put("/app/leader", b"host-a, at work", token=leadership.token)
            leader = await leadership.leader()
            assert leader is not None and leader.data == b"host-a, at work"
    """

    _family = b"LOCK"

    def __init__(self, client: GroupClients, path: str, data: bytes) -> None:
        super().__init__(client, (path,))
        self._data = data

    async def acquire(self, timeout_s: float | None = None) -> None:
        """Wait until this client leads, and the element has the data; raises as `Lock.acquire`."""
        data = (self._data,) if self._data else ()
        await self._acquire((b"ELECT", b"CAMPAIGN", *self._paths, *data), timeout_s)

    campaign = acquire

    async def resign(self) -> None:
        """Resign, so that another one leads. Raises as `release`."""
        await self.release()

    async def leader(self) -> Leader | None:
        """Return the leader, None if there is none.

        Also None while others hold a lock on the element.
        """
        with suppress(MissingError):
            reply = await self._here(b"ELECT", b"LEADER", *self._paths, is_change=False)
            if reply is not None:
                client, token, data = reply
                return Leader(client.decode(), version_of(token), data)
        return None
