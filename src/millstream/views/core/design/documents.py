r"""Documents as map functions see them: JSON text with `_id` and `_rev`.

    {"_id": id, "_rev": revision, members of the value...}
    {"_id": id, "_rev": revision, "_attachments": {"value": {..., "stub": true}}}

The second form is that of a value that is no JSON object, or has a top-level member whose name
begins with `_`: over HTTP it is a document with one attachment, whose bytes it has, as base64
`data`, where they are asked for.

Invariants:
1. No key or value that a client can write raises.
2. Keys that are no UTF-8, or begin with `_`, are no documents; design documents are where asked
   for. Deletions have no text.
3. A text is one JSON object, valid as UTF-8, with the members of the value as they were written.

Elsewhere: revisions (`model.revision`), frames (`wire.frames`).
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import md5
from struct import Struct
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.documents.json_text import is_plain_object
from millstream.documents.reading import Shown, text_of
from millstream.documents.stored import load
from millstream.model.partitions import key_from_text
from millstream.model.revision import Revisions
from millstream.wire.mcbp import HEADER_BYTES, Opcode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Changes", "Documents", "MapInput", "document_id", "document_text"]

_FIELDS: Final = Struct(">xBHBxHI12xQQ")
_MUTATION: Final = int(Opcode.DCP_MUTATION)
_DESIGN: Final = b"_design/"
_PLAIN: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-:./| _"
"""A key of these characters alone is its own id, in quotes."""
_SPACE: Final = b" \t\r\n"
_ATTACHED: Final = (
    b',"_attachments":{"value":{"content_type":"application/octet-stream","revpos":%d,'
    b'"digest":"md5-%b",%b}}}'
)
_encode: Final = msgspec.json.encode


MapInput = tuple[int, bytes, bytes | None]
"""Partition and id of a changed document, and its text, None where it was deleted."""


class Changes:
    """Changes as they came; the documents in them are made once, however many indexes ask.

    Args:
        frames: whole frames of changes.
        sides: that of each.
    """

    __slots__ = ("_seen", "frames", "sides")

    def __init__(self, frames: Sequence[bytes], sides: Sequence[bytes]) -> None:
        self.frames, self.sides = frames, sides
        self._seen: dict[tuple[bool, bool, bool], list[MapInput]] = {}

    def inputs_for(self, documents: Documents) -> list[MapInput]:
        """Return the documents, as `documents` makes them; not to be changed."""
        seen = self._seen.get(documents.kind)
        if seen is None:
            seen = self._seen[documents.kind] = documents.of(self.frames, self.sides)
        return seen


class Documents:
    """Makes texts of the changes of one bucket.

    Args:
        bucket_uuid: of the bucket.
        include_design: whether design documents are seen.
        local_seq: whether documents have `_local_seq`, the seqno of the change.
        attachments: whether they have the data of attachments, in place of stubs.
    """

    def __init__(
        self,
        bucket_uuid: str,
        *,
        include_design: bool = False,
        local_seq: bool = False,
        attachments: bool = False,
    ) -> None:
        self._bucket_uuid = bucket_uuid
        self._digits_of = Revisions(bucket_uuid).digits_of
        self._include_design = include_design
        self._local_seq = local_seq
        self._attachments = attachments
        self.kind = (include_design, local_seq, attachments)
        """Two of one bucket and kind make equal documents of equal changes."""

    def of(self, frames: Iterable[bytes], sides: Iterable[bytes]) -> list[MapInput]:
        """Return the documents of changes, in order, without keys that are no document ids.

        This is a hot path.

        Args:
            frames: whole frames of changes.
            sides: the side of each change.
        """
        unpack, digits_of = _FIELDS.unpack_from, self._digits_of
        seen: list[MapInput] = []
        for frame, lineage in zip(frames, sides, strict=True):
            opcode, key_bytes, extras_bytes, partition, body, seqno, generation = unpack(frame)
            at = HEADER_BYTES + extras_bytes
            key = frame[at : at + key_bytes]
            if key[:1] == b"_" or key.translate(None, _PLAIN):
                quoted = self._quoted(key)
                if quoted is None:
                    continue
            else:
                quoted = b'"%b"' % key
            text = None
            if opcode == _MUTATION and not lineage[0]:
                text = self._text_with_revision(key, frame, lineage, seqno)
            elif opcode == _MUTATION:
                value = frame[at + key_bytes : HEADER_BYTES + body]
                rest = _rest_of(value)
                if rest is None:
                    rest = self._attached(value, generation)
                if self._local_seq:
                    rest = b',"_local_seq":%d%b' % (seqno, rest)
                digits = digits_of(key, lineage, generation).encode()
                text = b'{"_id":%b,"_rev":"%d-%b"%b' % (quoted, generation, digits, rest)
            seen.append((partition, key, text))
        return seen

    def _text_with_revision(
        self, key: bytes, frame: bytes, side: bytes, seqno: int
    ) -> bytes | None:
        """Return the winner of a document that has a sidecar, with its conflicts."""
        document = load(self._bucket_uuid, key, frame, side)
        if not document.exists or document.winner.is_deleted:
            return None
        shown = Shown(conflicts=True, local_seq=seqno if self._local_seq else 0)
        winner = document.winner
        content = document.contents[winner.rev]
        data = {}
        if self._attachments and content.value is not None:
            data = {"value": [b64encode(content.value)]}
        return text_of(key.decode(), document, winner, shown, data=data)

    def _attached(self, value: bytes, generation: int) -> bytes:
        digest = b64encode(md5(value, usedforsecurity=False).digest())
        shown = b'"length":%d,"stub":true' % len(value)
        if self._attachments:
            shown = b'"data":"%b"' % b64encode(value)
        return _ATTACHED % (generation, digest, shown)

    def _quoted(self, key: bytes) -> bytes | None:
        """Return the id as JSON, None if the key is no document id."""
        if key[:1] == b"_" and not (self._include_design and key.startswith(_DESIGN)):
            return None
        try:
            return _encode(key.decode())
        except UnicodeDecodeError:
            return None


def _rest_of(value: bytes) -> bytes | None:
    """Return an object's text as it goes on behind other members, None if it is no document."""
    if not is_plain_object(value):
        return None
    if value[:2] == b'{"':
        return b"," + value[1:]
    rest = value.lstrip(_SPACE)[1:].lstrip(_SPACE)
    return rest if rest[:1] == b"}" else b"," + rest


def document_id(key: str) -> str | None:
    r"""Return the document id of a key in its text form, None if it is no document id.

    Keys that are not UTF-8, or begin with `_`, are no document ids.
    """
    if key.startswith("\\x"):
        try:
            key = key_from_text(key).decode()
        except ValueError:
            return None
    return None if key.startswith("_") else key


def document_text(key: str, value: bytes) -> bytes | None:
    r"""Return a kv value as document text with `_id` alone, None where it is no JSON document.

    For who has keys and values without sides (Spark).

    Args:
        key: text form of the key (`\x` + hex where it is not UTF-8 or begins with `\x`).
        value: as stored. A document is a JSON object without a special top-level member
            (`documents.json_text`).
    """
    doc_id = document_id(key)
    rest = None if doc_id is None else _rest_of(value)
    return None if rest is None else b'{"_id":%b%b' % (_encode(doc_id), rest)
