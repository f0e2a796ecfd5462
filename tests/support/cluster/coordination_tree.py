"""The namespace of a cluster in a real state machine, to which transactions are applied."""

from __future__ import annotations

from millstream.cluster.core.elements import (
    ORCHESTRATOR,
    ROOT,
    ClusterState,
    Element,
    Leader,
    state_from_elements,
    to_json,
)
from millstream.cluster.core.writes import Txn
from millstream.coordination.core.namespace.commands.transactions import pack_command
from millstream.vsr.core.values import items
from millstream.vsr.core.versions import NEVER, Version, parse_version
from support.coordination.namespace_machine import Tree


class CoordinationTree:
    """One namespace `/.system`."""

    def __init__(self) -> None:
        self.tree = Tree()
        assert self.tree.do("CREATENAMESPACE", ROOT) == b"+OK"
        self.token = NEVER

    def run(self, txn: Txn, session: int = 7) -> bool:
        """Return whether all of it was done."""
        packed = [pack_command(list(words)) for words in txn.words()]
        reply = self.tree.do("EXEC", *packed, session=session)
        is_refused = b"CHECK_FAILED" in reply or b"CAS" in reply
        assert reply.startswith(b"*") or is_refused, reply
        return reply.startswith(b"*")

    def campaign(self, session: int) -> Version:
        """Have a session lead the election; return the token."""
        leader = to_json(Leader(f"n{session}", "loopback:1"))
        reply = self.tree.do("ELECT", "CAMPAIGN", ORCHESTRATOR, leader, session=session)
        token = parse_version(items(reply)[1][1:])
        assert token is not None
        self.token = token
        return token

    def resign(self, session: int) -> None:
        self.tree.do("ELECT", "RESIGN", ORCHESTRATOR, session=session)

    def version(self, path: str) -> Version:
        return self.elements()[path].version

    def elements(self) -> dict[str, Element]:
        found: dict[str, Element] = {}
        self._read(ROOT, found)
        return found

    def state(self) -> ClusterState:
        return state_from_elements(self.elements(), self.token)

    def element(self, path: str) -> Element | None:
        """Return one of them; None: there is none."""
        if path == ORCHESTRATOR:  # locked while somebody leads, so that nobody else reads it
            leader = self.tree.read("ELECT", "LEADER", path)
            return Element(self.token, b"" if leader == b"_" else items(leader)[2][1:])
        reply = self.tree.read("GET", path, "CAS")
        if reply.startswith(b"-"):
            return None
        version, data = items(reply)
        parsed = parse_version(version[1:])
        assert parsed is not None
        return Element(parsed, b"" if data.startswith(b"*") else data[1:])

    def _read(self, path: str, found: dict[str, Element]) -> None:
        if path != ROOT:
            element = self.element(path)
            assert element is not None
            found[path] = element
        if path == ORCHESTRATOR:
            return
        for name in items(items(self.tree.read("LIST", path))[1]):
            self._read(f"{path}/{name[1:].decode()}", found)
