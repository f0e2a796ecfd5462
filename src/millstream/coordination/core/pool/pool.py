"""One node of a pool as a whole: events in, effects out.

Invariants:
1. A change that must survive the process is durable before any message or effect depends on it.
   Meanwhile other events wait: at most `DEFERRED_MAX` messages and commands, and no command longer
   than `ADMIN_MS_MAX`. Heartbeats and questions of administrators need no disk and do not wait.
2. Messages of a group do not come here while the group is open: only its replica handles them.
3. A node outside this pool can found or delete nothing here, and its reports do not count.

The parts, each of which knows only those before it:

    state, continuations   what all share; what continues after the disk or an answer
    board, heartbeats      what the system group tells all nodes; pings
    incarnations           which process of a node counts
    membership             joining, leaving, being removed
    groups                 the groups that this node hosts
    gossip                 how nodes learn about each other and about groups
    discovery              the groups and their places
    requests, ..._commands the commands of administrators

Source: V2R2, "Initial Bootstrap" and "Administration".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from millstream.coordination.core.pool.admin_commands import ADMIN_MAX, READS, AdminCommands
from millstream.coordination.core.pool.admin_requests import ADMIN_MS_MAX, AdminRequests
from millstream.coordination.core.pool.continuations import Continuations
from millstream.coordination.core.pool.directory import Directory
from millstream.coordination.core.pool.discovery import Discovery
from millstream.coordination.core.pool.effects import (
    FIRST_GROUP,
    Admin,
    Answered,
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
    Warn,
)
from millstream.coordination.core.pool.file_format import (
    Hosted,
    NodeFile,
    decode_node_file,
    encode_node_file,
    lost_pool_file,
)
from millstream.coordination.core.pool.gossip import Gossip
from millstream.coordination.core.pool.group_commands import GroupCommands
from millstream.coordination.core.pool.heartbeats import Heartbeats
from millstream.coordination.core.pool.hosted_groups import HostedGroups
from millstream.coordination.core.pool.incarnations import IDLE, MEND, Incarnations
from millstream.coordination.core.pool.membership import REMOVED, Membership
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
from millstream.coordination.core.pool.pool_commands import PoolCommands
from millstream.coordination.core.pool.replica_commands import ReplicaCommands
from millstream.coordination.core.pool.state import PoolState
from millstream.coordination.core.pool.system_board import SystemBoard
from millstream.coordination.core.pool.tables import PoolTables
from millstream.vsr.core.effects import DiskDone, SetTimer, Timer
from millstream.vsr.core.values import error

__all__ = ["DEFERRED_MAX", "Pool"]

DEFERRED_MAX: Final = 1024
"""Messages and commands that wait while the node's file is written."""
_FULL: Final = error("BUSY", "the node's disk is full: make room")


