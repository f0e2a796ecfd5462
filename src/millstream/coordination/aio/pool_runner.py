"""The shell of the pool: executes the effects of one node's pool, and reports their results.

Invariants:
1. One event at a time. Its effects are executed in order before the next one is examined.
2. Disk effects are executed one after the other, each reported before the next one begins. Without
   disk space they wait and are tried again, and a start does not wait for them. Only a group that
   cannot be formatted or opened lets others go first. Any other error ends the process.
3. Every request and every command is answered, also about groups that are not here.

Elsewhere: decisions (`core.pool`), the groups (`aio.groups`), connections (`aio.peers`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from millstream.coordination.aio.backups import Restored, back_up, restore
from millstream.coordination.aio.groups import Groups
from millstream.coordination.aio.node_file import keep_refusal
from millstream.coordination.aio.peers import Peers
from millstream.coordination.aio.pool_copies import keep_pool_file
from millstream.coordination.aio.working_clock import WorkingClock
from millstream.coordination.core.pool.effects import (
    Admin,
    AdminReply,
    Answered,
    AskBackup,
    AskGroup,
    AskLog,
    AskReport,
    AskRestore,
    CloseGroups,
    DropGroup,
    FormatGroup,
    GroupReplied,
    HangUp,
    Heard,
    KeepNode,
    KeepRefusal,
    NodeStart,
    OpenGroup,
    PoolEffect,
    PoolEvent,
    Refusal,
    Say,
    TellFork,
    Warn,
)
from millstream.coordination.core.pool.file_format import Phase
from millstream.coordination.core.pool.messages import (
    Address,
    Hello,
    PoolEnvelope,
    encode_pool,
)
from millstream.coordination.core.pool.pool import Pool
from millstream.errors import (
    CorruptionError,
    MillstreamError,
    RemoteProtocolError,
    UnavailableError,
)
from millstream.runtime.tasks import Tasks, in_thread
from millstream.storage.core.disk_errors import is_full
from millstream.vsr.core.disk.reached_file import SET_BACK
from millstream.vsr.core.effects import Code, DiskDone, Reply, SetTimer, Timer
from millstream.vsr.core.entries import NOBODY

__all__ = ["DISK_FULL_RETRY_S", "OPEN_RETRY_S", "PoolRunner"]

_LOG = logging.getLogger(__name__)
DISK_FULL_RETRY_S: Final = 1.0
"""How long what has to be written waits for space before it is tried again."""
OPEN_RETRY_S: Final = 5.0
"""Pause before a group's folder is opened again after an error."""
_NOT_HERE: Final = Refusal("NOTPRIMARY", "the group is not open here")
_NO_SPACE: Final = Refusal("NOTPRIMARY", "the group is opened here once the disk has space again")


class _Work(NamedTuple):
    """What is done on the disk, reported by a number unless that is 0.

    `group_id`: without space others overtake it, and it is not wanted any more once the group's
    phase is another one.
    """

    op: int
    call: Callable[[], Coroutine[Any, Any, None]]
    group_id: bytes = b""
    phase: Phase | None = None


