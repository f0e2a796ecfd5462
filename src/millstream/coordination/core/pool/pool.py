"""One node of a pool, whole: events in, effects out.

Invariants:
1. What an event changes of what is to outlive the process is durable before anything is said or
   done because of it; meanwhile other events wait, at most `DEFERRED_MAX` messages and commands,
   and no command longer than `ADMIN_MS_MAX`.
   Signs of life and questions of administrators need no disk and do not wait.
2. A group's messages do not come here while it is open: only its own replica decides about them.
3. Who is not of this pool has nothing founded or deleted here, nor its word counted.

Elsewhere: every decision, in the classes this one stands on; `pool_state` names them.

Source: V2R2, "Initial Bootstrap" and "Administration".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from millstream.coordination.core.pool.admin import Administration
from millstream.coordination.core.pool.admin_requests import ADMIN_MS_MAX
from millstream.coordination.core.pool.boots import IDLE, MEND
from millstream.coordination.core.pool.effects import (
    FIRST_GROUP,
    Admin,
    GroupChanged,
    GroupReplied,
    Heard,
    KeepNode,
    Marked,
    NodeStart,
    PoolEffect,
    PoolEvent,
    Posted,
    Stray,
    Told,
    Warn,
)
from millstream.coordination.core.pool.file_format import (
    NodeFile,
    decode_node_file,
    encode_node_file,
    lost_pool_file,
)
from millstream.coordination.core.pool.gossip import REMOVED
from millstream.coordination.core.pool.messages import (
    Address,
    Board,
    Carried,
    Carry,
    Deleted,
    Found,
    Founded,
    Founding,
    Hello,
    Join,
    JoinRefused,
    NodeInfo,
    Ping,
    PoolEnvelope,
    Refused,
    Tables,
)
from millstream.coordination.core.pool.tables import PoolTables
from millstream.vsr.core.effects import DiskDone, SetTimer, Timer
from millstream.vsr.core.values import error

__all__ = ["DEFERRED_MAX", "Pool"]

DEFERRED_MAX: Final = 1024
"""Messages and commands that wait while the node's file is written."""
_FULL: Final = error("BUSY", "the node's disk is full: make room")
_QUESTIONS: Final = (b"NODES", b"STATUS")


