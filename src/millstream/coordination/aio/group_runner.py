"""One group of this process: replica, journal, timer, and the calls that wait for answers.

Invariants:
1. Events are processed in the order of their arrival. Consecutive client requests are one step,
   any other event is one. All effects of a step are executed, in order, before the next one. After
   `TURN_S` other tasks get a turn.
2. Each ticket is answered exactly once: by the replica, or by `close` with UNKNOWN.
3. A pause of the process, or a wait for the disk, does not count as silence of the other members.
4. After the disk failed, or the replica found itself wrong, nothing is sent, written or answered.
   `on_fatal` is called once.

Elsewhere: all decisions (`vsr.core.replica`), the files (`vsr.aio.journal`), connections
(`aio.peers`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

from millstream.coordination.aio.working_clock import WorkingClock
from millstream.coordination.core.pool.effects import GroupChanged
from millstream.errors import CorruptionError
from millstream.ports.disk import Disk
from millstream.vsr.aio.journal import JournalThread
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.disk.reached_file import ReachedFile
from millstream.vsr.core.effects import (
    CallSoon,
    Code,
    CopyState,
    DiskDone,
    DiskGaveUp,
    Effect,
    Event,
    Force,
    Message,
    MovePrimary,
    Read,
    Reconfigure,
    Reply,
    Request,
    Resume,
    Send,
    SetTimer,
    Soon,
    Start,
    TakeSnapshot,
    Timer,
    Touch,
)
from millstream.vsr.core.entries import NOBODY, Body, Header, Kind
from millstream.vsr.core.messages import Envelope
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.replica.replica import Replica
from millstream.vsr.core.state_machine import StateMachine
from millstream.vsr.core.versions import Version, version_of

__all__ = ["STEP_EVENTS_MAX", "TURN_S", "GroupRunner", "OnReply", "SendTo"]

_LOG = logging.getLogger(__name__)
STEP_EVENTS_MAX: Final = 128
"""Requests and reads that a replica takes at once."""
TURN_S: Final = 0.002
"""How long a replica takes events before others have their turn."""
Asking = Read | Resume | Reconfigure | MovePrimary | TakeSnapshot | CopyState | Force
_OF_CLIENTS: Final = frozenset((Request, Read, Touch))
OnReply = Callable[[Reply], None]
SendTo = Callable[[bytes, Envelope], None]


class GroupRunner:
    """Opened by `open` on a formatted group, ended by `close`; all calls are made in the loop.

    Args:
        machine: what the group replicates.
        send: tries to deliver a message to a node.
        on_fatal: called when the disk failed: the process has to stop.
        on_change: called after a step that changed its hard state in the group, before it sends.
    """

    def __init__(
        self,
        machine: StateMachine,
        send: SendTo,
        on_fatal: Callable[[BaseException], None],
        on_change: Callable[[GroupChanged], None] = lambda _: None,
    ) -> None:
        self.replica = Replica(machine, random.SystemRandom().random)
        self._send, self._on_fatal, self._on_change = send, on_fatal, on_change
        self._state: tuple[Status, Configuration, int, bool] | None = None
        self._contradiction, self._is_stuck = "", False
        self._journal: JournalThread | None = None
        self._loop = asyncio.get_running_loop()
        self._clock = WorkingClock(self._loop.time)
        self._tickets = count(1)
        self._waiting: dict[int, OnReply] = {}
        self._events: deque[Event] = deque()
        self._is_due = self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls,
        disk: Disk,
        machine: StateMachine,
        *,
        send: SendTo,
        on_fatal: Callable[[BaseException], None],
        on_change: Callable[[GroupChanged], None] = lambda _: None,
        reached: ReachedFile | None = None,
    ) -> GroupRunner:
        """Begin with what the files of the group have.

        `reached`: as of `JournalThread.open`.

        Raises:
            CorruptionError: `promises_lost`; `set_back`; a newer version wrote the files.
            UnavailableError: `disk_full`, `disk_failed`.
        """
        runner = cls(machine, send, on_fatal, on_change)
        journal = await JournalThread.open(
            disk, on_done=runner._written, on_fatal=runner._failed, on_given_up=runner._given_up,
            reached=reached,
        )  # fmt: skip
        durable = journal.take_image()
        if durable.hard_state is None:
            await journal.close()
            raise _promises_lost(disk)
        runner._journal = journal
        runner.take(Start(await asyncio.to_thread(lambda: durable.for_replica)))
        return runner

    # ---- what others want

    def receive(self, envelope: Envelope) -> None:
        """Take a message of a member."""
        self.take(Message(envelope))

    def request(
        self,
        body: Body,
        on_reply: OnReply,
        *,
        instance: bytes = NOBODY,
        session: int = 0,
        csn: int = 0,
        kind: Kind = Kind.REQUEST,
        is_counted: bool = False,
    ) -> None:
        """Request a change. `on_reply` is called once."""
        ticket = self._ticket(on_reply)
        self.take(Request(ticket, body, instance, session, csn, kind, is_counted))

    def read(
        self, body: Body, on_reply: OnReply, seen: int | None = None, session: int = 0
    ) -> None:
        """Request a read. `on_reply` is called as for `request`."""
        self.take(Read(self._ticket(on_reply), body, seen, session))

    def ask(self, event: Asking, on_reply: OnReply) -> None:
        """Request anything else. The event's own ticket is not used."""
        self.take(event._replace(ticket=self._ticket(on_reply)))

    def touch(self, session: int) -> None:
        """Note that a session's client lives."""
        self.take(Touch(session))

    def _ticket(self, on_reply: OnReply) -> int:
        ticket = next(self._tickets)
        self._waiting[ticket] = on_reply
        return ticket

    def headers(self, first_lsn: int, last_lsn: int) -> list[Header]:
        """Return the headers of the log in a range, as far as it has them."""
        log = self.replica.log
        first, last = max(first_lsn, log.base.lsn + 1), min(last_lsn, log.op_lsn)
        found = map(log.entry_at, range(first, last + 1))
        return [entry.header for entry in found if entry is not None]

    def version_at(self, lsn: int) -> Version | None:
        """Return the version of an entry, None if the log does not have it."""
        entry = self.replica.log.entry_at(lsn)
        return None if entry is None else version_of(entry.header)

    @property
    def waiting(self) -> int:
        """How many answers are owed."""
        return len(self._waiting)

    @property
    def is_disk_full(self) -> bool:
        """Whether the journal waits for space, and all that depends on it."""
        return self._journal is not None and self._journal.is_full

    async def close(self) -> None:
        """End it. Does nothing if it has ended. Waiting requests get the answer "unknown"."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, {}
        for ticket, on_reply in waiting.items():
            on_reply(Reply(ticket, Code.UNKNOWN))
        journal, self._journal = self._journal, None
        if journal is not None:
            await journal.close()

    # ---- events in, effects out

    def take(self, event: Event) -> None:
        """Give an event to the replica at the end of this turn, and carry out its effects."""
        self._events.append(event)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        until = time.monotonic() + TURN_S  # the loop's own time stands still within a turn
        try:
            while self._events and not self._is_closed:
                self._take_some()
                if time.monotonic() >= until:
                    break
        except Exception as error:  # noqa: BLE001 - whatever it is, this replica is wrong
            _LOG.critical("a coordination group stops", exc_info=True)
            self._failed(error)
        self._is_due = bool(self._events) and not self._is_closed
        if self._is_due:
            self._loop.call_soon(self._step)

    def _take_some(self) -> None:
        """Give the replica the requests of clients, or one other event, which may take long."""
        events, some = self._events, [self._events.popleft()]
        if type(some[0]) in _OF_CLIENTS:
            while events and type(events[0]) in _OF_CLIENTS and len(some) < STEP_EVENTS_MAX:
                some.append(events.popleft())
        now_ms, wall_ms = self._clock.now_ms(), time.time_ns() // 1_000_000
        effects = self.replica.step(now_ms, wall_ms, *some)
        self._tell_changes()
        for effect in effects:
            self._carry_out(effect)

    def _tell_changes(self) -> None:
        replica = self.replica
        if replica.contradiction != self._contradiction:
            self._contradiction = replica.contradiction
            _LOG.error(
                "coordination group %s: ignored an invalid message: %s",
                replica.group_id.hex(), self._contradiction,
            )  # fmt: skip
        report = replica.report() if replica.troubled or self._is_stuck else None
        if report is not None and report.is_stuck != self._is_stuck:
            self._is_stuck = report.is_stuck
            if report.is_stuck:
                _LOG.error(
                    "coordination group %s cannot work on this node: %s",
                    replica.group_id.hex(), report.trouble,
                )  # fmt: skip
            else:
                _LOG.warning("coordination group %s works again", replica.group_id.hex())
        leads = replica.leading and not replica.suspended
        state = replica.status, replica.configuration, replica.view, leads
        if state != self._state:
            self._state = state
            self._on_change(GroupChanged(replica.group_id, *state))

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Reply):
            if on_reply := self._waiting.pop(effect.ticket, None):
                on_reply(effect)
            return
        match effect:
            case Send(receiver, envelope):
                self._send(receiver, envelope)
            case CallSoon():
                self._loop.call_soon(self.take, Soon())
            case SetTimer(after_ms):
                if self._timer is not None:
                    self._timer.cancel()
                self._clock.wake_after(after_ms)
                self._timer = self._loop.call_later(after_ms / 1000, self.take, Timer())
            case _:
                assert self._journal is not None
                self._journal.carry_out(effect)

    def _written(self, op: int) -> None:
        self.take(DiskDone(op))

    def _given_up(self, op: int) -> None:
        self.take(DiskGaveUp(op))

    def _failed(self, error: BaseException) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self._timer is not None:
                self._timer.cancel()
            self._on_fatal(error)


def _promises_lost(disk: Disk) -> CorruptionError:
    return CorruptionError(
        f"both copies of {disk.describe('superblock')} are damaged, and with them what this node "
        "has promised to its group: it must not go on under this id. Move the directory that the "
        "group's is in aside, start the node anew, and let it take the lost one's place "
        "(ADMIN GROUP REPLACE)",
        code="promises_lost",
    )
