"""The index parts of a bucket at one node: the adopted records, and what follows from them.

    kept = adopted(known, record)        # a newer record: the part goes on by that one
    kept = frozen(kept)                  # it stops indexing
    kept = stopped(kept)                 # it stops answering, too
    state_of(kept, node)                 # what the index does
    report_of(kept, node, told)          # what the orchestrator hears

Invariants:
1. A record replaces an older one only. Two contents of one key are damage.
2. A freeze and a stop count for the record under which they were ordered: a newer one ends them.
3. An owner reports at least as much as it can have shown. A part that is being built reports no
   more than all its complete indexes have.
4. What is not known of an index is never reported as equal to what another node has.
5. An altered file is damage. Its parts answer nothing before they get a newer record.

Elsewhere: orders (`cluster.core.admission`), moves (`cluster.core.index_moving`), who keeps the
file and talks to the index process (`node.index_parts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from millstream.cluster.core.admission import is_news
from millstream.cluster.core.reports import PartReport, PartState
from millstream.errors import CorruptionError
from millstream.model.cluster_maps import NO_FLOOR, Floor, IndexRecord, MapKey

__all__ = [
    "Indexed",
    "KeptPart",
    "adopted",
    "frozen",
    "indexed_of",
    "parts_from_json",
    "parts_to_json",
    "report_of",
    "state_of",
    "stopped",
]

_FORMAT: Final = 1


class KeptPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is durable of a partition: its record is kept at every node that heard of it."""

    record: IndexRecord
    is_frozen: bool = False
    """It has stopped indexing, under this record."""
    is_stopped: bool = False
    """It has stopped answering, under this record."""


class Indexed(NamedTuple):
    """How far the indexes of a bucket are in one partition, as the index process says."""

    at: MapKey
    """The record by whose floor it was judged."""
    designs: str
    """Digest of the complete indexes; empty: some are not open yet, so nothing is certain."""
    least: Floor
    """What all complete indexes have."""
    shown: Floor
    """The most that any index that has reached the floor can have shown; `NO_FLOOR`: nothing."""
    has_floor: bool
    """Whether all complete indexes have reached the floor."""
    can_have_shown: bool
    """Whether any index has reached the floor."""
    own: Floor | None = None
    """What all complete indexes have that the node keeps itself; None: there are none."""
    own_designs: str = ""
    """Digest of these; as `designs`."""
    outside_ms: int | None = None
    """Since when no writer outside the node was heard; None: none keeps an index."""


def indexed_of(record: IndexRecord, designs: str) -> Indexed:
    """Return how far a part without any index is: where its record demands.

    Nothing was shown of it, so it does not matter where it is handed over.
    """
    return Indexed(record.at, designs, record.floor, record.floor, True, True)


def adopted(known: KeptPart | None, record: IndexRecord) -> KeptPart:
    """Return the part by this record, or as it is if the record is no news.

    Raises:
        CorruptionError: `other_map`: it has the key of the known one, and another content.
    """
    if known is None:
        return KeptPart(record)
    if record.at < known.record.at or not is_news(record, known.record):
        return known
    return KeptPart(record)


def frozen(part: KeptPart) -> KeptPart:
    """Return the part that has stopped indexing."""
    return msgspec.structs.replace(part, is_frozen=True)


def stopped(part: KeptPart) -> KeptPart:
    """Return the part that has stopped indexing and answering."""
    return msgspec.structs.replace(part, is_frozen=True, is_stopped=True)


def state_of(part: KeptPart, node: str) -> PartState | None:
    """Return what a node does with its part; None: it has none, and cleans up what is left."""
    if part.record.owner == node and not part.is_stopped:
        return "active"
    return "passive" if node in part.record.placed else None


def report_of(
    part: KeptPart, node: str, told: Indexed | None, *, is_cleaning: bool = False
) -> PartReport | None:
    """Return what a node reports; None: it has no part.

    Args:
        part: durable here.
        node: this one.
        told: how far the indexes are; None: it is not known now.
        is_cleaning: whether an index still has rows of the partition that count for nothing.
    """
    state, record = state_of(part, node), part.record
    if state is None:
        return PartReport("cleanup", NO_FLOOR, record.at, False) if is_cleaning else None
    is_owner = record.owner == node
    if told is None or told.at != record.at:
        told = Indexed(record.at, "", NO_FLOOR, NO_FLOOR, False, False)
    return PartReport(
        state,
        max(told.shown, told.least) if is_owner else told.least,
        record.at,
        told.can_have_shown if is_owner else told.has_floor,
        part.is_frozen,
        told.designs or f"unknown at {node}",
        told.own,
        told.own_designs or f"unknown at {node}",
        told.outside_ms,
    )


# ---- the file


class _File(msgspec.Struct):
    format: int
    crc32: int
    parts: msgspec.Raw


def parts_to_json(parts: Mapping[int, KeptPart]) -> bytes:
    """Return the content of the file."""
    content = msgspec.json.encode({str(p): parts[p] for p in sorted(parts)})
    return msgspec.json.encode(_File(_FORMAT, crc32(content), msgspec.Raw(content))) + b"\n"


def parts_from_json(content: bytes) -> dict[int, KeptPart]:
    """Reverse `parts_to_json`.

    Raises:
        CorruptionError: `bad_index_parts`.
    """
    try:
        file = msgspec.json.decode(content, type=_File)
        if file.format != _FORMAT or crc32(bytes(file.parts)) != file.crc32:
            raise ValueError("its checksum or format is another")
        return msgspec.json.decode(file.parts, type=dict[int, KeptPart])
    except (ValueError, msgspec.MsgspecError) as error:
        raise CorruptionError(f"the list of index parts is damaged: {error}",
                              code="bad_index_parts") from error  # fmt: skip