class Pool(Administration):
    """`step` is all there is to call; besides, to look at: `vds`, `where_text`, `address_of`."""

    def __init__(self, chance: Callable[[], float]) -> None:
        super().__init__(chance)
        self._keeping = 0
        self._forks_kept = 0
        """How many forks of groups had been heard of when the node's file was written last."""
        self._held: list[PoolEffect] = []
        self._out: list[PoolEffect] = []
        self._handlers: dict[type[Any], Callable[[PoolEnvelope, Any], None]] = {
            Hello: self.on_hello, Ping: self.on_ping, Tables: self.on_tables, Join: self.on_join,
            JoinRefused: self.on_join_refused, Found: self.on_found, Founded: self.on_founded,
            Deleted: self.on_deleted, Board: self.on_board, Refused: self.on_refused,
        }  # fmt: skip

    def step(self, now_ms: float, event: PoolEvent) -> list[PoolEffect]:
        """Take one event and return what to do, in order; `now_ms` only grows."""
        self.now_ms = now_ms
        if isinstance(event, Heard):
            self.note_alive(event.envelope)  # now: what it says may have to wait
        if isinstance(event, DiskDone) and event.op == self._keeping:
            self._keeping = 0
            self._out += self._held
            self._held = []
        elif self._keeping:
            self._meanwhile(event)
        else:
            self._take(event)
        while self.deferred and not self._keeping:
            self._take(self.deferred.popleft()[1])
        out, self._out = self._out, []
        return out

    def address_of(self, node_id: bytes) -> Address | None:
        """Return where a node of the pool listens for others."""
        info = self.tables.node(node_id)
        return info.peer if info is not None and info.peer.port else None

    def _meanwhile(self, event: PoolEvent) -> None:
        """Do what needs no disk; the rest waits for it."""
        match event:
            case Timer():
                self._out.append(SetTimer(self.tick_ms))
                self._give_up_waiting()
            case Admin(argv=argv) if argv[:1] and argv[0].upper() in _QUESTIONS:
                self.on_admin(event)
            case Told(ticket, answer) if ticket in self.reports:
                self.on_answer(ticket, answer)
            case Posted():
                self.post(event)
            case Heard(envelope):
                if isinstance(envelope.payload, Ping) and envelope.sender != self.id:
                    self.show_life(envelope, envelope.payload)
                self._defer(event)
            case _:
                self._defer(event)
        self._out += self.effects
        self.effects = []

    def _defer(self, event: PoolEvent) -> None:
        """Keep an event for later; answers and reports are as many as were asked for."""
        if not isinstance(event, Heard | Stray | Admin) or len(self.deferred) < DEFERRED_MAX:
            self.deferred.append((self.now_ms, event))
        elif isinstance(event, Admin):
            self.answer(event.ticket, error("BUSY", "the disk is slow"))

    def _give_up_waiting(self) -> None:
        """Answer commands for which the disk has taken too long."""
        self.give_up_pending(_FULL)
        for since_ms, event in list(self.deferred):
            if isinstance(event, Admin) and self.now_ms - since_ms >= ADMIN_MS_MAX:
                self.deferred.remove((since_ms, event))
                self.answer(event.ticket, _FULL)

    def _take(self, event: PoolEvent) -> None:
        self._handle(event)
        self.look_after_pending()
        effects, self.effects = self.effects, []
        if self.is_changed or self.directory.forks_total != self._forks_kept:
            self.is_changed, self._forks_kept = False, self.directory.forks_total
            self._keeping = self.next_number(lambda: None)
            self._out.append(KeepNode(self._keeping, self._content()))
            self._held = effects
        else:
            self._out += effects

    def _handle(self, event: PoolEvent) -> None:
        match event:
            case NodeStart():
                self._start(event)
            case Heard(envelope):
                if envelope.sender in self.tables.tombstones:
                    self.on_removed(envelope)
                elif envelope.sender != self.id and self._is_heeded(envelope):
                    self._handlers[type(envelope.payload)](envelope, envelope.payload)
            case Stray(envelope):
                self.on_stray(envelope)
            case GroupChanged():
                self.on_group_changed(event)
            case Admin():
                self.on_admin(event)
            case GroupReplied(ticket, reply):
                self.on_answer(ticket, reply)
            case Told(ticket, answer):
                self.on_answer(ticket, answer)
            case Posted():
                self.on_posted(event)
            case Marked():
                self.on_marked(event)
                self.spread()
            case Timer():
                self._tick()
            case DiskDone(number):
                self.on_disk_done(number)

    def _is_heeded(self, envelope: PoolEnvelope) -> bool:
        """Return whether it may say this: of groups, only nodes of this pool.

        That this node was removed it is told by any that knows, also when it has forgotten all.
        """
        match envelope.payload:
            case Deleted(group_id) if group_id == self.id:
                return True
            case Carry() | Carried():  # they are about names, and not the pool's
                return False
            case Found() | Founded() | Deleted() | Board() | Refused():
                return self.tables.node(envelope.sender) is not None
        return True

    def _tick(self) -> None:
        self._out.append(SetTimer(self.tick_ms))
        self.tick_foundings()
        self.tick_admin()
        self.tick_boots()
        self.tick_gossip()

    # ---- the node's file

    def _start(self, start: NodeStart) -> None:
        me = NodeInfo(start.node_id, start.incarnation, 0, start.peer, start.coord)
        self.tables = PoolTables(me)
        self.is_changed = start.content is None
        self.own_refusal = start.refusal
        if start.content is not None:
            self._load(start.content)
        elif start.here:
            raise lost_pool_file("the node's pool file is gone, but there are groups beside it")
        self.open_again(start.here)
        if start.content is None and not start.join:
            salt = int.from_bytes(start.node_id[:7], "big")
            self.take_founding(Founding(FIRST_GROUP, (start.node_id,), True, salt))
        if self.tables.is_removed:
            self.effects.append(Warn(REMOVED))
        elif start.refusal:
            self.effects.append(Warn(f"{IDLE}: {start.refusal}; {MEND}"))
        elif start.join:
            is_changed = self.is_changed
            self.join(start.join)
            self.is_changed = is_changed  # what a node says of itself begins anew at each start
        self.effects.append(SetTimer(self.tick_ms * self.chance()))

    def _load(self, content: bytes) -> None:
        kept = decode_node_file(content)
        if kept.node_id != self.id:
            raise lost_pool_file("the node's pool file is of another node")
        tables = kept.tables
        self.tables.pool_ids = tables.pool_ids
        self.tables.tombstones = dict.fromkeys(tables.tombstones)
        for founding in tables.foundings:
            self.tables.note_founding(founding)
        for info in tables.nodes:
            self.tables.note_node(info)
        known = self.tables.foundings
        self.hosted = {one.group_id: one for one in kept.hosted if one.group_id in known}
        self.directory.load(kept.forks, known, self.now_ms)
        self._forks_kept = self.directory.forks_total

    def _content(self) -> bytes:
        hosted = tuple(self.hosted[group_id] for group_id in sorted(self.hosted))
        forks = self.directory.forks()
        return encode_node_file(NodeFile(self.id, self.tables.message(), hosted, forks))
