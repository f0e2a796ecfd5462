"""Logs of replications: one document on both sides that says how far the target has the source.

    {"session_id", "source_last_seq", "replication_id_version", "history": [entries, newest first]}

as CouchDB writes them, with members of our own; logs of PouchDB are read, too.

Invariants:
1. Every checkpoint has an id of its own, which is also its `session_id`: that both sides know one
   id proves that both hold the same checkpoint, not only the same run.
2. Of a checkpoint that both sides have, the smaller position counts, partition by partition.
3. A history keeps the newest and the oldest entry of each power of two of distance to the newest
   one; entries get rarer with age, and old ones stay findable.
4. `is_complete` and `exceptions` of an entry follow from those of the one that its run began at.

Elsewhere: when entries are written (`checkpointing`), what they prove to others (`coverage`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from email.utils import formatdate
from typing import Any, Final, NamedTuple

from millstream.documents.tokens import Vector, minimum, vector_from_json, vector_to_json
from millstream.replication.core.places import NOWHERE, Place, Present, leading_number

__all__ = [
    "EXCEPTIONS_MAX",
    "HISTORY_ENTRIES_MAX",
    "LEAVES_BYTES_MAX",
    "REFUSED_BYTES_MAX",
    "REFUSED_MAX",
    "Entry",
    "Log",
    "Match",
    "Statistics",
    "compare",
    "entry_of_json",
    "extended",
    "held_body",
    "http_date",
    "parse_log",
    "remembered",
    "remembered_leaves",
    "thinned",
]

HISTORY_ENTRIES_MAX: Final = 64
"""Most entries of the history in one log. Thinning leaves fewer."""
EXCEPTIONS_MAX: Final = 100
"""Documents that a target may have refused while its log is still complete but for them."""
REFUSED_MAX: Final = 10_000
"""Documents that a target refused whose ids the newest entries have, to try them again."""
REFUSED_BYTES_MAX: Final = 1024 * 1024
"""Most bytes of the ids of refused documents in one entry, in UTF-8."""
LEAVES_BYTES_MAX: Final = 1024 * 1024
"""Most bytes of revisions of refused documents in one entry."""
_WHOLE_ENTRIES: Final = 2
"""The newest entries of a history have all such ids: this many. A run begins at one of them unless
a side was restored."""
_VERSION: Final = 4


class Statistics(NamedTuple):
    """What a run did so far."""

    missing_checked: int = 0
    missing_found: int = 0
    docs_read: int = 0
    docs_written: int = 0
    doc_write_failures: int = 0
    rows_read: int = 0

    def plus(self, other: Statistics) -> Statistics:
        """Return the sums."""
        return Statistics(*(one + two for one, two in zip(self, other, strict=True)))


class Entry(NamedTuple):
    """One checkpoint."""

    ckpt_id: str
    place: Place
    """Up to where the target has the source."""
    target_vec: Vector | None = None
    """The durable position of the target after all that was written."""
    is_closed: bool = False
    is_complete: bool = False
    exceptions: tuple[str, ...] = ()
    """Ids of documents that the target does not have as the source had them."""
    purge_epoch: int = 0
    """The purge epoch of the target."""
    base: str = "0"
    """Id of the coverage record that the run began at."""
    told: Mapping[str, Any] = {}
    """What else CouchDB's history has: times and counts."""
    dropped: int = 0
    """Refusals of documents that are not among the exceptions since these were too many."""
    leaves: Mapping[str, tuple[str, ...]] = {}
    """What was refused of an exception, by its id, if a filter examines documents."""


class Log(NamedTuple):
    """A log as far as it was understood."""

    entries: tuple[Entry, ...]
    """Newest first."""
    source_uuid: str = ""
    target_uuid: str = ""
    members: tuple[Mapping[str, Any], ...] = ()
    """The filter of the job, in the form that coverage records have."""


class Match(NamedTuple):
    """The newest checkpoint that both sides have."""

    place: Place
    source: Entry
    target: Entry


EMPTY: Final = Log(())


