"""One copy of a partition: hash table, seqnos, CAS, and the changes clients may make.

Every accepted change takes the next seqno and a new, larger CAS, is encoded once as a canonical
stream frame, and that one bytes object serves the hash table, the queue, the log and the streams.

Invariants:
1. `table[key]` holds the newest change of the key, tombstones included; what is absent may be in
   the log unless `is_resident`.
2. CAS only grows within a partition; seqnos are dense and only grow within a history branch.
3. A change copies its key's lineage and adds a run only if the branch changed since the last one.
4. Nothing here reads a clock: `now_ns` (Unix time) comes with each call.
5. `on_plain` is called whenever `is_plain` changes: only a plain partition is read and written
   without further questions.

Elsewhere: the request loop (`kv.core.session`), the flusher (`kv.aio.flusher`), streams (`upr`).

Source: UPR design paper, "How KV's mutations flow into ep-engine and write queue".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, Protocol

from millstream.kv.core.expiry import Expiries
from millstream.kv.core.holds import with_kept
from millstream.kv.core.locks import LOCKED_CAS, Locks
from millstream.kv.core.mutation_queue import (
    QUEUE_BYTES_DEFAULT,
    Entry,
    FrozenChanges,
    MutationQueue,
)
from millstream.model.lineage import born, with_run
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverLog
from millstream.upr.core.source import Hold, Reader
from millstream.wire.frames import deletion, expiration, mutation, pack_mutation
from millstream.wire.mcbp import Status

__all__ = ["Entry", "LogReader", "Partition", "absolute_expiry"]

_cas_seqno_rev = Struct(">16xQQQ").unpack_from
_FLAGS_EXPIRY: Final = Struct(">40xII")
_MUTATION: Final = 0x57
_RELATIVE_SECONDS_MAX: Final = 30 * 24 * 3600
_COUNTER_MODULUS: Final = 1 << 64
_NO_CREATE: Final = 0xFFFFFFFF
_SECOND_NS: Final = 1_000_000_000


class LogReader(Protocol):
    """What a partition asks of the document store."""

    def find(self, partition_id: int, key: bytes) -> Entry | None:
        """Return the newest record of the key as an entry, tombstones included."""

    def backfill(
        self, partition_id: int, after: int, upto: int, at: int, superseded: set[int]
    ) -> Iterator[tuple[list[bytes], int]]:
        """Yield frames of (after, upto] that nothing up to `at` replaces, with what they cover.

        `superseded`: records that changes replaced which the log need not have yet. Blocks.
        """

    def newest_mark(self, partition_id: int, seqno: int) -> int:
        """Return the newest mark at or below `seqno` that can be read as of, 0 if none."""

    def keys(self, partition_id: int) -> Iterator[bytes]:
        """Yield the keys that have a record; blocks."""


def _nobody_asks(partition_id: int) -> None: ...


def absolute_expiry(expiry: int, now_ns: int) -> int:
    """Return Unix seconds: 0 stays never; up to 30 days count from now."""
    if 0 < expiry <= _RELATIVE_SECONDS_MAX:
        return now_ns // _SECOND_NS + expiry
    return expiry


class Partition:
    """The active copy of one partition. Methods that change it return the frame or a status."""

    __slots__ = (
        "_birth_prefix",
        "_branch_seqno",
        "_log",
        "expired_total",
        "expiries",
        "failover_log",
        "is_resident",
        "last_cas",
        "locks",
        "on_plain",
        "partition_id",
        "persisted_seqno",
        "purge_seqno",
        "queue",
        "state",
        "table",
    )

    def __init__(
        self,
        partition_id: int,
        *,
        failover_log: FailoverLog,
        high_seqno: int,
        purge_seqno: int,
        is_resident: bool,
        log: LogReader,
        last_cas: int = 0,
        queue_bytes_max: int = QUEUE_BYTES_DEFAULT,
    ) -> None:
        self.partition_id = partition_id
        self.state = PartitionState.ACTIVE
        self.failover_log = failover_log
        self.purge_seqno = purge_seqno
        self.persisted_seqno = high_seqno
        self.is_resident = is_resident
        self.table: dict[bytes, Entry] = {}
        self.queue = MutationQueue(high_seqno, queue_bytes_max)
        self.last_cas = last_cas
        self.locks = Locks()
        self.expiries = Expiries()
        """Its documents that expire next; `kv.aio.pager` gives it room."""
        self.expired_total = 0
        self.on_plain: Callable[[int], None] = _nobody_asks
        self._log = log
        self._branch_seqno = high_seqno
        self._birth_prefix = born(failover_log[0].branch, 0)[:-1]

    # -- reading

    @property
    def high_seqno(self) -> int:
        """The newest seqno given."""
        return self.queue.high_seqno

    @property
    def is_plain(self) -> bool:
        """Whether its documents may be read and written without further questions."""
        return not self.locks

    @property
    def memory_floor(self) -> int:
        """Seqnos above it are served by `memory_slice`."""
        return self.queue.floor

    def entry(self, key: bytes) -> Entry | None:
        """Return the newest change of the key, tombstones included."""
        entry = self.table.get(key)
        if entry is None and not self.is_resident:
            entry = self._log.find(self.partition_id, key)
            if entry is not None:
                self.table[key] = entry
        return entry

    def newest(self, key: bytes) -> bytes | None:
        """Return the frame of the newest change of the key, tombstones included."""
        entry = self.entry(key)
        return None if entry is None else entry.frame

    def live(self, key: bytes, now_ns: int) -> bytes | None:
        """Return the frame of a document that exists now; one that expired is expired first."""
        frame = self.newest(key)
        if frame is None or frame[1] != _MUTATION:
            return None
        expiry: int = _FLAGS_EXPIRY.unpack_from(frame)[1]
        if expiry and expiry <= now_ns // _SECOND_NS:
            self._bury(key, expiry, now_ns, expiration)
            self.expired_total += 1
            return None
        return frame

    def expire(self, key: bytes, now_ns: int) -> bool:
        """Turn a document that was said to be due into an expiration; return whether it was."""
        before = self.expired_total
        frame = self.live(key, now_ns)
        if frame is not None:
            expiry: int = _FLAGS_EXPIRY.unpack_from(frame)[1]
            if expiry:
                self.expiries.add(key, expiry)
        return self.expired_total != before

    def known_keys(self) -> list[bytes]:
        """Return the keys of all entries, tombstones included; reads the log if it must."""
        if self.is_resident:
            return list(self.table)
        return list({**dict.fromkeys(self._log.keys(self.partition_id)), **self.table})

    # -- changing

    def put(
        self,
        key: bytes,
        value: bytes,
        flags: int,
        expiry: int,
        cas: int,
        datatype: int,
        now_ns: int,
    ) -> bytes | Status:
        """Set the document. `expiry`: absolute Unix seconds, 0 never.

        A non-zero `cas` must equal the stored one: KEY_ENOENT if there is no document,
        KEY_EEXISTS if it differs. LOCKED: the document is locked with another `cas`.
        """
        if cas or self.locks:
            status = self._check_cas(key, cas, now_ns)
            if status is not None:
                return status
        frame = self.store(key, key + value, flags, expiry, datatype, now_ns)
        if self.locks:
            self._drop_lock(key)
        return frame

    def store(
        self, key: bytes, tail: bytes, flags: int, expiry: int, datatype: int, now_ns: int
    ) -> bytes:
        """Set the document, whatever is there; hot path. `tail` is the key, then the value."""
        entry = self.table.get(key)
        if entry is None and not self.is_resident:
            entry = self.entry(key)
        queue = self.queue
        seqno = queue.high_seqno + 1
        new_cas = self.last_cas = now_ns if now_ns > self.last_cas else self.last_cas + 1
        if entry is None:
            old, old_seqno, rev = b"", 0, 1
            entry = self.table[key] = Entry(key, old, self._birth_prefix + _varint(seqno))
        else:
            old = entry.frame
            old_cas, old_seqno, old_rev = _cas_seqno_rev(old)
            if old_cas >= new_cas:
                new_cas = self.last_cas = old_cas + 1
            rev = old_rev + 1
            if old_seqno <= self._branch_seqno:
                self._add_run(entry, rev)
        partition_id = self.partition_id
        frame = (
            pack_mutation(
                0x8057, len(key), 31 << 8 | datatype, partition_id, 31 + len(tail),
                partition_id, new_cas, seqno, rev, flags, expiry,
            )
            + tail
        )  # fmt: skip
        entry.frame = frame
        if expiry:
            self.expiries.add(entry.key, expiry)
        if old_seqno > queue.guarded_seqno:  # from here on `MutationQueue.append`, but its call
            former = queue.blocks[old_seqno >> 10]
            slot = old_seqno & 1023
            former.frames[slot] = b""
            if old_seqno > queue.frozen_seqno:
                old_seqno = former.previous[slot]
            queue.frame_bytes += len(frame) - len(old)
        elif old_seqno > queue.floor:
            queue.append(entry, frame, old_seqno, old)
            return frame
        else:
            queue.frame_bytes += len(frame)
        block = queue.tail
        if seqno & 1023 != len(block.frames):
            block = queue.open_slot(seqno)
        block.frames.append(frame)
        block.entries.append(entry)
        block.previous.append(old_seqno)
        queue.high_seqno = seqno
        return frame

    def _add_run(self, entry: Entry, rev: int) -> None:
        """The branch changed since the key was last written."""
        entry.lineage = with_run(entry.lineage, self.failover_log[0].branch, rev)

    def add(
        self, key: bytes, value: bytes, flags: int, expiry: int, datatype: int, now_ns: int
    ) -> bytes | Status:
        """Set the document unless it exists (KEY_EEXISTS)."""
        if self.live(key, now_ns) is not None:
            return Status.KEY_EEXISTS
        return self.put(key, value, flags, expiry, 0, datatype, now_ns)

    def replace(
        self,
        key: bytes,
        value: bytes,
        flags: int,
        expiry: int,
        cas: int,
        datatype: int,
        now_ns: int,
    ) -> bytes | Status:
        """Set the document if it exists (else KEY_ENOENT)."""
        if self.live(key, now_ns) is None:
            return Status.KEY_ENOENT
        return self.put(key, value, flags, expiry, cas, datatype, now_ns)

    def delete(self, key: bytes, cas: int, now_ns: int) -> bytes | Status:
        """Leave a tombstone (KEY_ENOENT if there is no document, else refused as `put`)."""
        if self.live(key, now_ns) is None:
            return Status.KEY_ENOENT
        status = self._check_cas(key, cas, now_ns)
        if status is not None:
            return status
        return self._bury(key, now_ns // _SECOND_NS, now_ns, deletion)

    def wipe(self, key: bytes, upto: int, now_ns: int) -> None:
        """Delete a document, locked or not, unless it was changed after seqno `upto`."""
        frame = self.live(key, now_ns)
        if frame is not None and _cas_seqno_rev(frame)[1] <= upto:
            self._bury(key, now_ns // _SECOND_NS, now_ns, deletion)

    def touch(self, key: bytes, expiry: int, now_ns: int) -> bytes | Status:
        """Give the document another expiry (absolute Unix seconds, 0 never)."""
        frame = self.live(key, now_ns)
        if frame is None:
            return Status.KEY_ENOENT
        flags = _FLAGS_EXPIRY.unpack_from(frame)[0]
        return self.put(key, value_of(frame), flags, expiry, 0, frame[5], now_ns)

    def count(
        self, key: bytes, delta: int, initial: int, expiry: int, cas: int, now_ns: int
    ) -> tuple[bytes, int] | Status:
        """Add `delta` to a counter kept as decimal text; return the frame and the new value.

        A sum wraps at 2**64; a negative delta stops at 0. On a miss the counter is created with
        `initial`, unless `expiry` is 0xffffffff (KEY_ENOENT). DELTA_BADVAL: not a number.
        """
        frame = self.live(key, now_ns)
        if frame is None:
            if expiry == _NO_CREATE:
                return Status.KEY_ENOENT
            if cas:
                return Status.KEY_ENOENT
            number, flags, expiry = initial, 0, absolute_expiry(expiry, now_ns)
        else:
            text = value_of(frame)
            if not text.isdigit() or len(text) > 20 or int(text) >= _COUNTER_MODULUS:
                return Status.DELTA_BADVAL
            number = int(text) + delta
            number = number % _COUNTER_MODULUS if delta >= 0 else max(0, number)
            flags, expiry = _FLAGS_EXPIRY.unpack_from(frame)
        if cas or self.locks:
            status = self._check_cas(key, cas, now_ns)
            if status is not None:
                return status
        return self._store_counter(key, b"%d" % number, flags, expiry, now_ns), number

    def _store_counter(
        self, key: bytes, value: bytes, flags: int, expiry: int, now_ns: int
    ) -> bytes:
        """As `store`, on the counters' side of the queue."""
        queue = self.queue
        entry = self.entry(key)
        if entry is None:
            lineage = self._birth_prefix + _varint(queue.high_seqno + 1)
            entry = self.table[key] = Entry(key, b"", lineage)
        old = entry.frame
        old_seqno, rev, cas = (
            self._succeed(entry, now_ns) if old else (0, 1, self._next_cas(now_ns))
        )
        entry.frame = frame = mutation(
            self.partition_id, key, value, queue.high_seqno + 1, rev, cas, flags, expiry, 0
        )
        queue.append_counter(entry, frame, old_seqno, old)
        if expiry:
            self.expiries.add(entry.key, expiry)
        if self.locks:
            self._drop_lock(key)
        return frame

    def _next_cas(self, now_ns: int, old_cas: int = 0) -> int:
        self.last_cas = max(now_ns, self.last_cas + 1, old_cas + 1)
        return self.last_cas

    def _succeed(self, entry: Entry, now_ns: int) -> tuple[int, int, int]:
        """Return the seqno of an entry's change, and rev and CAS of the one that follows it."""
        old_cas, old_seqno, old_rev = _cas_seqno_rev(entry.frame)
        if old_seqno <= self._branch_seqno:
            self._add_run(entry, old_rev + 1)
        return old_seqno, old_rev + 1, self._next_cas(now_ns, old_cas)

    def extend(
        self, key: bytes, before: bytes, after: bytes, cas: int, bytes_max: int, now_ns: int
    ) -> bytes | Status:
        """Put `before` and `after` around the document's value (NOT_STORED if absent)."""
        frame = self.live(key, now_ns)
        if frame is None:
            return Status.NOT_STORED
        value = before + value_of(frame) + after
        if len(value) > bytes_max:
            return Status.E2BIG
        flags, expiry = _FLAGS_EXPIRY.unpack_from(frame)
        return self.put(key, value, flags, expiry, cas, 0, now_ns)

    def _check_cas(self, key: bytes, cas: int, now_ns: int) -> Status | None:
        """Return why a change that names `cas` (0: any) is refused."""
        frame = self.live(key, now_ns)
        if frame is None:
            return Status.KEY_ENOENT if cas else None
        lock_cas = self.locks.cas_of(key, now_ns)
        if lock_cas:
            return None if cas == lock_cas else Status.LOCKED
        return None if not cas or cas == _cas_seqno_rev(frame)[0] else Status.KEY_EEXISTS

    # -- locks

    def lock(self, key: bytes, seconds: int, now_ns: int) -> tuple[bytes, int] | Status:
        """Lock the document; return its frame and the CAS that unlocks it.

        KEY_ENOENT: there is none. LOCKED: somebody has it. ETMPFAIL: too many are locked.
        """
        frame = self.live(key, now_ns)
        if frame is None:
            return Status.KEY_ENOENT
        if self.locks.cas_of(key, now_ns):
            return Status.LOCKED
        if self.locks.is_full:
            return Status.ETMPFAIL
        cas = self.last_cas = max(now_ns, self.last_cas + 1, _cas_seqno_rev(frame)[0] + 1)
        self.locks.take(key, cas, seconds, now_ns)
        self.on_plain(self.partition_id)
        return frame, cas

    def unlock(self, key: bytes, cas: int, now_ns: int) -> Status | None:
        """Give a lock up by its CAS (KEY_ENOENT, NOT_LOCKED, LOCKED with another CAS)."""
        if self.live(key, now_ns) is None:
            return Status.KEY_ENOENT
        lock_cas = self.locks.cas_of(key, now_ns)
        if lock_cas != cas:
            return Status.LOCKED if lock_cas else Status.NOT_LOCKED
        self._drop_lock(key)
        return None

    def shown_cas(self, frame: bytes, key: bytes, now_ns: int) -> int:
        """Return the CAS that readers see of a document."""
        is_locked = self.locks and self.locks.cas_of(key, now_ns)
        return LOCKED_CAS if is_locked else _cas_seqno_rev(frame)[0]

    def drop_ended_locks(self, now_ns: int) -> None:
        """Forget locks whose time is over; called now and then."""
        if self.locks:
            self.locks.drop_ended(now_ns)
            if not self.locks:
                self.on_plain(self.partition_id)

    def _drop_lock(self, key: bytes) -> None:
        self.locks.pop(key, None)
        if not self.locks:
            self.on_plain(self.partition_id)

    def _bury(
        self,
        key: bytes,
        time_s: int,
        now_ns: int,
        encode: Callable[[int, bytes, int, int, int, int], bytes],
    ) -> bytes:
        entry = self.table[key]
        old, seqno = entry.frame, self.queue.high_seqno + 1
        old_seqno, rev, cas = self._succeed(entry, now_ns)
        entry.frame = frame = encode(self.partition_id, key, seqno, rev, cas, time_s)
        self.queue.append(entry, frame, old_seqno, old)
        if self.locks:
            self._drop_lock(key)
        return frame

    # -- streams: the shape of upr.core.source.PartitionSource

    def open_hold(self, at: int | None = None, start: int | None = None) -> Hold | None:
        """Keep the state as of `at` readable; None if it is not.

        Readable are the present state (None), one that somebody holds, and marks of the log.
        `start`: what is at or below is not going to be read; None: nobody knows yet.
        """
        opened, is_logged = self.queue.open_hold(at), False
        if opened is None and at and self._log.newest_mark(self.partition_id, at) == at:
            opened, is_logged = (self.queue.holds.open_logged(at), at), True
        if opened is None:
            return None
        if start is not None:
            self.queue.holds.asked(opened[0], start)
        return Hold(*opened, is_logged)

    def release_hold(self, hold: Hold) -> None:
        """Give a hold up."""
        self.queue.release_hold(hold.hold_id)

    def is_held(self, hold: Hold) -> bool:
        """Return whether the hold's state can still be read."""
        return self.queue.is_held(hold.hold_id)

    def durable_mark(self) -> int:
        """Return the newest seqno that can be read as of and that nothing takes away, 0: none."""
        return self._log.newest_mark(self.partition_id, self.persisted_seqno)

    def add_reader(self, reader: Reader) -> None:
        """Keep in memory, within bounds, what the reader has still to read."""
        self.queue.readers.append(reader)

    def remove_reader(self, reader: Reader) -> None:
        """The reader has gone; harmless if it was not there."""
        if reader in self.queue.readers:
            self.queue.readers.remove(reader)

    def history_limit(self) -> int:
        """Versions whose successor is at or below it are read by nobody."""
        at = self.queue.holds.oldest_at()
        return self.high_seqno if at is None else at

    def purge_limit(self) -> int:
        """Tombstones at or below it are read by nobody."""
        start = self.queue.holds.lowest_start()
        starts = [reader.sent for reader in self.queue.readers]
        return min([self.high_seqno if start is None else start, *starts])

    def memory_slice(
        self, after: int, at: int, bytes_max: int, items_max: int
    ) -> tuple[list[bytes], int] | None:
        """See `MutationQueue.memory_slice`."""
        return self.queue.memory_slice(after, at, bytes_max, items_max)

    def backfill(
        self, after: int, at: int, *, is_logged: bool = False
    ) -> Iterator[tuple[list[bytes], int]]:
        """Yield frames as of `at` from the log, with what they cover.

        Of (after, at] if that is a mark of the log, else of (after, min(at, floor)]. Call it in
        the loop; run `next` in a thread.
        """
        if is_logged:
            return self._log.backfill(self.partition_id, after, at, at, set())
        queue = self.queue
        upto = min(at, queue.floor)
        superseded = queue.superseded_in_log(at)
        chunks = self._log.backfill(self.partition_id, after, upto, at, superseded)
        return with_kept(chunks, queue.kept_below(after, upto, at))

    # -- the flusher

    def freeze(self) -> FrozenChanges:
        """Return what a flush must write up to the present high."""
        return self.queue.freeze()

    def persisted(self, seqno: int) -> None:
        """Everything up to `seqno` is durable."""
        assert self.persisted_seqno <= seqno <= self.queue.frozen_seqno
        self.persisted_seqno = seqno
        self.queue.trim(seqno)


def value_of(frame: bytes) -> bytes:
    """Return the value of a mutation's frame."""
    return frame[55 + (frame[2] << 8 | frame[3]) :]


def _varint(number: int) -> bytes:
    return born(0, number)[1:]
