"""What a database has of others whose changes reached it through third ones.

A coverage record at C says: C has what the database `origin` had at `place`, through a filter and
but for some documents. It came with the changes of B, whose own log with `origin` proves it. A
replication from `origin` to C then begins at `place`.

Invariants:
1. A source tells a record only to who holds everything that the source had at the record's stamp,
   while both the reader's place and the stamp lie in the source's history, and nothing was purged.
   If origin and source have equal partitions, so it is with each of them apart: a part of a record
   says nothing about the others.
2. A record is stored with the stamp of the checkpoint that made its documents durable, and only
   beside one that is complete, and closed in the partitions that the record speaks of.
3. A filter that looks into documents may be the first hop of a record, never a later one.
4. A record serves a job only if the job's filter implies every member of the record's filter, and
   only as far as the origin confirms it: checkpoint known, positions on its present line.
5. Exceptions only add up on the way; documents leave the list when their target accepted them.
6. Nothing that cannot be verified does harm: it makes an earlier start.

Elsewhere: who asks and stores (`starting`, `checkpointing`), proof in words
(docs/design/0031-replication.md).

Source: A. Kocoloski and P. Davis, "Idea for transitive replication checkpoints", 2011.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

from millstream.documents.tokens import (
    Vector,
    is_below,
    minimum,
    vector_from_json,
    vector_to_json,
)
from millstream.model.position import Position
from millstream.replication.core.jobs import Member
from millstream.replication.core.logs import EXCEPTIONS_MAX, Entry, Log, smaller
from millstream.replication.core.places import Place, Present, leading_number

__all__ = [
    "HOPS_MAX",
    "PER_LOG_MAX",
    "RECORDS_MAX",
    "RECORD_DAYS_MAX",
    "Claim",
    "Record",
    "accepted",
    "carried",
    "emitted",
    "kept",
    "may_be_carried",
    "member_of_json",
    "member_to_json",
    "own_records",
    "record_of_json",
    "record_to_json",
    "serves",
    "still_valid",
    "verified",
    "verified_by_log",
]

HOPS_MAX: Final = 8
"""Databases that a record may have come through."""
RECORDS_MAX: Final = 1000
"""Most records of one database."""
PER_LOG_MAX: Final = 8
"""Most records of one log. Downstream databases that lag need older ones."""
RECORD_DAYS_MAX: Final = 90
_DAY_MS: Final = 86_400_000


class Record(NamedTuple):
    """What its holder has of another database."""

    origin: str
    """Uuid of that database."""
    log: str
    """Name of the log between origin and the first database on the way."""
    ckpt: str
    """The checkpoint of the record, which the origin must know."""
    place: Place
    """Up to where the holder has the origin."""
    stamp: Vector
    """The position at the holder from which on this is true."""
    members: tuple[Member, ...] = ()
    """All of which a document had to pass."""
    exceptions: tuple[str, ...] = ()
    via: tuple[str, ...] = ()
    """Uuids of the databases that it came through."""
    hops: int = 1
    purge_epoch: int = 0
    """The purge epoch of the holder."""
    created_ms: float = 0

    @property
    def name(self) -> str:
        """Its id below `_local/`."""
        told = (self.origin, self.log, self.ckpt, *(repr(member) for member in self.members))
        return "cov-" + sha256("\0".join(told).encode()).hexdigest()[:32]

    @property
    def looks_inside(self) -> bool:
        """Whether what passed was judged by its content."""
        return any(member.looks_inside for member in self.members)


class Claim(NamedTuple):
    """What the origin is asked to confirm."""

    log: str
    ckpt: str
    place: Place
    looks_inside: bool


# ---- at the source


def own_records(logs: Mapping[str, Log], present: Present) -> list[Record]:
    """Return what the logs of replications to a database prove.

    Args:
        logs: those in which it is the target, by name.
        present: the database.
    """
    return [
        Record(
            log.source_uuid, name, entry.ckpt_id, entry.place, entry.target_vec,
            tuple(map(member_of_json, log.members)), entry.exceptions,
            purge_epoch=entry.purge_epoch,
        )
        for name, log in logs.items()
        if log.target_uuid in present.lineage and log.source_uuid
        for entry in log.entries
        if entry.is_complete and entry.is_closed and entry.target_vec is not None
    ]  # fmt: skip


def emitted(
    records: Iterable[Record],
    present: Present,
    end: Vector,
    puller: str,
    *,
    takes_parts: bool = False,
) -> list[Record]:
    """Return what a reader may be told that holds everything up to `end` (invariant 1).

    Args:
        records: own ones and those that came with the changes of others.
        present: the database that is read.
        end: where its reader stands.
        puller: uuid of the database that the changes go to, empty if it is not known.
        takes_parts: whether it wants what is true of some partitions.
    """
    is_whole = end.is_closed and present.holds(end)
    told = []
    for record in records:
        may = _may_go_to(record, puller) and record.hops < HOPS_MAX
        if not may or record.purge_epoch != present.purge_epoch:
            continue
        if is_whole and present.holds(record.stamp) and present.is_reached(record.stamp, end):
            told.append(record)
        elif takes_parts and (part := _part(record, present.reached_parts(record.stamp, end))):
            told.append(part)
    return told


def _part(record: Record, reached: Sequence[bool]) -> Record | None:
    """Return what a record says of some partitions; None: nothing.

    Partition p of the origin and of the holder have the same documents if both have as many.
    """
    vector = record.place.vector
    if vector is None or len(vector.positions) != len(reached):
        return None
    pairs = zip(vector.positions, reached, strict=True)
    part = vector._replace(positions=tuple(p if is_so else Position() for p, is_so in pairs))
    return record._replace(place=Place(part.text(), part)) if part.total else None


def may_be_carried(record: Record, place: Place, *, is_closed: bool) -> bool:
    """Whether a record told at a place speaks only of partitions that are closed there."""
    vector, at = record.place.vector, place.vector
    if is_closed or vector is None or at is None:
        return is_closed
    return len(vector.positions) == len(at.positions) and all(
        end.is_closed or not position.seqno
        for position, end in zip(vector.positions, at.positions, strict=True)
    )


def _may_go_to(record: Record, puller: str) -> bool:
    return puller != record.origin and puller not in record.via


def verified(claim: Claim, log: Log | None, present: Present) -> Vector | None:
    """Return how far a claim about a database holds in its present history (invariant 4).

    Args:
        claim: what is asked.
        log: the one of that name which the database has.
        present: the database.
    """
    if log is None or log.source_uuid not in present.lineage or claim.place.vector is None:
        return None
    entry = next((each for each in log.entries if each.ckpt_id == claim.ckpt), None)
    if entry is None or entry.place.vector is None:
        return None
    one = present.judge(claim.place.vector, restarts=claim.looks_inside)
    two = present.judge(entry.place.vector, restarts=claim.looks_inside)
    return None if one is None or two is None else minimum(one, two)


def verified_by_log(claim: Claim, log: Log) -> Place | None:
    """Return how far a claim holds about a database that tells no vectors, by its log."""
    for entry in log.entries:
        if entry.ckpt_id == claim.ckpt:
            return smaller(entry.place, claim.place)
    return None


# ---- at the target


def carried(
    records: Iterable[Record],
    entry: Entry,
    member: Member | None,
    *,
    source: str,
    target: str,
    now_ms: float,
) -> list[Record]:
    """Return what a target stores of the records that came with its source's changes.

    Args:
        records: told at the entry's place.
        entry: the checkpoint there, which both sides have.
        member: the filter between the two.
        source: uuid of the source.
        target: uuid of the target.
        now_ms: Unix time.
    """
    may = entry.is_complete and entry.target_vec is not None
    if not may or (member is not None and member.looks_inside):
        return []
    assert entry.target_vec is not None
    found = [
        record._replace(
            stamp=entry.target_vec,
            members=_with(record.members, member),
            exceptions=tuple(sorted({*record.exceptions, *entry.exceptions})),
            via=(*record.via, source),
            hops=record.hops + 1,
            purge_epoch=entry.purge_epoch,
            created_ms=now_ms,
        )
        for record in records
        if _may_go_to(record, target)
        and record.hops < HOPS_MAX
        and may_be_carried(record, entry.place, is_closed=entry.is_closed)
    ]
    return [record for record in found if len(record.exceptions) <= EXCEPTIONS_MAX]


def _with(members: tuple[Member, ...], member: Member | None) -> tuple[Member, ...]:
    return members if member is None or member in members else (*members, member)


def still_valid(records: Iterable[Record], present: Present) -> list[Record]:
    """Return the records that their holder may keep after a rollback, a purge or a restart."""
    return [
        record
        for record in records
        if record.purge_epoch == present.purge_epoch and present.holds(record.stamp)
    ]


def accepted(
    old: Sequence[Record], new: Iterable[Record], present: Present, now_ms: float
) -> list[Record]:
    """Return the records that a database has once new ones were stored."""
    by_name = {record.name: record for record in still_valid(old, present)}
    for record in still_valid(new, present):
        known = by_name.get(record.name)
        if record.origin == present.uuid or (known is not None and _is_enough(known, record)):
            continue
        by_name[record.name] = record
    return kept(by_name.values(), present, now_ms)


def _is_enough(old: Record, new: Record) -> bool:
    """Whether of two records of one checkpoint the older one stays: more readers reach its stamp.

    One may be a part of the other.
    """
    mine, yours = old.place.vector, new.place.vector
    if mine is not None and yours is not None and mine != yours:
        return is_below(yours, mine)
    return set(old.exceptions) <= set(new.exceptions)


def kept(records: Iterable[Record], present: Present, now_ms: float) -> list[Record]:
    """Return the records that are worth keeping; oldest first."""
    young = [each for each in records if now_ms - each.created_ms <= RECORD_DAYS_MAX * _DAY_MS]
    young.sort(key=lambda record: (record.created_ms, record.stamp.total))
    useful = [each for each in young if not any(_outdoes(o, each, present) for o in young)]
    by_log: dict[tuple[str, str, tuple[Member, ...]], list[Record]] = {}
    for record in useful:
        by_log.setdefault((record.origin, record.log, record.members), []).append(record)
    spaced = {each.name for group in by_log.values() for each in _spaced(group)}
    return [record for record in useful if record.name in spaced][-RECORDS_MAX:]


def _outdoes(one: Record, other: Record, present: Present) -> bool:
    """Whether a record says all that another one says, and to all readers that hear that."""
    if one is other or one.log == other.log or one.place == other.place:
        return False
    mine, yours = one.place.vector, other.place.vector
    return (
        (one.origin, one.members, one.exceptions)
        == (other.origin, other.members, other.exceptions)
        and mine is not None
        and yours is not None
        and is_below(yours, mine)
        and present.is_reached(one.stamp, other.stamp)
    )


def _spaced(records: Sequence[Record]) -> list[Record]:
    """Return at most `PER_LOG_MAX` records of one log, rarer with their distance to the newest.

    An origin that was restored knows older checkpoints only.
    """
    newest = max(record.place.number for record in records)
    buckets: dict[int, Record] = {}
    for record in records:  # of a bucket stays the one that is told to most readers
        buckets.setdefault((newest - record.place.number).bit_length(), record)
    return [buckets[each] for each in sorted(buckets)[:PER_LOG_MAX]]


# ---- use


def serves(record: Record, member: Member | None) -> bool:
    """Whether a job with this filter may begin where a record ends (invariant 4).

    A record with exceptions serves no job whose filter looks into documents: which of their
    revisions pass cannot be asked one by one.
    """
    if member is None:
        return not record.members
    if member.looks_inside and record.exceptions:
        return False
    return all(member.implies(each) for each in record.members)


# ---- JSON


def member_to_json(member: Member) -> dict[str, Any]:
    """Return a filter's member as records and logs keep it."""
    if member.kind == "ids":
        return {"ids": list(member.ids)}
    return {"design": True} if member.kind == "design" else {"content": member.signature}


