r"""Lines of a dump: a bucket in one file, each line a JSON object.

    {"line":"header","format":"millstream-dump","version":1,"bucket","bucket_uuid",..}   first
    {"line":"settings","settings":{..}}                             perhaps second
    {"line":"attachment","key","sha256","length","offset","data"}   before the document it is of
    {"line":"document","key","op","cas","rev","expiry","flags","datatype","lineage",..}
    {"line":"design","id","docs":[..]}
    {"line":"end","bytes","sha256",..}                              last

Invariants:
1. What is read from a line is, byte for byte, what was written into it: a value stands as it is
   only where it is JSON without line breaks and spaces around it, else in base64.
2. A document keeps its revisions in any bucket: where they are computed from the bucket's uuid,
   and the bucket is another one, they are stored beside the document.

Elsewhere: the file (`client.dump_file`), who reads a bucket (`cli.bulk.dump`) and writes one
(`cli.bulk.restore`).

Source: docs/reference/dump.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from millstream.client.databases import DatabaseSettings
from millstream.client.writes import WRITE_BYTES_MAX, GivenWrite
from millstream.documents.reading import Shown, text_of
from millstream.documents.stored import REVS_LIMIT_DEFAULT, StoredDocument, load, pack
from millstream.errors import CorruptionError, UsageError
from millstream.model.partitions import key_from_text, text_of_key
from millstream.model.sides import side_of, split
from millstream.wire.frames import change_of, deletion, mutation
from millstream.wire.mcbp import Opcode

__all__ = [
    "FORMAT",
    "VERSION",
    "AttachmentLine",
    "DesignLine",
    "DocumentLine",
    "EndLine",
    "HeaderLine",
    "Line",
    "SettingsLine",
    "decode_line",
    "document_line",
    "encode_line",
    "leaf_texts",
    "write_of",
]

FORMAT: Final = "millstream-dump"
VERSION: Final = 1
NESTED: Final = 100
"""Levels of nesting that a value leaves to the line around it."""
_OPS: Final = {
    Opcode.DCP_MUTATION: "put",
    Opcode.DCP_DELETION: "delete",
    Opcode.DCP_EXPIRATION: "expire",
}


class HeaderLine(msgspec.Struct, tag_field="line", tag="header"):
    """What the file is."""

    format: str
    version: int
    bucket: str
    bucket_uuid: str
    partitions: int
    created: str
    """ISO 8601 in UTC."""


class SettingsLine(msgspec.Struct, tag_field="line", tag="settings"):
    """What is set for the database."""

    settings: DatabaseSettings


class AttachmentLine(msgspec.Struct, tag_field="line", tag="attachment"):
    """A piece of an attachment; the pieces of one follow each other."""

    key: str
    """The key of the document that has it."""
    sha256: str
    length: int
    """The length of the whole attachment as it is stored."""
    offset: int
    data: bytes


class DocumentLine(msgspec.Struct, tag_field="line", tag="document", omit_defaults=True):
    """A document or deletion as it is stored; members as in the lines of `tail`."""

    key: str
    op: str
    cas: int
    rev: int
    expiry: int
    flags: int
    datatype: int
    lineage: bytes
    leaves: list[str] = []
    """Revisions of all leaves, the winner first: for readers, not for `restore`."""
    sidecar: bytes = b""
    value: Raw | UnsetType = UNSET
    value_base64: bytes | UnsetType = UNSET


class DesignLine(msgspec.Struct, tag_field="line", tag="design"):
    """All leaves of a design document as `_bulk_docs` takes them."""

    id: str
    docs: list[Raw]


class EndLine(msgspec.Struct, tag_field="line", tag="end"):
    """That the file is whole, and what it has."""

    bytes: int
    """The bytes before this line."""
    sha256: str
    """The hash of the bytes before this line."""
    documents: int = 0
    deletions: int = 0
    designs: int = 0
    attachments: int = 0
    missing_attachments: int = 0
    """Named by documents, and not on the node."""


Line = HeaderLine | SettingsLine | AttachmentLine | DocumentLine | DesignLine | EndLine
_decode: Final = msgspec.json.Decoder(Line).decode
_encode: Final = msgspec.json.Encoder().encode
_check: Final = msgspec.json.Decoder(Raw).decode


def encode_line(line: Line) -> bytes:
    """Return a line with its end."""
    return _encode(line) + b"\n"


def decode_line(data: bytes) -> Line:
    """Return what a line says.

    Raises:
        CorruptionError: `bad_dump`: it is none of a dump.
    """
    try:
        found: Line = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptionError(
            f"a line of a dump cannot be read: {error}", code="bad_dump"
        ) from error
    return found


def document_line(bucket_uuid: str, frame: bytes, side: bytes) -> DocumentLine | None:
    """Return the line of a change; None if nothing is left of its document (it was purged).

    Args:
        bucket_uuid: of the bucket.
        frame: of a put, deletion or expiration.
        side: what stands beside it.

    Raises:
        CorruptionError: `bad_sidecar`.
    """
    change = change_of(frame)
    lineage, sidecar = split(side)
    document = load(bucket_uuid, change.key, frame, side)
    if not document.exists:
        return None
    line = DocumentLine(
        text_of_key(change.key), _OPS[Opcode(change.opcode)], change.cas, change.rev,
        change.expiry, change.flags, change.datatype, lineage, _leaves(document, sidecar), sidecar,
    )  # fmt: skip
    if not change.is_deleted:
        if _is_json_text(change.value):
            line.value = Raw(change.value)
        else:
            line.value_base64 = change.value
    return line


def _leaves(document: StoredDocument, sidecar: bytes) -> list[str]:
    if not sidecar:  # its tree would have to be computed
        return [document.winner.rev]
    return [leaf.rev for leaf in document.tree.leaves()]


def _is_json_text(value: bytes) -> bool:
    """Return whether a value can stand in a line as it is (invariant 1)."""
    if b"\n" in value or b"\r" in value or value != value.strip():
        return False
    try:
        value.decode()
        _check(value)
        _check(b"[" * NESTED + value + b"]" * NESTED)  # a line is nested itself
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def write_of(
    line: DocumentLine,
    dumped_uuid: str,
    bucket_uuid: str,
    *,
    is_insert: bool,
    revs_limit: int = REVS_LIMIT_DEFAULT,
) -> GivenWrite:
    """Return the write that brings a document, or a deletion, into a bucket.

    Args:
        line: of the document.
        dumped_uuid: of the bucket that was dumped.
        bucket_uuid: of the bucket that is written.
        is_insert: only if there is no such document.
        revs_limit: of the bucket that was dumped.

    Raises:
        CorruptionError: `bad_sidecar`, `bad_dump`.
    """
    key, value = key_from_text(line.key), _value_of(line)
    sidecar = line.sidecar
    if not sidecar and dumped_uuid != bucket_uuid:
        sidecar = _computed(line, key, value, dumped_uuid, revs_limit)
    return GivenWrite(
        key, value, line.flags, line.datatype, line.expiry, line.cas, line.rev, line.lineage,
        is_insert, sidecar,
    )  # fmt: skip


def leaf_texts(line: DocumentLine, dumped_uuid: str) -> Iterator[Raw]:
    """Yield all leaves of a document as `_bulk_docs` takes them, for one that is no one request.

    Raises:
        UsageError: `too_large`: it has attachments, which do not stand in its line.
        CorruptionError: `bad_sidecar`, `bad_dump`.
    """
    key, value = key_from_text(line.key), _value_of(line)
    side = side_of(line.lineage, line.sidecar)
    document = load(dumped_uuid, key, _frame_of(line, key, value), side)
    if any(one.attachments for one in document.contents.values()):
        raise UsageError(
            f"document {line.key!r} has conflicts of over {WRITE_BYTES_MAX} bytes together, and "
            "attachments: bring it by a replication",
            code="too_large",
        )
    for leaf in document.tree.leaves():
        if leaf.rev in document.contents:
            yield Raw(text_of(key.decode(), document, leaf, Shown(revs=True)))


def _value_of(line: DocumentLine) -> bytes | None:
    if line.op != "put":
        return None
    if not isinstance(line.value, UnsetType):
        return bytes(line.value)
    if not isinstance(line.value_base64, UnsetType):
        return line.value_base64
    raise CorruptionError(f"document {line.key!r} of the dump has no value", code="bad_dump")


def _computed(
    line: DocumentLine, key: bytes, value: bytes | None, uuid: str, revs_limit: int
) -> bytes:
    """Return the sidecar of a document whose revisions were computed (invariant 2)."""
    frame = _frame_of(line, key, value)
    return pack(load(uuid, key, frame, side_of(line.lineage, b""), revs_limit)).sidecar


def _frame_of(line: DocumentLine, key: bytes, value: bytes | None) -> bytes:
    if value is None:
        return deletion(0, key, 0, line.rev, line.cas, line.expiry)
    return mutation(0, key, value, 0, line.rev, line.cas, line.flags, line.expiry, line.datatype)
