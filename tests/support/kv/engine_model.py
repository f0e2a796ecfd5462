"""What a partition must do and hold, in plain lists: slow, obviously right, knows every change.

Written from the documents, not from the product: who may be changed how, which seqno, CAS, rev and
lineage a change gets, what a reader sees as of a seqno, what a crash may take.

Invariants:
1. Change n of the present history stands at `history[n - 1]`, for ever, until a crash or a
   rollback takes it. None: a change that the copy was never sent, a newer one of its key having
   come in the same snapshot.
2. Nothing here asks the product for anything but the encoding of frames and lineages, and what
   becomes of revisions (`documents`).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from millstream.documents.stored import Packed, by_kv, load, pack
from millstream.model.lineage import Lineage, encode
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.model.sides import side_of
from millstream.wire.frames import deletion, described, expiration, mutation
from millstream.wire.mcbp import Datatype, Status
from support.http.revised_documents import with_leaf

SECOND = 1_000_000_000
BUCKET = "00"
"""Its uuid."""
FAILOVER_ENTRIES = 25
COUNTER_MODULUS = 1 << 64
NEVER_CREATE = 0xFFFFFFFF


class Made(NamedTuple):
    """One change: everything it means, and its bytes."""

    seqno: int
    key: bytes
    value: bytes | None  # None: a tombstone
    cas: int
    rev: int
    flags: int
    expiry: int
    datatype: int
    lineage: Lineage
    frame: bytes
    sidecar: bytes = b""


@dataclass
class PartitionModel:
    partition_id: int
    history: list[Made | None] = field(default_factory=list)
    entries: list[FailoverEntry] = field(default_factory=list)  # oldest first
    marks: set[int] = field(default_factory=lambda: {0})
    """Where commits were frozen: the seqnos at which a copy may come back."""
    acknowledged: int = 0
    """Durable: nothing takes it but a rollback."""
    history_seqno: int = 0
    purge_seqno: int = 0
    last_cas: int = 0
    forgotten: set[int] = field(default_factory=set)
    """Tombstones found to be purged: their keys begin anew."""
    past: dict[int, list[Made | None]] = field(default_factory=dict)
    """Branch -> all of its history, where a part was lost."""
    by_key: dict[bytes, list[int]] = field(default_factory=dict)
    """Seqnos of each key, ascending."""
    state: PartitionState = PartitionState.ACTIVE
    complete_end: int | None = None
    """Of a copy that is not active: where its last complete snapshot ends."""
    range_end: int = 0
    """Where the snapshot ends that it was last told of."""
    ranges: set[int] = field(default_factory=set)
    """Where all of them ended, since it began to follow."""
    logged: list[list[FailoverEntry]] = field(default_factory=list)
    """The entries that its log may have, while `entries` are what its source told it."""

    @property
    def high(self) -> int:
        return len(self.history)

    @property
    def shown(self) -> int:
        """What others may read up to."""
        return self.high if self.complete_end is None else self.complete_end

    # -- what readers see

    def newest(self, key: bytes, at: int | None = None) -> Made | None:
        seqnos = self.by_key.get(key, [])
        count = len(seqnos) if at is None else bisect_right(seqnos, at)
        return self.made(seqnos[count - 1]) if count else None

    def made(self, seqno: int) -> Made:
        found = self.history[seqno - 1]
        assert found is not None, f"change {seqno} was never sent"
        return found

    def as_of(self, at: int, after: int = 0) -> list[Made]:
        """The newest of each key as of `at`, those above `after`, by seqno."""
        newest = [self.newest(key, at) for key in self.by_key]
        return sorted(made for made in newest if made is not None and made.seqno > after)

    def documents(self, seqno: int, branch: int) -> dict[bytes, bytes]:
        """What a reader of that branch holds at a seqno, whatever was lost since."""
        history = self.past.get(branch, self.history)
        newest = {made.key: made.value for made in history[:seqno] if made is not None}
        return {key: value for key, value in newest.items() if value is not None}

    def may_be_gone(self, made: Made, purge_seqno: int | None = None) -> bool:
        """A tombstone that compaction may have purged; for a reader, when it began to read."""
        purge_seqno = self.purge_seqno if purge_seqno is None else purge_seqno
        return made.value is None and made.seqno <= purge_seqno

    # -- what happens to it

    def copy(self) -> PartitionModel:
        by_key = {key: list(seqnos) for key, seqnos in self.by_key.items()}
        return replace(
            self, history=list(self.history), entries=list(self.entries), marks=set(self.marks),
            forgotten=set(self.forgotten), by_key=by_key, past=dict(self.past),
        )  # fmt: skip

    def begin(self, entry: FailoverEntry) -> None:
        """A new stretch of history, after a start or a rollback."""
        kept = [old for old in self.entries if old.seqno <= entry.seqno]
        self.entries = [*kept, entry][-FAILOVER_ENTRIES:]

    def cut(self, seqno: int) -> None:
        """What is above `seqno` is gone."""
        if seqno < self.high and self.complete_end is None:
            for entry in self.entries:
                self.past.setdefault(entry.branch, list(self.history))
        del self.history[seqno:]
        for seqnos in self.by_key.values():
            del seqnos[bisect_right(seqnos, seqno) :]
        self.marks = {mark for mark in self.marks if mark <= seqno}
        self.forgotten = {gone for gone in self.forgotten if gone <= seqno}
        self.acknowledged = min(self.acknowledged, seqno)
        if self.complete_end is not None:
            self.complete_end = min(self.complete_end, seqno)
        if self.history_seqno > seqno:
            self.history_seqno = self.purge_seqno = 0

    def rollback_target(self, seqno: int) -> int:
        """The newest mark at or below `seqno` that can be restored; 0: emptied."""
        return max((m for m in self.marks if self.history_seqno <= m <= seqno), default=0)

    # -- what happens to a copy

    def follow(self) -> None:
        """It is not active any more, and has a complete snapshot of whatever comes next."""
        self.complete_end = self.range_end = self.high
        self.ranges, self.logged = set(), [list(self.entries)]

    def is_told_of(self, end: int) -> None:
        """A snapshot begins."""
        self.range_end = end
        self.ranges.add(end)

    def ends_beyond(self, seqno: int) -> set[int]:
        """Where the snapshot may end in which a change is; of those that were sent twice any."""
        return {end for end in self.ranges if end >= seqno}

    def receive(self, made: Made) -> None:
        """A change of the snapshot that it is inside of."""
        self.history += [None] * (made.seqno - self.high - 1)
        self.history.append(made)
        self.by_key.setdefault(made.key, []).append(made.seqno)
        self.last_cas = max(self.last_cas, made.cas)
        if made.seqno == self.range_end:
            self.complete_end = self.range_end

    def activate(self, source: PartitionModel) -> None:
        """It has ended to follow `source`; what it has of an unfinished snapshot counts."""
        for entry in source.entries:
            self.past.setdefault(entry.branch, list(source.history))
        self.complete_end = None

    def take_over(self, source: PartitionModel) -> None:
        """It goes on where `source` has stopped."""
        self.history, self.complete_end = list(source.history), None
        self.by_key = {key: list(seqnos) for key, seqnos in source.by_key.items()}

    # -- what clients do; each returns what the product must return

    def put(
        self, key: bytes, value: bytes, flags: int, expiry: int, cas: int, datatype: int, now: int
    ) -> bytes | Status:
        if cas:
            found = self.live(key, now)
            if found is None:
                return Status.KEY_ENOENT
            if found.cas != cas:
                return Status.KEY_EEXISTS
        return self._append(key, value, flags, expiry, datatype, now).frame

    def add(
        self, key: bytes, value: bytes, flags: int, expiry: int, datatype: int, now: int
    ) -> bytes | Status:
        if self.live(key, now) is not None:
            return Status.KEY_EEXISTS
        return self._append(key, value, flags, expiry, datatype, now).frame

    def replace(
        self, key: bytes, value: bytes, flags: int, expiry: int, cas: int, datatype: int, now: int
    ) -> bytes | Status:
        found = self.live(key, now)
        if found is None:
            return Status.KEY_ENOENT
        if cas and found.cas != cas:
            return Status.KEY_EEXISTS
        return self._append(key, value, flags, expiry, datatype, now).frame

    def delete(self, key: bytes, cas: int, now: int) -> bytes | Status:
        found = self.live(key, now)
        if found is None:
            return Status.KEY_ENOENT
        if cas and found.cas != cas:
            return Status.KEY_EEXISTS
        return self._append(key, None, 0, now // SECOND, 0, now).frame

    def give(
        self, key: bytes, value: bytes | None, flags: int, expiry: int, cas: int, rev: int,
        datatype: int, now: int,
    ) -> bytes:  # fmt: skip
        """Take a change as it was elsewhere, whatever is there; no rev has two bodies."""
        self.live(key, now)
        return self._append(key, value, flags, expiry, datatype, now, given=(cas, rev)).frame

    def touch(self, key: bytes, expiry: int, now: int) -> bytes | Status:
        found = self.live(key, now)
        if found is None or found.value is None:
            return Status.KEY_ENOENT
        return self._append(key, found.value, found.flags, expiry, found.datatype, now).frame

    def count(
        self, key: bytes, delta: int, initial: int, expiry: int, cas: int, now: int
    ) -> tuple[bytes, int] | Status:
        """`expiry` is 0 or `NEVER_CREATE`."""
        found = self.live(key, now)
        if found is None or found.value is None:
            if expiry == NEVER_CREATE or cas:
                return Status.KEY_ENOENT
            return self._append(key, b"%d" % initial, 0, expiry, 0, now).frame, initial
        text = found.value
        if not text.isdigit() or len(text) > 20 or int(text) >= COUNTER_MODULUS:
            return Status.DELTA_BADVAL
        if cas and found.cas != cas:
            return Status.KEY_EEXISTS
        number = int(text) + delta
        number = number % COUNTER_MODULUS if delta >= 0 else max(0, number)
        made = self._append(key, b"%d" % number, found.flags, found.expiry, 0, now)
        return made.frame, number

    def extend(
        self, key: bytes, before: bytes, after: bytes, cas: int, bytes_max: int, now: int
    ) -> bytes | Status:
        found = self.live(key, now)
        if found is None or found.value is None:
            return Status.NOT_STORED
        value = before + found.value + after
        if len(value) > bytes_max:
            return Status.E2BIG
        if cas and found.cas != cas:
            return Status.KEY_EEXISTS
        return self._append(key, value, found.flags, found.expiry, 0, now).frame

    def revise(self, key: bytes, packed: Packed, now: int) -> bytes:
        """Take a document as it was decided over HTTP."""
        old = self.newest(key)
        fields = 0, 0, int(Datatype.JSON)
        if old is not None and old.value is not None and old.value == packed.value:
            fields = old.flags, old.expiry, old.datatype
        if packed.value is None:
            fields = 0, now // SECOND, 0
        made = self._append(key, packed.value, *fields, now, sidecar=packed.sidecar)
        return made.frame

    def live(self, key: bytes, now: int) -> Made | None:
        """The document, if there is one; one whose time is over becomes a tombstone first."""
        found = self.newest(key)
        if found is None or found.value is None:
            return None
        if 0 < found.expiry <= now // SECOND:
            self._append(key, None, 0, found.expiry, 0, now, is_expired=True)
            return None
        return found

    def _append(
        self,
        key: bytes,
        value: bytes | None,
        flags: int,
        expiry: int,
        datatype: int,
        now: int,
        *,
        is_expired: bool = False,
        given: tuple[int, int] | None = None,
        sidecar: bytes = b"",
    ) -> Made:
        old = self.newest(key)
        if old is not None and old.seqno in self.forgotten:
            old = None
        seqno, branch, p = self.high + 1, self.entries[-1].branch, self.partition_id

        def framed(seqno: int, rev: int, cas: int) -> bytes:
            if value is not None:
                return mutation(p, key, value, seqno, rev, cas, flags, expiry, datatype)
            return (expiration if is_expired else deletion)(p, key, seqno, rev, cas, expiry)

        rev = old.rev + 1 if old else 1
        cas = max(now, self.last_cas + 1, old.cas + 1 if old else 0)
        is_there = False
        if given is not None:
            cas, given_rev = given
            is_there = old is not None and old.frame == framed(old.seqno, given_rev, cas)
            rev = given_rev if is_there else max(rev, given_rev)
        if old is None:
            lineage = Lineage(branch, seqno, ((branch, 1),))
        elif old.lineage.runs[-1][0] != branch:
            run = branch, rev + is_there
            lineage = old.lineage._replace(runs=(*old.lineage.runs, run))
        else:
            lineage = old.lineage
        frame = framed(seqno, rev, cas)
        if old is not None and old.sidecar and not sidecar:
            sidecar = old.sidecar
            if not is_there:
                sidecar = by_kv(BUCKET, key, side_bytes(old), value is None, branch, seqno, rev)
        made = Made(seqno, key, value, cas, rev, flags, expiry, datatype, lineage, frame, sidecar)
        self.history.append(made)
        self.by_key.setdefault(key, []).append(seqno)
        self.last_cas = max(self.last_cas, cas)
        return made


def side_bytes(made: Made) -> bytes:
    return side_of(encode(made.lineage), made.sidecar)


def described_bytes(made: Made) -> bytes:
    return described(made.frame, encode(made.lineage), made.sidecar)


def with_revision(made: Made | None, rev: str, body: bytes, *, is_deleted: bool) -> Packed:
    """What a document is to be with one more leaf."""
    found = None if made is None else load(BUCKET, made.key, made.frame, side_bytes(made))
    return pack(with_leaf(found, rev, body, is_deleted=is_deleted))
