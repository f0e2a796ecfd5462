"""Documents as they are shown: JSON text put together of what is stored.

    {"_id", "_rev", members of the body, "_deleted", "_revisions", "_revs_info", "_local_seq",
     "_conflicts", "_deleted_conflicts", "_attachments"}

Invariants:
1. The body's text is never decoded: members stand in an answer as they are stored.
2. Only leaves have bodies; older revisions are known, and their bodies missing.
3. Work of a plain read does not grow with the document's history.

Elsewhere: bytes of attachments, which the caller fetches (`wanted_data` says which); multipart
forms and status codes (the pages).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from millstream.documents.revisions import checked_rev, parse_rev
from millstream.documents.stored import EMPTY_BODY, Attachment, Content, StoredDocument
from millstream.errors import ConditionError

__all__ = [
    "PLAIN",
    "Asked",
    "RevsDiff",
    "Shown",
    "asked_revs",
    "bulk_get_error",
    "bulk_get_result",
    "changes_of",
    "digest_of",
    "document_text",
    "open_revs_text",
    "revs_diff",
    "shown_rev",
    "text_of",
    "wanted_data",
]

_encode: Final = msgspec.json.Encoder().encode
_SPACE: Final = b" \t\r\n"
_NO_DATA: Final[Mapping[str, bytes]] = {}


class Shown(NamedTuple):
    """What of a document is shown besides id, revision and body."""

    revs: bool = False
    revs_info: bool = False
    conflicts: bool = False
    deleted_conflicts: bool = False
    local_seq: int | None = None
    attachments: bool = False
    """All of them with their data."""
    atts_since: Sequence[str] | None = None
    """Those with their data that came after the newest of these revisions."""
    att_encoding_info: bool = False
    follows: bool = False
    """Data comes behind the document, not in it."""


PLAIN: Final = Shown()


class Asked(NamedTuple):
    """One revision that was asked for."""

    rev: str
    is_there: bool


class RevsDiff(NamedTuple):
    """What we lack of what a peer has."""

    missing: list[str]
    possible_ancestors: list[str]


# ---- one document


def shown_rev(document: StoredDocument | None, rev: str | None = None) -> str:
    """Return the revision that a reader gets.

    Args:
        document: None where there is none.
        rev: the one it asks for; None: the winner.

    Raises:
        ConditionError: `missing`, `deleted`.
        UsageError: `bad_request`: not a revision.
    """
    if document is None or not document.exists:
        raise ConditionError("missing", code="missing")
    if rev is None:
        winner = document.winner
        if winner.is_deleted:
            raise ConditionError("deleted", code="deleted")
        return winner.rev
    if checked_rev(rev) not in document.contents:
        raise ConditionError("missing", code="missing")
    return rev


def document_text(doc_id: str, rev: str, body: bytes) -> bytes:
    """Return a stored object with its `_id` and `_rev` in front. Hot path."""
    return b'{"_id":%b,"_rev":%b%b' % (_encode(doc_id), _encode(rev), _rest_of(body))


def text_of(
    doc_id: str,
    document: StoredDocument,
    rev: str,
    shown: Shown = PLAIN,
    data: Mapping[str, bytes] = _NO_DATA,
) -> bytes:
    """Return the JSON text of a revision. Hot path.

    Args:
        doc_id: of the document.
        document: has the content of the revision.
        rev: as `shown_rev` or `asked_revs` gave it.
        shown: what is shown besides.
        data: plain bytes of those attachments that `wanted_data` names; none where they follow.
    """
    content = document.contents[rev]
    text = document_text(doc_id, rev, content.body)
    winner = document.winner
    is_deleted = winner.is_deleted if winner.rev == rev else document.tree.is_deletion(rev)
    if shown is PLAIN and not is_deleted and not content.attachments:
        return text
    parts = [text[:-1]]
    if is_deleted:
        parts.append(b'"_deleted":true')
    if shown is not PLAIN:
        parts += _told(document, rev, shown)
    if content.attachments:
        parts.append(b'"_attachments":' + _table(document, rev, content, shown, data))
    return b",".join(parts) + b"}"


def _rest_of(body: bytes) -> bytes:
    """Return an object's text as it goes on behind other members."""
    if body == EMPTY_BODY:
        return b"}"
    if body[:2] == b'{"' and body[-1:] == b"}":
        return b"," + body[1:]
    rest = body.strip(_SPACE)[1:].lstrip(_SPACE)
    return rest if rest == b"}" else b"," + rest


def _told(document: StoredDocument, rev: str, shown: Shown) -> list[bytes]:
    tree = document.tree
    parts = []
    if shown.revs or shown.revs_info:
        path = tree.path(rev)
        assert path is not None, "a leaf is in its tree"
        if shown.revs:
            parts.append(b'"_revisions":' + _encode({"start": path.start, "ids": path.ids}))
        if shown.revs_info:
            info = [{"rev": one, "status": _status(document, one)} for one in path.revs()]
            parts.append(b'"_revs_info":' + _encode(info))
    if shown.local_seq is not None:
        parts.append(b'"_local_seq":%d' % shown.local_seq)
    if shown.conflicts and (conflicts := tree.conflicts()):
        parts.append(b'"_conflicts":' + _encode(conflicts))
    if shown.deleted_conflicts and (conflicts := tree.deleted_conflicts()):
        parts.append(b'"_deleted_conflicts":' + _encode(conflicts))
    return parts