class Pool:
    """`step` is all that changes it; besides, others read it and ask its parts."""

    def __init__(self, chance: Callable[[], float]) -> None:
        self.state = state = PoolState(chance)
        self._continuations = continuations = Continuations()
        self.board = board = SystemBoard(state)
        self.heartbeats = heartbeats = Heartbeats(state, board)
        self.incarnations = Incarnations(state, continuations, heartbeats)
        self.membership = Membership(state, board, heartbeats, self.incarnations)
        self.groups = HostedGroups(state, continuations, self.incarnations, self.membership)
        self.gossip = Gossip(
            state, board, heartbeats, self.incarnations, self.membership, self.groups
        )
        self.discovery = Discovery(state, board, heartbeats)
        self._requests = requests = AdminRequests(state)
        replica_commands = ReplicaCommands(
            state, continuations, self.incarnations, self.discovery, requests
        )
        group_commands = GroupCommands(
            state, continuations, board, self.groups, self.discovery, requests, replica_commands
        )
        self._pool_commands = PoolCommands(
            state, heartbeats, self.incarnations, self.membership, self.groups, self.discovery,
            requests,
        )  # fmt: skip
        self._admin = AdminCommands(
            continuations, self.incarnations, requests, self._pool_commands, group_commands,
            replica_commands,
        )  # fmt: skip
        self._keeping = 0
        """The number of the write of the node's file that is under way; 0: there is none."""
        self._forks_kept = 0
        """How many forks of groups had been heard of when the node's file was written last."""
        self._held: list[PoolEffect] = []
        """Effects that wait for that write."""
        self._out: list[PoolEffect] = []
        gossip, groups, membership = self.gossip, self.groups, self.membership
        self._handlers: dict[type[Any], Callable[[PoolEnvelope, Any], None]] = {
            Hello: gossip.on_hello, Ping: gossip.on_ping, Tables: gossip.on_tables,
            Join: membership.on_join, JoinRefused: membership.on_join_refused,
            Found: groups.on_found, Founded: groups.on_founded, Deleted: groups.on_deleted,
            Board: board.on_board, Refused: self.incarnations.on_refused,
        }  # fmt: skip

    # ---- what others read

    @property
    def me(self) -> NodeInfo:
        """What this node says of itself."""
        return self.state.me

    @property
    def id(self) -> bytes:
        """The id of this node."""
        return self.state.id

    @property
    def tables(self) -> PoolTables:
        """The nodes and groups of the pool."""
        return self.state.tables

    @property
    def directory(self) -> Directory:
        """Where the groups are."""
        return self.state.directory

    @property
    def hosted(self) -> dict[bytes, Hosted]:
        """The groups that have a folder here, or get one."""
        return self.state.hosted

    def address_of(self, node_id: bytes) -> Address | None:
        """Return where a node of the pool listens for others."""
        info = self.tables.node(node_id)
        return info.peer if info is not None and info.peer.port else None

    # ---- events

    def step(self, now_ms: float, event: PoolEvent) -> list[PoolEffect]:
        """Take one event and return what to do, in order; `now_ms` only grows."""
        self.state.now_ms = now_ms
        if isinstance(event, Heard):
            self.incarnations.note_alive(event.envelope)  # now: what it says may have to wait
        if isinstance(event, DiskDone) and event.op == self._keeping:
            self._keeping = 0
            self._out += self._held
            self._held = []
        elif self._keeping:
            self._meanwhile(event)
        else:
            self._take(event)
        while self.state.deferred and not self._keeping:
            self._take(self.state.deferred.popleft()[1])
        out, self._out = self._out, []
        return out

    def _meanwhile(self, event: PoolEvent) -> None:
        """Do what needs no disk; the rest waits for it."""
        match event:
            case Timer():
                self._out.append(SetTimer(self.heartbeats.tick_ms))
                self._give_up_waiting()
            case Admin(argv=argv) if argv[:1] and argv[0].upper() in READS:
                self._admin.on_admin(event)
            case Answered(ticket, answer) if self._continuations.is_read(ticket):
                self._continuations.on_answer(ticket, answer)
            case Posted():
                self.board.post(event)
            case Heard(envelope):
                if isinstance(envelope.payload, Ping) and envelope.sender != self.id:
                    self.gossip.answer_while_writing(envelope, envelope.payload)
                self._defer(event)
            case _:
                self._defer(event)
        self._out += self.state.effects
        self.state.effects = []

    def _defer(self, event: PoolEvent) -> None:
        """Keep an event for later; answers and reports are as many as were asked for."""
        if not isinstance(event, Heard | Stray | Admin) or len(self.state.deferred) < DEFERRED_MAX:
            self.state.deferred.append((self.state.now_ms, event))
        elif isinstance(event, Admin):
            self._requests.answer(event.ticket, error("BUSY", "the disk is slow"))

    def _give_up_waiting(self) -> None:
        """Answer commands for which the disk has taken too long."""
        self._requests.answer_late(_FULL)
        for since_ms, event in list(self.state.deferred):
            if isinstance(event, Admin) and self.state.now_ms - since_ms >= ADMIN_MS_MAX:
                self.state.deferred.remove((since_ms, event))
                self._requests.answer(event.ticket, _FULL)

    def _take(self, event: PoolEvent) -> None:
        self._handle(event)
        self._requests.answer_done()
        effects, self.state.effects = self.state.effects, []
        if self.state.is_changed or self.directory.forks_total != self._forks_kept:
            self.state.is_changed, self._forks_kept = False, self.directory.forks_total
            self._keeping = self._continuations.next_number()
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
                    self.membership.tell_removed(envelope)
                elif envelope.sender != self.id and self._is_heeded(envelope):
                    self._handlers[type(envelope.payload)](envelope, envelope.payload)
            case Stray(envelope):
                self.groups.on_stray(envelope)
            case GroupChanged():
                self.gossip.on_group_changed(event)
            case Admin():
                self._admin.on_admin(event)
            case GroupReplied(ticket, reply):
                self._continuations.on_answer(ticket, reply)
            case Answered(ticket, answer):
                self._continuations.on_answer(ticket, answer)
            case Posted():
                self.gossip.on_posted(event)
            case Marked():
                self.incarnations.on_marked(event)
                self.heartbeats.ping_all()
            case Timer():
                self._tick()
            case DiskDone(number):
                self._continuations.on_disk_done(number)

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
        self._out.append(SetTimer(self.heartbeats.tick_ms))
        self.groups.tick()
        self._pool_commands.tick()
        self.incarnations.tick()
        self.gossip.tick()

    # ---- the node's file

    def _start(self, start: NodeStart) -> None:
        me = NodeInfo(start.node_id, start.incarnation, 0, start.peer, start.coord)
        self.state.tables = PoolTables(me)
        self.state.is_changed = start.content is None
        self.incarnations.own_refusal = start.refusal
        if start.content is not None:
            self._load(start.content)
        elif start.here:
            raise lost_pool_file("the node's pool file is gone, but there are groups beside it")
        self.groups.open_again(start.here)
        if start.content is None and not start.join:
            salt = int.from_bytes(start.node_id[:7], "big")
            self.groups.take_founding(Founding(FIRST_GROUP, (start.node_id,), True, salt))
        if self.tables.is_removed:
            self.state.effects.append(Warn(REMOVED))
        elif start.refusal:
            self.state.effects.append(Warn(f"{IDLE}: {start.refusal}; {MEND}"))
        elif start.join:
            is_changed = self.state.is_changed
            self.membership.join(start.join)
            # Nothing to write: what a node says of itself begins anew at each start.
            self.state.is_changed = is_changed
        self.state.effects.append(SetTimer(self.heartbeats.tick_ms * self.state.chance()))

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
        self.state.hosted = {one.group_id: one for one in kept.hosted if one.group_id in known}
        self.directory.load(kept.forks, known, self.state.now_ms)
        self._forks_kept = self.directory.forks_total

    def _content(self) -> bytes:
        hosted = tuple(self.hosted[group_id] for group_id in sorted(self.hosted))
        forks = self.directory.forks()
        return encode_node_file(NodeFile(self.id, self.tables.message(), hosted, forks))

    # ---- invariants

    def check_invariants(self) -> None:
        """Assert what is true after every event; simulators call it, nothing else needs it."""
        is_writing = bool(self._keeping)
        assert not self._out, "effects of an event were not handed out"
        assert is_writing or not self._held, "effects wait for no write"
        assert is_writing or not self.state.deferred, "events wait for no write"
        bounded = sum(isinstance(one, Heard | Stray | Admin) for _, one in self.state.deferred)
        assert bounded <= DEFERRED_MAX, "too many messages and commands wait"
        assert len(self._requests.pending) <= ADMIN_MAX, "too many commands are under way"
        self.state.check_invariants()
        self._continuations.check_invariants()
        self.board.check_invariants()
        self.incarnations.check_invariants()
        self.groups.check_invariants()
        self._pool_commands.check_invariants()
