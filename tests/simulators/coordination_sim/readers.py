"""Clients that read from any member, without a session: what they are shown is never older than
what they have seen.

Invariants:
1. Who says what it has seen (SEEN), here or by another client, is shown a state that has that, or
   is told that the member is behind; so is who has seen it on the same connection.
2. A read that may not be stale has all that was committed when it was asked for.
3. What is shown was there, under the version that is shown with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.coordination.core.client.events import ErrorReply
from millstream.coordination.core.client.wire import Replies, packed
from simulators.coordination_sim.loop import stream
from simulators.namespace_truth import require

if TYPE_CHECKING:
    from simulators.coordination_sim.namespace_clients import NamespaceClients

STAY_READS = 8
"""So many reads on one connection, about."""
PATIENCE_MS = 2000.0
FRESH, HEARSAY, SILENT = 0.2, 0.4, 0.3
"""So often a read may not be stale; it is of what another client saw; nothing is said of that."""
LATEST = 3


class MemberReader:
    """One client; `lsn`: all that it has been shown was there then, and some of it no earlier."""

    def __init__(self, clients: NamespaceClients, number: int) -> None:
        self.namespace_clients, self.world, self.loop = (
            clients,
            clients.world,
            clients.world.loop,
        )
        self.rng = stream(self.world.seed, f"looker/{number}")
        self.seen = (0, "")
        self.line: Any = None
        self.reader: Any = None
        self.node = self.rng.randrange(100)
        self.here = 0
        """What was seen on this connection."""
        self._asked: tuple[str, int, bool] | None = None
        self._turn = 0

    def go_on_later(self) -> None:
        """Ask the next thing after a pause, here or elsewhere."""
        self._turn += 1
        if not self.world.calm:
            ms = self.rng.expovariate(1 / self.namespace_clients.between_ms)
            self.loop.after(ms, self.go_on, self._turn)

    def go_on(self, turn: int) -> None:
        """Ask, and connect for that if need be."""
        if turn != self._turn or self.namespace_clients.is_over:
            return None
        if self.line is None:
            self.node += 1
            self.line = self.namespace_clients.connected(self.node, self._data, self._lost)
            self.reader = Replies("utf-8")
            self.here = 0
        paths = list(self.namespace_clients.shadow.truth.past)
        if self.line is None or not paths:
            return self.go_on_later()
        self._ask(self.rng.choice(paths[-LATEST:]))
        self.loop.after(PATIENCE_MS, self._overdue, self._turn)
        return None

    def _ask(self, path: str) -> None:
        draw = self.rng.random
        is_fresh = draw() < FRESH
        floor, words = self.here, ["GET", path, "CAS"]
        if is_fresh:
            floor = max(floor, self.world.truth.end)
        else:
            words.append("STALEREAD")
            seen = max(self.seen, self.namespace_clients.seen) if draw() < HEARSAY else self.seen
            if seen[0] and draw() >= SILENT:
                floor, words = max(floor, seen[0]), ["SEEN", seen[1], *words]
        self._asked = path, floor, is_fresh
        self.line.send(packed([word.encode() for word in self.namespace_clients.as_said(words)]))

    def _overdue(self, turn: int) -> None:
        if turn == self._turn:
            self._leave()

    def _leave(self) -> None:
        if self.line is not None:
            self.line.close()
        self.line = self._asked = None
        self.go_on_later()

    def _lost(self, line: Any) -> None:
        if line is self.line:
            self.line = self._asked = None
            self.go_on_later()

    def _data(self, line: Any, data: bytes) -> None:
        if line is self.line:
            for reply in self.reader.feed(data):
                if line is self.line:
                    self._told(reply)

    def _told(self, reply: Any) -> None:
        assert self._asked is not None
        asked, self._asked = self._asked, None
        code = reply.code if isinstance(reply, ErrorReply) else ""
        if code in ("", "ERROR_DOES_NOT_EXISTS"):
            self._look(*asked, None if code else reply)
        else:
            self.world.counts[f"readers were told {code}"] += 1
        if code in ("NOTPRIMARY", "NOQUORUM") or self.rng.random() < 1 / STAY_READS:
            self._leave()
        else:
            self.go_on_later()

    def _look(self, path: str, floor: int, is_fresh: bool, reply: list[str] | None) -> None:
        """Look whether that was shown at `floor`, or later."""
        kind = "fresh" if is_fresh else "stale"
        self.world.counts[f"{kind} reads without a session"] += 1
        past = self.namespace_clients.shadow.truth.past[path]
        least = max((lsn for lsn in past if lsn <= floor), default=0)
        said = f"a {kind} read of {path} is {reply}, the client has seen {floor} entries"
        if reply is None:
            require(not least, said)
            return
        version, value = reply
        lsn = int(version.split(":")[2])
        require(past.get(lsn) == (version, value), f"{said}, and this was not there")
        require(lsn >= least, f"{said}, and version {past.get(least)}")
        self.here = max(self.here, lsn)
        self.seen = max(self.seen, (lsn, version))
        self.namespace_clients.seen = max(self.namespace_clients.seen, self.seen)
