"""Where a run begins: what both databases know of each other, and what came through others.

Invariants:
1. A run begins where both logs agree, or further where a coverage record says so that the origin
   confirms; partition by partition the further of the two.
2. What cannot be asked or confirmed makes an earlier start, never an error.
3. The start is complete if the log's entry was, or if records that are reach all of it.

Elsewhere: comparing logs (`logs`), judging records (`coverage`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from millstream.documents.tokens import Vector, maximum
from millstream.errors import ConditionError, MillstreamError
from millstream.replication.core.asking import (
    Create,
    Info,
    ReadCode,
    ReadInfo,
    ReadLocal,
    ReadRecords,
    Verify,
)
from millstream.replication.core.coverage import (
    Claim,
    Record,
    member_to_json,
    serves,
    verified_by_log,
)
from millstream.replication.core.jobs import Job, Member, member_of, replication_id
from millstream.replication.core.logs import Match, compare, parse_log
from millstream.replication.core.places import NOWHERE, Place
from millstream.replication.core.tasks import Steps, asked

__all__ = ["Chain", "Pair", "Started", "started"]


class Pair(NamedTuple):
    """The two databases of a run, and the log between them."""

    source: Info
    target: Info
    log: str
    member: Member | None

    @property
    def source_name(self) -> str:
        """How records and logs name the source."""
        return self.source.uuid or self.source.identity

    @property
    def target_name(self) -> str:
        """How records and logs name the target."""
        return self.target.uuid or self.target.identity

    @property
    def looks_inside(self) -> bool:
        """Whether what passes is judged by its content."""
        return self.member is not None and self.member.looks_inside

    @property
    def members(self) -> list[dict[str, object]]:
        """The filter as logs keep it."""
        return [] if self.member is None else [member_to_json(self.member)]


class Chain(NamedTuple):
    """What the checkpoints of a run take over from where it begins."""

    is_complete: bool
    purge_epoch: int
    exceptions: frozenset[str] = frozenset()
    base: str = "0"
    dropped: int = 0
    """Refusals that are not among the exceptions: these were too many."""
    leaves: Mapping[str, tuple[str, ...]] = {}
    """What was refused of an exception, by its id, where that is known."""


class Started(NamedTuple):
    """Where a run begins."""

    pair: Pair
    place: Place
    chain: Chain
    is_new: bool = True
    """Whether no log says so yet."""
    used: tuple[Record, ...] = ()
    unknown: tuple[str, ...] = ()
    """Records that the origin says it knows nothing of."""
    skipped: int = 0
    """Changes that the records save, behind what the logs agree on."""
    session: str = ""
    """The checkpoint that it goes on from."""


def started(job: Job) -> Steps[Started]:
    """Find out where a run begins.

    Raises:
        MillstreamError: a database is not there, or does not answer.
    """
    pair = yield from _opened(job)
    fresh = Chain(not job.winning_revs_only, pair.target.purge_epoch)
    if job.since_seq is not None:
        chain = fresh._replace(is_complete=False)
        return Started(pair, Place(job.since_seq), chain)
    if not job.use_checkpoints:
        return Started(pair, NOWHERE, fresh)
    match = yield from _matched(pair)
    begun = Started(pair, NOWHERE, fresh)
    if match is not None:
        begun = Started(
            pair, match.place, _chain_of(match), is_new=False, session=match.source.ckpt_id
        )
    if not job.transitive or job.winning_revs_only or not pair.target.uuid:
        return begun
    return (yield from _moved_on(begun, match))


def _opened(job: Job) -> Steps[Pair]:
    source: Info = yield from asked("source", ReadInfo())
    try:
        target: Info = yield from asked("target", ReadInfo())
    except ConditionError:
        if not job.create_target:
            raise
        yield from asked("target", Create(job.create_target_params))
        target = yield from asked("target", ReadInfo())
    code = None
    if job.function is not None:
        code = yield from asked("source", ReadCode(job.function))
    member = member_of(job, code)
    names = source.uuid or source.identity, target.uuid or target.identity
    log = replication_id(*names, member, winning_revs_only=job.winning_revs_only)
    return Pair(source, target, log, member)


def _matched(pair: Pair) -> Steps[Match | None]:
    ours = yield from asked("source", ReadLocal(pair.log))
    theirs = yield from asked("target", ReadLocal(pair.log))
    return compare(parse_log(ours), parse_log(theirs))


def _chain_of(match: Match) -> Chain:
    one, two = match.source, match.target
    is_same = one.purge_epoch == two.purge_epoch
    return Chain(
        one.is_complete and two.is_complete and is_same,
        two.purge_epoch,
        frozenset((*one.exceptions, *two.exceptions)),
        two.base,
        max(one.dropped, two.dropped),
        {**two.leaves, **one.leaves},
    )


# ---- what came through others


class _Confirmed(NamedTuple):
    record: Record
    place: Place


def _moved_on(begun: Started, match: Match | None) -> Steps[Started]:
    """Return a start that may lie further, by records of the target that the source confirms."""
    pair = begun.pair
    origins = (pair.source_name, *pair.source.ancestors)
    try:
        records: Sequence[Record] = yield from asked("target", ReadRecords(origins))
        records = [each for each in records if serves(each, pair.member)]
        if pair.source.uuid:
            return (yield from _by_vectors(begun, match, records))
        return (yield from _by_logs(begun, records))
    except MillstreamError:
        return begun


def _by_vectors(
    begun: Started, match: Match | None, records: Sequence[Record]
) -> Steps[Started]:  # fmt: skip
    own = [] if match is None else [_own_claim(begun, match)]
    claims = own + [_claim(each) for each in records]
    if not claims:
        return begun
    answers: Sequence[Vector | None] = yield from asked("source", Verify(tuple(claims)))
    if own:
        begun = begun._replace(place=NOWHERE if answers[0] is None else _place(answers[0]))
        answers = answers[1:]
    confirmed = [
        _Confirmed(record, _place(vector))
        for record, vector in zip(records, answers, strict=True)
        if vector is not None
    ]
    unknown = _unknown(begun.pair, records, confirmed)
    return _joined(begun, confirmed)._replace(unknown=unknown)


def _by_logs(begun: Started, records: Sequence[Record]) -> Steps[Started]:
    confirmed = []
    for record in records:
        log = parse_log((yield from asked("source", ReadLocal(record.log))))
        if (place := verified_by_log(_claim(record), log)) is not None:
            confirmed.append(_Confirmed(record, place))
    unknown = _unknown(begun.pair, records, confirmed)
    best = max(confirmed, key=lambda each: each.place.number, default=None)
    begun = begun._replace(unknown=unknown)
    if best is None or best.place.number <= begun.place.number:
        return begun
    return _beginning_at(begun, best.place, [best], is_reached=True)


def _own_claim(begun: Started, match: Match) -> Claim:
    return Claim(begun.pair.log, match.source.ckpt_id, begun.place, begun.pair.looks_inside)


def _claim(record: Record) -> Claim:
    return Claim(record.log, record.ckpt, record.place, record.looks_inside)


def _unknown(
    pair: Pair, records: Sequence[Record], confirmed: Sequence[_Confirmed]
) -> tuple[str, ...]:  # fmt: skip
    known = {each.record.name for each in confirmed}
    return tuple(
        record.name
        for record in records
        if record.origin == pair.source_name and record.name not in known
    )


def _joined(begun: Started, confirmed: Sequence[_Confirmed]) -> Started:
    """Return the start with each partition at the further of log and records."""
    at = begun.place.vector
    useful = [each for each in confirmed if _adds(each.place.vector, at)]
    if not useful:
        return begun
    covered = _greatest([each.place.vector for each in useful])
    joined = covered if at is None else maximum(covered, at)
    is_reached = _seqnos(covered) == _seqnos(joined)
    return _beginning_at(begun, _place(joined), useful, is_reached=is_reached)


def _beginning_at(
    begun: Started, place: Place, used: Sequence[_Confirmed], *, is_reached: bool
) -> Started:
    chain, records = begun.chain, tuple(each.record for each in used)
    if is_reached:
        chain = chain._replace(is_complete=True, purge_epoch=begun.pair.target.purge_epoch)
    others = frozenset[str]().union(*(record.exceptions for record in records))
    leaves = {name: revs for name, revs in chain.leaves.items() if name not in others}
    chain = chain._replace(
        exceptions=chain.exceptions | others, leaves=leaves, base=records[0].name
    )
    skipped = place.number - begun.place.number
    return begun._replace(place=place, chain=chain, is_new=True, used=records, skipped=skipped)


def _adds(vector: Vector | None, at: Vector | None) -> bool:
    if vector is None:
        return False
    begun = [0] * len(vector.positions) if at is None else _seqnos(at)
    return any(one > other for one, other in zip(_seqnos(vector), begun, strict=True))


def _greatest(vectors: Sequence[Vector | None]) -> Vector:
    found = [vector for vector in vectors if vector is not None]
    greatest = found[0]
    for vector in found[1:]:
        greatest = maximum(greatest, vector)
    return greatest


def _seqnos(vector: Vector) -> list[int]:
    return [position.seqno for position in vector.positions]


def _place(vector: Vector) -> Place:
    return Place(vector.text(), vector)
