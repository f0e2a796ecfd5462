"""FORCE before a command: an administrator's, which the locks of other sessions do not stop.

Invariants:
1. Who may is decided by what the entry says of its asker, so it is the same on every member.
2. No lock is taken from anybody. One that an element has ends with the element; and nothing moves
   to where its locks would meet others that forbid them.

Elsewhere: where it is written (`resp.prefixes`), what it passes (`holders`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from millstream.coordination.core.namespace.commands.command import Call, Command, Words, parse
from millstream.coordination.core.namespace.state.state import Job

__all__ = ["FORCE", "force_of", "without_force"]

FORCE: Final = b"FORCE"
"""The word, as it is logged: before the name of a command."""


def force_of(commands: Mapping[bytes, tuple[str, Command]]) -> tuple[str, Command]:
    """Return how FORCE is written and understood, if it may stand before these commands."""

    def command(words: Words) -> Call:
        call = parse(words.rest(), commands)

        def execute(job: Job) -> bytes:
            job.state.permissions.check_admin(job, FORCE)
            job.passes_locks = True
            return call.execute(job)

        return call._replace(execute=execute)

    return "FORCE command ...", command


def without_force(words: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the words of a command without FORCE: its name is the first."""
    return tuple(words[1:] if words and words[0].upper() == FORCE else words)
