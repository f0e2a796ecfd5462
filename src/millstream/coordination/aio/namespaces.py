"""Namespaces over all groups: this node's part in creating, deleting and finding them.

The node that leads the system group settles each name (`core.namespace.settling`): it sends steps
to its own groups, and to the leaders of others. Each member of the system group posts what all
nodes should know.

Invariants:
1. Every request gets one answer, at the latest when the settler gives up.
2. Other nodes can only request steps of names, and only nodes of this pool.
3. The only requests that wait here are those for a namespace that this node does not know: the
   news may be on its way. At most `AWAITED_MAX` wait, for `UNKNOWN_S_MAX`. Everything else that
   gets no answer is repeated.
4. An answer is known on this node: a later question for the name finds it.

Elsewhere: the next step (`core.namespace.settling`), the knowledge of nodes
(`core.pool.system_board`), requests of clients (`aio.client_requests`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from millstream.coordination.aio.group_runner import GroupRunner
from millstream.coordination.aio.peers import Peers
from millstream.coordination.aio.pool_runner import PoolRunner
from millstream.coordination.core.backend import Done
from millstream.coordination.core.group_state import GroupState
from millstream.coordination.core.namespace.names import NAMES_MAX, OWN, NameStatus
from millstream.coordination.core.namespace.settling import Ask, Settled, Settler, wanted_of
from millstream.coordination.core.namespace.state.access_lists import READ, passes
from millstream.coordination.core.namespace.state.configuration import GLOBAL
from millstream.coordination.core.namespace.state.run import Asker
from millstream.coordination.core.namespace.state.state import State
from millstream.coordination.core.pool.effects import FIRST_GROUP, Posted
from millstream.coordination.core.pool.messages import (
    BOARD_NAMES_MAX,
    Board,
    Carried,
    Carry,
    PoolEnvelope,
    PoolPayload,
    encode_pool,
)
from millstream.vsr.core.configuration import generation
from millstream.vsr.core.effects import Code, Reply
from millstream.vsr.core.entries import Body
from millstream.vsr.core.values import error

__all__ = ["AWAITED_MAX", "TICK_S", "UNKNOWN_S_MAX", "Namespaces", "state_of"]

TICK_S: Final = 0.1
"""Time between two checks for requests to repeat and for news."""
UNKNOWN_S_MAX: Final = 0.25
"""How long a question for a namespace that this node does not know waits for news of it."""
AWAITED_MAX: Final = 1000
"""Questions that wait so; more are answered at once."""
LOOK_S: Final = 0.01
"""Time between two checks whether the news has arrived."""
assert NAMES_MAX <= BOARD_NAMES_MAX
_FORK_SHIFT: Final = 40
"""Above any LSN: what a forked group has is news, though the group before it had got further."""
_CARRIED: Final = (b"CREATE", b"UNDO", b"DROP")
_UNKNOWN: Final = Reply(0, Code.UNKNOWN)
_Told = Callable[[bytes | None], None]


class Namespaces:
    """Ended by `close`.

    Args:
        groups: those that run here, by id.
        pool: what the node knows of others.
        peers: its connections to them.
        loop: has the time, and calls again.
    """

    def __init__(
        self, groups: Mapping[bytes, GroupRunner], pool: PoolRunner, peers: Peers,
        loop: asyncio.AbstractEventLoop,
    ) -> None:  # fmt: skip
        self._groups, self._pool, self._peers = groups, pool, peers
        self._loop = loop
        self._settler = Settler()
        self._waiting: dict[int, Done] = {}
        self._ticket = 0
        self._posted: Posted | None = None
        self._board: Board | None = None
        self._seen: tuple[State | None, int, int, int] = (None, 0, 0, 0)
        self._awaited: list[tuple[bytes, float, Callable[[], None]]] = []
        """Namespace, when it is waited for no more (s), and who is told then."""
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def close(self) -> None:
        """End it. Waiting requests get the answer "unknown"."""
        self._timer.cancel()
        awaited, self._awaited = self._awaited, []
        for _, _, then in awaited:
            then()
        self._settler.stop()
        self._carry_out()

    # ---- where namespaces are

    def group_of(self, key: bytes) -> int:
        """Return the group that has a path's namespace.

        For an unknown namespace, the system group.
        """
        if not key.startswith(b"/"):
            return FIRST_GROUP
        root = key[1:].partition(b"/")[0]
        runner = self._system()
        if runner is not None and runner.replica.leading:
            name = state_of(runner).registry.names.get(root)
            is_there = name is not None and name.status is not NameStatus.RESERVED
            return name.gid or FIRST_GROUP if name is not None and is_there else FIRST_GROUP
        return self._pool.pool.board.group_with(root) or FIRST_GROUP

    def is_known(self, path: bytes) -> bool:
        """Return whether this node knows which group has a path's namespace."""
        return self._pool.pool.board.group_with(path[1:].partition(b"/")[0]) is not None

    def when_known(self, path: bytes, then: Callable[[], None]) -> None:
        """Call back once this node knows where a namespace is, or has waited for news of it.

        At once if it knows, or leads the system group: then there is none.
        """
        runner = self._system()
        is_sure = runner is not None and runner.replica.leading and not runner.replica.suspended
        if is_sure:
            self._post()
        if is_sure or self.is_known(path) or len(self._awaited) >= AWAITED_MAX:
            then()
            return
        if not self._awaited:
            self._loop.call_later(LOOK_S, self._look)
        root = path[1:].partition(b"/")[0]
        self._awaited.append((root, self._loop.time() + UNKNOWN_S_MAX, then))

    def _look(self) -> None:
        now_s, known = self._loop.time(), self._pool.pool.board.namespaces
        awaited = self._awaited
        self._awaited = [one for one in awaited if one[0] not in known and now_s < one[1]]
        if self._awaited:
            self._loop.call_later(LOOK_S, self._look)
        for root, end_s, then in awaited:
            if root in known or now_s >= end_s:
                then()

    def has_root(self, gid: int, path: bytes) -> bool:
        """Return whether a group has a path's namespace, as its member here knows."""
        runner = self._called(gid)
        root = path[1:].partition(b"/")[0]
        return runner is None or state_of(runner).elements.find((root,)) is not None

    def may_see(self, root: bytes, asker: Asker) -> bool | None:
        """Return whether somebody may read a namespace; None: this node does not have it."""
        if passes(asker):
            return True
        gid = self._pool.pool.board.group_with(root)
        runner = None if gid is None else self._called(gid)
        if runner is None:
            return None
        state = state_of(runner)
        element = state.elements.find((root,))
        return None if element is None else state.permissions.allow(asker, element, READ)

    def _called(self, gid: int) -> GroupRunner | None:
        called = self._pool.pool.discovery.called(gid)
        return self._groups.get(called[0]) if len(called) == 1 else None

    def _system(self) -> GroupRunner | None:
        return self._called(FIRST_GROUP)

    # ---- what clients want

    def placed(self, body: Body) -> Body | bytes:
        """Return a CREATENAMESPACE with the group that it is for, or why it can be in none."""
        stamp, name, *words = body.argv
        if len(words) < 3:
            words += [b"GROUP", b"%d" % self._choose()]
        gid = int(words[-1])
        if gid in (FIRST_GROUP, OWN):
            words = words[:-2]
        elif len(self._pool.pool.discovery.called(gid)) != 1:
            return error("ERROR_DOES_NOT_EXISTS", f"no group {gid} is known here, or several are")
        return body._replace(argv=(stamp, name, *words))

    def _choose(self) -> int:
        """Return the group with the fewest elements, of those that have a primary."""
        pool = self._pool.pool
        found = []
        for group_id, founding in pool.tables.foundings.items():
            seen = pool.directory.get(group_id)
            if (
                seen is not None
                and pool.discovery.is_news(seen)
                and len(pool.discovery.called(founding.number)) == 1
            ):
                found.append((seen.elements, founding.number))
        return min(found, default=(0, FIRST_GROUP))[1]

    def settle(self, body: Body, reply: Reply, done: Done) -> None:
        """Answer a request for a name that the system group has replied to, once it is settled."""
        wanted = None
        if reply.code is Code.OK:
            wanted = wanted_of(body.argv[1:], body.principal, reply.value)
        if wanted is None:  # it is done, or was refused
            self._post()
            done(reply)
            return
        self._ticket += 1
        self._waiting[self._ticket] = lambda settled: done(settled._replace(lsn=reply.lsn))
        self._settler.ask(self._ticket, wanted, self._now_ms)
        self._carry_out()

    # ---- steps

    @property
    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick)
        runner = self._system()
        if runner is not None and runner.replica.leading:
            registry = state_of(runner).registry
            self._settler.tick(registry.unfinished(), registry.names.get, self._now_ms)
        elif self._settler.is_busy:
            self._settler.stop()
        self._carry_out()
        self._post()

    def _carry_out(self) -> None:
        for effect in self._settler.take():
            match effect:
                case Settled(ticket, value):
                    done = self._waiting.pop(ticket)
                    self._post()
                    done(_UNKNOWN if value is None else Reply(0, Code.OK, value))
                case Ask(number, gid, words):
                    self._ask(number, gid, words)

    def _ask(self, number: int, gid: int | None, words: tuple[bytes, ...]) -> None:
        runner = self._called(FIRST_GROUP if gid is None else gid)
        if runner is not None and (runner.replica.leading or gid is None):
            self._execute(runner, words, lambda value: self._answered(number, value))
            return
        for group_id in self._pool.pool.discovery.called(gid or FIRST_GROUP)[:1]:
            seen = self._pool.pool.directory.get(group_id)
            if seen is not None:
                self._say(seen.primary, Carry(number, gid or FIRST_GROUP, words))

    def _answered(self, number: int, value: bytes | None) -> None:
        self._settler.answered(number, value, self._now_ms)
        self._carry_out()

    @staticmethod
    def _execute(runner: GroupRunner, words: tuple[bytes, ...], done: _Told) -> None:
        def replied(reply: Reply) -> None:
            done(reply.value if reply.code is Code.OK else None)

        runner.request(Body(argv=(b"0", *words)), replied)

    # ---- other nodes

    def hear(self, envelope: PoolEnvelope) -> bool:
        """Take what a node says, if it is about steps; return whether it is."""
        said = envelope.payload
        if not isinstance(said, Carry | Carried):
            return False
        sender = envelope.sender
        if self._pool.pool.tables.node(sender) is None:
            return True
        if isinstance(said, Carried):
            self._answered(said.number, said.value)
            return True
        runner = self._called(said.group)
        if runner is None or said.words[:1] != (b"NAMESPACE",) or said.words[1] not in _CARRIED:
            self._say(sender, Carried(said.number, None))
        else:
            number = said.number
            self._execute(
                runner, said.words, lambda value: self._say(sender, Carried(number, value))
            )
        return True

    def _say(self, receiver: bytes, payload: PoolPayload) -> None:
        pool = self._pool.pool
        address = pool.address_of(receiver)
        if address is not None and receiver != pool.id:
            self._pool.who[address] = receiver
            envelope = PoolEnvelope(pool.id, pool.me.incarnation, payload)
            self._peers.send(address, encode_pool(envelope))

    # ---- what everybody is to know

    def _post(self) -> None:
        elements = {
            group_id: len(state_of(runner).elements) for group_id, runner in self._groups.items()
        }
        board = self._make_board()
        posted = Posted(board, elements)
        if posted != self._posted:
            self._posted = posted
            self._pool.take(posted)

    def _make_board(self) -> Board | None:
        """Return what is news of the system group, or what was the last time; None: not here."""
        runner = self._system()
        if runner is None:
            return None
        state = state_of(runner)
        fork = generation(runner.replica.epoch)
        seen = (state, state.registry.names.changes, state.settings.values.changes, fork)
        if seen != self._seen:
            names = state.registry.settled()
            self._seen = seen
            self._board = Board(
                runner.replica.group_id, fork << _FORK_SHIFT | runner.replica.commit_lsn,
                tuple((root, gid or FIRST_GROUP) for root, gid in names),
                tuple(state.settings.own(GLOBAL)),
            )  # fmt: skip
        return self._board


def state_of(runner: GroupRunner) -> State:
    """Return the namespaces of a group that runs here."""
    machine = runner.replica.machine
    assert isinstance(machine, GroupState)
    return machine.state