def parse_log(body: Mapping[str, Any] | None) -> Log:
    """Return the content of a log document; without entries if it is not valid."""
    if body is None:
        return EMPTY
    history = body.get("history")
    found = [entry_of_json(each) for each in history] if isinstance(history, Sequence) else []
    entries = [entry for entry in found if entry is not None]
    newest = body.get("session_id")
    if isinstance(newest, str) and not (entries and entries[0].ckpt_id == newest):
        place = body.get("source_last_seq", body.get("last_seq"))
        if place is not None:
            entries.insert(0, Entry(newest, Place(place)))
    members = body.get("filter", ())
    members = members if isinstance(members, Sequence) else ()
    return Log(
        tuple(entries),
        str(body.get("source_uuid", "")),
        str(body.get("target_uuid", "")),
        tuple(each for each in members if isinstance(each, Mapping)),
    )


def entry_of_json(form: Any) -> Entry | None:
    """Return an entry of a history, also of PouchDB's; None if it is not valid."""
    if not isinstance(form, Mapping) or not isinstance(form.get("session_id"), str):
        return None
    seq = form.get("recorded_seq", form.get("last_seq"))
    if seq is None:
        return None
    names = form.get("except", ())
    is_list = isinstance(names, Sequence) and all(isinstance(name, str) for name in names)
    return Entry(
        str(form.get("ckpt_id", form["session_id"])),
        Place(seq, _vector(form.get("source_vec"))),
        _vector(form.get("target_vec")),
        form.get("closed") is True,
        form.get("complete") is True and is_list,
        tuple(names) if is_list else (),
        leading_number(form.get("purge_epoch")),
        str(form.get("base", "0")),
        {name: form[name] for name in form if name not in _OURS},
        leading_number(form.get("except_dropped")),
        _leaves(form.get("except_leaves")),
    )


