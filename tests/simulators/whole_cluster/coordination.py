"""The coordination service: the real state machine of namespaces, one entry after the other.

The group around it is a model: what it executes is in one order, and there are times without a
quorum. Sessions end when the world says so; with them go ephemeral elements and locks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from millstream.cluster.core.elements import (
    ORCHESTRATOR,
    ROOT,
    ClusterState,
    Element,
    live_path,
    state_from_elements,
)
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
        self.is_working = True
        self.is_there: Callable[[], bool] = lambda: True
        """Whether enough of the nodes that coordinate are there."""
        self._elements: dict[str, Element] = {}
        self._state: ClusterState | None = None
        self._changed: set[str] = {ROOT}
        """Elements that have to be read again; the root: all."""

    @property
    def has_quorum(self) -> bool:
        return self.is_working and self.is_there()

    @has_quorum.setter
    def has_quorum(self, has: bool) -> None:
        self.is_working = has

    @property
    def holder(self) -> object | None:
        """Who has the lock."""
        return self._holder

    @holder.setter
    def holder(self, who: object | None) -> None:
        assert who is None, "the lock is campaigned for"
        if self._holder is not None:
            self._tree.tree.end(self._leading)
            self._changed.add(ORCHESTRATOR)
        self._holder = None

    def campaign(self, who: object) -> Version | None:
        """Grant the lock, if it is free."""
        if self._holder is not None:
            return None
        self._leading = next(self._numbers)
        self._holder, self.token = who, self._tree.campaign(self._leading)
        self._changed.add(ORCHESTRATOR)
        return self.token

    def end_session(self, node: str) -> None:
        session = self._sessions.pop(node, None)
        if session is not None:
            self._tree.tree.end(session)
            self._changed.add(live_path(node))

    def live(self) -> set[str]:
        return set(self.state().live)

    @property
    def elements(self) -> dict[str, Element]:
        if self._changed:
            self._elements, self._state = self._read(), None
            self._changed.clear()
        return self._elements

    def _read(self) -> dict[str, Element]:
        if ROOT in self._changed:
            return self._tree.elements()
        found = dict(self._elements)
        for path in self._changed | {path.rpartition("/")[0] for path in self._changed} - {ROOT}:
            element = self._tree.element(path)
            if element is None:
                found.pop(path, None)
            else:
                found[path] = element
        return {path: found[path] for path in sorted(found, key=lambda path: path.split("/"))}

    def state(self) -> ClusterState:
        elements = self.elements
        if self._state is None:
            self._state = state_from_elements(elements, self.token)
        return self._state

    def run(self, txn: Txn) -> bool:
        """Do all of it, or nothing."""
        opened = [word for words in txn.changes for word in words
                  if words[0] == b"CREATE" and word.startswith(LIVE)]  # fmt: skip
        session = next(self._numbers) if opened else None
        is_done = self._tree.run(txn) if session is None else self._tree.run(txn, session)
        if is_done:
            self._changed |= {
                word.decode() for words in txn.changes for word in words[1:]
                if word.startswith(ROOT.encode())
            }  # fmt: skip
        if is_done and session is not None:
            self._sessions[opened[0][len(LIVE) :].decode()] = session
        return is_done
