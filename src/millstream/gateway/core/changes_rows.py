"""Rows of `_changes`: what a change says of its document.

    {"seq": token, "id": id, "changes": [{"rev": revision}, ...], "deleted": true, "doc": {...}}

Invariants:
1. Keys that are no document ids have no row; nor has a document that a purge left nothing of.
2. `deleted` speaks of the winner alone; the winner is first among the leaves.

Elsewhere: documents (`documents.stored`), who wants which (`changes`).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec

from millstream.documents.stored import Content, StoredDocument, load, only_leaf
from millstream.documents.tree import Leaf
from millstream.gateway.core.changes import ChangesQuery, FilterAsked
from millstream.model.revision import Revisions
from millstream.model.sides import side_of
from millstream.wire.frames import seqno_of
from millstream.wire.mcbp import HEADER_BYTES, Opcode

__all__ = ["ChangedDocument", "Row", "RowMaker", "document_id"]

_DESCRIPTION: Final = Struct(">8xI20xH")
_LINEAGE_AT: Final = 34
_FIELDS: Final = Struct(">xBHBxHI20xQ")
_MUTATION: Final = int(Opcode.DCP_MUTATION)
_PLAIN: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-:./| _"
"""Of keys that have nothing else the id is the key in quotes."""
_DESIGN: Final = "_design/"
_encode: Final = msgspec.json.encode


class Row(NamedTuple):
    """A row without its token."""

    seqno: int
    text: bytes
    """What follows the value of `seq`, to the end."""


class ChangedDocument:
    """A document as a change left it.

    Args:
        bucket_uuid: of its bucket.
        doc_id: its id.
        key: the same as bytes.
        described: the change, with its description in front.
    """

    __slots__ = ("_bucket_uuid", "_described", "_document", "_key", "id")

    def __init__(self, bucket_uuid: str, doc_id: str, key: bytes, described: bytes) -> None:
        self._bucket_uuid = bucket_uuid
        self.id = doc_id
        self._key = key
        self._described = described
        self._document: StoredDocument | None = None

    @property
    def seqno(self) -> int:
        """Of the change."""
        return seqno_of(self._described)

    @property
    def document(self) -> StoredDocument:
        """The document."""
        if self._document is None:
            size, lineage_bytes = _DESCRIPTION.unpack_from(self._described)
            behind, end = _LINEAGE_AT + lineage_bytes, HEADER_BYTES + size
            lineage = self._described[_LINEAGE_AT:behind]
            side = side_of(lineage, self._described[behind:end])
            frame = self._described[end:]
            self._document = load(self._bucket_uuid, self._key, frame, side)
        return self._document

    def leaves(self, *, all_docs: bool) -> list[Leaf]:
        """Return the revisions that a row has: the winner, or all leaves, that first."""
        return self.document.tree.leaves() if all_docs else [self.document.winner]

    def text(self, leaf: Leaf, *, conflicts: bool = False, attachments: bool = False) -> bytes:
        """Return a revision as JSON.

        Args:
            leaf: which one.
            conflicts: whether it has `_conflicts`, if there are any.
            attachments: whether attachments without a blob have their data.
        """
        names: dict[str, Any] = {"_id": self.id, "_rev": leaf.rev}
        if leaf.is_deleted:
            names["_deleted"] = True
        others = self.document.tree.conflicts() if conflicts else []
        if others:
            names["_conflicts"] = others
        content = self.document.contents.get(leaf.rev, Content(b"{}", {}))
        if content.attachments:
            names["_attachments"] = _attachments(content, with_data=attachments)
        head, body = _encode(names), content.body.strip(b" \t\r\n")
        rest = body[1:].lstrip(b" \t\r\n")
        return head[:-1] + (b"}" if rest == b"}" else b"," + rest)


def _attachments(content: Content, *, with_data: bool) -> dict[str, dict[str, Any]]:
    shown: dict[str, dict[str, Any]] = {}
    for name, one in content.attachments.items():
        entry: dict[str, Any] = {
            "content_type": one.content_type,
            "revpos": one.revpos,
            "digest": "md5-" + b64encode(one.md5).decode(),
        }
        if with_data and not one.sha256 and content.value is not None:
            entry["data"] = b64encode(content.value).decode()
        else:
            entry |= {"length": one.length, "stub": True}
        shown[name] = entry
    return shown


def document_id(key: bytes) -> str | None:
    """Return the id of the document under a key, None where the key is none."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return None
    return None if text.startswith("_") and not text.startswith(_DESIGN) else text


