r"""Stream frames into columns: what a Spark executor turns into Arrow batches.

Invariants:
1. Every column has one member per change; markers and other messages add none.
2. No key or value that a client can write makes this fail: keys are in their text form (`\x` +
   hex where not UTF-8), `cas` and `rev` of 2**63 and more as two's complement.
3. `meta` has a member per change where every change came behind its description, none where none
   did: a reader asks for descriptions or does not.

Elsewhere: where chunks come from (`client.bulk`), batches (`millstream.pipelines`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from millstream.model.partitions import text_of_key

__all__ = [
    "OP_DELETE",
    "OP_PUT",
    "ChangeMeta",
    "Columns",
    "cut_columns",
    "decode_meta",
    "encode_meta",
]

OP_PUT: Final = "put"
OP_DELETE: Final = "delete"
_CHANGE: Final = Struct(">xBHBBHI4xqqqII")
"""Opcode, key and extras length, datatype, partition, body length, cas, seqno, rev, and the 8
bytes that are flags and expiry of a mutation, the time first of a deletion."""
_OVERHANG: Final = bytes(24)
"""The last message of a chunk may be a bare header, shorter than the fields unpacked."""
_PLAIN_DELETION_EXTRAS: Final = 18
_encode: Final = msgspec.msgpack.Encoder().encode


class ChangeMeta(NamedTuple):
    """What a node keeps beside a change: lineage (see `model.lineage`) and sidecar."""

    lineage: bytes
    sidecar: bytes = b""


_decode: Final = msgspec.msgpack.Decoder(tuple[bytes, ...]).decode


def encode_meta(lineage: bytes, sidecar: bytes = b"") -> bytes:
    """Return a member of the column meta: a msgpack array of lineage and sidecar, both binary."""
    return _encode((lineage, sidecar))


def decode_meta(meta: bytes) -> ChangeMeta:
    """Reverse `encode_meta`; members that a later release may put behind are passed over.

    Raises:
        ValueError: no such array.
    """
    members = _decode(meta)
    if len(members) < len(ChangeMeta._fields):
        raise ValueError(f"meta of {len(members)} members")
    return ChangeMeta(*members[:2])


@dataclass(slots=True)
class Columns:
    """Changes by column. `expiry` of a deletion or expiration is its time in Unix seconds."""

    op: list[str] = field(default_factory=list)
    partition: list[int] = field(default_factory=list)
    seqno: list[int] = field(default_factory=list)
    rev: list[int] = field(default_factory=list)
    cas: list[int] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    expiry: list[int] = field(default_factory=list)
    datatype: list[int] = field(default_factory=list)
    key: list[str] = field(default_factory=list)
    value: list[bytes | None] = field(default_factory=list)
    meta: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.op)


def cut_columns(chunk: bytes, columns: Columns) -> None:
    """Append the changes in `chunk`, whole frames of any profile, to `columns`.

    Hot path (bench: rows through the Spark source): one unpack a frame, locals bound, fields
    appended rather than gathered in tuples, which the collector would have to visit.
    """
    unpack = _CHANGE.unpack_from
    add_op, add_partition = columns.op.append, columns.partition.append
    add_seqno, add_rev, add_cas = columns.seqno.append, columns.rev.append, columns.cas.append
    add_flags, add_expiry = columns.flags.append, columns.expiry.append
    add_datatype, add_value = columns.datatype.append, columns.value.append
    keys: list[bytes] = []
    add_key = keys.append
    end = len(chunk)
    data = chunk + _OVERHANG
    at = 0
    while at < end:
        (
            opcode,
            key_bytes,
            extras_bytes,
            datatype,
            partition,
            body,
            cas,
            seqno,
            rev,
            first,
            second,
        ) = unpack(data, at)
        key_at = at + 24 + extras_bytes
        at += 24 + body
        if opcode == 0x57:
            value_at = key_at + key_bytes
            add_op("put")
            add_flags(first)
            add_expiry(second)
            add_key(data[key_at:value_at])
            add_value(data[value_at:at])
        elif opcode == 0x58 or opcode == 0x59:
            add_op("delete" if opcode == 0x58 else "expire")
            add_flags(0)
            add_expiry(first if extras_bytes > _PLAIN_DELETION_EXTRAS else 0)
            add_key(data[key_at : key_at + key_bytes])
            add_value(None)
        elif opcode == 0x6F:
            lineage_at = key_at + 2
            sidecar_at = lineage_at + (data[key_at] << 8 | data[key_at + 1])
            columns.meta.append(encode_meta(data[lineage_at:sidecar_at], data[sidecar_at:at]))
            continue
        else:
            continue
        add_partition(partition)
        add_seqno(seqno)
        add_rev(rev)
        add_cas(cas)
        add_datatype(datatype)
    columns.key.extend(_texts_of(keys))


def _texts_of(keys: list[bytes]) -> list[str]:
    """Return the text forms; plain keys are decoded all at once."""
    joined = b"\n".join(keys)
    if b"\\x" not in joined:
        try:
            texts = joined.decode().split("\n")
        except UnicodeDecodeError:
            pass
        else:
            if len(texts) == len(keys):  # else a key holds a line feed, or there is no key
                return texts
    return [text_of_key(key) for key in keys]