def _status(document: StoredDocument, rev: str) -> str:
    if rev in document.contents and not document.tree.is_deletion(rev):
        return "available"
    return "deleted" if document.tree.is_deletion(rev) else "missing"


# ---- attachments


def digest_of(attachment: Attachment) -> str:
    """Return the digest as it is shown."""
    return "md5-" + b64encode(attachment.md5).decode()


def wanted_data(document: StoredDocument, rev: str, shown: Shown) -> list[str]:
    """Return the names of those attachments whose bytes an answer has, in their order."""
    content = document.contents[rev]
    if not content.attachments or not (shown.attachments or shown.atts_since is not None):
        return []
    newest = 0
    if shown.atts_since:
        path = document.tree.path(rev)
        known = set() if path is None else set(path.revs())
        newest = max((parse_rev(one)[0] for one in shown.atts_since if one in known), default=0)
    return [name for name, one in content.attachments.items() if one.revpos > newest]


def _table(
    document: StoredDocument,
    rev: str,
    content: Content,
    shown: Shown,
    data: Mapping[str, bytes],
) -> bytes:
    wanted = set(wanted_data(document, rev, shown))
    table: dict[str, dict[str, object]] = {}
    for name, one in content.attachments.items():
        said: dict[str, object] = {
            "content_type": one.content_type,
            "revpos": one.revpos,
            "digest": digest_of(one),
        }
        is_inside = name in wanted and not shown.follows
        if is_inside:
            said["data"] = b64encode(data[name]).decode()
        else:
            said["length"] = one.length
            said["follows" if name in wanted else "stub"] = True
        if one.encoding and (shown.att_encoding_info or (name in wanted and shown.follows)):
            said["encoding"] = one.encoding
            said["encoded_length"] = one.stored_length
        table[name] = said
    return _encode(table)


# ---- several revisions


def asked_revs(
    document: StoredDocument | None, revs: Sequence[str] | None, *, latest: bool = False
) -> list[Asked]:
    """Return which revisions a reader gets that asked for several.

    Args:
        document: None where there is none.
        revs: what was asked for; None: all leaves.
        latest: whether a revision stands for the leaves that it led to.

    Raises:
        UsageError: `bad_request`: not a revision.
    """
    there = {} if document is None else document.contents
    if revs is None:
        leaves = [] if document is None else document.tree.leaves()
        return [Asked(leaf.rev, leaf.rev in there) for leaf in leaves]
    found: dict[str, bool] = {}
    for rev in revs:
        below = [checked_rev(rev)]
        if latest and document is not None and rev not in there:
            below = [leaf.rev for leaf in document.tree.leaves_below(rev)] or below
        found.update((one, one in there) for one in below)
    return [Asked(rev, is_there) for rev, is_there in found.items()]


def open_revs_text(texts: Iterable[bytes | str]) -> bytes:
    """Return the list that answers `open_revs`: texts of documents, and revisions not there."""
    return b"[%b]" % b",".join(
        b'{"ok":%b}' % one if isinstance(one, bytes) else b'{"missing":%b}' % _encode(one)
        for one in texts
    )


def bulk_get_result(doc_id: str, docs: Iterable[bytes]) -> bytes:
    """Return one row of `_bulk_get`'s results.

    Args:
        doc_id: as it was asked for.
        docs: texts of documents, and what `bulk_get_error` made.
    """
    told = b",".join(one if one.startswith(b'{"error":') else b'{"ok":%b}' % one for one in docs)
    return b'{"id":%b,"docs":[%b]}' % (_encode(doc_id), told)


def bulk_get_error(
    doc_id: str, rev: str | None, error: str = "not_found", reason: str = "missing"
) -> bytes:
    """Return what stands in a row of `_bulk_get` for a document that is not there."""
    told = {"id": doc_id, "rev": rev or "undefined", "error": error, "reason": reason}
    return b'{"error":%b}' % _encode(told)


def changes_of(document: StoredDocument, *, all_docs: bool) -> list[str]:
    """Return the revisions in a row of `_changes`: the winner, or all leaves, winner first."""
    if not all_docs:
        return [document.winner.rev]
    return [leaf.rev for leaf in document.tree.leaves()]


def revs_diff(document: StoredDocument | None, revs: Sequence[str]) -> RevsDiff:
    """Return which of a peer's revisions are not known here, and what they may build on.

    Raises:
        UsageError: `bad_request`: not a revision.
    """
    if document is None:
        return RevsDiff([checked_rev(rev) for rev in revs], [])
    tree = document.tree
    missing = tree.missing(revs)
    return RevsDiff(missing, tree.possible_ancestors(missing) if missing else [])
