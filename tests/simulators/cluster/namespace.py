"""The coordination service as one linearizable store, with the commands that a cluster uses.

That these commands mean the same in the real state machine is tested with the transactions
themselves, in tests/unit/cluster/core/test_writes.py.
"""

from __future__ import annotations

from millstream.cluster.core.elements import (
    ORCHESTRATOR,
    ROOT,
    ClusterState,
    Element,
    live_path,
    state_from_elements,
)
from millstream.cluster.core.writes import Txn
from millstream.vsr.core.versions import NEVER, Version, parse_version


class Namespace:
    """Elements, one lock, and sessions, which are the elements of live nodes."""

    def __init__(self) -> None:
        self.elements: dict[str, Element] = {}
        self.lists: dict[str, list[bytes]] = {}
        self.lsn = 0
        self.token = NEVER
        self.holder: object | None = None
        self.has_quorum = True
        self.epoch = 1
        self.past: list[tuple[int, dict[str, Element]]] = []
        """Backups: LSN and elements."""
        self._parsed: tuple[int, int, ClusterState] | None = None

    def campaign(self, who: object) -> Version | None:
        """Grant the lock, if it is free."""
        if self.holder is not None:
            return None
        self.lsn += 1
        self.holder, self.token = who, Version(self.epoch, 1, self.lsn)
        return self.token

    def end_session(self, node: str) -> None:
        if self.elements.pop(live_path(node), None) is not None:
            self.lsn += 1

    def live(self) -> set[str]:
        return set(self.state().live)

    def state(self) -> ClusterState:
        if self._parsed is None or self._parsed[:2] != (self.epoch, self.lsn):
            state = state_from_elements(self.elements, self.token, self.epoch)
            self._parsed = self.epoch, self.lsn, state
        return self._parsed[2]

    def back_up(self) -> None:
        self.past.append((self.lsn, dict(self.elements)))

    def restore(self, at: int) -> None:
        """Go on from a backup, as a group that was restored or forced to go on."""
        self.lsn, elements = self.past[at]
        self.elements, self.past = dict(elements), self.past[: at + 1]
        self.epoch += 1 << 16

    def run(self, txn: Txn) -> bool:
        """Do all of it, or nothing."""
        inline = [(words[1], *words[3:]) for words in txn.changes if words[0] == b"PUT"]
        checks = [words[1:] for words in txn.checks] + [words for words in inline if words[1:]]
        if not all(self._holds(*words) for words in checks):
            return False
        self.lsn += 1
        for words in txn.changes:
            self._change([word.decode("latin-1") for word in words], words)
        return True

    def _holds(self, path: bytes, kind: bytes, version: bytes = b"") -> bool:
        found = self.elements.get(path.decode())
        if kind == b"ABSENT":
            return found is None
        if kind == b"EXISTS":
            return found is not None
        if kind == b"CAS":
            return found is not None and found.version == parse_version(version)
        assert kind == b"IFLOCK", kind
        assert path.decode() == ORCHESTRATOR
        return self.holder is not None and self.token == parse_version(version)

    def _change(self, words: list[str], raw: tuple[bytes, ...]) -> None:
        version = Version(self.epoch, 1, self.lsn)
        if words[0] == "PUT":
            assert words[1] in self.elements
            self.elements[words[1]] = Element(version, raw[2])
        elif words[0] == "CREATE":
            at = next(at for at, word in enumerate(words) if word.startswith(ROOT))
            assert words[at] not in self.elements, words[at]
            data = raw[at + 1] if len(raw) > at + 1 else b"0" if words[1] == "COUNTER" else b""
            self.elements[words[at]] = Element(version, data)
        elif words[0] == "COUNTER":
            path, more = words[-1], int(words[2]) if len(words) == 4 else 1
            value = 0 if words[1] == "RESET" else int(self.elements[path].data) + more
            self.elements[path] = Element(version, b"%d" % value)
        elif words[0] == "DELETE":
            del self.elements[words[1]]
        else:
            assert words[0] == "LIST", words
