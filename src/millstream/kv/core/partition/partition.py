"""One copy of a partition: hash table, seqnos, CAS, and the changes clients may make.

Every accepted change gets the next seqno and a new, larger CAS. It is encoded once as a canonical
stream frame; this one bytes object serves the hash table, the queue, the log and the streams.

Invariants:
1. A change first looks up the newest change of its key, in memory or in the log (`residents`). If
   that would wait for the disk it raises `NotInMemory`, before anything is changed.
2. CAS assigned here only grow within a partition, and the CAS of a key always grow, except for
   documents that are stored with given metadata (`with_meta`). Seqnos are dense and only grow
   within a history branch.
3. A change copies its key's lineage and adds a run only if the branch changed since the last one.
4. Nothing here reads a clock: `now_ns` (Unix time) comes with each call.
5. `on_plain` is called whenever `is_plain` or `is_linear` changes: requests read a partition
   without further checks only if it is plain, and write it so only if it is linear, too.
6. For a document with a sidecar the frame is the winning revision. Every change gives it the next
   sidecar (`revision_changes`).

Elsewhere: the request loop (`kv.core.session.session`), the flusher (`kv.aio.flusher`), streams
(`upr`).

Source: UPR design paper, "How KV's mutations flow into ep-engine and write queue".
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from millstream.kv.core.partition.acknowledgement import Acknowledged
from millstream.kv.core.partition.blobs import NOT_KEPT, Blobs
from millstream.kv.core.partition.counting import count
from millstream.kv.core.partition.expiry import Expiries, absolute_expiry
from millstream.kv.core.partition.locks import LOCKED_CAS, Locks
from millstream.kv.core.partition.memory import Memory
from millstream.kv.core.partition.read_copy import ReadCopy
from millstream.kv.core.partition.replica import Replica
from millstream.kv.core.partition.residents import Residents
from millstream.kv.core.partition.revision_changes import bury, put_over
from millstream.kv.core.partition.states import Unserved, refusal_in
from millstream.kv.core.queue.entry import value_of
from millstream.kv.core.queue.log_reader import LogReader
from millstream.kv.core.queue.mutation_queue import (
    QUEUE_BYTES_DEFAULT,
    Entry,
    MutationQueue,
)
from millstream.model.lineage import born, decode, with_run
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverLog
from millstream.model.sides import has_sidecar
from millstream.storage.core.new_keys import KeyPage
from millstream.storage.core.records import NOTHING_OWED, Owed
from millstream.storage.core.store import FlushBatch
from millstream.wire.frames import deletion, expiration, pack_mutation
from millstream.wire.mcbp import Status

__all__ = ["Entry", "Partition", "absolute_expiry", "value_of"]

_cas_seqno_rev = Struct(">16xQQQ").unpack_from
_FLAGS_EXPIRY: Final = Struct(">40xII")
_MUTATION: Final = 0x57
_SECOND_NS: Final = 1_000_000_000


def _nobody_asks(partition_id: int) -> None: ...


class Partition(ReadCopy):
    """One copy of one partition. Methods that change documents return the frame or a status.

    Only an active copy changes documents by itself. Any other copy takes changes through its
    `replica`.
    """

    __slots__ = (
        "_birth_prefix",
        "_branch_seqno",
        "_log",
        "acknowledged",
        "activated_seqno",
        "awaited_seqno",
        "blobs",
        "bucket_uuid",
        "design_keys",
        "doubtful_seqno",
        "epoch",
        "expired_total",
        "expiries",
        "failover_log",
        "is_suspended",
        "last_branch",
        "last_cas",
        "locks",
        "on_plain",
        "partition_id",
        "persisted_seqno",
        "purge_seqno",
        "queue",
        "replica",
        "residents",
        "state",
        "table",
        "unserved",
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
        state: PartitionState = PartitionState.ACTIVE,
        last_branch: int = 0,
        top_seqno: int = 0,
        range_end: int = 0,
        owed: Owed = NOTHING_OWED,
        memory: Memory | None = None,
    ) -> None:
        """Restore the durable state.

        Args:
            partition_id: number of the partition.
            failover_log: newest first.
            high_seqno: the newest mark.
            purge_seqno: below it tombstones may be gone.
            is_resident: all existing keys are in the table.
            log: to read what is not in memory.
            last_cas: the largest one known.
            queue_bytes_max: target bound of the queue.
            state: state of this copy.
            last_branch: the largest known branch, if larger than that of the log.
            top_seqno: of the newest record, if above the mark.
            range_end: end of the unfinished snapshot of a copy.
            owed: what a copy that is not active must have again before it counts.
            memory: of the bucket; None: there is no quota.
        """
        self.partition_id = partition_id
        self.activated_seqno = 0
        """Its seqno when it last became active by a move or a promotion."""
        self.state = state
        self.epoch = 0
        """Grows when data that readers of this copy hold, or wait for, may be gone."""
        self.doubtful_seqno = 0
        """No write waits any longer for changes at or below this to be durable."""
        self.is_suspended = False
        """Documents are refused for the moment: the state or the history is about to change."""
        self.unserved: Unserved = ""
        """What an active copy refuses because it has no right to serve; "": nothing."""
        self.failover_log = failover_log
        self.last_branch = max(last_branch, failover_log[0].branch)
        self.purge_seqno = purge_seqno
        self.persisted_seqno = high_seqno
        self.residents = Residents(partition_id, log, memory or Memory(), is_complete=is_resident)
        self.residents.on_sidecars = self._on_sidecars
        self.table = self.residents.table
        """The table of `residents`, for the hot path."""
        self.blobs: Blobs = NOT_KEPT
        """Set by its bucket."""
        self.bucket_uuid = ""
        """Set by its bucket: ids of revisions are computed from it."""
        self.queue = MutationQueue(max(top_seqno, high_seqno), queue_bytes_max)
        self.last_cas = last_cas
        self.locks = Locks()
        self.expiries = Expiries()
        """Its documents that expire next; `kv.aio.pager` gives it room."""
        self.expired_total = 0
        self.on_plain: Callable[[int], None] = _nobody_asks
        self.acknowledged: Acknowledged | None = None
        """What other copies have of it; None: there was never another one."""
        self.awaited_seqno = 0
        """A write waits until other copies have this change on their disks."""
        self.design_keys: set[bytes] = set()
        """Keys under which it has, or had, design documents; all partitions of a bucket share one
        set, see `design_documents`."""
        self._log = log
        self._branch_seqno = high_seqno
        self._birth_prefix = born(failover_log[0].branch, 0)[:-1]
        is_active = state is PartitionState.ACTIVE
        self.replica = None if is_active else Replica(self, high_seqno, range_end, owed)

    # -- reading

    @property
    def is_plain(self) -> bool:
        """Return whether its documents may be read without further checks."""
        return not self.locks and self.refusal is None

    @property
    def is_linear(self) -> bool:
        """Return whether no document here has a sidecar, as far as is known."""
        return not self.residents.has_sidecars

    @property
    def refusal(self) -> Status | None:
        """Return the status that refuses document requests; None if they are served."""
        if self.is_suspended:
            return Status.ETMPFAIL
        return refusal_in(self.state) or (Status.ETMPFAIL if self.unserved == "all" else None)

    @property
    def memory_floor(self) -> int:
        """Return the seqno above which `memory_slice` serves changes."""
        return self.queue.floor

    def entry(self, key: bytes) -> Entry | None:
        """Return the newest change of the key, tombstones included; see `Residents.find`."""
        return self.residents.find(key)

    def former(self, key: bytes) -> tuple[Entry | None, int]:
        """Return the newest change of the key and its seqno, 0 if there is none.

        The entry may be missing if its seqno is below the queue's floor: it is not read for this.
        """
        entry = self.table.get(key)
        if entry is None and not self.residents.is_complete:
            seqno = self._log.newest_seqno(self.partition_id, key)
            if seqno <= self.queue.floor:
                return None, seqno
            entry = self.entry(key)
        return entry, _cas_seqno_rev(entry.frame)[1] if entry is not None else 0

    def newest(self, key: bytes) -> bytes | None:
        """Return the frame of the newest change of the key, tombstones included."""
        entry = self.entry(key)
        return None if entry is None else entry.frame

    def live(self, key: bytes, now_ns: int) -> bytes | None:
        """Return the frame of an existing document; one that is due is expired first."""
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
        """Turn a document reported as due into an expiration; return whether it was due."""
        if self.refusal is not None:
            return False
        before = self.expired_total
        frame = self.live(key, now_ns)
        if frame is not None:
            expiry: int = _FLAGS_EXPIRY.unpack_from(frame)[1]
            if expiry:
                self.expiries.add(key, expiry)
        return self.expired_total != before

    def known_keys(self) -> list[bytes]:
        """Return the keys of all entries, tombstones included; reads the log if needed."""
        return self.residents.keys()

    def page(self, low: bytes, high: bytes, count: int, *, descending: bool) -> list[bytes]:
        """Return at most `count` keys of [low, high) in order; fewer if the range is finished.

        In descending order from its end if `descending`. Tombstones are included, and perhaps keys
        that are gone.
        """
        page = KeyPage(low, high, count, descending=descending)
        page.add(self._log.page(self.partition_id, low, high, count, descending=descending))
        self.queue.add_unflushed_keys(page, self.purge_seqno)
        return page.keys

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

        A non-zero `cas` must equal the stored one: KEY_ENOENT if there is no document, KEY_EEXISTS
        if it differs. LOCKED: the document is locked with another `cas`.
        """
        if cas or self.locks:
            status = self.check_cas(key, cas, now_ns)
            if status is not None:
                return status
        entry = None if self.is_linear else self.entry(key)
        if entry is not None and has_sidecar(entry.side):
            frame = put_over(self, entry, value, flags, expiry, datatype, now_ns)
        else:
            frame = self.store(key, key + value, flags, expiry, datatype, now_ns)
        if self.locks:
            self.drop_lock(key)
        return frame

    def store(
        self, key: bytes, tail: bytes, flags: int, expiry: int, datatype: int, now_ns: int
    ) -> bytes:
        """Set the document, whatever is there; hot path. `tail` is the key, then the value."""
        entry, residents = self.table.get(key), self.residents
        if entry is None and not residents.is_complete:
            entry = residents.find(key)
            if entry is not None and has_sidecar(entry.side):
                return put_over(self, entry, tail[len(key) :], flags, expiry, datatype, now_ns)
        queue = self.queue
        seqno = queue.high_seqno + 1
        new_cas = self.last_cas = now_ns if now_ns > self.last_cas else self.last_cas + 1
        if entry is None:
            old, old_seqno, rev = b"", 0, 1
            entry = residents.add(key, old, self._birth_prefix + _varint(seqno))
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
        residents.memory.table_bytes += len(frame) - len(old)
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
        if seqno > queue.tail_end:
            block = queue.open_slot(seqno)
        block.append(entry, frame, old_seqno)
        queue.high_seqno = seqno
        return frame

    def _add_run(self, entry: Entry, rev: int) -> None:
        """Add a run if the branch changed since the key was written; the first alone is none."""
        branch = self.failover_log[0].branch
        if decode(entry.side).runs[-1][0] != branch:
            self.residents.replace(entry, entry.frame, with_run(entry.side, branch, rev))

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
        status = self.check_cas(key, cas, now_ns)
        if status is not None:
            return status
        return self._bury(key, now_ns // _SECOND_NS, now_ns, deletion)

    def wipe(self, key: bytes, upto: int, now_ns: int) -> None:
        """Delete a document, locked or not, unless it was changed after seqno `upto`."""
        if self.refusal is not None or self.unserved:
            return
        frame = self.live(key, now_ns)
        if frame is not None and _cas_seqno_rev(frame)[1] <= upto:
            self._bury(key, now_ns // _SECOND_NS, now_ns, deletion)

    def touch(self, key: bytes, expiry: int, now_ns: int) -> bytes | Status:
        """Set the expiry of the document (absolute Unix seconds, 0 never)."""
        frame = self.live(key, now_ns)
        if frame is None:
            return Status.KEY_ENOENT
        flags = _FLAGS_EXPIRY.unpack_from(frame)[0]
        return self.put(key, value_of(frame), flags, expiry, 0, frame[5], now_ns)

    def count(
        self, key: bytes, delta: int, initial: int, expiry: int, cas: int, now_ns: int
    ) -> tuple[bytes, int] | Status:
        """See `counting.count`."""
        return count(self, key, delta, initial, expiry, cas, now_ns)

    def next_cas(self, now_ns: int, old_cas: int = 0) -> int:
        """Return the CAS of the next change, larger than any here and than `old_cas`."""
        self.last_cas = max(now_ns, self.last_cas + 1, old_cas + 1)
        return self.last_cas

    def succeed(self, entry: Entry, now_ns: int) -> tuple[int, int, int]:
        """Return the seqno of an entry's change, and rev and CAS of its successor."""
        old_cas, old_seqno, old_rev = _cas_seqno_rev(entry.frame)
        if old_seqno <= self._branch_seqno:
            self._add_run(entry, old_rev + 1)
        return old_seqno, old_rev + 1, self.next_cas(now_ns, old_cas)

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

    def check_cas(self, key: bytes, cas: int, now_ns: int) -> Status | None:
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

        KEY_ENOENT: there is none. LOCKED: it is locked already. ETMPFAIL: too many are locked.
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
        """Unlock by CAS (KEY_ENOENT, NOT_LOCKED, LOCKED with another CAS)."""
        if self.live(key, now_ns) is None:
            return Status.KEY_ENOENT
        lock_cas = self.locks.cas_of(key, now_ns)
        if lock_cas != cas:
            return Status.LOCKED if lock_cas else Status.NOT_LOCKED
        self.drop_lock(key)
        return None

    def shown_cas(self, frame: bytes, key: bytes, now_ns: int) -> int:
        """Return the CAS that readers see of a document."""
        is_locked = self.locks and self.locks.cas_of(key, now_ns)
        return LOCKED_CAS if is_locked else _cas_seqno_rev(frame)[0]

    def drop_ended_locks(self, now_ns: int) -> None:
        """Remove expired locks; called from time to time."""
        if self.locks:
            self.locks.drop_ended(now_ns)
            if not self.locks:
                self.on_plain(self.partition_id)

    def drop_lock(self, key: bytes) -> None:
        """Remove the lock of a document; does nothing if there is none."""
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
        if has_sidecar(entry.side):
            frame = bury(self, entry, time_s, now_ns, encode)
        else:
            old, seqno = entry.frame, self.queue.high_seqno + 1
            old_seqno, rev, cas = self.succeed(entry, now_ns)
            frame = encode(self.partition_id, key, seqno, rev, cas, time_s)
            self.residents.replace(entry, frame, entry.side)
            self.queue.append(entry, frame, old_seqno, old)
        if self.locks:
            self.drop_lock(key)
        return frame

    def _on_sidecars(self) -> None:
        self.on_plain(self.partition_id)

    # -- states (moves between them: `moves`)

    def suspend(self) -> None:
        """Refuse documents for the moment."""
        self.is_suspended = True
        self.on_plain(self.partition_id)

    def resume(self) -> None:
        """Serve documents again, in its current state."""
        self.is_suspended = False
        self.on_plain(self.partition_id)

    def begin_branch(self) -> None:
        """Begin a branch: later writes belong to the newest entry of the failover log."""
        self._branch_seqno = self.queue.high_seqno
        self._birth_prefix = born(self.failover_log[0].branch, 0)[:-1]

    def replace_log(self, log: FailoverLog) -> None:
        """Replace the failover log; if the history differs, readers must ask anew."""
        if log[0] != self.failover_log[0]:
            self.epoch += 1
        self.failover_log = log

    # -- the flusher

    @property
    def is_dirty(self) -> bool:
        """Return whether the log lacks changes that no commit has taken yet."""
        queue, replica = self.queue, self.replica
        return queue.high_seqno != queue.frozen_seqno or (replica is not None and replica.is_dirty)

    def freeze(self) -> FlushBatch:
        """Return what a flush must write up to the present high, and mark it as frozen."""
        if self.replica is not None:
            return self.replica.freeze()
        frozen = self.queue.freeze()
        return frozen.batch(self.partition_id, has_sidecars=self.residents.has_sidecars)

    def persisted(self, seqno: int) -> None:
        """Everything up to `seqno` is durable."""
        assert self.persisted_seqno <= seqno <= self.queue.frozen_seqno
        self.persisted_seqno = seqno if self.replica is None else self.replica.frozen_mark
        self.queue.trim(seqno)


def _varint(number: int) -> bytes:
    return born(0, number)[1:]
