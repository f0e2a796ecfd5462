"""Errors as bodies of HTTP answers: {"error": code, "reason": sentence}.

Invariants:
1. Every error answer has such a body, also 404, 405, 413 and malformed requests.
2. The body of an unexpected error contains no internals.
3. For a bucket as a database, errors have the codes that CouchDB's clients know.

Elsewhere: the errors and their statuses (`errors`).
"""

from __future__ import annotations

from typing import Final

from millstream.errors import MillstreamError

__all__ = ["STATUS_TEXTS", "body_of", "body_of_status", "refused_name"]

_AS_COUCHDB: Final = {
    "bucket_not_found": ("not_found", "Database does not exist."),
    "bucket_exists": (
        "file_exists", "The database could not be created, the file already exists.",
    ),
    "bad_bucket_name": ("illegal_database_name", ""),
    "bad_json": ("bad_request", ""),
    "missing": ("not_found", "missing"),
    "missing_named_view": ("not_found", "missing_named_view"),
}  # fmt: skip
"""Our code -> CouchDB's code, and its reason if programs compare that."""
_DATABASES: Final = ("/_replicator", "/_users")
STATUS_TEXTS: Final = {
    400: ("bad_request", "the request is malformed"),
    404: ("not_found", "there is nothing at this address"),
    405: ("method_not_allowed", "this address does not know this method"),
    413: ("too_large", "the request is larger than this address accepts"),
    415: ("bad_content_type", "the body must be of type application/json"),
    417: ("expectation_failed", "no other Expect than 100-continue is met here"),
    500: ("internal_error", "an error of the server; its log says more"),
    503: ("unavailable", "not now; try again later"),
}


def body_of(error: MillstreamError, path: str) -> dict[str, str]:
    """Return the body for an error, at an address."""
    code, reason = error.code, str(error)
    if not path.startswith("/_") or path.startswith(_DATABASES):
        code, fixed = _AS_COUCHDB.get(code, (code, ""))
        reason = fixed or reason
    return {"error": code, "reason": reason}


def refused_name(method: str, path: str) -> dict[str, str] | None:
    """Return the body for an invalid name in an address that does not exist.

    Only for requests that create something can the name be invalid; None: it just does not exist.
    """
    database, *steps = path.strip("/").split("/")
    if method == "PUT" and database.startswith("_") and not steps:
        reason = "Only system databases may start with underscore, and this is none of them."
        return {"error": "illegal_database_name", "reason": reason}
    if method == "PUT" and len(steps) == 1 and steps[0].startswith("_"):
        reason = "Only reserved document ids may start with underscore."
        return {"error": "illegal_docid", "reason": reason}
    return None


def body_of_status(status: int) -> dict[str, str]:
    """Return the body of an error that has no code of its own."""
    default = ("bad_request" if status < 500 else "internal_error", f"HTTP status {status}")
    code, reason = STATUS_TEXTS.get(status, default)
    return {"error": code, "reason": reason}
