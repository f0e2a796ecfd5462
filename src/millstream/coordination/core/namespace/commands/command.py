"""Parses the words of a command into a call, at admission and again at execution.

    call = parse(words, COMMANDS)     # raises Refused
    reply = call.execute(job)

Invariants:
1. Only commands that were parsed are logged. Parsing uses only the words, so parsing at execution
   gives the same call.
2. Keywords are case-insensitive. Paths and data are bytes and are not changed.
3. Executing a call does not change it. So recent short commands are cached in `_understood`, and
   not parsed again.

Elsewhere: the commands (a mapping in the module of each kind), all of them (`machine`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.paths import Path
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.state import Job

__all__ = ["Call", "Command", "Words", "parse", "sub_commands"]

UNDERSTOOD_MAX: Final = 4096
"""Commands known without parsing them; when they are as many, they are forgotten."""
UNDERSTOOD_BYTES_MAX: Final = 512
"""Most bytes of one command whose parsed form is kept."""
_DIGITS_MAX: Final = 20


class Call(NamedTuple):
    """A command that was understood.

    `is_change`: it is logged. `paths`: what it is about; the first one says of which group,
    none: of the one that is asked.
    `is_stale`: any member's state will do. `needs_session`: one is opened for it if there is none.
    """

    execute: Callable[[Job], bytes]
    paths: tuple[Path, ...]
    is_change: bool = True
    is_stale: bool = False
    needs_session: bool = False


Command = Callable[["Words"], Call]
"""Takes the words behind a command's name; raises Refused (BADARG, BADPATH, TOOBIG)."""


class Words:
    """The words of a command behind its name, taken one after the other."""

    def __init__(self, words: Sequence[bytes], usage: str) -> None:
        self._words, self._at = words, 0
        self.usage = usage
        """What a client is told that has it wrong."""

    def __len__(self) -> int:
        return len(self._words) - self._at

    def wrong(self, why: str = "") -> Refused:
        """Return the error for words that make no sense."""
        return Refused("BADARG", f"{why}: {self.usage}" if why else self.usage)

    def take(self) -> bytes:
        """Return the next word, as it is."""
        if self._at == len(self._words):
            raise self.wrong()
        self._at += 1
        return self._words[self._at - 1]

    def rest(self) -> tuple[bytes, ...]:
        """Return all that are left."""
        found = tuple(self._words[self._at :])
        self._at = len(self._words)
        return found

    def peek(self) -> bytes:
        """Return the next word in capitals, nothing at the end."""
        return self._words[self._at].upper() if self._at < len(self._words) else b""

    def has(self, keyword: bytes) -> bool:
        """Whether the next word is this one; then it is taken."""
        if self.peek() != keyword:
            return False
        self._at += 1
        return True

    def ends_with(self, keyword: bytes) -> bool:
        """Whether the last word is this one; then it is taken off."""
        if not len(self) or self._words[-1].upper() != keyword:
            return False
        self._words = self._words[:-1]
        return True

    def number(self, least: int = 0, most: int = (1 << 63) - 1) -> int:
        """Return the next word as a number in decimal digits, a hyphen before it if negative."""
        text = self.take()
        digits = text.removeprefix(b"-")
        if not digits.isdigit() or len(digits) > _DIGITS_MAX or not least <= int(text) <= most:
            raise self.wrong(f"a number from {least} to {most}")
        return int(text)

    def end(self) -> None:
        """Raise if words are left."""
        if len(self):
            raise self.wrong()


_understood: Final[dict[tuple[bytes, ...], tuple[Command, Call]]] = {}


def parse(words: Sequence[bytes], commands: Mapping[bytes, tuple[str, Command]]) -> Call:
    """Understand a command.

    Raises:
        Refused: UNKNOWN_COMMAND, BADARG, BADPATH, TOOBIG.
    """
    name = words[0].upper() if words else b""
    named = commands.get(name)
    if named is None:
        shown = name[:64].decode("ascii", "replace")
        raise Refused("UNKNOWN_COMMAND", f"there is no command {shown}")
    usage, command = named
    given = tuple(words)
    known = _understood.get(given)
    if known is not None and known[0] is command:
        return known[1]
    call = command(Words(given[1:], usage))
    if sum(map(len, given)) <= UNDERSTOOD_BYTES_MAX:
        if len(_understood) >= UNDERSTOOD_MAX:
            _understood.clear()
        _understood[given] = command, call
    return call


def sub_commands(known: Mapping[bytes, tuple[str, Command]]) -> Command:
    """Return the command whose first word says which one it is."""

    def command(words: Words) -> Call:
        found = known.get(words.peek())
        if found is None:
            raise words.wrong()
        words.take()
        usage, named = found
        return named(Words(words.rest(), usage))

    return command
