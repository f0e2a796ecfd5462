"""Transactions: commands that are collected, logged as one entry, and executed all or not at all.

    MULTI, then each command is checked and QUEUED, then EXEC or DISCARD

The words of the entry are EXEC and one word for each command: the words of the command, each after
its length (4 bytes).

Invariants:
1. Only valid commands are logged: an invalid command makes EXEC fail before anything is logged.
2. The first error undoes everything that the entry did, and is its only reply.
3. A transaction has at most `COMMANDS_MAX` commands with `QUEUED_BYTES_MAX` in all, and its reply
   has at most `ANSWER_BYTES_MAX`.

Elsewhere: undoing (`tables`), the effects of the commands.

Source: V2R2, "Group Operations/Transactions".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Final

from millstream.coordination.core.namespace.commands.command import Call, Command, Words, parse
from millstream.coordination.core.namespace.commands.tree import taken_version
from millstream.coordination.core.namespace.paths import joined, parse_path
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.family import Want
from millstream.coordination.core.namespace.state.state import Job
from millstream.vsr.core.values import OK, array, error, status
from millstream.vsr.core.versions import Version

__all__ = [
    "ANSWER_BYTES_MAX",
    "CHECK",
    "COMMANDS_MAX",
    "QUEUED_BYTES_MAX",
    "Transaction",
    "exec_of",
    "names_in",
    "pack_command",
    "unpack_command",
]

COMMANDS_MAX: Final = 128
"""Most commands of one transaction."""
QUEUED_BYTES_MAX: Final = 4 * 1024 * 1024
"""Most bytes of the words of the commands of a transaction."""
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Most bytes of the replies of the commands of a transaction."""
_QUEUED: Final = status(b"QUEUED")
_PENDING: Final = status(b"PENDING")
_FIRST_AT: Final = len(array([_PENDING])) - len(_PENDING)
"""Offset of the first value of a list."""
_EXEC_USAGE: Final = "EXEC, behind MULTI and commands"
_ALONE: Final = (b"CREATENAMESPACE", b"DELETENAMESPACE")
"""These commands cannot be part of a transaction: the system group takes part in them."""
_LENGTH: Final = Struct(">I")


def pack_command(argv: Sequence[bytes]) -> bytes:
    """Return the words of a command as one."""
    return b"".join(part for word in argv for part in (_LENGTH.pack(len(word)), word))


def unpack_command(packed: bytes) -> tuple[bytes, ...] | None:
    """Return the words that were packed; None if that is not how words are packed."""
    words, at = [], 0
    while at < len(packed):
        begin = at + _LENGTH.size
        if begin > len(packed):
            return None
        at = begin + int.from_bytes(packed[at:begin], "big")
        if at > len(packed):
            return None
        words.append(packed[begin:at])
    return tuple(words)


def names_in(words: Sequence[bytes]) -> list[bytes]:
    """Return the names of a logged transaction's commands, in capitals."""
    unpacked = [unpack_command(packed) or (b"",) for packed in words[1:]]
    return [command[0].upper() for command in unpacked]


class Transaction:
    """Commands that one connection collects between MULTI and EXEC.

    `look_at` takes a command's words and returns an error (a value), or nothing.
    """

    def __init__(self, look_at: Callable[[Sequence[bytes]], bytes]) -> None:
        self._look_at = look_at
        self._commands: list[bytes] = []
        self._size = 0
        self._wrong = b""
        self._seen = 0

    def queue(self, argv: Sequence[bytes]) -> bytes:
        """Take one more command; return what is answered to it."""
        found = self._look_at(argv)
        packed = pack_command(argv) if not found else b""
        self._size += len(packed)
        if self._seen >= COMMANDS_MAX or self._size > QUEUED_BYTES_MAX:
            found = error(
                "TOOBIG",
                f"a transaction has {COMMANDS_MAX} commands and {QUEUED_BYTES_MAX} bytes at most",
            )
        if found:
            self.spoil(found)
        elif not self._wrong:
            self._commands.append(packed)
        self._seen += 1
        return found or _QUEUED

    def spoil(self, value: bytes) -> None:
        """Make EXEC fail because a command got an error."""
        if not self._wrong:
            self._wrong = aborted(self._seen, value)
            self._commands.clear()

    def words(self) -> tuple[bytes, ...] | bytes:
        """Return the words to be logged, or the error that EXEC answers."""
        return self._wrong or (b"EXEC", *self._commands)


