"""Options of requests for documents.

Invariants:
1. An invalid value is rejected. An option that this address does not know is ignored, as CouchDB
   does.

Elsewhere: their effects (`documents.reading`, `documents.updating`).
Source: CouchDB's document API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from millstream.documents.reading import PLAIN, Shown
from millstream.documents.revisions import checked_rev
from millstream.errors import UsageError

__all__ = [
    "OPEN_REVS_MAX", "DocumentOptions", "is_true", "parse_options", "parse_revs", "prefers_json",
]  # fmt: skip

OPEN_REVS_MAX: Final = 10_000
"""Revisions named in one request."""


class DocumentOptions(NamedTuple):
    """The options of a request for a document."""

    rev: str | None
    shown: Shown
    open_revs: list[str] | None
    """Empty: all leaves; None: a single revision."""
    latest: bool
    attachments: bool
    atts_since: list[str] | None
    local_seq: bool


def is_true(options: Mapping[str, str], name: str) -> bool:
    """Return whether an option is set.

    Raises:
        UsageError: `query_parse_error`.
    """
    text = options.get(name, "false")
    if text not in ("true", "false"):
        raise UsageError(f"Invalid boolean value for {name}: {text!r}", code="query_parse_error")
    return text == "true"


def parse_options(options: Mapping[str, str]) -> DocumentOptions:
    """Parse the options of an address.

    Raises:
        UsageError: `bad_request`, `query_parse_error`.
    """
    if not options:
        return _NO_OPTIONS
    meta = is_true(options, "meta")
    shown = Shown(
        revs=is_true(options, "revs"),
        revs_info=meta or is_true(options, "revs_info"),
        conflicts=meta or is_true(options, "conflicts"),
        deleted_conflicts=meta or is_true(options, "deleted_conflicts"),
        encoding_info=is_true(options, "att_encoding_info"),
    )
    open_revs = None
    if "open_revs" in options:
        open_revs = [] if options["open_revs"] == "all" else parse_revs(options["open_revs"])
    since = parse_revs(options["atts_since"]) if "atts_since" in options else None
    return DocumentOptions(
        checked_rev(options["rev"]) if options.get("rev") else None,
        PLAIN if shown == PLAIN else shown,
        open_revs,
        is_true(options, "latest"),
        is_true(options, "attachments") or since is not None,
        since,
        is_true(options, "local_seq"),
    )


_NO_OPTIONS: Final = DocumentOptions(None, PLAIN, None, False, False, None, False)


def parse_revs(text: str | Any) -> list[str]:
    """Parse revisions from a JSON array.

    Raises:
        UsageError: `bad_request`.
    """
    try:
        revs = msgspec.json.decode(text) if isinstance(text, str) else text
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError("must be a JSON array of revisions", code="bad_request") from error
    if not isinstance(revs, list):
        raise UsageError("must be a JSON array of revisions", code="bad_request")
    if len(revs) > OPEN_REVS_MAX:
        raise UsageError(f"at most {OPEN_REVS_MAX} revisions at a time", code="too_large")
    return [checked_rev(rev) for rev in revs]


def prefers_json(accept: str | None) -> bool:
    """Return whether a client wants JSON rather than a multipart body."""
    accept = (accept or "").lower()
    if "multipart/" not in accept:
        return "application/json" in accept
    return 0 <= accept.find("application/json") < accept.find("multipart/")