class RowMaker:
    """Makes the rows of one reader.

    Args:
        bucket_uuid: of the bucket.
        query: what is asked for.
    """

    def __init__(self, bucket_uuid: str, query: ChangesQuery) -> None:
        self._bucket_uuid = bucket_uuid
        self._digits_of = Revisions(bucket_uuid).digits_of
        self._query = query
        self._filter: FilterAsked = query.filter

    def rows(self, frames: Sequence[bytes]) -> list[Row]:
        """Return the rows of changes where what is in a document does not matter. Hot path."""
        if self._query.include_docs or self._filter.kind != "all":
            return self.rows_of(self.candidates(frames))
        found: list[Row] = []
        for described in frames:
            row = self._plain(described) or self._other(described)
            if row is not None:
                found.append(row)
        return found

    def _plain(self, described: bytes) -> Row | None:
        """Return the row of a document with one leaf; None: it is another one, or none."""
        size, lineage_bytes = _DESCRIPTION.unpack_from(described)
        start, behind = HEADER_BYTES + size, _LINEAGE_AT + lineage_bytes
        opcode, key_bytes, extras_bytes, _, _, generation = _FIELDS.unpack_from(described, start)
        at = start + HEADER_BYTES + extras_bytes
        key = described[at : at + key_bytes]
        if key[:1] == b"_" or key.translate(None, _PLAIN):
            return None
        if behind == start:  # kv alone wrote it
            lineage = described[_LINEAGE_AT:behind]
            digits = self._digits_of(key, lineage, generation)
            is_deleted = opcode != _MUTATION
        else:
            leaf = only_leaf(described[behind:start])
            if leaf is None:
                return None
            generation, signature, is_deleted = leaf
            digits = signature.hex()
        end = b',"deleted":true}' if is_deleted else b"}"
        text = b',"id":"%b","changes":[{"rev":"%d-%b"}]%b' % (
            key, generation, digits.encode(), end,
        )  # fmt: skip
        return Row(seqno_of(described), text)

    def _other(self, described: bytes) -> Row | None:
        rows = self.rows_of(self.candidates((described,)))
        return rows[0] if rows else None

    def candidates(self, frames: Sequence[bytes]) -> list[ChangedDocument]:
        """Return the documents whose ids are wanted."""
        found: list[ChangedDocument] = []
        kind, ids = self._filter.kind, self._filter.ids
        for described in frames:
            start = HEADER_BYTES + _DESCRIPTION.unpack_from(described)[0]
            _, key_bytes, extras_bytes, *_ = _FIELDS.unpack_from(described, start)
            start += HEADER_BYTES + extras_bytes
            key = described[start : start + key_bytes]
            doc_id = document_id(key)
            if doc_id is None or (kind == "ids" and doc_id not in ids):
                continue
            if kind == "design" and not doc_id.startswith(_DESIGN):
                continue
            changed = ChangedDocument(self._bucket_uuid, doc_id, key, described)
            if changed.document.exists:
                found.append(changed)
        return found

    def rows_of(
        self,
        documents: Sequence[ChangedDocument],
        passing: Sequence[Sequence[Leaf]] | None = None,
    ) -> list[Row]:
        """Return the rows of documents.

        Args:
            documents: in the order of their changes.
            passing: which leaves of each are shown; None: all that are asked for. Without any
                there is no row.
        """
        all_docs = self._query.all_docs
        if passing is None:
            passing = [one.leaves(all_docs=all_docs) for one in documents]
        return [
            Row(changed.seqno, self._text(changed, leaves))
            for changed, leaves in zip(documents, passing, strict=True)
            if leaves
        ]

    def _text(self, changed: ChangedDocument, leaves: Sequence[Leaf]) -> bytes:
        query, winner = self._query, changed.document.winner
        revs = b",".join(b'{"rev":%b}' % _encode(leaf.rev) for leaf in leaves)
        text = b',"id":%b,"changes":[%b]' % (_encode(changed.id), revs)
        if winner.is_deleted:
            text += b',"deleted":true'
        if query.include_docs:
            shown = changed.text(
                leaves[0], conflicts=query.conflicts, attachments=query.attachments
            )
            text += b',"doc":' + shown
        return text + b"}"