def _leaves(form: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(form, Mapping):
        return {}
    return {
        name: tuple(revs)
        for name, revs in form.items()
        if isinstance(revs, list) and revs and all(isinstance(rev, str) for rev in revs)
    }


_OURS: Final = frozenset((
    "ckpt_id", "session_id", "recorded_seq", "source_vec", "target_vec", "closed", "complete",
    "except", "except_dropped", "except_leaves", "purge_epoch", "base",
))  # fmt: skip


def _vector(form: Any) -> Vector | None:
    if not isinstance(form, Mapping):
        return None
    try:
        return vector_from_json(form)
    except ValueError:
        return None


def _entry_to_json(entry: Entry) -> dict[str, Any]:
    vectors = {"source_vec": entry.place.vector, "target_vec": entry.target_vec}
    return {
        "session_id": entry.ckpt_id,
        "ckpt_id": entry.ckpt_id,
        "recorded_seq": entry.place.seq,
        **{name: vector_to_json(each) for name, each in vectors.items() if each is not None},
        "closed": entry.is_closed,
        "complete": entry.is_complete,
        "except": list(entry.exceptions),
        **({"except_dropped": entry.dropped} if entry.dropped else {}),
        **({"except_leaves": entry.leaves} if entry.leaves else {}),
        "purge_epoch": entry.purge_epoch,
        "base": entry.base,
        **entry.told,
    }


def held_body(body: Mapping[str, Any] | None, present: Present) -> Mapping[str, Any] | None:
    """Return a log as its target shows it: without what its present history does not hold.

    To be asked at each reading: a target may go back between the flush that a checkpoint speaks of
    and the writing of its log. None: nothing is left.
    """
    if body is None or body.get("target_uuid") not in present.lineage:
        return body
    history = body.get("history")
    if not isinstance(history, Sequence):
        return body
    left = [each for each in history if _is_held(entry_of_json(each), present)]
    if len(left) == len(history):
        return body
    if not left:
        return None
    newest = {"session_id": left[0]["session_id"], "source_last_seq": left[0]["recorded_seq"]}
    return {**body, **newest, "history": left}


def _is_held(entry: Entry | None, present: Present) -> bool:
    return entry is not None and (entry.target_vec is None or present.holds(entry.target_vec))


# ---- comparing


def compare(source: Log, target: Log) -> Match | None:
    """Return the newest checkpoint that both sides have; None if they share none."""
    ours = {entry.ckpt_id: entry for entry in reversed(source.entries)}
    theirs = {entry.ckpt_id: entry for entry in reversed(target.entries)}
    for from_source, from_target in _walk(source.entries, target.entries):
        name = (from_source or from_target or _NO_ENTRY).ckpt_id
        if name in ours and name in theirs:
            one, two = ours[name], theirs[name]
            return Match(smaller(one.place, two.place), one, two)
    return None


_NO_ENTRY: Final = Entry("", NOWHERE)


def _walk(
    source: Sequence[Entry], target: Sequence[Entry]
) -> list[tuple[Entry | None, Entry | None]]:
    steps: list[tuple[Entry | None, Entry | None]] = []
    for at in range(max(len(source), len(target))):
        steps += [(each, None) for each in source[at : at + 1]]
        steps += [(None, each) for each in target[at : at + 1]]
    return steps


def smaller(one: Place, two: Place) -> Place:
    """Return the place that is not beyond the other one; componentwise if they are vectors."""
    if one == two:
        return one
    if one.vector is not None and two.vector is not None:
        if len(one.vector.positions) != len(two.vector.positions):
            return NOWHERE
        least = minimum(one.vector._replace(origin=two.vector.origin), two.vector)
        return Place(least.text(), least)
    return min(one, two, key=lambda place: leading_number(place.seq))


# ---- writing


def extended(
    body: Mapping[str, Any] | None,
    entry: Entry,
    *,
    source_uuid: str,
    target_uuid: str,
    members: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return a log with one more entry; members that it had for others stay."""
    history = thinned((entry, *parse_log(body).entries))
    assert history[0] is entry, "the new entry is the newest"
    assert len(history) <= HISTORY_ENTRIES_MAX, "a history has a bound"
    history[_WHOLE_ENTRIES:] = map(_shortened, history[_WHOLE_ENTRIES:])
    return {
        "replication_id_version": _VERSION,
        "session_id": entry.ckpt_id,
        "source_last_seq": entry.place.seq,
        "source_uuid": source_uuid,
        "target_uuid": target_uuid,
        "filter": list(members),
        "history": [_entry_to_json(each) for each in history],
    }


def remembered(names: Iterable[str]) -> tuple[str, ...]:
    """Return as many ids as an entry has room for, in order."""
    kept: list[str] = []
    left = REFUSED_BYTES_MAX
    for name in sorted(names)[:REFUSED_MAX]:
        left -= len(name.encode(errors="surrogatepass"))
        if left < 0:
            break
        kept.append(name)
    return tuple(kept)


def remembered_leaves(
    names: Iterable[str], leaves: Mapping[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Return as many leaves of these documents as an entry has room for."""
    kept: dict[str, tuple[str, ...]] = {}
    left = LEAVES_BYTES_MAX
    for name in names:
        left -= sum(map(len, leaves.get(name, ())))
        if left < 0:
            break
        if name in leaves:
            kept[name] = leaves[name]
    return kept


def _shortened(entry: Entry) -> Entry:
    entry = entry._replace(leaves={})
    lost = len(entry.exceptions) - EXCEPTIONS_MAX
    if lost <= 0:
        return entry
    kept = entry.exceptions[:EXCEPTIONS_MAX]
    return entry._replace(exceptions=kept, is_complete=False, dropped=entry.dropped + lost)


def thinned(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries that a history keeps (invariant 3), newest first."""
    if not entries:
        return []
    newest = entries[0].place.number
    buckets: dict[int, list[Entry]] = {}
    for entry in entries:
        distance = max(0, newest - entry.place.number)
        buckets.setdefault(distance.bit_length(), []).append(entry)
    kept = {id(each) for bucket in buckets.values() for each in (bucket[0], bucket[-1])}
    return [each for each in entries if id(each) in kept][:HISTORY_ENTRIES_MAX]


def http_date(now_ms: float) -> str:
    """Return a time as CouchDB's logs tell it."""
    return formatdate(now_ms / 1000, usegmt=True)
