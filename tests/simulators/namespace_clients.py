"""Clients of a state machine of namespaces: each counts its requests, and learns how they end."""

from __future__ import annotations

from millstream.vsr.core.values import items
from support.coordination.namespace_machine import Tree

__all__ = ["Client", "Group", "word"]


def word(value: bytes) -> str:
    """Return the first word of a reply: a status, the code of an error."""
    if value.startswith(b"*"):
        return word(items(value)[0])
    return value[1:].split(b" ")[0].decode()


class Group(Tree):
    """A machine, and the final replies of requests that waited."""

    def __init__(self) -> None:
        super().__init__()
        self.finals: dict[tuple[int, int], bytes] = {}
        self.retried: list[tuple[int, bytes, bytes]] = []

    def note(self) -> None:
        """Keep what the last entry brought."""
        for session, csn, value in self.last.answers:
            assert (session, csn) not in self.finals
            self.finals[session, csn] = value
        self.retried += self.last.notices

    def end(self, *sessions: int) -> None:  # type: ignore[override]
        super().end(*sessions)
        self.note()

    def lapse(self, *words: bytes | str | int) -> None:
        """Have offers end whose time is over."""
        super().lapse(*words)
        self.note()

    def offers(self) -> list[tuple[bytes, int, int]]:
        """Return path, session and LSN of those that may."""
        state = self.machine.state
        return [
            (state.elements.path(wait.elements[0]), wait.session, wait.offer)
            for _, wait in state.synchronisation.waits.offers()
        ]


class Client:
    """One session."""

    def __init__(self, group: Group, session: int) -> None:
        self.group, self.session, self.csn = group, session, 0
        self.said: dict[int, tuple[bytes | str, ...]] = {}

    @property
    def name(self) -> bytes:
        """As others see it."""
        return b"69" * 16 + b"-%d" % self.session

    def do(self, *words: bytes | str) -> bytes:
        """Send a new request."""
        self.csn += 1
        self.said[self.csn] = words
        return self.repeat(self.csn, is_claim=False)

    def repeat(self, csn: int, *, is_claim: bool = True) -> bytes:
        """Have a request logged, again if it is not new."""
        value = self.group.do(*self.said[csn], session=self.session, csn=csn, claim=is_claim)
        self.group.note()
        return value

    def final(self, csn: int) -> bytes:
        """Return what a request that waited has ended with; nothing if it has not."""
        return self.group.finals.get((self.session, csn), b"")
