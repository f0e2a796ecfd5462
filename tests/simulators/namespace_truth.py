"""What has to hold of namespaces and their clients' requests, whatever happens.

A request's stamp names it: the caller's request and the attempt, which no client would say.

Invariants:
1. A request takes effect once at most, and its final reply stays what it was. A number in a
   session's window that was never executed is not called gone.
2. No two sessions hold or are offered locks, one of them a WRITE one, where one path is the other
   or above it. Tokens of an element only grow, and are of the entry that gave the lock.
3. Units of a semaphore are no more than it has. A barrier lets as many go as it is for: one is
   told GO, each other OK, once.
4. Items of a queue are not lost, and are not ended twice; counters count.
5. What is no more holds nothing: no session that has ended has a lock, a unit, an item, a wait.
6. A command that is refused leaves the state as it was, to the byte.

Elsewhere: who asks for what (`namespace_callers`), when it is looked at (`namespace_world`).
"""

from __future__ import annotations

import random
from itertools import combinations
from typing import TYPE_CHECKING, Any

from millstream.coordination.core.group_state import GroupState
from millstream.coordination.core.namespace.paths import Path, parse_path
from millstream.coordination.core.namespace.state.claims import LOCKS, Mode, Phase
from millstream.coordination.core.namespace.state.elements import key_of
from millstream.coordination.core.namespace.state.waits import Wait
from millstream.vsr.core import client_table
from millstream.vsr.core.client_table import ClientTable, Past
from millstream.vsr.core.entries import Entry, Kind
from millstream.vsr.core.values import integer, items

if TYPE_CHECKING:
    from millstream.vsr.core.replica.replica import Replica

__all__ = [
    "BARRIER_SIZE",
    "COUNTER",
    "INSTANCE",
    "PATHS",
    "QUEUE",
    "UNITS",
    "Truth",
    "WatchedState",
    "WatchedTable",
    "WrongError",
    "require",
]

INSTANCE = b"i" * 16
PATHS = ("/n/a", "/n/a/x", "/n/a/y", "/n/a/x/z", "/n/b", "/n/b/x")
QUEUE, COUNTER = "/n/b/jobs", "/n/b/count"
UNITS = "/h/units"
"""A semaphore that nobody moves or deletes."""
EVERYWHERE = (
    *PATHS,
    UNITS,
    "/n/a/w",
    "/n/b/w",
    "/n/b/w/z",
    "/n/b/x/z",
    "/n/a/w/z",
    QUEUE,
    COUNTER,
)
BARRIER_SIZE = 2
_ATTEMPTS = 10**6


class WrongError(AssertionError):
    """Something does not hold."""


def require(claim: object, words: str) -> None:
    """Raise WrongError unless it holds."""
    if not claim:
        raise WrongError(words)


def overlap(one: str, other: str) -> bool:
    """Return whether a lock on one is about the other, too."""
    return one == other or one.startswith(other + "/") or other.startswith(one + "/")


class WatchedState(GroupState):
    """A state machine that lets the truth know what it does."""

    def __init__(self, truth: Truth, rng: random.Random) -> None:
        super().__init__()
        self.truth, self.rng = truth, rng

    def apply(self, entry: Entry) -> bytes:
        was_open = self.waiting(entry.header.session, entry.header.csn) is not None
        before = b"".join(self.freeze()) if self.rng.random() < 0.1 else b""
        reply = super().apply(entry)
        if before and reply.startswith(b"-"):
            require(before == b"".join(self.freeze()), f"refused, and yet changed: {reply!r}")
        self.truth.executed(self, entry, was_open, reply)
        return reply


class TellingTable(ClientTable):
    """A client table that lets the truth know which replies are final."""

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self.truth = truth

    def store(self, session: int, csn: int, value: bytes, lsn: int) -> None:
        self.truth.final(session, csn, value)
        super().store(session, csn, value, lsn)


class WatchedTable(TellingTable):
    """A client table whose final replies are kept."""

    def store(self, session: int, csn: int, value: bytes, lsn: int) -> None:
        super().store(session, csn, value, lsn)
        kept = self.judge(INSTANCE, session, csn)
        require(kept == (Past.STORED, value, lsn), "a final reply is not kept")


