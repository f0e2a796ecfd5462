"""Answers to administrators and to discovery, as values.

Invariants:
1. Ids are in hexadecimal, addresses as people write them. Times are ages in ms, not times of a
   clock.

Elsewhere: which answer is given (`admin_commands`), bytes of values (`vsr.core.values`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from millstream.coordination.core.pool.boot_stamps import starts
from millstream.coordination.core.pool.directory import GroupStatus
from millstream.coordination.core.pool.incarnations import RefusedProcess
from millstream.coordination.core.pool.messages import Founding, NodeInfo
from millstream.coordination.core.pool.tables import PoolTables
from millstream.vsr.core.entries import Header
from millstream.vsr.core.values import NULL, array, bulk, integer, mapping, truth
from millstream.vsr.core.versions import version_of

__all__ = ["coord_of", "group_entry", "header_row", "node_row", "refused_row", "value_of"]


def value_of(thing: Any) -> bytes:
    """Return a number, text, id, flag, list, map, or tuple of named fields as a value."""
    match thing:
        case None:
            return NULL
        case bool():
            return truth(thing)
        case int() | float():
            return integer(int(thing))
        case Enum():
            return value_of(thing.value)
        case str():
            return bulk(thing.encode())
        case bytes():
            return bulk(thing.hex().encode())
        case Mapping():
            return mapping((str(name).encode(), value_of(one)) for name, one in thing.items())
        case tuple() if hasattr(thing, "_asdict"):
            return value_of(thing._asdict())
        case _:
            return array([value_of(one) for one in thing])


def group_entry(
    tables: PoolTables, founding: Founding, seen: GroupStatus | None, now_ms: float
) -> dict[str, Any]:
    """Return where a group is: what discovery tells of it."""
    members = seen.members if seen is not None else founding.members
    return {
        "group": founding.number,
        "id": founding.group_id,
        "epoch": seen.epoch if seen is not None else 0,
        "view": seen.view if seen is not None else 0,
        "primary": coord_of(tables, seen.primary) if seen is not None else None,
        "members": [coord_of(tables, member) or "?" for member in members],
        "nodes": list(members),
        "freshness_ms": max(0, int(now_ms - seen.said_ms)) if seen is not None else None,
    }


def coord_of(tables: PoolTables, node_id: bytes) -> str | None:
    """Return the address of a node for clients; None if it is not known, or has none."""
    info = tables.node(node_id)
    return info.coord.text if info is not None and info.coord.port else None


def node_row(
    info: NodeInfo, heard_ms: float | None, numbers: Iterable[int], *, is_me: bool
) -> dict[str, Any]:
    """Return a row of the table of nodes; `heard_ms`: ago, None if never."""
    return {
        "node": info.node_id,
        "peer": info.peer.text,
        "coord": info.coord.text if info.coord.port else None,
        "groups": list(numbers),
        "heard_ms": heard_ms,
        "incarnation": starts(info.incarnation),
        "is_here": is_me,
    }


def refused_row(refused: RefusedProcess, now_ms: float) -> dict[str, Any]:
    """Return who was refused as a node, and why."""
    return {
        "peer": refused.address and refused.address.text,
        "incarnation": starts(refused.incarnation),
        "why": refused.reason,
        "heard_ms": now_ms - refused.heard_ms,
    }


def header_row(header: Header) -> dict[str, Any]:
    """Return an entry's header."""
    return {
        "version": version_of(header).text.decode(),
        "kind": header.kind.name,
        "ts_ms": header.ts_ms,
        "session": header.session,
        "csn": header.csn,
        "bytes": header.body_length,
        "hash": header.hash,
    }
