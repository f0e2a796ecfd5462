"""Parses the commands of namespaces into requests to a group.

Invariants:
1. Only valid commands are logged. A logged command is refused only because of the state.

Elsewhere: parsers (`commands`), execution (`machine`), connections (`resp.session`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.commands.command import parse
from millstream.coordination.core.namespace.commands.forcing import FORCE
from millstream.coordination.core.namespace.commands.transactions import Transaction, look_at
from millstream.coordination.core.namespace.machine import COMMANDS, QUEUED
from millstream.coordination.core.namespace.paths import joined
from millstream.coordination.core.namespace.refused import Refused
from millstream.vsr.core.values import error

__all__ = ["NAMESPACE_COMMANDS", "ClientRequest", "Parser", "admit", "begin_transaction", "forced"]


class ClientRequest(NamedTuple):
    """A request to the group that has `key`.

    `is_stale`: any member may answer from its own state. `needs_session`: a session is opened if
    the connection has none.
    """

    is_change: bool
    argv: tuple[bytes, ...]
    key: bytes
    is_stale: bool = False
    needs_session: bool = False


Parser = Callable[[Sequence[bytes], int], ClientRequest | bytes | None]
"""Parses the words of a command and the time stamp of its client (0: none).

Returns the request, an error, or None if the connection itself answers these words."""


def admit(argv: Sequence[bytes], stamp: int) -> ClientRequest | bytes:
    """Return the request of a command, or an error reply. `stamp`: the time of the client, ms."""
    words = (argv[0].upper(), *argv[1:])
    try:
        call = parse(words, _ALL)
    except Refused as refused:
        return refused.value
    logged = (b"%d" % stamp, *words) if call.is_change else words
    key = joined(call.paths[0]) if call.paths else b""
    return ClientRequest(call.is_change, logged, key, call.is_stale, call.needs_session)


def forced(request: ClientRequest | bytes) -> ClientRequest | bytes:
    """Return the request with FORCE, which overrides the locks of others, where locks exist.

    Registers and the commands that create namespaces have no locks. An error is returned as is.
    """
    if isinstance(request, bytes):
        return request
    argv = request.argv
    if request.is_change:
        is_open = not argv[0].isdigit() or argv[1] == b"CREATENAMESPACE"
        return request if is_open else request._replace(argv=(argv[0], FORCE, *argv[1:]))
    is_open = argv[0] == b"GET" and not argv[1].startswith(b"/")
    return request if is_open else request._replace(argv=(FORCE, *argv))


def _admit_config(argv: Sequence[bytes], stamp: int) -> ClientRequest | bytes | None:
    """CONFIG of elements, the group or all groups; that of a Redis server names none of them.

    What a node was started with it says by itself; that it is not to be changed is said here.
    """
    verb, where = argv[1:3] if len(argv) > 3 else (b"", b"")
    is_ours = where.startswith(b"/") or where.upper() in _SETS
    is_of_node = where.upper() == b"NODE" and verb.upper() == b"GET"
    return admit(argv, stamp) if is_ours and not is_of_node else None


def begin_transaction() -> Transaction:
    """Return a transaction without commands."""
    return Transaction(_look_at)


def _look_at(argv: Sequence[bytes]) -> bytes:
    try:
        look_at(argv, QUEUED)
    except Refused as refused:
        if refused.code == "UNKNOWN_COMMAND":
            shown = argv[0][:64].decode("ascii", "replace")
            return error(refused.code, f"a transaction has no command {shown}")
        return refused.value
    return b""


_SETS: Final = (b"GROUP", b"GLOBAL", b"NODE")
_ALL: Final = {**QUEUED, **{name: COMMANDS[name] for name in (b"EXEC", b"SUBACK", b"TREE")}}
"""SUBSCRIBE is understood by the connection, which has MARK logged."""
NAMESPACE_COMMANDS: Final[Mapping[bytes, Parser]] = {
    **dict.fromkeys(QUEUED, admit),
    b"TREE": admit,
    b"CONFIG": _admit_config,
}
"""Commands by name."""
