"""Settles names of namespaces: sends the steps to the groups, and answers clients.

    settler.ask(ticket, wanted, now_ms)       # a request that the system group has begun
    settler.tick(unfinished, known, now_ms)   # while this node leads the system group
    settler.answered(number, value, now_ms)
    settler.take()                            # -> requests to groups, and settled requests

Invariants:
1. A client gets OK, EXISTS or an error once the system group has stored the result. A repeated
   request with the same ids gets the same reply from any primary.
2. Each step has one request in progress. Without an answer it is repeated at growing intervals.
3. At most `CHAINS_MAX` names are settled at a time, and `WAITERS_MAX` requests wait, each for
   `SETTLE_MS`.
4. No clock, no sockets: times and answers are arguments.

Elsewhere: the steps (`names`, `naming`), requests to the groups (`aio.namespaces`).

Source: V2R2, "CREATENAMESPACE", uniqueness within an instance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.commands.forcing import FORCE, without_force
from millstream.coordination.core.namespace.commands.naming import (
    AWAITED,
    DELETING,
    RESERVED,
    answer_in,
    words_of,
)
from millstream.coordination.core.namespace.names import (
    Answer,
    Do,
    Name,
    NameKeeper,
    NameStatus,
    Step,
    step_after,
)
from millstream.vsr.core.values import OK, error, status
from millstream.vsr.core.versions import parse_version

__all__ = [
    "ASK_MS",
    "ASK_MS_MAX",
    "CHAINS_MAX",
    "SETTLE_MS",
    "WAITERS_MAX",
    "Ask",
    "Settled",
    "Settler",
    "Wanted",
    "wanted_of",
]

CHAINS_MAX: Final = 1000
"""Names that are carried through at once by one node."""
WAITERS_MAX: Final = 4096
"""Requests of clients that wait until a name is settled."""
SETTLE_MS: Final = 8000.0
"""How long a client waits. Then the outcome is unknown, and it asks again."""
ASK_MS: Final = 250.0
"""How long to wait for the answer to a step at first. It doubles each time."""
ASK_MS_MAX: Final = 5000.0
"""The longest."""
_EXISTS: Final = status(b"EXISTS")
_UNDONE: Final = error(
    "CONFLICT",
    "the group refused it: it was undone, or the group has such a root; repeat the command",
)
_NOT_YET: Final = error("CONFLICT", "it was being created; repeat the command")
_ABSENT: Final = error("ERROR_DOES_NOT_EXISTS", "there is no such namespace")
_NOT_FORCED: Final = error(
    "CONFLICT", "another deletion, without FORCE, came first; repeat the command"
)


class Wanted(NamedTuple):
    """What a client waits for: a step; None: that another request, with this id, is settled."""

    root: bytes
    is_creation: bool
    name: Name
    step: Step | None
    words: tuple[bytes, ...] = ()
    """Words of the step if it is CREATE: they say more than the step."""
    is_forced: bool = False
    passes_locks: bool = False


class Ask(NamedTuple):
    """Ask a group (None: the system group) for this, and report the answer under the number."""

    number: int
    gid: int | None
    words: tuple[bytes, ...]


class Settled(NamedTuple):
    """What a client is told; None: what came of it is not known."""

    ticket: int
    value: bytes | None


def wanted_of(words: tuple[bytes, ...], principal: bytes, reply: bytes) -> Wanted | None:
    """Return what is to be carried through after the system group's reply; None: it is final.

    `words` are those of CREATENAMESPACE or DELETENAMESPACE, perhaps with FORCE before.
    """
    begun = reply.removeprefix(b"+").split(b" ")
    if begun[0] not in (RESERVED, DELETING, AWAITED) or len(begun) < 3:
        return None
    passes_locks, words = words[0] == FORCE, without_force(words)
    root, is_creation = words[1].removeprefix(b"/"), words[0] == b"CREATENAMESPACE"
    versions = [parse_version(text) for text in begun[2:4]]
    if versions[0] is None:
        return None
    name = Name(int(begun[1]), versions[0], NameStatus.RESERVED)
    if begun[0] == AWAITED:
        return Wanted(root, is_creation, name, None)
    if is_creation:
        step = Step(name.gid, Do.CREATE, root, name.id)
        data = words[2:3] if len(words) in (3, 5) else ()
        return Wanted(root, True, name, step, (*words_of(step), principal, *data))
    if len(versions) < 2 or versions[1] is None or len(begun) < 6:
        return None
    flags = begun[4] == b"1", begun[5] == b"1"
    step = Step(name.gid, Do.DROP, root, name.id, versions[1], *flags)
    return Wanted(root, False, name, step, (), words[-1].upper() == FORCE, passes_locks)


class _Chain:
    """A name on its way: the step that is asked for now, and what it is for."""

    __slots__ = ("answer", "due_ms", "first", "number", "pause_ms", "refusal", "step", "words")

    def __init__(self, first: Step, words: tuple[bytes, ...]) -> None:
        self.first = self.step = first
        self.words = words
        self.answer: Answer | None = None
        self.refusal = b""
        self.number, self.due_ms, self.pause_ms = 0, 0.0, ASK_MS

    def go_on(self, step: Step) -> None:
        self.step, self.words = step, words_of(step)
        self.number, self.due_ms, self.pause_ms = 0, 0.0, ASK_MS


class _Waiter(NamedTuple):
    wanted: Wanted
    until_ms: float


class Settler:
    """Of the node that leads the system group."""

    def __init__(self) -> None:
        self._chains: dict[Step, _Chain] = {}
        self._asked: dict[int, _Chain] = {}
        self._waiters: dict[int, _Waiter] = {}
        self._keeper = NameKeeper()
        self._number = 0
        self._out: list[Ask | Settled] = []

    @property
    def is_busy(self) -> bool:
        """Whether something is on its way, or waited for."""
        return bool(self._chains or self._waiters)

    def take(self) -> list[Ask | Settled]:
        """Return what to do, in order."""
        out, self._out = self._out, []
        return out

    def ask(self, ticket: int, wanted: Wanted, now_ms: float) -> None:
        """Carry through what a client wants; `Settled` has its ticket."""
        step = wanted.step
        is_new = step is not None and step not in self._chains
        if len(self._waiters) >= WAITERS_MAX or (is_new and len(self._chains) >= CHAINS_MAX):
            self._out.append(Settled(ticket, None))
            return
        self._waiters[ticket] = _Waiter(wanted, now_ms + SETTLE_MS)
        if step is not None:
            self._begin(step, wanted.words or words_of(step), now_ms)

    def _begin(self, step: Step, words: tuple[bytes, ...], now_ms: float) -> None:
        if step not in self._chains and len(self._chains) < CHAINS_MAX:
            chain = self._chains[step] = _Chain(step, words)
            self._send(chain, now_ms)

    def tick(
        self,
        unfinished: Iterable[tuple[bytes, Name]],
        known: Callable[[bytes], Name | None],
        now_ms: float,
    ) -> None:
        """Ask what is due; `unfinished` and `known` are of the names of the system group."""
        for step in self._keeper.tick(unfinished, now_ms):
            self._begin(step, words_of(step), now_ms)
        for chain in list(self._chains.values()):
            if now_ms >= chain.due_ms:
                self._send(chain, now_ms)
        for ticket, (wanted, until_ms) in list(self._waiters.items()):
            if wanted.step is None and (value := _settled(wanted, known(wanted.root))):
                self._settle(ticket, value)
            elif now_ms >= until_ms:
                self._settle(ticket, None)

    def stop(self) -> None:
        """Stop leading. Waiting clients ask the next primary."""
        for ticket in list(self._waiters):
            self._settle(ticket, None)
        self._chains.clear()
        self._asked.clear()
        self._keeper = NameKeeper()

    def _settle(self, ticket: int, value: bytes | None) -> None:
        del self._waiters[ticket]
        self._out.append(Settled(ticket, value))

    # ---- steps

    def _send(self, chain: _Chain, now_ms: float) -> None:
        self._asked.pop(chain.number, None)
        self._number += 1
        chain.number, chain.due_ms = self._number, now_ms + chain.pause_ms
        chain.pause_ms = min(2 * chain.pause_ms, ASK_MS_MAX)
        self._asked[chain.number] = chain
        self._out.append(Ask(chain.number, chain.step.gid, chain.words))

    def answered(self, number: int, value: bytes | None, now_ms: float) -> None:
        """Take an answer. None: there is none for now, and the step is repeated later."""
        chain = self._asked.pop(number, None)
        if chain is None or value is None:
            return
        if chain.step.gid is None:
            self._finish(chain)
            return
        answer = answer_in(value)
        if answer is not None:
            chain.answer = answer
            chain.go_on(step_after(chain.step, answer))
        elif chain.step.do is Do.CREATE:
            chain.refusal = value
            chain.go_on(chain.step._replace(do=Do.UNDO))
        else:
            return
        self._send(chain, now_ms)

    def _finish(self, chain: _Chain) -> None:
        del self._chains[chain.first]
        for ticket, (wanted, _) in list(self._waiters.items()):
            if wanted.step == chain.first:
                self._settle(ticket, _value_of(chain, wanted))


def _value_of(chain: _Chain, wanted: Wanted) -> bytes:
    answer = chain.answer
    if wanted.is_creation:
        is_there = answer in (Answer.CREATED, Answer.DELETED)
        return OK if is_there else chain.refusal or _UNDONE
    if answer in (Answer.GONE, Answer.DELETED):
        return OK
    first = chain.first
    if wanted.is_forced > first.is_forced or wanted.passes_locks > first.passes_locks:
        return _NOT_FORCED
    return error(answer.name if answer else "ERR", f"/{wanted.root.decode()} stays")


def _settled(wanted: Wanted, name: Name | None) -> bytes | None:
    """Return what is told of a name that another request was at; None: it is still."""
    if name is not None and (name.id, name.status) == (wanted.name.id, NameStatus.RESERVED):
        return None
    if wanted.is_creation:
        return _EXISTS if name is not None else _UNDONE
    return _NOT_YET if name is not None else _ABSENT
