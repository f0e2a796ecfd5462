"""The connection of one 9P client: parses, executes and answers its messages.

    connection.feed(data); connection.advance()
    connection.take_effects()       # also after `answered` and `paused`

Invariants:
1. Every request gets one reply, except one that was flushed while it waited. A flush is answered
   after the request that it flushes.
2. At most `OUTSTANDING_MAX` requests are in progress. No more are read until one has ended.
3. Writes of one open file are executed one after the other, in order.
4. Invalid bytes, and a tag that is used twice, end the connection.
5. Tversion drops everything from before, including sessions.

Elsewhere: the operations (`operations`), sessions and sockets (`aio.ninep_server`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from millstream.coordination.core.ninep.fids import Ask, Desk, Job, Login, Logout, Pause
from millstream.coordination.core.ninep.operations import OPERATIONS
from millstream.coordination.core.ninep.packets import (
    MSIZE_MAX,
    MSIZE_MIN,
    NO_TAG,
    Cutter,
    Kind,
    Packet,
    decode,
    encode,
)
from millstream.coordination.core.ninep.refusals import NinepError
from millstream.errors import RemoteProtocolError

__all__ = [
    "OUTSTANDING_MAX",
    "Begin",
    "Close",
    "Connection",
    "Effect",
    "End",
    "Enquire",
    "Send",
    "Wait",
]

OUTSTANDING_MAX: Final = 32
"""Requests of one connection that are under way."""


class Send(NamedTuple):
    """Bytes for the client."""

    data: bytes


class Enquire(NamedTuple):
    """Have commands done; `Connection.answered` is told all replies, as values or `Failed`."""

    ticket: int
    asks: list[Ask]


class Begin(NamedTuple):
    """An attach needs a session of its own, with a log-in if a user is named."""

    attach: int
    user: str | None
    password: str


class End(NamedTuple):
    """The session of an attach is no longer used."""

    attach: int


class Wait(NamedTuple):
    """Call `Connection.paused` after this time."""

    ticket: int
    ms: float


class Close(NamedTuple):
    """Close the connection: what came makes no sense."""

    reason: str


Effect = Send | Enquire | Begin | End | Wait | Close


class Connection:
    """One connection.

    Args:
        asks_login: whether a client has to log in.
    """

    def __init__(self, asks_login: Callable[[], bool]) -> None:
        self._desk = Desk(asks_login)
        self._cutter = Cutter()
        self._jobs: dict[int, Job] = {}
        """Jobs by tag."""
        self._running: dict[int, tuple[int, Packet, Job]] = {}
        """Tag, request and job, by ticket."""
        self._waiting: dict[int, deque[Packet]] = {}
        """Requests that wait for others of their fid, by fid; the first one is under way."""
        self._effects: list[Effect] = []
        self._serial = 0
        self._is_greeted = self._is_over = False
        self._has_heard = False

    @property
    def is_clogged(self) -> bool:
        """Whether no more input is handled until a request is finished."""
        return len(self._jobs) >= OUTSTANDING_MAX

    @property
    def fids(self) -> int:
        """How many files the client has numbers for."""
        return len(self._desk.fids)

    def feed(self, data: bytes) -> None:
        """Take what came."""
        self._cutter.feed(data)

    def advance(self) -> None:
        """Look at what came, as far as there is room."""
        try:
            while not self._is_over:
                if self.is_clogged or (data := self._cutter.cut()) is None:
                    return
                packet = decode(data)
                self._has_heard = True
                self._take(packet)
        except RemoteProtocolError as error:
            self._is_over = True
            if not self._has_heard:  # a client of another protocol learns what is spoken here
                self._send(Packet(Kind.Rerror, NO_TAG, (b"this port speaks 9P",)))
            self._effects.append(Close(str(error)))

    def take_effects(self) -> list[Effect]:
        """Return what is to be done, in this order."""
        effects, self._effects = self._effects, []
        return effects

    def answered(self, ticket: int, replies: list[Any]) -> None:
        """Take the replies to what was asked."""
        if ticket in self._running:
            self._go_on(ticket, replies)

    def paused(self, ticket: int) -> None:
        """The time has passed."""
        found = self._running.get(ticket)
        if found is not None and found[2].is_pausing:
            found[2].is_pausing = False
            self._go_on(ticket, [])

    # ---- requests

    def _take(self, packet: Packet) -> None:
        if packet.kind is Kind.Tversion:
            self._greet(packet)
            return
        if not self._is_greeted or packet.tag == NO_TAG or packet.tag in self._jobs:
            raise RemoteProtocolError(f"{packet.kind.name} without Tversion, or its tag is used")
        if packet.kind is Kind.Tflush:
            self._flush(packet)
            return
        self._serial += 1
        self._jobs[packet.tag] = Job(self._serial)
        if packet.kind is Kind.Twrite:
            queue = self._waiting.setdefault(packet.values[0], deque())
            queue.append(packet)
            if len(queue) > 1:
                return
        self._begin(packet)

    def _begin(self, packet: Packet) -> None:
        job = self._jobs[packet.tag]
        self._running[job.serial] = (packet.tag, packet, job)
        operation = OPERATIONS.get(packet.kind)
        if operation is None:
            self._finish(job.serial, NinepError("UNSUPPORTED"))
            return
        job.work = operation(self._desk, job, packet.values)
        self._go_on(job.serial, None)

    def _go_on(self, ticket: int, replies: list[Any] | None) -> None:
        job = self._running[ticket][2]
        assert job.work is not None
        try:
            while True:
                wanted = job.work.send(replies)  # type: ignore[arg-type]
                if isinstance(wanted, Login):
                    self._effects.append(Begin(*wanted))
                elif isinstance(wanted, Logout):
                    self._effects.append(End(*wanted))
                else:
                    break
                replies = []
        except StopIteration as result:
            self._finish(ticket, result.value)
        except NinepError as refused:
            self._finish(ticket, refused)
        else:
            if isinstance(wanted, Pause):
                job.is_pausing = True
                self._effects.append(Wait(ticket, wanted.ms))
            else:
                self._effects.append(Enquire(ticket, wanted))

    def _finish(self, ticket: int, result: tuple[Any, ...] | NinepError) -> None:
        tag, packet, job = self._running.pop(ticket)
        del self._jobs[tag]
        if not job.is_flushed or not isinstance(result, NinepError):
            self._send(self._reply(packet, result))
        self._answer_flushes(job)
        if packet.kind is Kind.Twrite:
            self._begin_next(packet.values[0])

    def _answer_flushes(self, job: Job) -> None:
        for tag in job.flushes:
            flush = self._jobs.pop(tag)
            self._send(Packet(Kind.Rflush, tag))
            self._answer_flushes(flush)

    def _reply(self, packet: Packet, result: tuple[Any, ...] | NinepError) -> Packet:
        if isinstance(result, NinepError):
            if self._desk.is_linux:
                return Packet(Kind.Rlerror, packet.tag, (result.errno,))
            return Packet(Kind.Rerror, packet.tag, (result.code.encode(),))
        return Packet(Kind(packet.kind + 1), packet.tag, result)

    def _begin_next(self, number: int) -> None:
        queue = self._waiting[number]
        queue.popleft()
        if queue:
            self._begin(queue[0])
        else:
            del self._waiting[number]

    def _send(self, packet: Packet) -> None:
        self._effects.append(Send(encode(packet)))

    # ---- what is about the connection

    def _greet(self, packet: Packet) -> None:
        """A client begins, perhaps anew: then all that was is over."""
        msize, version = packet.values
        for attach in self._desk.uses:
            self._effects.append(End(attach))
        desk = self._desk = Desk(self._desk.asks_login, self._desk.attaches)
        self._jobs, self._running, self._waiting = {}, {}, {}
        desk.is_linux = version == b"9P2000.L"
        is_known = version.split(b".")[0] == b"9P2000"
        self._is_greeted = is_known and msize >= MSIZE_MIN
        chosen = (b"9P2000.L" if desk.is_linux else b"9P2000") if self._is_greeted else b"unknown"
        desk.msize = self._cutter.msize = max(min(msize, MSIZE_MAX), MSIZE_MIN)
        self._send(Packet(Kind.Rversion, packet.tag, (min(msize, MSIZE_MAX), chosen)))

    def _flush(self, packet: Packet) -> None:
        job = self._jobs.get(packet.values[0])
        if job is None:
            self._send(Packet(Kind.Rflush, packet.tag))
            return
        self._jobs[packet.tag] = Job(0)
        job.flushes.append(packet.tag)
        job.is_flushed = True
        if job.is_pausing:
            self.paused(job.serial)
