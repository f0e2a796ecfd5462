"""Documents as clients send them: what their special members say.

Invariants:
1. What is not understood is refused, never passed over, but for what a document that was read with
   options brings back, and the state that CouchDB's replicator writes into its documents.
2. `_revisions` counts for more than `_rev`, which then is only its newest.

Elsewhere: text (`documents.json_text`), what comes of it (`documents.updating`).
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from millstream.documents.json_text import cut, parse
from millstream.documents.revisions import Path, all_to_bytes, checked_rev, is_signature, parse_rev
from millstream.errors import UsageError

__all__ = [
    "ATTACHMENTS_MAX",
    "REVISIONS_MAX",
    "Sent",
    "SentAttachment",
    "parse_sent",
]

ATTACHMENTS_MAX: Final = 10_000
"""Of one document."""
REVISIONS_MAX: Final = 100_000
"""Signatures in one `_revisions`."""
_IGNORED: Final = frozenset(
    {
        "_revs_info", "_conflicts", "_deleted_conflicts", "_local_seq", "_replication_id",
        "_replication_state", "_replication_state_time", "_replication_state_reason",
        "_replication_stats",
    }
)  # fmt: skip
_DEFAULT_TYPE: Final = "application/octet-stream"


class SentAttachment(NamedTuple):
    """What a document says of one attachment: a stub, bytes, or that they follow."""

    content_type: str
    is_stub: bool
    data: bytes | None
    """The plain bytes, where they are in the document."""
    revpos: int | None
    digest: str | None
    """`md5-` and base64, as it was shown."""
    encoding: str
    """Of bytes that follow: "" or `gzip`."""
    length: int | None
    """Of the plain bytes."""
    encoded_length: int | None

    @property
    def follows(self) -> bool:
        """Whether its bytes come behind the document."""
        return not self.is_stub and self.data is None


class Sent(NamedTuple):
    """A document in a request."""

    body: bytes
    """What is stored: a JSON object."""
    content: dict[str, Any]
    """The same, decoded."""
    doc_id: str | None = None
    rev: str | None = None
    path: Path | None = None
    """What `_revisions` says."""
    is_deleted: bool = False
    attachments: Mapping[str, SentAttachment] = {}

    def new_attachments(self) -> list[str]:
        """Return the names of those whose bytes came, or come, with the document."""
        return [name for name, one in self.attachments.items() if not one.is_stub]


def parse_sent(text: bytes) -> Sent:
    """Return a document that was sent. Hot path.

    Raises:
        UsageError: `bad_json`, `bad_request`, `doc_validation`, `illegal_docid`.
    """
    special, body, content = cut(text)
    doc_id, rev, path, is_deleted = None, None, None, False
    attachments: Mapping[str, SentAttachment] = {}
    for name, raw in special.items():
        if name in _IGNORED:
            continue
        value = parse(raw)
        if name == "_id":
            if type(value) is not str:
                raise UsageError("Document id must be a string", code="illegal_docid")
            doc_id = value
        elif name == "_rev":
            rev = checked_rev(value)
        elif name == "_deleted" and type(value) is bool:
            is_deleted = value
        elif name == "_revisions":
            path = _path(value)
        elif name == "_attachments" and type(value) is dict:
            attachments = _attachments(value)
        else:
            raise UsageError(f"Bad special document member: {name}", code="doc_validation")
    if path is not None:
        rev = path.rev
    return Sent(body, content, doc_id, rev, path, is_deleted, attachments)


def _path(value: Any) -> Path | None:
    if type(value) is not dict:
        raise UsageError("Bad special document member: _revisions", code="doc_validation")
    start, ids = value.get("start"), value.get("ids")
    if type(start) is not int:
        raise UsageError("_revisions.start isn't an integer.", code="doc_validation")
    if type(ids) is not list:
        raise UsageError("_revisions.ids isn't a array.", code="doc_validation")
    if not ids:
        return None
    if len(ids) > REVISIONS_MAX:
        raise UsageError(f"_revisions.ids has over {REVISIONS_MAX}", code="doc_validation")
    if all_to_bytes(ids) is None and not all(map(is_signature, ids)):
        raise UsageError("RevId isn't a string", code="doc_validation")
    parse_rev(f"{start}-{ids[0]}")
    if len(ids) > start:
        raise UsageError("_revisions.ids has more than start", code="doc_validation")
    return Path(start, ids)


def _attachments(table: Mapping[str, Any]) -> Mapping[str, SentAttachment]:
    if len(table) > ATTACHMENTS_MAX:
        raise UsageError(
            f"a document has at most {ATTACHMENTS_MAX} attachments", code="doc_validation"
        )
    return {name: _attachment(name, said) for name, said in table.items()}


def _attachment(name: str, said: Any) -> SentAttachment:
    if type(said) is not dict:
        raise UsageError(f"attachment {name!r} is no object", code="doc_validation")
    if not name or name.startswith("_"):
        raise UsageError(
            f"Attachment name {name!r} starts with prohibited character '_', or is empty",
            code="bad_request",
        )
    is_stub, follows = said.get("stub") is True, said.get("follows") is True
    data = None
    if not is_stub and not follows:
        data = _data(name, said.get("data"))
    content_type, digest = said.get("content_type", _DEFAULT_TYPE), said.get("digest")
    encoding = said.get("encoding", "")
    if (
        type(content_type) is not str
        or not content_type.isprintable()
        or type(digest) not in (str, type(None))
        or encoding not in ("", "identity", "gzip")
    ):
        raise UsageError(
            f"attachment {name!r}: content_type, digest or encoding is not understood",
            code="doc_validation",
        )
    return SentAttachment(
        content_type, is_stub, data, _count(name, said, "revpos"), digest,
        encoding if encoding == "gzip" else "", _count(name, said, "length"),
        _count(name, said, "encoded_length"),
    )  # fmt: skip


def _data(name: str, text: Any) -> bytes:
    if type(text) is str:
        try:
            return b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            pass
    raise UsageError(f"Attachment data of {name!r} is not valid base64", code="bad_request")


def _count(name: str, said: Mapping[str, Any], member: str) -> int | None:
    value = said.get(member)
    if value is None or (type(value) is int and 0 <= value < 1 << 53):
        return value
    raise UsageError(f"attachment {name!r}: {member} is no count", code="doc_validation")