def _is_release(wait: Wait, lsn: int) -> bool:
    return wait.mode is Mode.PLACE and wait.offer == lsn


class Truth:
    """What was seen so far."""

    def __init__(self) -> None:
        self.requests: dict[int, tuple[Any, ...]] = {}
        self.ops: dict[tuple[int, int], int] = {}
        self.finals: dict[int, bytes] = {}
        self.ran: set[int] = set()
        self.replied: bytes | None = None
        self.tokens: dict[int, int] = {}
        self.held: set[tuple[int, int, int]] = set()
        self.grants: list[tuple[str, Mode, int, Phase]] = []
        self.open: set[tuple[int, int]] = set()
        self.passes: set[int] = set()
        self.pushed: set[bytes] = set()
        self.ended: set[bytes] = set()
        self.sessions: set[int] = set()
        self.counted = 0
        self.replies: dict[str, int] = {}

    def place(self, path: str) -> Path:
        """Return where the state has what is called so."""
        return parse_path(path.encode())

    # ---- requests

    def executed(self, state: GroupState, entry: Entry, was_open: bool, reply: bytes) -> None:
        """Note what a logged request did."""
        header = entry.header
        op, attempt = divmod(int(entry.content.argv[0]), _ATTEMPTS)
        key = header.session, header.csn
        self.replied = reply
        if not was_open:
            require(op not in self.finals, f"op {op} is executed twice")
            known = self.ops.get(key, op)
            require(known == op or known not in self.finals, f"{key} is used for two requests")
            self.ops[key] = op
        if not reply.startswith(b"-"):
            self.ran.add(attempt)
        if state.waiting(*key) is not None:
            self.open.add(key)
        require(not reply.startswith(b"-QUOTA"), "requests of sessions that wait pile up")
        request = self.requests[self.ops[key]]
        self._note(state, header.session, header.lsn, request, reply)
        word = f"{request[0]} {request[1] if request[0] != 'EXEC' else ''} {reply[:12]!r}"
        self.replies[word] = self.replies.get(word, 0) + 1

    def _note(
        self, state: GroupState, session: int, lsn: int, request: tuple[Any, ...], reply: bytes
    ) -> None:
        if request[0] == "FORCE":
            may_meet = request[1] == "MOVE"
            require(may_meet or not reply.startswith(b"-LOCKED"), f"{request} is told {reply!r}")
            return
        if request[0] == "LOCK" and request[2] == "GROUP" and b"PENDING" in reply:
            paths = [word for word in request[3:] if word != "NOWAIT"]
            may = [any(self._covers(grant, session, request[1], path) for grant in self.grants)
                   for path in paths]  # fmt: skip
            require(not all(may), "a session waits for what its own locks allow")
        if request[0] == "EXEC" and not reply.startswith(b"-"):
            for command, value in zip(request[1:], items(reply), strict=True):
                self._note(state, session, lsn, command, value)
        elif reply.startswith(b"-"):
            return
        elif request[0] in ("MOVE", "DELETE"):
            self._check_tree(session, *request)
        elif request[:2] == ("COUNTER", "INC"):
            self.counted += 1
            require(reply == integer(self.counted), f"{reply!r} of a counter at {self.counted}")
        elif request[:2] == ("QUEUE", "PUSH"):
            self.pushed.update(one[1:] for one in items(reply))
        elif request[:2] == ("QUEUE", "ACK") and reply == b":1":
            require(request[3] not in self.ended, "an item of a queue is ended twice")
            self.ended.add(request[3])
        elif request[:2] == ("BARRIER", "WAIT") and reply == b"+GO":
            waits = state.state.synchronisation.waits
            let_go = {(name, s) for s in self.sessions for name in waits.names_of(s)}
            gone = {s for name, s in let_go if _is_release(waits.there(name), lsn)}
            require(len(gone) == BARRIER_SIZE - 1, f"a barrier lets {len(gone)} go beside one")
            self.passes |= gone
        elif request[:2] == ("BARRIER", "WAIT") and reply == b"+OK":
            require(session in self.passes, "a barrier lets one go that did not pass")
            self.passes.discard(session)

    def _check_tree(self, session: int, name: str, source: str, target: str) -> None:
        parent = target.rpartition("/")[0] + "/"
        for path, _, who, _ in self.grants:
            is_under = name == "MOVE" and parent.startswith(path + "/")
            fits = who == session or not (overlap(path, source) or is_under)
            require(fits, f"{name} of {source} to {target}: session {who} has {path}")

    @staticmethod
    def _covers(grant: tuple[str, Mode, int, Phase], session: int, mode: str, path: str) -> bool:
        above, held, who, phase = grant
        fits = who == session and phase is Phase.HELD and (held is Mode.WRITE or mode == "READ")
        return fits and (path == above or path.startswith(above + "/"))

    def final(self, session: int, csn: int, value: bytes) -> None:
        """Note a final reply."""
        op = self.ops[session, csn]
        known = self.finals.setdefault(op, value)
        require(known == value, f"op {op} ends with {known!r} and with {value!r}")

    def check_gone(self, replica: Replica, key: tuple[int, int]) -> None:
        """Look whether a number that is called gone was used, or is too old."""
        highest = replica.table.about(key[0])[2]
        known = self.ops.get(key) in self.finals or key[1] <= highest - client_table.WINDOW_MAX
        require(known, f"{key} is gone, and was never executed")

    # ---- the state

    def check(self, replica: Replica, kind: Kind) -> None:
        """Look at the state behind an entry."""
        machine = replica.machine
        assert isinstance(machine, GroupState)
        state, table = machine.state, replica.table
        self.sessions.update(table)
        sync = state.synchronisation
        grants: list[tuple[str, Mode, int, Phase]] = []
        held = set[tuple[int, int, int]]()
        for path in EVERYWHERE:
            element = state.elements.find(self.place(path))
            if element is None:
                continue
            for mode in (*LOCKS, Mode.UNIT):
                for phase in (Phase.HELD, Phase.OFFERED):
                    for _, claim in sync.claims.of(element, phase, mode):
                        require(claim.session in table, f"a session that has ended has {path}")
                        if mode in LOCKS:
                            grants.append((path, mode, claim.session, phase))
                        if phase is Phase.HELD:
                            held.add((element, claim.session, claim.token.lsn))
            self._check_units(state, element)
        self._check_tokens(held, replica.commit_lsn)
        self.grants = grants
        for (one, mode, who, _), (other, other_mode, another, _) in combinations(grants, 2):
            fits = who == another or Mode.WRITE not in (mode, other_mode)
            require(fits or not overlap(one, other), f"two sessions have {one} and {other}")
        for session in self.sessions:
            waiting = [sync.waits.there(name) for name in sync.waits.names_of(session)]
            require(session in table or not waiting, "a session that has ended waits")
            if not any(wait.mode is Mode.PLACE and wait.offer for wait in waiting):
                self.passes.discard(session)
        self._check_queue(state, table)
        gone = {key for key in self.open if machine.waiting(*key) is None}
        self.open -= gone
        if kind is Kind.REQUEST:
            lost = [key for key in gone if self.ops[key] not in self.finals]
            require(not lost, f"requests {lost} wait no more, and have no reply")

    def _check_tokens(self, held: set[tuple[int, int, int]], lsn: int) -> None:
        for element, _, token in sorted(held - self.held):
            require(token == lsn > self.tokens.get(element, 0), "a token is not a new one")
            self.tokens[element] = token
        self.held = held

    def _check_units(self, state: Any, element: int) -> None:
        sync = state.synchronisation
        used = sum(sync.claims.number(element, phase, Mode.UNIT)
                   for phase in (Phase.HELD, Phase.OFFERED))  # fmt: skip
        semaphore = sync.primitive(element)
        require(not used or (semaphore and used <= semaphore.size), "too many units are taken")

    def _check_queue(self, state: Any, table: ClientTable) -> None:
        element = state.elements.find(self.place(QUEUE))
        if element is None:
            return
        tables = state.queues._tables
        ready = [item.id for item in state.queues.of(element).ready()]
        taken = list(tables.taken.under(key_of(element)))
        for key, _ in taken:
            session = int.from_bytes(key[8:16], "big")
            require(session in table, "a session that has ended keeps an item")
        there = [*ready, *(item.id for _, item in taken)]
        require(len(there) == len(set(there)), "an item of a queue is there twice")
        require(set(there) == self.pushed - self.ended, "an item of a queue is lost, or came back")
