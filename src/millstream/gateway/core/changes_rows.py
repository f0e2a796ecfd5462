"""Rows of `_changes`, each for one change of a document.

    {"seq": token, "id": id, "changes": [{"rev": revision}, ...], "deleted": true, "doc": {...}}

Invariants:
1. Keys that are no document ids have no row; nor has a document that was purged completely.
2. `deleted` describes the winner only; the winner is first among the leaves.

Elsewhere: documents (`documents.stored`), filters (`changes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from millstream.documents.json_text import LARGE_BYTES
from millstream.documents.reading import PLAIN, Piece, Shown, pieces_of_text, within
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
"""If a key has only these characters, its id in JSON is the key in quotes."""
_DESIGN: Final = "_design/"
_encode: Final = msgspec.json.encode


class Row(NamedTuple):
    """A row without its token."""

    seqno: int
    text: bytes
    """The text after the value of `seq`."""
    more: tuple[Piece, ...] = ()
    """The rest of the text: a large document is not copied."""


class ChangedDocument:
    """A document as a change left it.

    Args:
        bucket_uuid: of its bucket.
        doc_id: its id.
        key: the same as bytes.
        described: the change, with its metadata in front.
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
        """The seqno of the change."""
        return seqno_of(self._described)

    @property
    def document(self) -> StoredDocument:
        """The document."""
        if self._document is None:
            size, lineage_bytes = _DESCRIPTION.unpack_from(self._described)
            behind, end = _LINEAGE_AT + lineage_bytes, HEADER_BYTES + size
            lineage = self._described[_LINEAGE_AT:behind]
            side = side_of(lineage, self._described[behind:end])
            frame: bytes | memoryview = self._described
            if len(self._described) > LARGE_BYTES:
                frame = memoryview(self._described)
            frame = frame[end:]
            self._document = load(self._bucket_uuid, self._key, frame, side)
        return self._document

    def leaves(self, *, all_docs: bool) -> list[Leaf]:
        """Return the revisions of a row: the winner, or all leaves with the winner first."""
        return self.document.tree.leaves() if all_docs else [self.document.winner]

    def pieces(self, leaf: Leaf, *, conflicts: bool = False) -> list[Piece]:
        """Return a revision as JSON.

        Args:
            leaf: the revision.
            conflicts: whether it has `_conflicts`, if there are any.
        """
        document, shown = self.document, Shown(conflicts=True) if conflicts else PLAIN
        if leaf.rev not in document.contents:
            document = StoredDocument(document.tree, {leaf.rev: Content(b"{}", {})})
        return pieces_of_text(self.id, document, leaf, shown)


def document_id(key: bytes) -> str | None:
    """Return the document id of a key; None if the key is no id."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return None
    return None if text.startswith("_") and not text.startswith(_DESIGN) else text


class RowMaker:
    """Makes the rows of one reader.

    Args:
        bucket_uuid: of the bucket.
        query: the request.
    """

    def __init__(self, bucket_uuid: str, query: ChangesQuery) -> None:
        self._bucket_uuid = bucket_uuid
        self._digits_of = Revisions(bucket_uuid).digits_of
        self._query = query
        self._filter: FilterAsked = query.filter

    def rows(self, frames: Sequence[bytes]) -> list[Row]:
        """Return the rows of changes when the content of documents does not matter. Hot path."""
        if self._query.include_docs or self._filter.kind != "all":
            return self.rows_of(self.candidates(frames))
        found: list[Row] = []
        for described in frames:
            row = self._plain(described) or self._other(described)
            if row is not None:
                found.append(row)
        return found

    def _plain(self, described: bytes) -> Row | None:
        """Return the row of a document with one leaf; None if it has more, or is no document."""
        size, lineage_bytes = _DESCRIPTION.unpack_from(described)
        start, behind = HEADER_BYTES + size, _LINEAGE_AT + lineage_bytes
        opcode, key_bytes, extras_bytes, _, _, generation = _FIELDS.unpack_from(described, start)
        at = start + HEADER_BYTES + extras_bytes
        key = described[at : at + key_bytes]
        if key[:1] == b"_" or key.translate(None, _PLAIN):
            return None
        if behind == start:  # written only by kv
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
        """Return the documents with the requested ids."""
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
        texts: Sequence[Sequence[Piece]] | None = None,
    ) -> list[Row]:
        """Return the rows of documents.

        Args:
            documents: in the order of their changes.
            passing: the leaves of each that are shown; None: all requested ones. A document
                without any has no row.
            texts: of those leaves, the first of each document, in pieces; None: they are made
                here.
        """
        all_docs = self._query.all_docs
        if passing is None:
            passing = [one.leaves(all_docs=all_docs) for one in documents]
        return [
            Row(changed.seqno, *self._text(changed, leaves, None if texts is None else texts[at]))
            for at, (changed, leaves) in enumerate(zip(documents, passing, strict=True))
            if leaves
        ]

    def _text(
        self, changed: ChangedDocument, leaves: Sequence[Leaf], shown: Sequence[Piece] | None
    ) -> tuple[bytes, tuple[Piece, ...]]:
        query, winner = self._query, changed.document.winner
        revs = b",".join(b'{"rev":%b}' % _encode(leaf.rev) for leaf in leaves)
        text = b',"id":%b,"changes":[%b]' % (_encode(changed.id), revs)
        if winner.is_deleted:
            text += b',"deleted":true'
        if not query.include_docs:
            return text + b"}", ()
        if shown is None:
            shown = changed.pieces(leaves[0], conflicts=query.conflicts)
        return within(text + b',"doc":', shown, b"}")
