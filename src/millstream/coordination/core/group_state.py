"""What a group replicates: its namespaces, and the registers that there were before them.

Invariants:
1. A path begins with a slash and a register's key does not, so no command can mean both.
2. A group without namespaces has the same bytes as one of a version that knew none.

Elsewhere: namespaces (`namespace.machine`) and how their commands are written
(`namespace.admission`), registers (`registers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from millstream.coordination.core.namespace.admission import (
    NAMESPACE_COMMANDS,
    ClientRequest,
    Parser,
    admit,
)
from millstream.coordination.core.namespace.audience import Subscriber
from millstream.coordination.core.namespace.commands.subscriptions import (
    FROM_THE_START,
    Begun,
    SubscribeRequest,
    subscribe,
)
from millstream.coordination.core.namespace.machine import Namespace
from millstream.coordination.core.namespace.paths import Path
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.configuration import GROUP, Settings
from millstream.coordination.core.registers import REGISTER_COMMANDS, Registers
from millstream.vsr.core.effects import Code, Reply
from millstream.vsr.core.entries import Body, Entry
from millstream.vsr.core.snapshots import Pieces

__all__ = ["GROUP_COMMANDS", "GroupState"]


class GroupState(Namespace):
    """The state machine of a group (`vsr.core.state_machine.StateMachine`)."""

    def __init__(self) -> None:
        super().__init__()
        self.registers = Registers()
        self._seen: tuple[Settings, int] | None = None

    def apply(self, entry: Entry) -> bytes:
        """Execute a command; those of namespaces are logged with a number before their name."""
        header, argv = entry.header, entry.content.argv
        if argv and argv[0].isdigit():
            return super().apply(entry)
        if self.waiting(header.session, header.csn) is not None:
            return super().apply(entry)  # its number is that of what waits, which is meant
        return self.registers.apply(entry)

    def take_settings(self) -> Mapping[bytes, bytes] | None:
        """Return what is set for the group, if something was set or unset since the last call."""
        settings, seen = self.state.settings, self._seen
        if seen is not None and seen[1] == settings.values.changes and seen[0] is settings:
            return None
        self._seen = settings, settings.values.changes
        return dict(settings.own(GROUP))

    def read(self, body: Body, session: int = 0) -> bytes:
        """Return what a session asks for, changing nothing."""
        argv = body.argv
        if len(argv) > 1 and argv[0] == b"GET" and not argv[1].startswith(b"/"):
            return self.registers.read(body)
        return super().read(body, session)

    def subscribe(
        self, subscriber: Subscriber, request: SubscribeRequest, lsn: int,
        confirm: Callable[[Path], None], begun: Begun = FROM_THE_START,
    ) -> Reply:  # fmt: skip
        """Begin subscriptions (`subscriptions`); OK without a value if they have begun."""
        try:
            subscribe(self.state, self.audience, subscriber, request, lsn, confirm, begun)
        except Refused as refused:
            if refused.code == Code.NOTPRIMARY.value:
                return Reply(0, Code.NOTPRIMARY)
            return Reply(0, Code.OK, refused.value, lsn)
        return Reply(0, Code.OK, lsn=lsn)

    def freeze(self) -> Iterator[bytes]:
        """Return the state of this moment, in small pieces, while changes go on."""
        tables = self.state.tables
        return chain(self.registers.freeze(), () if tables.is_empty else tables.freeze())

    def restore(self, pieces: Pieces) -> Iterator[None]:
        """Replace the state by what `freeze` wrote."""
        yield from self.registers.restore(pieces)
        self.audience.skip()
        state_format = self.state.tables.state_format
        self._begin()
        self.use_format(state_format)
        if not pieces.is_at_end:
            yield from super().restore(pieces)


def _of_either(name: bytes) -> Parser:
    of_registers = REGISTER_COMMANDS[name]

    def parse(argv: Sequence[bytes], stamp: int) -> ClientRequest | bytes | None:
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
