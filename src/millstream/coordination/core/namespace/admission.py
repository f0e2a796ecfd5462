"""How clients write the commands of namespaces: what is understood becomes a wish.

Invariants:
1. What is logged was understood, so at work it can only be refused for what there is by then.
2. Commands that wait are not let in: the replicas cannot have them wait yet.

Elsewhere: understanding (`commands`), doing (`machine`), connections (`front`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from millstream.coordination.core.namespace.commands import parse
from millstream.coordination.core.namespace.machine import COMMANDS, QUEUED
from millstream.coordination.core.namespace.paths import joined
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.transactions import Transaction, look_at
from millstream.coordination.core.register_commands import Parser, Wish
from millstream.coordination.core.values import error

__all__ = ["NAMESPACE_COMMANDS", "admit", "begin_transaction"]


def admit(argv: Sequence[bytes], stamp: int) -> Wish | bytes:
    """Return what a command asks for, or why it makes no sense; `stamp`: the client's ms."""
    try:
        call = parse(argv, _ALL)
    except Refused as refused:
        return refused.value
    words = (argv[0].upper(), *argv[1:])
    logged = (b"%d" % stamp, *words) if call.is_change else words
    key = joined(call.paths[0]) if call.paths else b""
    return Wish(call.is_change, logged, key, call.is_stale, call.needs_session)


def _admit_config(argv: Sequence[bytes], stamp: int) -> Wish | bytes | None:
    """CONFIG of elements; that of a Redis server names none, and is not ours."""
    return admit(argv, stamp) if len(argv) > 3 and argv[2].startswith(b"/") else None


def _admit_queue(argv: Sequence[bytes], stamp: int) -> Wish | bytes:
    """QUEUE, but for WAIT."""
    if len(argv) > 1 and argv[1].upper() == b"WAIT":
        return error("UNKNOWN_COMMAND", "QUEUE WAIT is to come")
    return admit(argv, stamp)


def begin_transaction() -> Transaction:
    """Return a transaction without commands."""
    return Transaction(_look_at)


def _look_at(argv: Sequence[bytes]) -> bytes:
    try:
        look_at(argv, _OFFERED)
    except Refused as refused:
        return refused.value
    return b""


_NOT_YET: Final = (b"LOCK", b"SEMAPHORE", b"BARRIER", b"ELECT")
"""Those that wait: replicas do not know of offers and open requests so far."""
_OFFERED: Final = {name: known for name, known in QUEUED.items() if name not in _NOT_YET}
_ALL: Final = {**_OFFERED, b"EXEC": COMMANDS[b"EXEC"]}
NAMESPACE_COMMANDS: Final[Mapping[bytes, Parser]] = {
    **dict.fromkeys(_OFFERED, admit),
    b"CONFIG": _admit_config,
    b"QUEUE": _admit_queue,
}
"""By name."""
