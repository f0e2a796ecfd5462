"""What a group replicates: its namespaces, and the registers that there were before them.

Invariants:
1. A path begins with a slash and a register's key does not, so no command can mean both.
2. A group without namespaces has the same bytes as one of a version that knew none.

Elsewhere: namespaces (`namespace.machine`), registers (`registers`), how their commands are
written (`namespace.admission`, `register_commands`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from millstream.coordination.core.namespace.admission import NAMESPACE_COMMANDS, admit
from millstream.coordination.core.namespace.audience import Audience, Subscriber
from millstream.coordination.core.namespace.commands.subscriptions import (
    FROM_THE_START,
    Begun,
    subscribe,
)
from millstream.coordination.core.namespace.commands.subscriptions import Wish as Hearing
from millstream.coordination.core.namespace.machine import Namespace
from millstream.coordination.core.namespace.paths import Path
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.configuration import GROUP, Settings
from millstream.coordination.core.register_commands import REGISTER_COMMANDS, Parser, Wish
from millstream.coordination.core.registers import Registers
from millstream.vsr.core.client_table import Verdict
from millstream.vsr.core.effects import Code, Reply
from millstream.vsr.core.entries import Body, Entry
from millstream.vsr.core.snapshots import Pieces
from millstream.vsr.core.state_machine import Answer, Offer

__all__ = ["GROUP_COMMANDS", "GroupState"]


class GroupState:
    """The state machine of a group (`vsr.core.state_machine.StateMachine`)."""

    def __init__(self) -> None:
        self.registers = Registers()
        self._seen: tuple[Settings, int] | None = None
        self._have(Namespace())

    def _have(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self._settings, self._open = namespace.state.settings, namespace.open

    @property
    def format_max(self) -> int:
        """The highest state format that this program understands."""
        return self.namespace.format_max

    def use_format(self, number: int) -> None:
        """Execute entries, and freeze, in this state format from now on."""
        self.namespace.use_format(number)

    def apply(self, entry: Entry) -> bytes:
        """Execute a command; those of namespaces are logged with a number before their name."""
        header, argv = entry.header, entry.content.argv
        if argv and argv[0].isdigit():
            return self.namespace.apply(entry)
        if self.waiting(header.session, header.csn) is not None:
            return self.namespace.apply(entry)  # its number is that of what waits, which is meant
        return self.registers.apply(entry)

    def weight(self, session: int) -> int:
        """Return how much ends with a session."""
        return self.namespace.weight(session)

    def silence_ms(self, session: int) -> int | None:
        """Return what is set for that of which a session holds something."""
        return self.namespace.silence_ms(session)

    def end_sessions(self, entry: Entry, sessions: Sequence[int]) -> None:
        """Release what belonged to these sessions alone."""
        self.namespace.end_sessions(entry, sessions)

    def end_offers(self, entry: Entry) -> None:
        """End the offers that it names."""
        self.namespace.end_offers(entry)

    def waiting(self, session: int, csn: int) -> Verdict | None:
        """Return whether a request waits, and for what is there."""
        return self.namespace.waiting(session, csn) if len(self._open) else None

    def take_answers(self) -> list[Answer]:
        """Return the final replies of requests that waited."""
        return self.namespace.take_answers() if self.namespace.answers else []

    def take_settings(self) -> Mapping[bytes, bytes] | None:
        """Return what is set for the group, if something was set or unset since the last call."""
        settings, seen = self._settings, self._seen
        if seen is not None and seen[1] == settings.values.changes and seen[0] is settings:
            return None
        self._seen = settings, settings.values.changes
        return dict(settings.own(GROUP))

    def offers(self, start: bytes = b"") -> Iterator[Offer]:
        """Yield the offers that end if nobody takes them, from a name on."""
        return self.namespace.offers(start)

    def read(self, body: Body, session: int = 0) -> bytes:
        """Return what a session asks for, changing nothing."""
        argv = body.argv
        if len(argv) > 1 and argv[0] == b"GET" and not argv[1].startswith(b"/"):
            return self.registers.read(body)
        return self.namespace.read(body, session)

    @property
    def audience(self) -> Audience:
        """Who listens on this member."""
        return self.namespace.audience

    def subscribe(
        self, subscriber: Subscriber, wish: Hearing, lsn: int, confirm: Callable[[Path], None],
        begun: Begun = FROM_THE_START,
    ) -> Reply:  # fmt: skip
        """Begin subscriptions (`subscriptions`); OK without a value if they have begun."""
        try:
            state = self.namespace.state
            subscribe(state, self.audience, subscriber, wish, lsn, confirm, begun)
        except Refused as refused:
            if refused.code == Code.NOTPRIMARY.value:
                return Reply(0, Code.NOTPRIMARY)
            return Reply(0, Code.OK, refused.value, lsn)
        return Reply(0, Code.OK, lsn=lsn)

    def freeze(self) -> Iterator[bytes]:
        """Return the state of this moment, in small pieces, while changes go on."""
        return _both(self.registers.freeze(), self.namespace.freeze_if_any())

    def restore(self, pieces: Pieces) -> Iterator[None]:
        """Replace the state by what `freeze` wrote."""
        yield from self.registers.restore(pieces)
        self.audience.skip()
        state_format = self.namespace.state.tables.state_format
        self._have(Namespace(self.audience))
        self.namespace.use_format(state_format)
        if not pieces.is_at_end:
            yield from self.namespace.restore(pieces)


def _both(first: Iterator[bytes], second: Iterator[bytes]) -> Iterator[bytes]:
    yield from first
    yield from second


def _of_either(name: bytes) -> Parser:
    of_registers = REGISTER_COMMANDS[name]

    def parse(argv: Sequence[bytes], stamp: int) -> Wish | bytes | None:
        if any(word.startswith(b"/") for word in argv[1:3]):
            return admit(argv, stamp)
        return of_registers(argv, stamp)

    return parse


GROUP_COMMANDS: Final[Mapping[bytes, Parser]] = {
    **REGISTER_COMMANDS,
    **NAMESPACE_COMMANDS,
    **{name: _of_either(name) for name in REGISTER_COMMANDS.keys() & NAMESPACE_COMMANDS.keys()},
}
"""Commands by name."""
