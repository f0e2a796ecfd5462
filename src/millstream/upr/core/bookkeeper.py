"""What a reader with a state of its own writes for one partition, and in which order.

    bookkeeper = Bookkeeper(partition_id, kept, ring entries as stored)
    effects = bookkeeper.on_opened(position, failover_log)       # as the stream says
    while (question := bookkeeper.question) is not None:         # before anything later is handled
        effects += bookkeeper.on_answer(<documents and high seqno of history question.uuid>)
    effects += bookkeeper.on_changes(frames, position)

Whoever performs the effects may stop after any of them, or do several in one step; a bookkeeper
made anew from what was written goes on right. That is why:

1. `Remember` comes before what it names: whatever may be in the state is in the ring.
2. `Keep` comes after what it counts as done, `Forget` after the `Keep` that makes it needless.
3. Told to go back to R, the reader is undone by fetching the newest document of every key above R
   in its ring (gone: it is deleted). First R is kept as its position, and that it is undoing; a
   fetched document enters the ring with its own seqno; what it replaces leaves the ring last.
4. The same is done, rollback or not, whenever the newest history is not that of the last `Keep`:
   what was fetched, or applied before a crash, may be of a history that no longer is.
5. It goes back to 0 only where the ring does not reach, or below the purge point in force when
   its load began (deletions up to there were never seen). Then a new load begins; each document
   written carries its number, and the first complete snapshot sweeps what carries an older one.
   A partition without changes is a complete snapshot. A load that is killed before its first
   `Keep` begins anew if the purge point moved: the source sees nothing wrong with position 0.
6. Nothing is stored for a rollback until the source has accepted the point gone back to.

Elsewhere: loads and the floor (`upr.core.repair`), positions (`upr.core.follower`), who performs
effects (`upr.aio.sinks`), who asks (`upr.aio.following`).

Source: UPR design paper, "How clients roll back changes when seeing a new failover ID".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from millstream.model.position import FailoverLog, Position
from millstream.upr.core.kept import RING_CHANGES_DEFAULT, Kept, Recent, Ring
from millstream.wire.frames import Change, change_of

__all__ = [
    "FETCH_KEYS_MAX",
    "Answer",
    "Apply",
    "Bookkeeper",
    "Document",
    "Effect",
    "Forget",
    "Keep",
    "Question",
    "Remember",
    "Restore",
    "Rewind",
    "Sweep",
]

FETCH_KEYS_MAX: Final = 64
"""Documents asked for at once while undoing."""


class Document(NamedTuple):
    """The newest document of a key as fetched; `value` None: there is none.

    `seqno` is its own, or one that is not below it where the source does not tell.
    """

    key: bytes
    value: bytes | None
    seqno: int
    cas: int = 0
    flags: int = 0
    datatype: int = 0


class Question(NamedTuple):
    """Fetch the newest documents of `keys`, and the high seqno, all in history `uuid`."""

    uuid: int
    keys: tuple[bytes, ...]


class Answer(NamedTuple):
    """What is there now: one document for each key asked for."""

    documents: tuple[Document, ...]
    high_seqno: int


class Remember(NamedTuple):
    """Add to the ring."""

    partition_id: int
    entries: Sequence[Recent]


class Apply(NamedTuple):
    """Take over changes in order, read in history `uuid`; each document written carries `load`."""

    partition_id: int
    load: int
    uuid: int
    branch: int
    changes: Sequence[Change]


class Rewind(NamedTuple):
    """For whoever tells people: what was applied above `seqno` is not in history `uuid`.

    The documents that differ follow; after 0 all of them do.
    """

    partition_id: int
    seqno: int
    uuid: int
    branch: int


class Restore(NamedTuple):
    """Put fetched documents in place of what the state has; each carries `load`."""

    partition_id: int
    load: int
    documents: Sequence[Document]


class Sweep(NamedTuple):
    """Delete every document of the partition that carries a smaller load."""

    partition_id: int
    load: int


class Keep(NamedTuple):
    """Store the position of the reader."""

    partition_id: int
    kept: Kept


class Forget(NamedTuple):
    """Remove from the ring; what is not there is no mistake."""

    partition_id: int
    entries: Sequence[Recent]


Effect = Remember | Apply | Rewind | Restore | Sweep | Keep | Forget


class Bookkeeper:
    """Kept place and ring of one partition, in motion.

    Args:
        partition_id: its number.
        kept: as stored; the default is a reader that has nothing.
        recent: the ring as stored.
        ring_changes: size of the ring.
        is_durable_only: it is brought durable changes alone: those are in every later history, so
            that nothing need be fetched to undo them.
    """

    def __init__(
        self,
        partition_id: int,
        kept: Kept = Kept(),  # noqa: B008 - immutable
        recent: Iterable[Recent] = (),
        *,
        ring_changes: int = RING_CHANGES_DEFAULT,
        is_durable_only: bool = False,
    ) -> None:
        self.partition_id = partition_id
        self.kept = kept
        self._is_durable_only = is_durable_only
        self._ring = Ring(recent, changes_max=ring_changes)
        self._point: int | None = None
        self._to_fetch: tuple[bytes, ...] = ()
        self._replaced: frozenset[Recent] = frozenset()
        self._asks_high = False

    @property
    def question(self) -> Question | None:
        """What has to be known before anything that came later is handled."""
        if not self._to_fetch and not self._asks_high:
            return None
        return Question(self.kept.failover_log[0].uuid, self._to_fetch[:FETCH_KEYS_MAX])

    def start_again(self) -> tuple[Position, FailoverLog]:
        """Return what to ask for a stream with; what was under way is void."""
        self._point, self._to_fetch, self._asks_high = None, (), False
        return self.kept.position, self.kept.failover_log

    # -- what the stream says

    def on_rollback(self, seqno: int) -> int:
        """Return the seqno to ask from, told to go back to `seqno` or below."""
        self._point = self.kept.loaded.undo_point(seqno)
        return self._point

    def on_opened(self, position: Position, log: FailoverLog) -> list[Effect]:
        """Take note of a position that was accepted, in the history that `log` ends with."""
        point, self._point = self._point, None
        old, newest = self.kept, log[0]
        effects: list[Effect] = []
        if point is not None:
            effects = [Rewind(self.partition_id, point, newest.uuid, newest.branch)]
        if point == 0 or self._is_behind_a_purge(position):
            effects += self._load_anew(position, log)
        else:
            is_new = not old.failover_log or old.failover_log[0].uuid != newest.uuid
            is_new = is_new and not self._is_durable_only
            is_dirty = is_new or point is not None or old.is_undoing
            replaced = self._ring.above(position.seqno) if is_dirty else ()
            kept = replace(old, position=position, failover_log=log, is_undoing=bool(replaced))
            if position.seqno == 0:
                kept = replace(kept, loaded=old.loaded.forgot(position.purge_seqno or 0))
            effects += [] if kept == old else [self._keep(kept)]
            self._replaced = frozenset(replaced)
            self._to_fetch = tuple(sorted({entry.key for entry in replaced}))
        self._asks_high = self.kept.loaded.is_loading and position.seqno == 0
        return effects

    def _is_behind_a_purge(self, position: Position) -> bool:
        """Whether what was applied, but not counted, at 0 may have been deleted and forgotten."""
        if position.seqno or not self._ring.entries:
            return False
        purge_seqno = position.purge_seqno
        return purge_seqno is None or purge_seqno != self.kept.position.purge_seqno

    def _load_anew(self, position: Position, log: FailoverLog) -> list[Effect]:
        before = self.kept.loaded
        kept = Kept(position, log, before.begun(before.load + 1, position.purge_seqno or 0))
        return [self._keep(kept), *self._forget(self._ring.entries)]

    def on_answer(self, answer: Answer) -> list[Effect]:
        """Take the answer to `question`."""
        if not self._to_fetch:
            self._asks_high = False
            return [] if answer.high_seqno else self._completed(self.kept)
        assert len(answer.documents) == len(self._to_fetch[:FETCH_KEYS_MAX])
        entries = sorted(Recent(document.seqno, document.key) for document in answer.documents)
        self._to_fetch = self._to_fetch[FETCH_KEYS_MAX:]
        self._replaced -= set(entries)
        self._ring.add(entries)
        effects: list[Effect] = [
            Remember(self.partition_id, entries),
            Restore(self.partition_id, self.kept.loaded.load, answer.documents),
        ]
        if not self._to_fetch:
            effects.append(self._keep(replace(self.kept, is_undoing=False)))
            effects += self._forget(sorted(self._replaced))
        return effects

    def on_changes(self, frames: Sequence[bytes], position: Position) -> list[Effect]:
        """Take changes of one snapshot; `position` is where the reader stands after them."""
        changes = tuple(map(change_of, frames))
        entries = [Recent(change.seqno, change.key) for change in changes]
        self._ring.add(entries)
        newest = self.kept.failover_log[0]
        return [
            Remember(self.partition_id, entries),
            Apply(self.partition_id, self.kept.loaded.load, newest.uuid, newest.branch, changes),
            *self.on_moved(position),
        ]

    def on_moved(self, position: Position) -> list[Effect]:
        """Take note of a position reached; a closed one is the end of a snapshot."""
        assert self.question is None, "the question comes first"
        if position == self.kept.position:
            return []
        kept = self.kept
        if not position.is_closed:
            return self._moved(replace(kept, position=position))
        is_purge_known = kept.position.purge_seqno is not None
        loaded = kept.loaded
        if loaded.is_loading and not is_purge_known:
            loaded = loaded.forgot(position.seqno)
        return self._completed(replace(kept, position=position, loaded=loaded.swept()))

    # -- inside

    def _completed(self, kept: Kept) -> list[Effect]:
        """Return the effects of a complete snapshot: the first of a load sweeps."""
        if not self.kept.loaded.is_loading:
            return self._moved(kept)
        sweep = Sweep(self.partition_id, kept.loaded.load)
        return [sweep, *self._moved(replace(kept, loaded=kept.loaded.swept()))]

    def _moved(self, kept: Kept) -> list[Effect]:
        surplus = self._ring.surplus(kept.position.seqno)
        if surplus:
            kept = replace(kept, loaded=kept.loaded.forgot(surplus[-1].seqno))
        return [self._keep(kept), *self._forget(surplus)]

    def _keep(self, kept: Kept) -> Keep:
        self.kept = kept
        return Keep(self.partition_id, kept)

    def _forget(self, entries: Sequence[Recent]) -> list[Effect]:
        gone = tuple(entries)
        self._ring.drop(gone)
        return [Forget(self.partition_id, gone)] if gone else []
