"""Changes, and what undoes them, as JSON lines.

    {"partition", "uuid", "branch", "seqno", "op", "key", "cas", "rev", "expiry", "flags",
     "datatype", "value" or "value_base64"}                     op: put, delete, expire
    {"event": "rollback", "partition", "seqno", "uuid", "branch"}
    {"event": "restore", "partition", "seqno", "key", "cas", "flags", "datatype", "value" or ...}
    {"event": "sweep", "partition", "load"}
    {"event": "barrier", "reached": {partition: [uuid, seqno]}}

Invariants:
1. One line each, members in this order, line end included; a value that is JSON stands as it is
   but on one line, its numbers as written.
2. The lines of a sink that keeps loads say them as "load", the last member.

Elsewhere: `millstream tail` (`cli.bulk.tail`), the sink (`upr.aio.sinks`).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from millstream.model.partitions import text_of_key
from millstream.upr.core.bookkeeper import Apply, Document, Effect, Restore, Rewind, Sweep
from millstream.upr.core.messages import Reached
from millstream.wire.frames import Change
from millstream.wire.mcbp import Opcode

__all__ = ["line_of_barrier", "line_of_change", "line_of_rollback", "lines_of"]

_OPS: Final = {
    Opcode.DCP_MUTATION: "put",
    Opcode.DCP_DELETION: "delete",
    Opcode.DCP_EXPIRATION: "expire",
}
_encode = msgspec.json.Encoder().encode


def lines_of(effect: Effect) -> list[bytes]:
    """Return the lines of an effect; none for one that changes no document."""
    match effect:
        case Apply(_, load, uuid, branch, changes):
            return [line_of_change(change, uuid, branch, load) for change in changes]
        case Rewind(partition_id, seqno, uuid, branch):
            return [line_of_rollback(partition_id, seqno, uuid, branch)]
        case Restore(partition_id, load, documents):
            return [_line_of_document(document, partition_id, load) for document in documents]
        case Sweep(partition_id, load):
            return [_line({"event": "sweep", "partition": partition_id, "load": load})]
    return []


def line_of_change(change: Change, uuid: int, branch: int, load: int | None = None) -> bytes:
    """Return the line of a change read in a history; `load` None: no such member."""
    members: dict[str, Any] = {
        "partition": change.partition_id,
        "uuid": f"{uuid:012x}",
        "branch": branch,
        "seqno": change.seqno,
        "op": _OPS[Opcode(change.opcode)],
        "key": text_of_key(change.key),
        "cas": change.cas,
        "rev": change.rev,
        "expiry": change.expiry,
        "flags": change.flags,
        "datatype": change.datatype,
    }
    members |= _value_members(None if change.is_deleted else change.value)
    if load is not None:
        members["load"] = load
    return _line(members)


def line_of_rollback(partition_id: int, seqno: int, uuid: int, branch: int) -> bytes:
    """Return the line of a rollback."""
    return _line(
        {
            "event": "rollback",
            "partition": partition_id,
            "seqno": seqno,
            "uuid": f"{uuid:012x}",
            "branch": branch,
        }
    )


def line_of_barrier(reached: Mapping[int, Reached]) -> bytes:
    """Return the line that says how far the lines before it go, by partition."""
    places = {str(p): [f"{place.uuid:012x}", place.seqno] for p, place in sorted(reached.items())}
    return _line({"event": "barrier", "reached": places})


def _line_of_document(document: Document, partition_id: int, load: int) -> bytes:
    members: dict[str, Any] = {
        "event": "restore",
        "partition": partition_id,
        "seqno": document.seqno,
        "key": text_of_key(document.key),
        "cas": document.cas,
        "flags": document.flags,
        "datatype": document.datatype,
    }
    return _line(members | _value_members(document.value) | {"load": load})


def _value_members(value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {"value": None}
    compact = _compact_json(value)
    if compact is None:
        return {"value_base64": b64encode(value).decode()}
    return {"value": compact}


def _compact_json(value: bytes) -> msgspec.Raw | None:
    """Return JSON on one line, numbers as written; None if it is no JSON."""
    try:
        value.decode()
        return msgspec.Raw(msgspec.json.format(value, indent=-1))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _line(members: dict[str, Any]) -> bytes:
    return _encode(members) + b"\n"
