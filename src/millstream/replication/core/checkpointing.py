"""Recording how far the target has the source, in the logs of both.

Invariants:
1. The target is flushed first. Nothing is recorded if a partition of it has a newer branch of
   history than when the run began, or if either database is another one: what was written may be
   lost.
2. Exceptions and the purge epoch are those of before the flush and after it, in this order, so
   that both can only be too careful.
3. The source's log is written first. What reaches one side only is no checkpoint.
4. Records about others are stored after both logs have the checkpoint that proves them.

Elsewhere: logs (`logs`), records (`coverage`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from millstream.errors import ConditionError, MillstreamError, UnavailableError
from millstream.replication.core.asking import (
    Flush,
    Info,
    ReadInfo,
    ReadLocal,
    Side,
    StoreRecords,
    WriteLocal,
)
from millstream.replication.core.coverage import carried
from millstream.replication.core.logs import (
    EXCEPTIONS_MAX,
    Entry,
    extended,
    parse_log,
    remembered,
    remembered_leaves,
)
from millstream.replication.core.starting import Chain, Pair
from millstream.replication.core.tasks import Steps, asked
from millstream.replication.core.tracking import Mark

__all__ = ["CONFLICTS_MAX", "Checkpoint", "checkpoint"]

CONFLICTS_MAX: Final = 5
"""How often a log may change while it is written."""
_BOTH: Final[tuple[Side, Side]] = ("source", "target")


class Checkpoint(NamedTuple):
    """What is to be recorded."""

    ckpt_id: str
    mark: Mark
    chain: Chain
    told: Mapping[str, Any]
    """Times and counts."""
    now_ms: float


def checkpoint(pair: Pair, wanted: Checkpoint) -> Steps[Entry | None]:
    """Record; None if nothing may be: what was written may be lost.

    Raises:
        MillstreamError: a side does not answer, or does not let its log be written.
    """
    target: Info = yield from asked("target", Flush())
    source: Info = yield from asked("source", ReadInfo())
    if target.incarnation != pair.target.incarnation or not _is_same(source, pair.source):
        return None
    entry = _entry(wanted, target)
    for side in _BOTH:
        yield from _write(side, pair, entry)
    records = carried(
        wanted.mark.records, entry, pair.member,
        source=pair.source_name, target=pair.target_name, now_ms=wanted.now_ms,
    )  # fmt: skip
    if records:
        with suppress(MillstreamError):  # they only make other runs shorter
            yield from asked("target", StoreRecords(tuple(records)))
    return entry


def _is_same(source: Info, before: Info) -> bool:
    """Whether it is the same database as before; it may have rolled back since."""
    if source.uuid or before.uuid:
        return source.uuid == before.uuid
    return source.instance_start_time == before.instance_start_time


def _entry(wanted: Checkpoint, target: Info) -> Entry:
    chain, mark = wanted.chain, wanted.mark
    names = remembered(chain.exceptions)
    dropped = chain.dropped + len(chain.exceptions) - len(names)
    is_complete = (
        chain.is_complete
        and chain.purge_epoch == target.purge_epoch
        and len(chain.exceptions) <= EXCEPTIONS_MAX
        and not dropped
    )
    return Entry(
        wanted.ckpt_id, mark.place, target.end, mark.is_closed, is_complete, names,
        target.purge_epoch, chain.base, wanted.told, dropped,
        remembered_leaves(names, chain.leaves),
    )  # fmt: skip


def _write(side: Side, pair: Pair, entry: Entry) -> Steps[None]:
    for _ in range(CONFLICTS_MAX):
        body: Mapping[str, Any] | None = yield from asked(side, ReadLocal(pair.log))
        entries = parse_log(body).entries
        if entries and entries[0].ckpt_id == entry.ckpt_id:
            return  # an earlier attempt went well
        new = extended(
            body, entry,
            source_uuid=pair.source_name, target_uuid=pair.target_name, members=pair.members,
        )  # fmt: skip
        if body is not None and "_rev" in body:
            new["_rev"] = body["_rev"]
        try:
            yield from asked(side, WriteLocal(pair.log, new))
        except ConditionError as error:
            if error.code != "conflict":
                raise
        else:
            return
    raise UnavailableError(
        f"the log of the {side} changes all the time: is this job run twice?", code="busy"
    )
