"""Documents as clients send them: what their special members say.

Invariants:
1. A member whose name begins with `_` and that nobody knows is refused: a client that means
   something by it is not taken to have meant nothing.
2. What a document brings back from having been read (`_conflicts` and the like) says nothing.

Elsewhere: the text and its parts (`documents.json_text`), what becomes of it
(`documents.updating`).
Source: CouchDB's document API.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from millstream.documents.json_text import cut, parse
from millstream.documents.revisions import GENERATION_MAX, Path, checked_rev, is_signature
from millstream.errors import UsageError

__all__ = [
    "ATTACHMENTS_SENT_MAX", "DOCUMENT_ID_BYTES_MAX", "REVISIONS_SENT_MAX", "Sent", "checked_id",
    "is_legal_id", "local_rev", "parse_local", "parse_sent",
]  # fmt: skip

DOCUMENT_ID_BYTES_MAX: Final = 250
"""UTF-8: ids are keys."""
REVISIONS_SENT_MAX: Final = 1_000_000
"""Ancestors in `_revisions`."""
_IGNORED: Final = frozenset(("_revs_info", "_conflicts", "_deleted_conflicts", "_local_seq"))
ATTACHMENTS_SENT_MAX: Final = 10_000
"""Attachments of one revision, also of one that was made elsewhere."""
_LOCAL_MEMBERS: Final = frozenset({"_id", "_rev", "_deleted", "_attachments", "_revisions"})
_LOCAL_REV: Final = re.compile(r"0-([0-9]{1,18})")


class Sent(NamedTuple):
    """A document in a request."""

    id: str | None
    rev: str | None
    """The newest of `_revisions`, if there are some; else `_rev`."""
    is_deleted: bool
    path: Path | None
    """`_revisions`."""
    attachments: Mapping[str, Mapping[str, Any]] | None
    """`_attachments` as it was written."""
    body: bytes
    content: Mapping[str, Any]
    """The body, decoded."""
    term: bytes | None = None
    """`revision_ids.term_of_body`, if it is known already."""


def parse_sent(text: bytes) -> Sent:
    """Return what a client sent. Hot path.

    Raises:
        UsageError: `bad_json`, `bad_request`, `doc_validation`, `illegal_docid`.
    """
    special, body, content = cut(text)
    doc_id = rev = path = attachments = None
    is_deleted = False
    for name, raw in special.items():
        if name in _IGNORED:
            continue
        value = parse(raw)
        if name == "_id":
            doc_id = _text_id(value)
        elif name == "_rev":
            rev = checked_rev(value)
        elif name == "_deleted":
            is_deleted = _truth(value)
        elif name == "_revisions":
            path = _path(value)
        elif name == "_attachments":
            attachments = _table(value)
        else:
            raise UsageError(f"Bad special document member: {name}", code="doc_validation")
    if path is not None:
        rev = path.rev  # it counts, as in CouchDB, whatever stands beside it
    return Sent(doc_id, rev, is_deleted, path, attachments, body, content)


def parse_local(text: bytes) -> tuple[bytes | None, int | None]:
    """Return (what is stored, revision that is replaced) of a local document; None: it is deleted.

    Raises:
        UsageError: `bad_json`, `bad_request`, `doc_validation`.
    """
    parts = cut(text)
    for name in parts.special:
        if name not in _LOCAL_MEMBERS:
            raise UsageError(f"Bad special document member: {name}", code="doc_validation")
    # `_attachments` are passed over, as CouchDB does.
    special = {name: parse(raw) for name, raw in parts.special.items()}
    rev = local_rev(special.get("_rev"))
    return None if special.get("_deleted") is True else parts.body, rev


def local_rev(rev: object) -> int | None:
    """Return the number in the revision of a local document.

    Raises:
        UsageError: `bad_request`.
    """
    if rev is None:
        return None
    match = _LOCAL_REV.fullmatch(rev) if isinstance(rev, str) else None
    if match is None:
        raise UsageError("Invalid rev format", code="bad_request")
    return int(match[1])


def _text_id(value: object) -> str:
    if not isinstance(value, str):
        raise UsageError("Document id must be a string", code="illegal_docid")
    return value


def checked_id(doc_id: str, *, may_be_design: bool = True) -> str:
    """Return the id of a document.

    Raises:
        UsageError: `illegal_docid`.
    """
    try:
        size = len(doc_id.encode())
    except UnicodeEncodeError as error:
        raise UsageError("Document id must be valid UTF-8", code="illegal_docid") from error
    if not doc_id:
        raise UsageError("Document id must not be empty", code="illegal_docid")
    if doc_id.startswith("_") and not (
        may_be_design and doc_id.startswith("_design/") and len(doc_id) > len("_design/")
    ):
        raise UsageError(
            "Only reserved document ids may start with underscore.", code="illegal_docid"
        )
    if size > DOCUMENT_ID_BYTES_MAX:
        raise UsageError(
            f"Document id is longer than {DOCUMENT_ID_BYTES_MAX} bytes", code="illegal_docid"
        )
    return doc_id


def is_legal_id(doc_id: str) -> bool:
    """Return whether a document can have the id."""
    try:
        checked_id(doc_id)
    except UsageError:
        return False
    return True


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise UsageError("_deleted must be true or false", code="doc_validation")
    return value


def _path(value: object) -> Path:
    start = value.get("start") if isinstance(value, dict) else None
    ids = value.get("ids") if isinstance(value, dict) else None
    if type(start) is not int or not isinstance(ids, list):
        raise UsageError(
            "_revisions.start must be an integer and ids a list", code="doc_validation"
        )
    if not 1 <= len(ids) <= min(start, REVISIONS_SENT_MAX) or start > GENERATION_MAX:
        raise UsageError("_revisions: ids and start do not go together", code="doc_validation")
    if not all(map(is_signature, ids)):
        raise UsageError("RevId isn't a string", code="doc_validation")
    return Path(start, ids)


def _table(value: object) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(value, dict) or not all(isinstance(one, dict) for one in value.values()):
        raise UsageError("_attachments must be an object of objects", code="bad_request")
    if len(value) > ATTACHMENTS_SENT_MAX:
        raise UsageError(
            f"a document has at most {ATTACHMENTS_SENT_MAX} attachments", code="bad_request"
        )
    return value
