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

Invariants:
1. `code` is stable snake_case, part of the public contract; programmer errors are `assert`, never
   one of these.
2. Which HTTP status an error has, and what a status of another server means, is said here alone.

Elsewhere: statuses of the memcached protocol (`wire.replies`), codes of coordination
(`coordination.core.client.errors`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

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
    "http_status_of",
    "kind_named",
    "kind_of_http_status",
    "name_of_kind",
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
    records: Mapping[int, Any] = {}
    """Index records by partition (JSON) that are newer than those by which a node was asked."""


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


# ---- over HTTP

_HTTP_STATUS_OF_CODE: Final = {
    "unauthorized": 401,
    "bucket_not_found": 404,
    "user_not_found": 404,
    "partition_not_found": 404,
    "map_not_found": 404,
    "illegal_move": 409,
    "not_found": 404,
    "bucket_exists": 412,
    "file_exists": 412,
    "last_admin": 409,
    "body_timeout": 408,
    "too_large": 413,
    "document_too_large": 413,
    "attachment_too_large": 413,
    "missing_stub": 412,
    "requested_range_not_satisfiable": 416,
    "bad_content_type": 415,
    "missing": 404,
    "seq_unreachable": 412,
    "timeout": 504,
    "missing_named_view": 404,
    "not_my_partition": 503,
    "design_differs": 503,
    "other_cluster": 403,
    "other_node": 403,
    "removed": 403,
    "too_few_nodes": 409,
    "no_space": 507,
}
_HTTP_STATUS_OF_KIND: Final[tuple[tuple[type[MillstreamError], int], ...]] = (
    (UsageError, 400),
    (ProtocolError, 400),
    (AccessError, 403),
    (RoutingError, 404),
    (ConditionError, 409),
    (UnavailableError, 503),
)
_KIND_OF_HTTP_STATUS: Final[dict[int, type[MillstreamError]]] = {
    **dict.fromkeys((400, 405, 413, 414, 415), UsageError),
    **dict.fromkeys((401, 403), AccessError),
    **dict.fromkeys((404, 409, 412), ConditionError),
    **dict.fromkeys(range(300, 400), UsageError),
}


def http_status_of(error: MillstreamError) -> int:
    """Return the HTTP status with which an error is answered: by its code, else by its class."""
    if error.code in _HTTP_STATUS_OF_CODE:
        return _HTTP_STATUS_OF_CODE[error.code]
    statuses = (status for kind, status in _HTTP_STATUS_OF_KIND if isinstance(error, kind))
    return next(statuses, 500)


def kind_of_http_status(status: int) -> type[MillstreamError]:
    """Return the class of the error that another server's status stands for."""
    return _KIND_OF_HTTP_STATUS.get(status, UnavailableError)


# ---- by name, between processes

_NAMED: Final = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, MillstreamError)
} | {"RollbackRequiredError": StreamError}
"""One that has more members than its code is told as the class above it."""


def name_of_kind(error: MillstreamError) -> str:
    """Return the name by which other processes know the class of an error, or one above it."""
    names = (one.__name__ for one in type(error).__mro__)
    return next(_NAMED[name].__name__ for name in names if name in _NAMED)


def kind_named(name: str) -> type[MillstreamError] | None:
    """Return the class that another process has named, None if it is unknown here."""
    return _NAMED.get(name)
