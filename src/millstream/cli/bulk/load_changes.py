"""What a row of a load does: it writes a document, or, a line of `tail`, what that line did.

Invariants:
1. A row is a line of `tail` only if it has exactly the members of one.
2. What is read of a line of `tail` is what was written: value, flags, datatype and expiry; its
   version (CAS, revision number, seqno) belongs to where it was read.

Elsewhere: the lines (`upr.core.lines`, docs/reference/tail.md), who writes (`cli.bulk.load`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from millstream.client.documents import content_of, key_bytes_of
from millstream.client.extensions import Versioned
from millstream.client.writes import Write
from millstream.errors import UsageError
from millstream.model.limits import KEY_BYTES_MAX
from millstream.model.partitions import key_from_text
from millstream.wire.mcbp import Datatype

__all__ = ["is_mark", "is_unchanged", "write_of_row"]

_COMMON: Final = frozenset(
    ("partition", "uuid", "branch", "seqno", "op", "key", "cas", "rev", "expiry", "flags",
     "datatype")
)  # fmt: skip
_CHANGES: Final = (_COMMON | {"value"}, _COMMON | {"value_base64"})
_ROLLBACK: Final = frozenset(("event", "partition", "seqno", "uuid", "branch"))
_BARRIER: Final = frozenset(("event", "reached"))


class _Change(msgspec.Struct):
    op: str
    key: str
    expiry: int
    flags: int
    datatype: int
    value: Raw | UnsetType = UNSET
    value_base64: bytes | UnsetType = UNSET


def is_mark(fields: Mapping[str, Any]) -> bool:
    """Return whether a row is a line of `tail` that changes nothing: a barrier.

    Raises:
        UsageError: `rollback`: what was loaded from earlier lines would have to be undone.
    """
    if "event" not in fields:
        return False
    names = fields.keys()
    if fields["event"] == "rollback" and names == _ROLLBACK:
        raise UsageError(
            f"the node that was followed lost changes of partition {fields['partition']} above "
            f"seqno {fields['seqno']}: lines before this one are void. Take them again with "
            "`millstream tail --from-start --until-now`",
            code="rollback",
        )
    return fields["event"] == "barrier" and names == _BARRIER


def write_of_row(fields: Mapping[str, Any], value: Any, field: str, now_s: int) -> Write:
    """Return what a row writes, or deletes.

    Args:
        fields: of the row.
        value: what is stored of it; `msgspec.Raw` of a JSON row.
        field: which of the fields is the key.
        now_s: Unix time; what has expired by then is a deletion.

    Raises:
        UsageError: `bad_key`; `bad_change`: a line of `tail` with other values than it may have;
            `bad_value`, `too_large`.
    """
    if isinstance(value, Raw) and fields.keys() in _CHANGES:
        return _write_of_change(value, now_s)
    data, flags, datatype = content_of(value)
    return Write(_key_of(fields, field), data, flags, datatype)


def _write_of_change(text: Raw, now_s: int) -> Write:
    try:
        change = msgspec.json.decode(text, type=_Change)
        key = key_bytes_of(key_from_text(change.key))
        value = None if change.op in ("delete", "expire") else _value_of(change)
        if change.op not in ("put", "delete", "expire"):
            raise ValueError(f"op is {change.op!r}")
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(
            f"it has the members of a change as `tail` prints it, but no such values: {error}",
            code="bad_change",
        ) from error
    if value is None or 0 < change.expiry <= now_s:
        return Write(key, None)
    return Write(key, value, change.flags, change.datatype, change.expiry)


def _value_of(change: _Change) -> bytes:
    if not isinstance(change.value, UnsetType):
        return bytes(change.value)
    assert not isinstance(change.value_base64, UnsetType), "it has one of the two"
    return change.value_base64


def _key_of(fields: Mapping[str, Any], field: str) -> bytes:
    found = fields.get(field)
    if isinstance(found, int) and not isinstance(found, bool):
        found = str(found)
    if not isinstance(found, str) or not 0 < len(found.encode()) <= KEY_BYTES_MAX:
        what = "is missing" if field not in fields else f"is {found!r}"
        raise UsageError(
            f"the key {field!r} {what}; it must be a text of 1 to {KEY_BYTES_MAX} bytes or a "
            "whole number. --key names another field",
            code="bad_key",
        )
    return found.encode()


def is_unchanged(write: Write, found: Versioned | None) -> bool:
    """Return whether a document equals what is to be written. `found` None: it does not exist."""
    if found is None or found.is_deleted:
        return write.value is None
    is_same_kind = found.flags == write.flags or bool(
        found.datatype & write.datatype & Datatype.JSON
    )
    return found.value == write.value and found.expiry == write.expiry and is_same_kind
