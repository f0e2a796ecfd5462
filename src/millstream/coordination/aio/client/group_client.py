"""The Python client of a coordination group: registers, compared and set, with a session.

    async with Client(["127.0.0.1:7379"]) as client:
        await client.set("greeting", b"hello")
        value, version = await client.get_with_version("greeting")

Invariants:
1. A change is done once or not at all, whatever became of connections and nodes meanwhile. If that
   cannot be told by the deadline, `OutcomeUnknownError` says so; no other error leaves it open.
2. All methods are called in the loop that the client was entered in; after `close` nothing runs.

Elsewhere: what is repeated, where and when (`core.client.caller`), the connection (`link`).
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Self

from millstream.coordination.aio.client.link import PORT, Link
from millstream.coordination.core.client import events as core
from millstream.coordination.core.client.caller import (
    Caller,
)
from millstream.coordination.core.client.errors import error_of
from millstream.coordination.core.client.events import (
    ErrorReply,
    Outcome,
)
from millstream.coordination.core.client.wire import hello, is_answer, packed
from millstream.errors import ConditionError, MillstreamError, UsageError
from millstream.model.addresses import parse_address
from millstream.runtime.tasks import Tasks
from millstream.vsr.core.client_table import TIME_OUT_MS
from millstream.vsr.core.versions import NEVER, Version, parse_version

__all__ = ["CLOSE_S", "DEADLINE_S", "MARGIN", "Client"]

DEADLINE_S: Final = 10.0
"""How long a call may take, unless told otherwise."""
MARGIN: Final = 0.1
"""Assumed difference in clock speed, as a share of the time-out of a session."""
CLOSE_S: Final = 1.0
"""How long closing may take to end the session; it ends by itself later."""


class Client:
    """One client with one session.

    Args:
        addresses: `HOST:PORT` of one node or several; others are learned from them.
        user, password: of the node's users, if it has any.
        deadline_s: for each call that names no other.
        session_s: how long the client may be silent before its session ends.
        tls: how to check the nodes, if they speak TLS.
        on_session_lost: called in the loop when the group has ended the session.
        group: the one to talk with, by number; None: that of registers.

    Raises:
        UsageError: `bad_address`.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        user: str | None = None,
        password: str = "",
        deadline_s: float = DEADLINE_S,
        session_s: float = TIME_OUT_MS / 1000,
        tls: ssl.SSLContext | None = None,
        on_session_lost: Callable[[], None] = lambda: None,
        group: int | None = None,
    ) -> None:
        places = [parse_address(address, default_port=PORT) for address in addresses]
        self._caller = Caller(
            [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in places],
            random.random, hello=hello(user, password), time_out_ms=int(session_s * 1000),
            group=group,
        )  # fmt: skip
        self.deadline_s = deadline_s
        self._tls = tls
        self._on_session_lost = on_session_lost
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks = Tasks()
        self._link: Link | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._ticket = 0
        self._is_closed = False

    @property
    def client_id(self) -> str | None:
        """The session's name, once there is one."""
        return self._caller.client_id.decode() if self._caller.client_id else None

    @property
    def time_out_ms(self) -> int:
        """How long the session may be silent, as the group has it."""
        return self._caller.time_out_ms

    @property
    def sure_s(self) -> float:
        """For how many more seconds the session is there for sure, by this machine's clock.

        It is counted from when the last sign that the primary has confirmed was sent, with a
        margin of `MARGIN` of the session's time-out; 0 without a session.
        """
        heard_ms = self._caller.heard_ms
        if heard_ms is None or self._loop is None or self._is_closed:
            return 0.0
        left_ms = heard_ms + self._caller.time_out_ms * (1 - MARGIN) - self._now_ms()
        return max(0.0, left_ms / 1000)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- registers

    async def set(self, key: str | bytes, value: bytes, deadline_s: float | None = None) -> None:
        """Set a register to `value`.

        Raises:
            OutcomeUnknownError: it may have been done.
            MillstreamError: it was not done, and why.
        """
        await self.execute(b"SET", _bytes(key), value, is_change=True, deadline_s=deadline_s)

    async def cas(
        self, key: str | bytes, expected: bytes, value: bytes, deadline_s: float | None = None
    ) -> bool:
        """Set a register to `value` if it is `expected`; return whether it was.

        Raises:
            OutcomeUnknownError, MillstreamError: as `set`.
        """
        words = (b"CAS", _bytes(key), expected, value)
        try:
            await self.execute(*words, is_change=True, deadline_s=deadline_s)
        except ConditionError:
            return False
        return True

    async def get(self, key: str | bytes, deadline_s: float | None = None) -> bytes:
        """Return what a register is; one that was never set is empty.

        Raises:
            MillstreamError: why it cannot be told.
        """
        value, _ = await self.get_with_version(key, deadline_s)
        return value

    async def get_with_version(
        self, key: str | bytes, deadline_s: float | None = None
    ) -> tuple[bytes, Version]:
        """Return what a register is and the version at which it became so.

        Raises:
            MillstreamError: why it cannot be told.
        """
        words = (b"GET", _bytes(key), b"META")
        value, version = await self.execute(*words, is_change=False, deadline_s=deadline_s)
        return value, parse_version(version) or NEVER

    async def execute(
        self, *words: bytes, is_change: bool, deadline_s: float | None = None,
        may_wait: bool = False, before: Sequence[Sequence[bytes]] = (),
    ) -> Any:  # fmt: skip
        """Execute a command; return its reply.

        Args:
            words: the command, without numbers of its own.
            is_change: it is given a number, so that it is done once.
            deadline_s: how long it may take.
            may_wait: if the reply is PENDING, ask again with the number until it is another one.
            before: commands that are sent before it each time (`MULTI`, and what `EXEC` shall
                do); nobody is told their replies.

        Raises:
            OutcomeUnknownError: it may have been done.
            MillstreamError: it was not done, and why.
        """
        assert self._loop is not None, "enter the client first: async with Client(...)"
        assert not self._is_closed, "the client is closed"
        ticket = self._ticket = self._ticket + 1
        future = self._calls[ticket] = self._loop.create_future()
        seconds = self.deadline_s if deadline_s is None else deadline_s
        deadline_ms = self._now_ms() + seconds * 1000
        ahead = tuple(tuple(command) for command in before)
        self._step(core.Call(ticket, words, is_change, deadline_ms, may_wait, ahead))
        try:
            outcome, reply = await future
        finally:
            self._calls.pop(ticket, None)
        if outcome is not Outcome.ANSWERED or isinstance(reply, ErrorReply):
            raise error_of(words, outcome, reply)
        return reply

    async def close(self) -> None:
        """End the session and the connection; calls that wait end with errors."""
        if self._is_closed:
            return
        if self._loop is not None and self._link is not None and self._caller.client_id:
            with suppress(MillstreamError):  # it ends by itself, later
                await self.execute(b"SESSION", b"CLOSE", is_change=False, deadline_s=CLOSE_S)
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._disconnect()
        for future in self._calls.values():
            if not future.done():
                future.set_result((Outcome.UNKNOWN, ErrorReply("ERR the client was closed")))
        await self._tasks.stop()

    # ---- the core's effects

    def _now_ms(self) -> float:
        assert self._loop is not None
        return self._loop.time() * 1000

    def _step(self, event: core.Event) -> None:
        if self._is_closed:
            return
        commands: list[bytes] = []
        for effect in self._caller.step(self._now_ms(), event):
            match effect:
                case core.Transmit(argv):
                    commands.append(packed(argv))
                case core.Finish(ticket, outcome, reply):
                    future = self._calls.pop(ticket, None)
                    if future is not None and not future.done():
                        future.set_result((outcome, reply))
                case core.Connect(address):
                    self._connecting = self._tasks.start(
                        self._connect(address), name=f"connection to {address}"
                    )
                case core.Disconnect():
                    commands.clear()
                    self._disconnect()
                case core.Wake(at_ms):
                    self._wake(at_ms)
                case core.SessionLost():
                    self._tell_of_loss()
        if commands and self._link is not None and not self._link.transport.is_closing():
            self._link.send(b"".join(commands))

    def _tell_of_loss(self) -> None:
        assert self._loop is not None
        try:
            self._on_session_lost()
        except Exception as error:  # noqa: BLE001 - whatever it is, the calls go on
            self._loop.call_exception_handler(
                {"message": "on_session_lost has failed", "exception": error}
            )

    def _wake(self, at_ms: float) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at_ms / 1000, self._tick)

    def _tick(self) -> None:
        if self._link is not None and self._link.has_moved():
            self._step(core.Moving())
        self._step(core.Tick())

    async def _connect(self, address: str) -> None:
        try:
            link = Link(self._received, self._lost, self._moving)
            await link.connect(address, self._tls)
        except (OSError, UsageError):
            self._connecting = None
            self._step(core.Lost())
            return
        self._link, self._connecting = link, None
        self._step(core.Connected())

    def _disconnect(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._link is not None:
            link, self._link = self._link, None
            link.transport.abort()

    def _received(self, link: Link, reply: Any) -> None:
        if link is not self._link:
            return
        if is_answer(reply):
            self._step(core.Received(reply))
        elif reply[:1] == [b"retry"]:
            self._step(core.Noticed())

    def _moving(self, link: Link) -> None:
        if link is self._link:
            self._step(core.Moving())

    def _lost(self, link: Link, _: Exception | None) -> None:
        if link is self._link:
            self._link = None
            self._step(core.Lost())


def _bytes(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key
