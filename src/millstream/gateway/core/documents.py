"""Documents over HTTP: special members, revisions, conditions.

Invariants:
1. The stored form is the object's members as they were written, including the text of numbers,
   without the special members.
2. A revision given in several places is the same in all of them, or the request is rejected.

Elsewhere: the pages (`gateway.aio.databases.design_pages`), the revisions themselves
(`model.revision`). Source: CouchDB's document API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

import msgspec

from millstream.documents.json_text import is_special
from millstream.documents.reading import Piece
from millstream.documents.revisions import checked_rev
from millstream.errors import UsageError

__all__ = [
    "DESIGN_BYTES_MAX",
    "SentDocument",
    "as_etag",
    "checked_rev",
    "document_pieces",
    "is_batch",
    "named_rev",
    "names_etag",
    "parse_destination",
    "parse_document",
    "refuse_document_options",
]

DESIGN_BYTES_MAX: Final = 1024 * 1024
"""Body of a request that stores a design document."""
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_IGNORED: Final = frozenset(
    {"_revisions", "_revs_info", "_conflicts", "_deleted_conflicts", "_local_seq"}
)
"""Members that a document has after it was read with options."""
_REFUSED_OPTIONS: Final = ("open_revs", "revs", "revs_info", "meta", "local_seq", "atts_since")
"""Options of documents that would change the answer and are not supported here."""


class SentDocument(NamedTuple):
    """A document in a request's body."""

    body: bytes
    """The stored form: a JSON object."""
    rev: str | None
    is_deleted: bool


def parse_document(data: bytes, doc_id: str) -> SentDocument:
    """Parse the document of a request.

    Raises:
        UsageError: `bad_json`, `bad_request`, `doc_validation`.
    """
    try:
        members = _MEMBERS.decode(data)
        rev, is_deleted = _special(members, doc_id)
        kept = {name: raw for name, raw in members.items() if not is_special(name)}
        body = msgspec.json.encode(kept)
        msgspec.json.decode(body)  # all of it is JSON that can be read
        return SentDocument(body, rev, is_deleted)
    except msgspec.ValidationError as error:
        raise UsageError("Document must be a JSON object", code="bad_request") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"the body is not JSON: {error}", code="bad_json") from error


def _special(members: Mapping[str, msgspec.Raw], doc_id: str) -> tuple[str | None, bool]:
    rev, is_deleted = None, False
    for name, raw in members.items():
        if not is_special(name) or name in _IGNORED:
            continue
        value = msgspec.json.decode(raw)
        if name == "_id":
            if value != doc_id:
                raise UsageError(
                    f"_id is {value!r}, but the address says {doc_id!r}", code="bad_request"
                )
        elif name == "_rev":
            rev = checked_rev(value)
        elif name == "_deleted":
            is_deleted = value is True
        elif name != "_attachments" or value:
            raise UsageError(f"Bad special document member: {name}", code="doc_validation")
    return rev, is_deleted


def document_pieces(doc_id: str, rev: str, body: bytes) -> tuple[Piece, Piece]:
    """Return the text of a stored object with its `_id` and `_rev` in front. Nothing is copied."""
    names = msgspec.json.encode({"_id": doc_id, "_rev": rev})
    return (names[:-1], b"}") if body == b"{}" else (names[:-1] + b",", memoryview(body)[1:])


def as_etag(rev: str) -> str:
    """Return the ETag of a revision."""
    return f'"{rev}"'


def names_etag(if_none_match: str | None, etag: str) -> bool:
    """Return whether `If-None-Match` of a client contains `etag`."""
    given = [one.strip().removeprefix("W/") for one in (if_none_match or "").split(",")]
    return etag in given or "*" in given


def named_rev(
    options: Mapping[str, str], if_match: str | None, body_rev: str | None = None
) -> str | None:
    """Return the revision that a change names, by option, header or body; None if it names none.

    Raises:
        UsageError: `bad_request`: an invalid one, or several different ones.
    """
    given = {body_rev} if body_rev is not None else set()
    if options.get("rev"):
        given.add(checked_rev(options["rev"]))
    if if_match:
        given.add(checked_rev(if_match.strip().strip('"')))
    if len(given) > 1:
        raise UsageError(
            "Document rev from request body, query string and If-Match have different values",
            code="bad_request",
        )
    return given.pop() if given else None


def is_batch(options: Mapping[str, str]) -> bool:
    """Return whether a change may be answered before it is durable."""
    return options.get("batch") == "ok"


def refuse_document_options(options: Mapping[str, str]) -> None:
    """Reject options for revision trees, which these documents do not have.

    Raises:
        UsageError: `not_supported`.
    """
    if options.get("new_edits", "true") != "true":
        raise UsageError(
            "new_edits=false is not supported for design documents: their revisions are given "
            "here; put the document without it",
            code="not_supported",
        )
    for name in _REFUSED_OPTIONS:
        if options.get(name, "false") != "false":
            raise UsageError(
                f"option {name!r} is not supported for design documents", code="not_supported"
            )


def parse_destination(header: str | None) -> tuple[str, str | None]:
    """Parse a COPY's Destination: (name of the design document, revision to replace).

    Raises:
        UsageError: `bad_request`.
    """
    if not header:
        raise UsageError("Destination header is mandatory for COPY.", code="bad_request")
    target, _, option = header.strip().partition("?")
    name = unquote(target).lstrip("/").removeprefix("_design/")
    if name == unquote(target).lstrip("/") or not name:
        raise UsageError(
            f"Destination {header!r}: must be a design document, _design/NAME",
            code="bad_request",
        )
    if option and not option.startswith("rev="):
        raise UsageError(f"Destination {header!r}: only ?rev= may follow", code="bad_request")
    return name, checked_rev(option.removeprefix("rev=")) if option else None