class PoolRunner:
    """Begins by `start`, ended by `close`.

    Args:
        pool: of this node.
        directory: of coordination.
        groups: of this node.
        peers: its connections.
        on_fatal: called when the disk failed.
    """

    def __init__(
        self,
        pool: Pool,
        directory: Path,
        groups: Groups,
        peers: Peers,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.pool = pool
        self._directory = directory
        self._groups, self._peers, self._on_fatal = groups, peers, on_fatal
        self._loop = asyncio.get_running_loop()
        self._clock = WorkingClock(self._loop.time)
        self._events: deque[PoolEvent] = deque()
        self._is_stepping = self._is_working = self._is_closed = False
        self._work: deque[_Work] = deque()
        self._put_off: dict[bytes, asyncio.TimerHandle] = {}
        self.set_back: dict[bytes, str] = {}
        """Groups whose files are older than they were, and so stay closed, and why."""
        self._waits = False
        self._idle = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._tickets = count(1)
        self._commands: dict[int, Callable[[bytes], None]] = {}
        self._tasks = Tasks(self._failed)
        self._error: BaseException | None = None
        self.who: dict[Address, bytes] = {}
        """The node that was last spoken to at each address."""

    @property
    def is_disk_full(self) -> bool:
        """Whether something waits for space."""
        return self._waits or bool(self._put_off)

    async def start(self, begin: NodeStart) -> None:
        """Go on where the last process of this node was; return once that is done.

        Or once something waits for space: what it stands for comes when there is some.

        Raises:
            CorruptionError: its file, or that of a group, is not what was written.
            UnavailableError: `disk_failed`.
        """
        for effect in self.pool.step(self._clock.now_ms(), begin):
            self._carry_out(effect)
        await self._until_idle()

    async def _until_idle(self) -> None:
        while self._is_working and not self._waits:
            self._idle.clear()
            await self._idle.wait()
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """End it. Waiting commands get no answer."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._work.clear()
        for timer in self._put_off.values():
            timer.cancel()
        await self._tasks.stop()

    # ---- what others want

    def admin(self, argv: tuple[bytes, ...], done: Callable[[bytes], None]) -> None:
        """Carry out an administrator's command, what follows the word ADMIN."""
        ticket = next(self._tickets)
        self._commands[ticket] = done
        self.take(Admin(ticket, argv))

    def hear(self, envelope: PoolEnvelope) -> None:
        """Take what a node says.

        Raises:
            RemoteProtocolError: `bad_greeting`: it takes this node for another one;
                `refused_node`: its directory is an older copy of a node's, or may be one.
        """
        hello = envelope.payload
        if isinstance(hello, Hello) and hello.receiver not in (NOBODY, self.pool.id):
            raise RemoteProtocolError("it takes this node for another one", code="bad_greeting")
        self.take(Heard(envelope))
        if isinstance(hello, Hello) and (
            reason := self.pool.incarnations.refusal_of_node(hello.info)
        ):
            raise RemoteProtocolError(reason, code="refused_node")

    def greeting(self, address: Address) -> bytes:
        """Return the first message to the node at an address."""
        hello = Hello(self.pool.me, self.who.get(address, NOBODY))
        return encode_pool(PoolEnvelope(self.pool.id, self.pool.me.incarnation, hello))

    # ---- events in, effects out

    def take(self, event: PoolEvent) -> None:
        """Give an event to the pool, and carry out its effects."""
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._events and not self._is_closed:
                event = self._events.popleft()
                for effect in self.pool.step(self._clock.now_ms(), event):
                    self._carry_out(effect)
        except Exception as error:  # noqa: BLE001 - whatever it is, this pool is wrong
            _LOG.critical("the coordination pool of this node stops", exc_info=True)
            self._failed(error)
        finally:
            self._is_stepping = False

    def _carry_out(self, effect: PoolEffect) -> None:
        match effect:
            case Say(receiver, address, envelope):
                self.who[address] = receiver
                self._peers.send(address, encode_pool(envelope))
            case HangUp(node_id):
                for address in [one for one, who in self.who.items() if who == node_id]:
                    del self.who[address]
                    self._peers.hang_up(address)
            case SetTimer(after_ms):
                if self._timer is not None:
                    self._timer.cancel()
                self._clock.wake_after(after_ms)
                self._timer = self._loop.call_later(after_ms / 1000, self.take, Timer())
            case Warn(text):
                _LOG.warning("%s", text)
            case TellFork(group_id, event):
                if runner := self._groups.running.get(group_id):
                    runner.take(event)
            case CloseGroups():
                self._tasks.start(self._groups.stop_all(), name="closing all groups")
            case AdminReply(ticket, value):
                if done := self._commands.pop(ticket, None):
                    done(value)
            case AskGroup() | AskReport() | AskLog() | AskBackup() | AskRestore():
                self._answer(effect)
            case _:
                self._to_disk(effect)

    def _answer(self, asked: AskGroup | AskReport | AskLog | AskBackup | AskRestore) -> None:
        ticket = asked.ticket
        if isinstance(asked, AskRestore):
            made = restore(self._groups, asked.hard_state, asked.file)
            return self._tell_later(ticket, made, "restoring a group")
        runner = self._groups.running.get(asked.group_id)
        not_here = _NO_SPACE if asked.group_id in self._put_off else _NOT_HERE
        if asked.group_id in self.set_back:
            not_here = Refusal("BADCONFIG", self.set_back[asked.group_id])
        match asked:
            case AskGroup(_, _, event):
                if runner is None:
                    return self.take(GroupReplied(ticket, Reply(ticket, Code.NOTPRIMARY)))
                return runner.ask(event, lambda reply: self.take(GroupReplied(ticket, reply)))
            case AskReport():
                answer = runner.replica.report() if runner is not None else not_here
                return self.take(Answered(ticket, answer))
            case AskBackup(_, _, file, is_of_one):
                snapshot = None
                if runner is not None:
                    replica = runner.replica
                    snapshot = replica.take_copy() if is_of_one else replica.stable
                if snapshot is None:
                    return self.take(Answered(ticket, not_here))
                written = back_up(snapshot, file, is_of_one=is_of_one)
                return self._tell_later(ticket, written, "backing up a group")
            case AskLog(_, _, first_lsn, last_lsn):
                if runner is None:
                    return self.take(Answered(ticket, not_here))
                return self.take(Answered(ticket, runner.headers(first_lsn, last_lsn)))

    def _tell_later(
        self, ticket: int, work: Coroutine[Any, Any, Restored | Refusal], name: str
    ) -> None:
        async def tell() -> None:
            try:
                answer = await work
            except Exception as error:  # noqa: BLE001 - it is an answer
                _LOG.exception("%s failed", name)
                answer = Refusal("ERR", f"{name} failed: {error!r}")
            self.take(Answered(ticket, answer))

        self._tasks.start(tell(), name=name)

    # ---- the disk

    def _to_disk(
        self, effect: KeepNode | KeepRefusal | FormatGroup | OpenGroup | DropGroup
    ) -> None:
        groups = self._groups
        match effect:
            case KeepRefusal(op, reason):
                mark = partial(keep_refusal, self._directory, reason)
                self._add(_Work(op, lambda: in_thread(mark)))
            case KeepNode(op, content):
                keep = partial(keep_pool_file, self._directory, content)
                self._add(_Work(op, lambda: in_thread(keep)))
            case FormatGroup(op, hard_state):
                group_id = hard_state.group_id
                format_it = partial(groups.format, hard_state)
                self._add(_Work(op, format_it, group_id, Phase.FORMATTING))
            case OpenGroup(group_id, number):
                open_it = partial(groups.open, group_id, number)
                self._add(_Work(0, open_it, group_id, Phase.OPEN))
            case DropGroup(op, group_id):
                self.set_back.pop(group_id, None)
                self._add(_Work(op, lambda: groups.drop(group_id)))

    def _add(self, work: _Work) -> None:
        self._work.append(work)
        if not self._is_working:
            self._is_working = True
            self._tasks.start(self._do_all(), name="the pool's files")

    async def _do_all(self) -> None:
        try:
            while self._work:
                work = self._work.popleft()
                if await self._do(work) and work.op:
                    self.take(DiskDone(work.op))
        except (MillstreamError, OSError) as error:
            self._failed(error)
        finally:
            self._is_working = False
            self._idle.set()

    async def _do(self, work: _Work) -> bool:
        """Return whether it is done; False: it is put off."""
        while self._is_wanted(work):
            try:
                await work.call()
                break
            except CorruptionError as error:
                if work.phase is not Phase.OPEN or error.code != SET_BACK:
                    raise
                self.set_back[work.group_id] = str(error)
                self._put_off.pop(work.group_id, None)
                _LOG.critical("coordination group %s stays closed: %s", work.group_id.hex(), error)
                return False
            except (UnavailableError, OSError) as error:
                passes = isinstance(error, OSError) and is_full(error)
                if not passes and _code(error) != "disk_full":
                    raise
                if work.phase is not None:
                    self._do_later(work, error)
                    return False
                if not self._waits:
                    _LOG.error("coordination on this node waits for disk space: %s", error)
            self._waits = True
            self._idle.set()
            await asyncio.sleep(DISK_FULL_RETRY_S)
        self._waits = False
        if work.phase is not None:
            self._put_off.pop(work.group_id, None)
        return True

    def _is_wanted(self, work: _Work) -> bool:
        hosted = self.pool.hosted.get(work.group_id)
        if work.phase is Phase.OPEN and self.pool.incarnations.own_refusal:
            return False
        return work.phase is None or (hosted is not None and hosted.phase is work.phase)

    def _do_later(self, work: _Work, error: Exception) -> None:
        if work.group_id not in self._put_off:
            group = work.group_id.hex()
            _LOG.error("coordination group %s waits for disk space: %s", group, error)
        timer = self._loop.call_later(OPEN_RETRY_S, self._add, work)
        self._put_off[work.group_id] = timer

    def _failed(self, error: BaseException) -> None:
        self._is_closed, self._error = True, error
        self._on_fatal(error)


def _code(error: Exception) -> str:
    return error.code if isinstance(error, MillstreamError) else ""
