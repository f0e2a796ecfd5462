"""The coordination service: the real state machine of namespaces, one entry after the other.

The group around it is a model: what it executes is in one order, and there are times without a
quorum. Sessions end when the world says so; with them go ephemeral elements and locks.
"""

from __future__ import annotations

import itertools

from millstream.cluster.core.elements import ROOT, ClusterState, Element, state_from_elements
from millstream.cluster.core.writes import Txn
from millstream.vsr.core.versions import NEVER, Version
from support.cluster.coordination_tree import CoordinationTree

LIVE = f"{ROOT}/live/".encode()


class Space:
    """As `simulators.cluster.namespace.Namespace`."""

    def __init__(self) -> None:
        self._tree = CoordinationTree()
        self._numbers = itertools.count(100)
        self._sessions: dict[str, int] = {}
        """Of nodes."""
        self._leading = 0
        """Session of the holder of the lock."""
        self._holder: object | None = None
        self.token = NEVER
        self.has_quorum = True
        self._known: tuple[int, dict[str, Element], ClusterState | None] = (-1, {}, None)

    @property
    def holder(self) -> object | None:
        """Who has the lock."""
        return self._holder

    @holder.setter
    def holder(self, who: object | None) -> None:
        assert who is None, "the lock is campaigned for"
        if self._holder is not None:
            self._tree.tree.end(self._leading)
        self._holder = None

    def campaign(self, who: object) -> Version | None:
        """Grant the lock, if it is free."""
        if self._holder is not None:
            return None
        self._leading = next(self._numbers)
        self._holder, self.token = who, self._tree.campaign(self._leading)
        return self.token

    def end_session(self, node: str) -> None:
        session = self._sessions.pop(node, None)
        if session is not None:
            self._tree.tree.end(session)

    def live(self) -> set[str]:
        return set(self.state().live)

    @property
    def elements(self) -> dict[str, Element]:
        if self._known[0] != self._tree.tree.lsn:
            self._known = self._tree.tree.lsn, self._tree.elements(), None
        return self._known[1]

    def state(self) -> ClusterState:
        elements = self.elements
        if self._known[2] is None:
            state = state_from_elements(elements, self.token)
            self._known = self._known[0], elements, state
        assert self._known[2] is not None
        return self._known[2]

    def run(self, txn: Txn) -> bool:
        """Do all of it, or nothing."""
        opened = [word for words in txn.changes for word in words
                  if words[0] == b"CREATE" and word.startswith(LIVE)]  # fmt: skip
        if not opened:
            return self._tree.run(txn)
        session = next(self._numbers)
        is_done = self._tree.run(txn, session)
        if is_done:
            self._sessions[opened[0][len(LIVE) :].decode()] = session
        return is_done
