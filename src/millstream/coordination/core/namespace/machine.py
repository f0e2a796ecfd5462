"""The namespaces of a group as its state machine.

    machine.apply(entry)      # the reply; what else came of it: machine.take_happened()
    machine.read(body)

A logged command is `(stamp, name, words...)`, the stamp in decimal digits; one that is read is
`(name, words...)`.

Invariants:
1. The same entries in the same order give the same replies and the same state.
2. A command that is refused changes nothing.
3. Nothing that is logged ends the machine: what is not understood is an error.

Elsewhere: commands (the modules of this package), whose they are and how often they are executed
(`client_table`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from millstream.coordination.core.entries import Body, Entry
from millstream.coordination.core.namespace.commands import Command, parse
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.run import Asker
from millstream.coordination.core.namespace.state import Job, State
from millstream.coordination.core.namespace.tree import TREE_COMMANDS
from millstream.coordination.core.snapshots import Pieces
from millstream.coordination.core.versions import NEVER, version_of

__all__ = ["COMMANDS", "Namespace"]

COMMANDS: Final[Mapping[bytes, tuple[str, Command]]] = {**TREE_COMMANDS}
"""All commands: name -> how it is written, and how it is understood."""
_DIGITS_MAX: Final = 20


class Namespace:
    """The state machine (`register.StateMachine`)."""

    def __init__(self) -> None:
        self.state = State()

    def apply(self, entry: Entry) -> bytes:
        """Execute a logged command and return its reply."""
        header, body = entry.header, entry.content
        stamp, *words = body.argv or (b"",)
        asker = Asker(
            header.session, header.csn, header.instance, body.principal, body.groups,
            int(stamp) if stamp.isdigit() and len(stamp) <= _DIGITS_MAX else 0, header.claim,
        )  # fmt: skip
        return self.execute(Job(self.state, asker, version_of(header), header.ts_ms), words)

    def execute(self, job: Job, words: list[bytes]) -> bytes:
        """Carry out a command that changes something, and what follows from it."""
        mark = job.mark()
        try:
            call = parse(words, COMMANDS)
            if not call.is_change:
                raise Refused("BADARG", "this command changes nothing, and is not logged")
            reply = call.execute(job)
            self._finish(job)
        except Refused as refused:
            job.roll_back(mark)
            reply = refused.value
        self.state.tables.settle()
        return reply

    def _finish(self, job: Job) -> None:
        for family in self.state.families:
            family.finished(job)

    def end_sessions(self, entry: Entry, sessions: Sequence[int]) -> None:
        """Let everything go that was of these sessions alone; then see who may have it."""
        header = entry.header
        self.end(Job(self.state, Asker(), version_of(header), header.ts_ms), sessions)

    def end(self, job: Job, sessions: Sequence[int]) -> None:
        """Do it, for an entry that ends sessions."""
        for session in sessions:
            for family in self.state.families:
                family.session_ended(job, session)
        self._finish(job)
        self.state.tables.settle()

    def read(self, body: Body, session: int = 0) -> bytes:
        """Return what a session asks for, changing nothing."""
        asker = Asker(session, principal=body.principal, groups=body.groups)
        job = Job(self.state, asker, NEVER, 0, is_reading=True)
        try:
            call = parse(body.argv, COMMANDS)
            if call.is_change:
                raise Refused("BADARG", "this command changes something, and is logged")
            return call.execute(job)
        except Refused as refused:
            return refused.value

    def freeze(self) -> Iterator[bytes]:
        """Return the state of this moment, in small pieces, while changes go on."""
        return self.state.tables.freeze()

    def freeze_if_any(self) -> Iterator[bytes]:
        """Return the same; nothing, if no entry has ever changed it."""
        return self.freeze() if self.state.elements.is_used else iter(())

    def restore(self, pieces: Pieces) -> Iterator[None]:
        """Let the state be what `freeze` wrote."""
        return self.state.tables.restore(pieces)