def aborted(index: int, value: bytes) -> bytes:
    """Return the error of a transaction whose command of that index gave this error."""
    return b"-EXECABORT %d %s" % (index, value[1:])


# ---- the entry


def exec_of(commands: Mapping[bytes, tuple[str, Command]]) -> tuple[str, Command]:
    """Return how EXEC is written and understood, if a transaction may have these commands."""

    def command(words: Words) -> Call:
        packed = words.rest()
        if len(packed) > COMMANDS_MAX:
            raise Refused("TOOBIG", f"a transaction has {COMMANDS_MAX} commands at most")
        calls = tuple(look_at(unpack_command(each) or (), commands) for each in packed)
        paths = tuple(path for call in calls for path in call.paths)
        needs_session = any(call.needs_session for call in calls)
        return Call(lambda job: _execute(job, calls), paths, needs_session=needs_session)

    return _EXEC_USAGE, command


def look_at(words: Sequence[bytes], commands: Mapping[bytes, tuple[str, Command]]) -> Call:
    """Understand a command of a transaction.

    Raises:
        Refused: as `parse`; BADARG for what is done alone.
    """
    if words and words[0].upper() in _ALONE:
        raise Refused("BADARG", "a transaction cannot create or delete namespaces")
    return parse(words, commands)


def _execute(job: Job, calls: Sequence[Call]) -> bytes:
    job.is_in_transaction = True
    replies, size = [], 0
    for index, call in enumerate(calls):
        try:
            reply = call.execute(job)
            size += len(reply)
            _check_reply(reply, size)
        except Refused as refused:
            text = f"{index} {refused.code} {refused.text}".rstrip()
            raise Refused("EXECABORT", text) from None
        replies.append(reply)
    return array(replies)


def _check_reply(reply: bytes, size: int) -> None:
    if reply == _PENDING or reply.startswith(_PENDING, _FIRST_AT):
        raise Refused("WOULDBLOCK", "a command cannot wait in a transaction")
    if size > ANSWER_BYTES_MAX:
        raise Refused("TOOBIG", f"a transaction answers with {ANSWER_BYTES_MAX} bytes at most")


# ---- conditions


def _check(words: Words) -> Call:
    path, kind = parse_path(words.take()), words.take().upper()
    version = None
    if kind in (b"CAS", b"CHILDREN", b"IFLOCK"):
        version = taken_version(words)
    elif kind not in (b"EXISTS", b"ABSENT"):
        raise words.wrong()
    words.end()

    def execute(job: Job) -> bytes:
        elements = job.state.elements
        number = elements.find(path)
        if kind in (b"EXISTS", b"ABSENT"):
            is_so = (number is not None) == (kind == b"EXISTS")
        elif number is None:
            is_so = False
        else:
            job.state.guard(job, number, Want.LOOK)
            one = elements.there(number)
            if kind == b"IFLOCK" and version is not None:
                is_so = _is_current(job, version)
            else:
                is_so = version == (one.version if kind == b"CAS" else one.child_version)
        if not is_so:
            raise Refused("CHECK_FAILED", f"{joined(path).decode()} {kind.decode()}")
        return OK

    return Call(execute, (path,), is_change=False)


def _is_current(job: Job, token: Version) -> bool:
    try:
        job.state.check_token(token)
    except Refused:
        return False
    return True


CHECK: Final[tuple[str, Command]] = (
    "CHECK path EXISTS | ABSENT | CAS version | CHILDREN version | IFLOCK token",
    _check,
)
"""How CHECK is written, and how it is understood."""
