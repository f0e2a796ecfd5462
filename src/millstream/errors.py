"""The exception tree: every error says whose fault it is and what the caller may do next.

    MillstreamError(code, retry)
    +- UsageError         the caller's mistake: bad key, too large, bad option, bad design document
    +- ConditionError     the document is not as the caller demanded: exists, missing, other CAS
    +- AccessError        bad credentials, or a right the user lacks
    +- RoutingError       another node, bucket or partition state is asked for
    +- StreamError        a stream cannot go on: rollback required, ended, purged
    +- ProtocolError
    |  +- LocalProtocolError   our side was used wrongly
    |  +- RemoteProtocolError  the peer sent what the protocol forbids
    +- UnavailableError   busy, timeout, no memory, disk full: may succeed later
    |  +- OutcomeUnknownError    a change may have been made, or may still be made
    +- CorruptionError    bytes on disk are not what was written

Invariants: `code` is stable snake_case, part of the public contract; programmer errors are
`assert`, never one of these.
"""

from __future__ import annotations

from typing import Literal

__all__ = [
    "AccessError",
    "ConditionError",
    "CorruptionError",
    "LocalProtocolError",
    "MillstreamError",
    "OutcomeUnknownError",
    "ProtocolError",
    "RemoteProtocolError",
    "Retry",
    "RollbackRequiredError",
    "RoutingError",
    "StreamError",
    "UnavailableError",
    "UsageError",
]

Retry = Literal["never", "same", "refresh_map", "backoff"]


class MillstreamError(Exception):
    """Base of all errors raised on purpose.

    Args:
        message: one sentence for people; names the thing concerned and what to do next.
        code: stable snake_case name for programs.
        retry: never, same (at once), refresh_map (after a new partition map), backoff (later).
    """

    default_code = "error"
    default_retry: Retry = "never"

    def __init__(self, message: str, *, code: str = "", retry: Retry | None = None) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.retry: Retry = retry or self.default_retry


class UsageError(MillstreamError):
    """The caller's mistake; the same call will fail again."""

    default_code = "bad_request"


class ConditionError(MillstreamError):
    """The document is not in the state the caller demanded."""

    default_code = "condition_failed"


class AccessError(MillstreamError):
    """Bad credentials, or a right the user lacks."""

    default_code = "access_denied"


class RoutingError(MillstreamError):
    """The node does not own what was asked for."""

    default_code = "not_my_partition"
    default_retry: Retry = "refresh_map"


class StreamError(MillstreamError):
    """A stream cannot go on from where it stands."""

    default_code = "stream_ended"


class RollbackRequiredError(StreamError):
    """History diverged: the reader must undo to `seqno` before it may go on."""

    default_code = "rollback_required"

    def __init__(self, message: str, *, partition_id: int, seqno: int) -> None:
        super().__init__(message)
        self.partition_id = partition_id
        self.seqno = seqno


class ProtocolError(MillstreamError):
    """Bytes or calls that the protocol forbids."""

    default_code = "protocol_error"


class LocalProtocolError(ProtocolError):
    """Our side was used wrongly."""


class RemoteProtocolError(ProtocolError):
    """The peer broke the protocol; the connection is of no further use."""


class UnavailableError(MillstreamError):
    """Not now: busy, out of time, out of memory, disk full, unreachable."""

    default_code = "unavailable"
    default_retry: Retry = "backoff"


class OutcomeUnknownError(UnavailableError):
    """A change was asked for, and whether it was or will be made cannot be told: look."""

    default_code = "outcome_unknown"
    default_retry: Retry = "never"


class CorruptionError(MillstreamError):
    """Bytes on disk are not what was written; names file and offset."""

    default_code = "corrupt"
