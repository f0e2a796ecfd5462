"""The times that entries show, and the silence of clients before their sessions end.

Invariants:
1. An entry shows no later time than a quorum of clocks can have led to: never that of one clock
   alone. Times never fall.
2. A session ends by silence that its primary has worked through: a full time-out of it since the
   view began, and since the client was heard, whatever pauses there were.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from millstream.vsr.core.client_table import TIME_OUT_MS
from millstream.vsr.core.clocks import AHEAD_MS_MAX
from millstream.vsr.core.effects import Read, Request, Timer, Touch
from millstream.vsr.core.entries import Entry, Kind
from millstream.vsr.core.replica.session_expiry import STEP_MS_MAX

if TYPE_CHECKING:
    from simulators.coordination_sim.machine import Machine
    from simulators.coordination_sim.world import World


class WrongTimeError(AssertionError):
    """A time is not what it has to be."""


class Work:
    """What one process has worked, by its own clock: no pause counts for more than a step."""

    def __init__(self, now_ms: float) -> None:
        self.worked_ms, self.last_ms = 0.0, now_ms
        self.heard: dict[int, float] = {}
        self.view = (-1, -1)
        self.since_ms = 0.0
        self.looked = 0

    def beat(self, now_ms: float) -> None:
        self.worked_ms += min(now_ms - self.last_ms, STEP_MS_MAX)
        self.last_ms = now_ms


class Times:
    """Of all machines."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ahead_ms: dict[bytes, float] = {}
        """How far each clock was ahead of true time when it was most."""
        self.time_outs: dict[int, float] = {}

    def clock_moved(self, machine: Machine) -> None:
        """Note what a clock shows that was just set."""
        ahead_ms = max(0.0, machine.clock() + machine.wall_ms) - self.world.loop.now
        known = self.ahead_ms.get(machine.id, ahead_ms)
        self.ahead_ms[machine.id] = max(known, ahead_ms)

    def commit(self, entry: Entry, last: Entry | None) -> None:
        """Look at the next entry that is committed."""
        if last is not None and entry.header.ts_ms < last.header.ts_ms:
            raise WrongTimeError(f"entry {entry.lsn} shows an earlier time than the one before")
        if entry.header.kind is Kind.SESSION_OPEN:
            argv = entry.content.argv
            self.time_outs[entry.lsn] = int(argv[0]) if argv else TIME_OUT_MS

    def hear(self, machine: Machine, now_ms: float, events: Iterable[Any]) -> None:
        """Note who is heard by a process that is about to take events."""
        work, replica = machine.work, machine.replica
        may_hear = replica.leading and not replica.suspended and not replica.is_persisting
        for event in events:
            kind = type(event)
            if kind is Timer:
                work.beat(now_ms)
            elif kind in (Touch, Request, Read) and event.session and may_hear:
                work.heard[event.session] = work.worked_ms

    def check(self, machine: Machine) -> None:
        """Look at what a primary has put into the log since the last time."""
        replica, work = machine.replica, machine.work
        view = (replica.epoch, replica.view)
        if work.view != view:
            work.view, work.since_ms = view, work.worked_ms
            work.looked = replica.state.noop_lsn - 1
        for lsn in range(max(work.looked, replica.log.base.lsn) + 1, replica.log.op_lsn + 1):
            entry = replica.log.entry_at(lsn)
            if entry is None or (entry.header.epoch, entry.header.view) != view:
                continue
            self._check_shown(replica, entry)
            if entry.header.kind is Kind.SESSION_EXPIRE:
                self._check_silence(work, entry)
        work.looked = replica.log.op_lsn

    def _check_shown(self, replica: Any, entry: Entry) -> None:
        """So many clocks as decide at least showed such a time, however long ago."""
        before = replica.log.entry_at(entry.lsn - 1)
        if before is None or entry.header.ts_ms <= before.header.ts_ms + AHEAD_MS_MAX:
            return
        ahead = sorted((self.ahead_ms.get(m, -1e12) for m in replica.members), reverse=True)
        now = self.world.loop.now
        believed = ahead[replica.state.quorum // 2] + now * (1 + 2 * self.world.conditions.drift)
        if entry.header.ts_ms > believed + AHEAD_MS_MAX + 1:
            raise WrongTimeError(f"entry {entry.lsn} shows the time of one wrong clock")

    def _check_silence(self, work: Work, entry: Entry) -> None:
        for session in map(int, entry.content.argv):
            silent_ms = work.worked_ms - max(work.since_ms, work.heard.get(session, 0.0))
            if silent_ms + STEP_MS_MAX < self.time_outs.get(session, 0.0):
                raise WrongTimeError(
                    f"session {session} ends after {silent_ms:.0f} ms of silence, it may be "
                    f"silent for {self.time_outs[session]:.0f}"
                )
