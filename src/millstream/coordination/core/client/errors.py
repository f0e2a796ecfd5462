"""What clients of a group raise: one class for each thing that a program may do about it.

    MillstreamError
    +- UsageError            the request is wrong: change the program
    +- AccessError           log in, or ask the owner
    +- ConditionError        the element is not as it would have to be: look at it, decide again
    |  +- MissingError           there is no such element, or no parent
    |  +- VersionError           CAS: `current` is the version there is
    |  +- LockedError            somebody else's lock is in the way: `path mode holder token`
    |  +- NotHeldError           the session does not hold this, or its grant is over (FENCED)
    |  +- AbortedError           a transaction did nothing: `index` of the command, `reason`
    |  +- QuotaError             a limit: delete something, or raise it
    +- UnavailableError      later, perhaps: no primary, no quorum, busy, time-out
       +- SessionLostError       the session has ended; whatever it held is gone: begin again
       +- OutcomeUnknownError    it may have been done: look before it is done again

Invariants: `code` is the node's word, in small letters (`cas_mismatch`), `timeout` if nobody said
anything; every error but `OutcomeUnknownError` and `SessionLostError` says that nothing was done.

Elsewhere: which replies are final, and which outcomes unknown (`caller`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from millstream.coordination.core.client.events import (
    ErrorReply,
    Outcome,
)
from millstream.errors import (
    AccessError,
    ConditionError,
    MillstreamError,
    OutcomeUnknownError,
    UnavailableError,
    UsageError,
)
from millstream.vsr.core.versions import Version, parse_version

__all__ = [
    "AbortedError",
    "LockedError",
    "MissingError",
    "NotHeldError",
    "QuotaError",
    "SessionLostError",
    "VersionError",
    "error_of",
    "kind_of",
]


class MissingError(ConditionError):
    """There is no such element, or no such parent."""


class QuotaError(ConditionError):
    """A limit of the element, the namespace or the session is reached."""


class NotHeldError(ConditionError):
    """The session neither holds nor awaits this, or the grant of this token is over."""


class VersionError(ConditionError):
    """The element has another version than the one named. `current`: the one it has, if told."""

    current: Version | None = None


class LockedError(ConditionError):
    """A lock, or an offer of one, that another session has is in the way.

    `path`, `mode`, `holder` (a client id) and `token` as the node said them; an offer has
    no token.
    """

    path = mode = holder = ""
    token: Version | None = None


class AbortedError(ConditionError):
    """A transaction did nothing. `index`: of the command, from 0, if told; `reason`: its code."""

    index: int | None = None
    reason = ""


class SessionLostError(UnavailableError):
    """The group has ended the session: what it held and awaited is gone."""

    default_code = "sessionexpired"


_KINDS: Final[dict[str, type[MillstreamError]]] = {
    "NOAUTH": AccessError, "NOPERM": AccessError, "WRONGPASS": AccessError,
    "NOTPRIMARY": UnavailableError, "NOQUORUM": UnavailableError, "BUSY": UnavailableError,
    "BEHIND": UnavailableError, "NOTREADY": UnavailableError,
    "SESSIONEXPIRED": SessionLostError,
    "ERROR_DOES_NOT_EXISTS": MissingError, "CAS_MISMATCH": VersionError, "LOCKED": LockedError,
    "NOTHELD": NotHeldError, "FENCED": NotHeldError, "QUOTA": QuotaError,
    "EXECABORT": AbortedError, "CHECK_FAILED": ConditionError, "NAME_CONFLICT": ConditionError,
    "NOTEMPTY": ConditionError, "SYNCTYPE": ConditionError, "DEADLOCK": ConditionError,
    "DESTROYING": ConditionError, "DESTROYED": ConditionError, "CONFLICT": ConditionError,
    "HISTORY_LOST": ConditionError,
}  # fmt: skip


def kind_of(code: str) -> type[MillstreamError]:
    """Return the error class for the code of a reply."""
    return _KINDS.get(code, UsageError)


def error_of(words: Sequence[bytes], outcome: Outcome, reply: Any) -> MillstreamError:
    """Return what is to be raised for a call that has no answer, or an error as its answer.

    Args:
        words: the command.
        outcome: how the call ended.
        reply: an `ErrorReply`, or None if no node said anything.
    """
    named = words[2:4] if words[:1] == (b"SEEN",) else words[:2]
    command = b" ".join(named)[:64].decode(errors="replace")
    said = str(reply) if isinstance(reply, ErrorReply) else "no node answered in time"
    if outcome is Outcome.UNKNOWN:
        return OutcomeUnknownError(f"{command} may have been done: {said}; read to find out")
    if not isinstance(reply, ErrorReply):
        return UnavailableError(f"{command} was not done: {said}", code="timeout")
    error = kind_of(reply.code)(f"{command} was not done: {said}", code=reply.code.lower())
    _add_details(error, reply.words.split())
    return error


def _add_details(error: MillstreamError, words: list[str]) -> None:
    if isinstance(error, VersionError) and words:
        error.current = parse_version(words[-1].encode())
    elif isinstance(error, LockedError):
        error.path, error.mode, error.holder = ([*words, "", "", ""])[:3]
        error.token = parse_version(words[3].encode()) if len(words) > 3 else None
    elif isinstance(error, AbortedError) and words and words[0].isdigit():
        error.index, error.reason = int(words[0]), words[1] if len(words) > 1 else ""
