"""Who hears of changes: subscriptions that go on over fail-over, and what they have to be told.

Invariants:
1. What is told is what the committed entries did, each part once, in order; what is missed is
   said: `HISTORY_LOST`. `progress` and `overrun` never name what was not told.
2. A change that succeeded is told of by its own entry.
3. A user is told what it could read as of each entry and nothing else, also of the entry that took
   the right to read from it, and that it is denied only where it may not.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millstream.coordination.core.client.events import ErrorReply
from millstream.coordination.core.client.wire import Replies, is_push, packed
from millstream.coordination.core.group_state import GroupState
from millstream.coordination.core.namespace.audience import Subscriber
from millstream.coordination.core.namespace.commands.subscriptions import SubscribeRequest
from millstream.coordination.core.namespace.paths import parse_path
from millstream.coordination.core.namespace.state.run import Asker
from millstream.coordination.core.namespace.state.updates import Scope
from simulators.coordination_sim.loop import stream
from simulators.coordination_sim.names import Names
from simulators.coordination_sim.rights import READ
from simulators.namespace_truth import require

if TYPE_CHECKING:
    from simulators.coordination_sim.namespace_clients import NamespaceClients

ALL_BYTES = 2**40
BACK_MS = 200.0
STAY_MS = 8000.0
AWAY, AWAY_MS = 0.15, 30_000.0
"""So often they come back late, perhaps to a history that begins later."""
QUIET_MS = 15_000.0
OPS = {"PUT": "put", "CREATE": "create", "COUNTER": "counter", "DELETE": "delete", "MOVE": "move"}
"""What is told of a command that succeeded."""


class Told:
    """All that a subscription to a tree is told that was there from the first mark on."""

    def __init__(self, called: bytes, names: Names) -> None:
        self.called = called.decode()
        root = self.root = names.real(self.called).encode()
        self.lsns: list[int] = []
        self.texts: list[bytes] = []
        self._subscriber = Subscriber(lambda: None, Asker())
        self._request = SubscribeRequest((parse_path(root),), Scope.TREE, with_data=True)

    def take(
        self, state: GroupState, lsn: int, changed: Sequence[tuple[tuple[Any, ...], bytes]]
    ) -> None:
        """Hear what an entry did; `changed`: commands, and what they were answered."""
        hears = bool(self._subscriber.subscriptions)
        if not hears:
            state.subscribe(self._subscriber, self._request, lsn, lambda _: None)
        ops = set()
        for _, text in self._subscriber.take(ALL_BYTES):
            told = json.loads(text)
            if told["op"] not in ("start", "progress"):
                require(told["lsn"] == lsn, f"entry {lsn} is told of as {told['lsn']}")
                self.lsns.append(lsn)
                self.texts.append(text)
                ops.add(told["op"])
        for (name, *words), reply in changed if hears else ():
            path = next((str(word) for word in words if str(word).startswith("/")), "")
            is_here = path.startswith(self.called + "/")
            if is_here and name in OPS and reply != b"+EXISTS" and not reply.startswith(b"-"):
                told_of = OPS[name] in ops or (name == "MOVE" and path == words[-1])
                require(told_of, f"entry {lsn}, {name} {path}: nobody is told")

    def behind(self, lsn: int) -> int:
        """Return the place of the first that is later."""
        return bisect_right(self.lsns, lsn)


class Hearer:
    """One subscriber."""

    def __init__(self, clients: NamespaceClients, number: int, told: Told, user: str = "") -> None:
        self.namespace_clients, self.world, self.loop = (
            clients,
            clients.world,
            clients.world.loop,
        )
        self.rng = stream(self.world.seed, f"hearer/{number}")
        self.told, self.user = told, user
        self.path, self.since = told.called, 0
        """It may have begun with any state up to there."""
        self.line: Any = None
        self.reader = Replies()
        self.lsn: int | None = None
        """All up to there was heard."""
        self.at = 0
        self.node = self.rng.randrange(100)
        self._turn = 0

    def connect(self, turn: int) -> None:
        """Subscribe somewhere, from where it was heard on."""
        if turn != self._turn or self.namespace_clients.is_over:
            return None
        self.line = self.namespace_clients.connected(self.node, self._data, self._lost)
        if self.line is None:
            return self.go_on_later()
        self.reader = Replies()
        come_from = () if self.lsn is None else (b"FROM", b"%d" % self.lsn)
        self.at = 0 if self.lsn is None else self.told.behind(self.lsn)
        self.line.send(packed((b"HELLO", b"3")))
        if self.user:
            self.line.send(packed((b"AUTH", self.user.encode(), b"password")))
        self.line.send(
            packed((b"SUBSCRIBE", self.told.root, b"TREE", b"MODE", b"DATA", *come_from))
        )
        stays = QUIET_MS if self.world.calm else self.rng.expovariate(1 / STAY_MS)
        self.loop.after(stays, self._leave, self._turn)
        return None

    def _leave(self, turn: int) -> None:
        if turn != self._turn:
            return
        if self.world.calm and self.is_well:
            self.loop.after(QUIET_MS, self._leave, turn)
        else:
            self.go_on_later()

    @property
    def is_well(self) -> bool:
        """Whether it has heard all that there is, if it may."""
        if self.user and not self._may(self.world.truth.end, self.world.truth.end):
            return True
        self._pass_hidden(len(self.told.lsns))
        return self.at == len(self.told.lsns)

    def _may(self, first: int, last: int) -> bool:
        """Whether it may read behind each of these entries."""
        rights = self.namespace_clients.shadow.truth.rights
        return rights.may_between(self.user, self.path, READ, first, last)

    def _is_hidden(self, text: bytes) -> bool:
        """Whether what is told of is about the element itself and its user could not read it."""
        message = json.loads(text)
        lsn, is_itself = message["lsn"], message["path"] == self.told.root.decode()
        return bool(self.user) and is_itself and not self._may(lsn, lsn)

    def _pass_hidden(self, end: int) -> None:
        """Go on behind what this user is not told."""
        while self.at < end and self._is_hidden(self.told.texts[self.at]):
            self.at += 1

    def go_on_later(self) -> None:
        """Hang up, and try another node."""
        self._turn += 1
        if self.line is not None:
            self.line.close()
        self.line = None
        self.node += 1
        away = self.rng.random() < AWAY and not self.world.calm
        ms = self.rng.uniform(0, AWAY_MS if away else 2 * BACK_MS)
        self.loop.after(ms, self.connect, self._turn)

    def _lost(self, line: Any) -> None:
        if line is self.line:
            self.go_on_later()

    def _data(self, line: Any, data: bytes) -> None:
        if line is not self.line:
            return
        for reply in self.reader.feed(data):
            if line is not self.line:
                return
            if isinstance(reply, ErrorReply):
                self._refused(reply)
            elif is_push(reply) and reply[0] == b"message":
                self._hear(reply[2])
            elif is_push(reply):
                self.since = self.world.truth.end

    def _refused(self, reply: ErrorReply) -> None:
        if reply.code == "HISTORY_LOST":
            self.lsn = int(reply.words.split()[0])
            self.world.counts["gaps told"] += 1
        self.go_on_later()

    def _hear(self, text: bytes) -> None:
        message = json.loads(text)
        op, lsn = message["op"], message["lsn"]
        self._pass_hidden(self.told.behind(lsn))
        if self.user and op != "denied":
            may = self._may(self.since + 1, lsn)
            require(may, f"{self.user} is told {text!r}, and may not hear that")
        if op == "denied":
            require(not self._may(lsn, lsn), f"{self.user} may hear {lsn}, and is denied that")
            self.world.counts["denied"] += 1
            self.go_on_later()
        elif op == "start":
            self.lsn, self.at = lsn, self.told.behind(lsn)
        elif op in ("progress", "overrun"):
            missed = self.told.texts[self.at : self.told.behind(lsn)]
            require(not missed, f"a subscriber is told {op} {lsn}, and missed {missed[:1]}")
            self.lsn = max(self.lsn or 0, lsn)
            if op == "overrun":
                self.world.counts["overrun"] += 1
                self.go_on_later()
        else:
            wanted = self.told.texts[self.at : self.at + 1]
            require([text] == wanted, f"a subscriber is told {text!r}, it should be {wanted}")
            self.at += 1
            self.world.counts["messages"] += 1
            if message.get("part", 0) == message.get("parts", 1) - 1:
                self.lsn = lsn
