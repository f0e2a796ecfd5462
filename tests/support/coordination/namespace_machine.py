"""A state machine of namespaces that is given commands one after the other, as a group would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from millstream.coordination.core.namespace.commands import command as commands
from millstream.coordination.core.namespace.machine import Namespace
from millstream.coordination.core.namespace.state.run import Asker
from millstream.coordination.core.namespace.state.state import Job
from millstream.vsr.core.entries import Body
from millstream.vsr.core.snapshots import Pieces
from millstream.vsr.core.versions import NEVER, Version


@contextmanager
def nothing_understood() -> Iterator[None]:
    """Have every command parsed inside; what was known before is known again afterwards."""
    known = commands._understood.copy()
    commands._understood.clear()
    try:
        yield
    finally:
        commands._understood.clear()
        commands._understood.update(known)


class Tree:
    """One machine; each command is an entry of its own."""

    def __init__(self) -> None:
        self.machine = Namespace()
        self.lsn = 0
        self.last = Job(self.machine.state, Asker(), NEVER, 0)

    def do(
        self,
        *words: bytes | str,
        session: int = 7,
        csn: int = 0,
        user: bytes = b"",
        groups: tuple[bytes, ...] = (),
        claim: bool = False,
    ) -> bytes:
        """Have a command logged and executed."""
        self.lsn += 1
        asker = Asker(session, csn, b"i" * 16 if session else b"", user, groups, 5, claim)
        self.last = Job(self.machine.state, asker, Version(1, 2, self.lsn), 1000 + self.lsn)
        return self.machine.execute(self.last, [_bytes(word) for word in words])

    def read(
        self, *words: bytes | str, user: bytes = b"", groups: tuple[bytes, ...] = (),
        session: int = 0,
    ) -> bytes:  # fmt: skip
        """Have something looked up."""
        body = Body(user, groups, tuple(_bytes(word) for word in words))
        return self.machine.read(body, session)

    def end(self, *sessions: int) -> Job:
        """End sessions by one entry."""
        self.lsn += 1
        self.last = Job(self.machine.state, Asker(), Version(1, 2, self.lsn), 1000 + self.lsn)
        self.machine.end(self.last, sessions)
        return self.last

    def lapse(self, *words: bytes | str | int) -> None:
        """End offers by one entry: path, session and LSN of each."""
        self.lsn += 1
        self.last = Job(self.machine.state, Asker(), Version(1, 2, self.lsn), 1000 + self.lsn)
        self.machine.lapse(self.last, [_bytes(str(w) if isinstance(w, int) else w) for w in words])

    @property
    def bytes(self) -> bytes:
        """The whole state."""
        return b"".join(self.machine.freeze())

    def again(self) -> None:
        """Go on with the state that a snapshot holds."""
        before = self.bytes
        self.machine = Namespace()
        for _ in self.machine.restore(Pieces([before])):
            pass
        assert self.bytes == before


def _bytes(word: bytes | str) -> bytes:
    return word.encode() if isinstance(word, str) else word