def member_of_json(form: Mapping[str, Any]) -> Member:
    """Reverse `member_to_json`; what it does not know is a filter that nothing implies."""
    names = form.get("ids")
    if isinstance(names, Sequence) and all(isinstance(name, str) for name in names):
        return Member("ids", tuple(names))
    if form.get("design") is True:
        return Member("design")
    return Member("content", signature=str(form.get("content", f"unknown {dict(form)!r}")))


def record_to_json(record: Record) -> dict[str, Any]:
    """Return a record as its holder keeps it and tells it."""
    vector = record.place.vector
    return {
        "origin": record.origin,
        "log": record.log,
        "ckpt": record.ckpt,
        "seq": record.place.seq,
        **({} if vector is None else {"vec": vector_to_json(vector)}),
        "filter": [member_to_json(member) for member in record.members],
        "except": list(record.exceptions),
        "via": list(record.via),
        "hops": record.hops,
        "stamp": vector_to_json(record.stamp),
        "purge_epoch": record.purge_epoch,
        "created": record.created_ms,
    }


def record_of_json(form: Any) -> Record | None:
    """Reverse `record_to_json`; None if it is not a record."""
    try:
        vector = vector_from_json(form["vec"]) if "vec" in form else None
        record = Record(
            form["origin"], form["log"], form["ckpt"], Place(form["seq"], vector),
            vector_from_json(form["stamp"]), tuple(map(member_of_json, form["filter"])),
            tuple(form["except"]), tuple(form["via"]), form["hops"],
            leading_number(form["purge_epoch"]), float(form["created"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    texts = (record.origin, record.log, record.ckpt, *record.exceptions, *record.via)
    is_sound = all(isinstance(text, str) for text in texts) and isinstance(record.hops, int)
    return record if is_sound and 0 < record.hops <= HOPS_MAX else None
