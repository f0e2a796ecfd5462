"""FORCE before a command of an administrator: it ignores the locks of other sessions.

Invariants:
1. The entry names the user and the groups, so every member decides equally whether it is allowed.
2. No session loses a lock by force. A lock ends with its element. An element cannot be moved to a
   place where its locks would conflict with others.

Elsewhere: where FORCE is written (`resp.prefixes`), which locks it ignores (`holders`).
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
