"""Lines written to `.ctl`: commands of the API in which the path may be omitted.

Invariants:
1. A command cannot reach anything outside the attached tree.
2. Commands of the connection (sessions, logins, transactions) are not available here.

Elsewhere: the commands (`namespace`), who sends them (`operations`).
"""

from __future__ import annotations

import shlex
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.admission import NAMESPACE_COMMANDS
from millstream.coordination.core.namespace.commands.command import parse
from millstream.coordination.core.namespace.machine import QUEUED
from millstream.coordination.core.namespace.paths import joined
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.ninep.refusals import NinepError

__all__ = ["Line", "is_within", "understand"]

_OPTIONS: Final = frozenset(
    (b"EPHEMERAL", b"SEQUENTIAL", b"PARENTS", b"UNSIGNED", b"WRAP", b"BIT")
)
_TAILS: Final = frozenset((b"TOKEN", b"NOWAIT", b"WRAP"))
_SUBS: Final = {
    b"LIST": {b"APPEND", b"PREPEND", b"INSERT", b"SET", b"REMOVE", b"REMVAL", b"TRIM", b"INDEX",
              b"RANGE", b"LEN", b"FIND"},
    b"SET": {b"ADD", b"REM", b"HAS", b"LEN", b"MEMBERS", b"POP", b"UNION", b"INTER", b"DIFF"},
    b"QUEUE": {b"PUSH", b"POP", b"TAKE", b"ACK", b"NACK", b"PEEK", b"LEN", b"PURGE", b"WAIT"},
    b"LOCK": {b"READ", b"WRITE", b"RELEASE", b"CANCEL", b"INFO"},
    b"ELECT": {b"CAMPAIGN", b"RESIGN", b"LEADER"},
    b"ACL": {b"GET", b"SET", b"CHECK"},
    b"CONFIG": {b"GET", b"SET", b"UNSET"},
}  # fmt: skip
"""Commands whose path comes first, or after one of these words."""
_LAST: Final = frozenset((b"COUNTER", b"SEMAPHORE", b"BARRIER"))
"""Commands whose path comes last, but for some words."""


class Line(NamedTuple):
    """A command that was understood."""

    words: tuple[bytes, ...]
    is_change: bool


def is_within(path: bytes, root: bytes) -> bool:
    """Whether a path is that of a tree's root, or below."""
    return path == root or path.startswith(root + b"/")


def understand(line: bytes, path: bytes, root: bytes) -> Line:
    """Return the command that a line is.

    Args:
        line: words, in quotes if there are blanks in them.
        path: of the element whose file it was written to.
        root: what was attached; nothing outside is named.

    Raises:
        NinepError: of which kind the API would have said.
    """
    try:
        words = [word.encode() for word in shlex.split(line.decode())]
    except ValueError:
        raise NinepError("BADARG") from None
    if not words:
        raise NinepError("BADARG")
    given = tuple(_complete(words, path))
    if given[0] not in NAMESPACE_COMMANDS:
        raise NinepError("UNKNOWN_COMMAND")
    try:
        call = parse(given, QUEUED)
    except Refused as refused:
        raise NinepError(refused.code) from None
    paths = [joined(one) for one in call.paths]
    if root and not (paths and all(is_within(path, root) for path in paths)):
        raise NinepError("NOPERM")
    return Line(given, call.is_change)


def _complete(words: list[bytes], path: bytes) -> list[bytes]:
    """Put the path where it belongs, unless there is one."""
    name, rest = words[0].upper(), words[1:]
    if not path:
        return [name, *rest]
    if name == b"PUT-CAS" and len(rest) == 2:
        return [b"PUT", path, rest[1], b"CAS", rest[0]]
    if name == b"CREATE":
        return [name, *_created(rest, path)]
    if name in _LAST and rest:
        at = len(rest)
        while at > 1 and rest[at - 1].upper() in _TAILS:
            at -= 1
        is_given = at > 1 and rest[at - 1].startswith(b"/")
        return [name, *rest] if is_given else [name, *rest[:at], path, *rest[at:]]
    at = int(bool(rest) and rest[0].upper() in _SUBS.get(name, ()))
    is_given = len(rest) > at and rest[at].startswith(b"/") and name != b"MOVE"
    return [name, *rest] if is_given else [name, *rest[:at], path, *rest[at:]]


def _created(rest: list[bytes], path: bytes) -> list[bytes]:
    """Make the name behind type and options a path."""
    at = 1
    while at < len(rest) and rest[at].upper() in _OPTIONS:
        at += 2 if rest[at].upper() == b"BIT" else 1
    if at >= len(rest) or rest[at].startswith(b"/"):
        return rest
    return [*rest[:at], path + b"/" + rest[at], *rest[at + 1 :]]
