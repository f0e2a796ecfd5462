"""Clients of namespaces under faults: random schedules over a real member's state and table.

A schedule is a log, a primary that changes, and clients that lose connections, repeat requests,
wait, and are silent. What is applied, and who is judged how, is `Replica`'s own work; so are the
time of sessions and offers (`Silence`), commands and snapshots. The log is one list here, of which
a change of view cuts what is not committed.

Invariants:
1. What has to hold is looked at after every entry (`namespace_truth`), and once more after
   the faults: then every request is answered, and nobody holds or awaits anything.
2. The seed decides everything.

Elsewhere: the clients (`namespace_callers`), replication itself (`coordination_sim`), planted
mistakes (`namespace_plants`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from unittest import mock

from millstream.coordination.core.namespace.commands.transactions import pack_command
from millstream.coordination.core.namespace.state import waits
from millstream.vsr.core import client_table
from millstream.vsr.core.client_table import Past
from millstream.vsr.core.effects import Code
from millstream.vsr.core.entries import Body, Kind
from millstream.vsr.core.replica.replica import Replica
from millstream.vsr.core.replica.session_expiry import Silence
from millstream.vsr.core.snapshots import Pieces
from simulators.namespace_truth import INSTANCE, Truth, WatchedState, WatchedTable, require

__all__ = ["BEAT_MS", "TIME_OUT_BEATS", "Ask", "Connection", "Group", "Words", "small"]

BEAT_MS = 100.0
TIME_OUT_BEATS = 24
SMALL = {"REPLIES_MAX": 4, "WINDOW_MAX": 12}
OPEN_MAX = 20
_TIME_OUT = b"%d" % (TIME_OUT_BEATS * BEAT_MS)
_ATTEMPTS = 10**6
Words = tuple["str | bytes | Words", ...]


@contextmanager
def small() -> Iterator[None]:
    """Let the bounds of sessions be so small that schedules reach them."""
    with ExitStack() as patches:
        for name, value in SMALL.items():
            patches.enter_context(mock.patch.object(client_table, name, value))
        patches.enter_context(mock.patch.object(waits, "OPEN_MAX", OPEN_MAX))
        yield


class Ask(NamedTuple):
    """What a client sends: OPEN, RESUME, PING or CALL."""

    kind: str
    session: int = 0
    csn: int = 0
    op: int = 0
    words: Words = ()
    attempt: int = 0


class Spec(NamedTuple):
    """An entry that is not committed."""

    kind: Kind
    argv: tuple[bytes, ...] = ()
    session: int = 0
    csn: int = 0
    claim: bool = False


class Connection:
    """Of a client to the primary of a view; `replies` are (number, op, value)."""

    def __init__(self, view: int) -> None:
        self.view, self.session, self.alive = view, 0, True
        self.asks: list[Ask] = []
        self.replies: list[tuple[int, int, bytes]] = []


class Group:
    """The log, what is applied of it, and the primary of the day."""

    def __init__(self, rng: random.Random, replica_class: type[Replica] = Replica) -> None:
        self.rng, self.truth = rng, Truth()
        self.replica = replica_class(WatchedState(self.truth, rng), rng.random)
        self.replica.state.table = WatchedTable(self.truth)
        self.now = self.view = self.paused = self.clock_offset = 0
        self.chaos, self.silence = True, Silence()
        self.log: list[Spec] = []
        self.refused: set[int] = set()
        self.become_primary()

    @property
    def lsn(self) -> int:
        """Of the newest entry that is committed."""
        return self.replica.commit_lsn

    @property
    def end(self) -> int:
        """Of the newest entry of the log."""
        return self.lsn + len(self.log)

    def become_primary(self) -> None:
        """Begin with nothing but the log; every session has its full time."""
        self.suspended = False
        self.in_flight: dict[tuple[int, int], list[tuple[Connection, Ask]]] = {}
        self.opening: dict[int, Connection] = {}
        self.attached: dict[int, Connection] = {}
        self.resumes: list[tuple[Connection, int, int]] = []
        self.silence.begin(self.now * BEAT_MS)
        self.replica.state.view = self.view
        self.log.append(Spec(Kind.NOOP))

    # ---- answers

    def reply(self, connection: Connection, csn: int, op: int, value: bytes) -> None:
        """Say something, if somebody is there."""
        if connection.alive:
            connection.replies.append((csn, op, value))

    def refuse(self, connection: Connection, ask: Ask, code: str) -> None:
        """Say that this attempt did not execute."""
        self.refused.add(ask.attempt)
        self.reply(connection, ask.csn, ask.op, b"-" + code.encode())

    def abandon(self) -> None:
        """Say of what is logged and not committed that nobody knows."""
        for asked in self.in_flight.values():
            for connection, ask in asked:
                self.reply(connection, ask.csn, ask.op, b"-UNKNOWN")
        self.in_flight = {}

    # ---- conditions

    def change_view(self) -> None:
        """Have another primary, whose log has any part of what is not committed."""
        self.abandon()
        del self.log[self.rng.randint(0, len(self.log)) :]
        self.view += 1
        self.become_primary()

    def suspend(self) -> None:
        """Have no quorum for a while."""
        self.abandon()
        self.suspended = True

    def snapshot(self) -> None:
        """Go on with what a snapshot holds."""
        frozen = b"".join(self.replica.parts.execution.freeze())
        for _ in self.replica.parts.execution.restore(Pieces([frozen])):
            pass
        again = b"".join(self.replica.parts.execution.freeze())
        require(again == frozen, "a snapshot gives another state")

    # ---- the log

    def commit(self) -> None:
        """Commit and apply the next entry, and answer whom it is for."""
        if self.suspended or self.paused or not self.log:
            return
        spec = self.log.pop(0)
        found = self.replica.parts.execution.judge(INSTANCE, spec.session, spec.csn)
        self.replica.state.wall_ms = 10**9 + self.now * 100 + self.clock_offset
        entry = self.replica.parts.execution.next_entry(
            spec.kind, Body(argv=spec.argv), INSTANCE, spec.session, spec.csn, spec.claim
        )
        self.truth.replied = None
        self.replica.parts.execution.advance(entry.lsn)
        self.truth.check(self.replica, spec.kind)
        require(not self.refused & self.truth.ran, "an attempt that was refused was executed")
        if spec.kind is Kind.SESSION_EXPIRE:
            self.silence.forget(map(int, spec.argv))
        value = self.truth.replied
        if value is None:
            value = found.value if found.past is Past.STORED else b"-" + _CODES[found.past]
        for connection, ask in self.in_flight.pop((spec.session, spec.csn), ()):
            op = self.truth.ops.get((spec.session, spec.csn), ask.op)
            self.reply(connection, ask.csn, op, value)
        if entry.lsn in self.opening:
            connection = self.opening.pop(entry.lsn)
            self.attach(connection, entry.lsn)
            self.reply(connection, 0, 0, b"+SESSION %d 0" % entry.lsn)
        for resume in [resume for resume in self.resumes if resume[2] <= self.lsn]:
            self.resumes.remove(resume)
            self.resumed(*resume[:2])

    def attach(self, connection: Connection, session: int) -> None:
        """Have the session's requests come from there."""
        connection.session = session
        self.attached[session] = connection
        self.silence.hear(session, self.now * BEAT_MS)

    def resumed(self, connection: Connection, session: int) -> None:
        """Answer who goes on with a session."""
        code, highest = self.replica.table.know(INSTANCE, session, b"s")
        if code is not Code.OK:
            self.reply(connection, 0, 0, b"-SESSIONEXPIRED")
            return
        self.attach(connection, session)
        self.reply(connection, 0, 0, b"+SESSION %d %d" % (session, highest))

    # ---- requests

    def receive(self, connection: Connection) -> None:
        """Take the next thing a client asks for."""
        if self.paused or not connection.asks:
            return
        ask = connection.asks.pop(0)
        if connection.view != self.view:
            self.refuse(connection, ask, "NOTPRIMARY")
        elif self.suspended:
            self.refuse(connection, ask, "NOQUORUM")
        elif ask.kind == "OPEN":
            self.log.append(Spec(Kind.SESSION_OPEN, (_TIME_OUT, b"s")))
            self.opening[self.end] = connection
        elif ask.kind == "RESUME":
            self.attached[ask.session] = connection
            if self.log:
                self.resumes.append((connection, ask.session, self.end))
            else:
                self.resumed(connection, ask.session)
        else:
            self.on_session(connection, ask)

    def on_session(self, connection: Connection, ask: Ask) -> None:
        """Take a request of a session, or a sign of life."""
        if not connection.session and ask.kind == "CALL":
            self.log.append(Spec(Kind.SESSION_OPEN, (_TIME_OUT, b"s")))
            self.attach(connection, self.end)
        session = connection.session
        if self.attached.get(session) is not connection:
            self.reply(connection, ask.csn, ask.op, b"-SESSIONMOVED")
            return
        self.silence.hear(session, self.now * BEAT_MS)
        if session not in self.replica.table and session <= self.lsn:
            self.reply(connection, ask.csn, ask.op, b"-SESSIONEXPIRED")
        elif ask.kind == "CALL":
            self.on_call(connection, session, ask)

    def on_call(self, connection: Connection, session: int, ask: Ask) -> None:
        """Answer from the table, join who asked the same, or log it."""
        if self.chaos and self.rng.random() < 0.06:
            return self.refuse(connection, ask, "BUSY")
        key = session, ask.csn
        found = self.replica.parts.execution.judge(INSTANCE, *key)
        if key in self.in_flight:
            self.in_flight[key].append((connection, ask))
        elif found.past in (Past.STORED, Past.WAITING):
            self.reply(connection, ask.csn, self.truth.ops[key], found.value)
        else:
            if found.past is Past.GONE:
                self.truth.check_gone(self.replica, key)
            self.truth.requests[ask.op] = ask.words
            stamp = b"%d" % (ask.op * _ATTEMPTS + ask.attempt)
            claim = found.past is Past.OFFERED
            self.log.append(Spec(Kind.REQUEST, (stamp, *_packed(ask.words)), *key, claim))
            self.in_flight[key] = [(connection, ask)]
        return None

    # ---- time

    def beat(self) -> None:
        """Let a moment go by."""
        self.now += 1
        if self.paused:
            self.paused -= 1
            return
        self.silence.pass_time(self.now * BEAT_MS, not self.suspended)
        if self.suspended:
            return
        table, machine = self.replica.table, self.replica.machine
        time_out_ms = self.replica.parts.reads.time_out_ms
        silent = self.silence.silent(table, time_out_ms, machine.weight)
        if silent:
            self.log.append(Spec(Kind.SESSION_EXPIRE, tuple(b"%d" % one for one in silent)))
        late = self.silence.late(machine.offers, table, time_out_ms)
        for path, session, lsn, _ in late:
            self.log.append(Spec(Kind.TICK, (path, b"%d" % session, b"%d" % lsn)))


_CODES = {Past.GONE: b"CSNGONE", Past.EXPIRED: b"SESSIONEXPIRED", Past.NEW: b"NOTHING"}


def _packed(words: Words) -> list[bytes]:
    if words[0] == "EXEC":
        commands = [word for word in words[1:] if isinstance(word, tuple)]
        return [b"EXEC", *(pack_command(_packed(command)) for command in commands)]
    found = []
    for word in words:
        assert not isinstance(word, tuple)
        found.append(word.encode() if isinstance(word, str) else word)
    return found
