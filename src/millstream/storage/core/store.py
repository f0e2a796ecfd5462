"""The document store: group commits into the log, look-ups, scans, rollback, start and stop.

    encode (loop) -> append (any thread, one at a time) -> absorb (loop, in the order of appends)

Invariants:
1. What `append` returned from is durable; its batches end at marks.
2. `find` and by-id know a change only after `absorb`, so only after its fdatasync.
3. After a start without an accepted receipt the records above an active partition's last mark are
   dead and it has a new failover entry, durable before `open` returns. A copy that follows another
   keeps them: it goes on inside the snapshot it was receiving, and owes what it had in memory.
4. The receipt is gone before anything is appended; the engine withdraws it before it accepts the
   first mutation, also one that stays in memory.
5. A rollback is durable before by-id and the summaries follow it.

Elsewhere: files (`segment_log`), what is live (`live`), by-id (`by_id`), replay (`recovery`).

Source: docs/reference/file-format.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final

from millstream.errors import UnavailableError
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry
from millstream.ports.disk import Disk
from millstream.storage.core import branches
from millstream.storage.core.by_id import (
    Applied,
    ById,
    ByIdBatch,
    ByIdMap,
    ByIdValue,
    partition_prefix,
)
from millstream.storage.core.commit import (
    Changes,
    Control,
    EncodedCommit,
    control,
    encode_batches,
    encode_controls,
)
from millstream.storage.core.disk_errors import disk_error
from millstream.storage.core.live import LiveLog
from millstream.storage.core.receipt import Receipt, withdraw_receipt
from millstream.storage.core.reclaiming import Reclaiming
from millstream.storage.core.records import (
    ChangeColumns,
    Kind,
    LowPoints,
    StoredChange,
    clean_stop_record,
    key_of,
    named_change,
)
from millstream.storage.core.recovery import apply_rollback, bring_up, refuse_shorter, take_in
from millstream.storage.core.segment_log import LogSizes, SegmentLog
from millstream.storage.core.summary import PartitionSummary, RecoveredPartition

__all__ = [
    "EncodedCommit", "FlushBatch", "LogStore", "NewEntry", "RecoveredPartition", "StoredChange",
]  # fmt: skip

NewEntry = Callable[[int, int], FailoverEntry]
"""(seqno, last branch) -> a new entry of a larger branch."""
SEAL_AT_STOP_BYTES_MIN: Final = 4 * 1024 * 1024
"""A shorter last segment stays open at a clean stop: reading it takes some ten milliseconds."""
CHECK_AT_START_BYTES_MAX: Final = 64 * 1024 * 1024
"""Sealed segments read whole at a start, newest first; all of them by `verify`."""
FlushBatch = ChangeColumns
Alone = bool | Collection[int]


class LogStore:
    """The durable state of one bucket. See the module for which thread may call what."""

    def __init__(
        self, disk: Disk, log: SegmentLog, by_id: ById, live: LiveLog, new_entry: NewEntry
    ) -> None:
        self._disk = disk
        self._log = log
        self._by_id = by_id
        self.page = by_id.page
        """Returns the first keys of a range of a partition, in order; in the loop."""
        self.keys = by_id.keys
        """Yields a partition's keys that have a record, tombstones included, in no order. Blocks.
        After a power loss perhaps also some whose purged deletion was the last that by-id knew."""
        self.newest_change, self.versions = live.newest_change, live.versions
        self.sizes = live.sizes  # see `LiveLog`; all three block
        self.count_pending_by_id = by_id.count_pending
        """Returns how many keys the by-id map does not have the newest place of."""
        self.checksum_by_id, self.seal_by_id = by_id.checksum, by_id.seal
        self._live = live
        self._summaries = live.summaries
        self._changed = set[int]()
        self._prefixes = [partition_prefix(p) for p in range(len(live.summaries))]
        self._applied = Applied(log.log_id, log.place, log.checksum)
        self._new_entry = new_entry
        self._has_receipt = False
        self.reclaiming = Reclaiming(disk, live, by_id, self._changed)
        """What compaction may do to the log; see there for which thread."""
        self.appended_bytes = 0
        """Appended since the start."""
        self.replaced_total = 0
        """Records that replaced older ones of their keys since the start."""
        self.was_clean_stop = False
        """Whether the last stop was clean: no new failover entries were made."""
        self.is_new, self.log_id = log.is_new, log.log_id
        self.cut_bytes = log.cut_bytes
        """Length of a torn tail that was cut at start."""

    # -- start

    @classmethod
    def open(
        cls,
        disk: Disk,
        by_id: ByIdMap,
        *,
        partition_count: int,
        new_entry: NewEntry,
        sizes: LogSizes = LogSizes(),  # noqa: B008 - immutable
        is_alone: Alone = True,
        begins_absent: bool = False,
        known_id: bytes | None = None,
    ) -> LogStore:
        """Recover the store in a directory, or begin one. Blocks.

        Args:
            disk: the directory of the log.
            by_id: the map beside it; cleared and filled anew if it does not belong to the log.
                Closed when the store is, or if this raises.
            partition_count: fixed when the bucket was created.
            new_entry: makes the failover entry of a new branch.
            sizes: of segments.
            is_alone: no other node has copies (of these partitions). Else new partitions are
                absent, and an active copy comes back from an unclean stop as a replica.
            begins_absent: new partitions are, also where each node is alone with its share.
            known_id: as of `SegmentLog`.

        Raises:
            CorruptionError: records are damaged, or the log holds less than is known of it.
            UsageError: `newer_format`, `foreign_format`.
            UnavailableError: `disk_full`, `disk_failed`.
        """
        try:
            log = SegmentLog(disk, sizes, known_id=known_id)
            return cls._recover(
                disk, log, by_id, partition_count, new_entry,
                is_alone=is_alone, begins_absent=begins_absent or not is_alone,
            )  # fmt: skip
        except BaseException as error:  # also when interrupted: the map is not left open
            by_id.close(is_durable=False)
            if isinstance(error, OSError):
                raise disk_error(error, disk.describe("")) from error
            raise

    @classmethod
    def _recover(
        cls,
        disk: Disk,
        log: SegmentLog,
        by_id: ByIdMap,
        partition_count: int,
        new_entry: NewEntry,
        *,
        is_alone: Alone,
        begins_absent: bool,
    ) -> LogStore:
        receipt, ids = cls._accepts_receipt(disk, log), ById(by_id)
        refuse_shorter(log, ids)
        if log.is_sealed:
            log.roll()
        live = LiveLog(log, [PartitionSummary() for _ in range(partition_count)])
        is_built = bring_up(live, ids)
        log.open_index.killed.clear()
        store = cls(disk, log, ids, live, new_entry)
        store._changed.update(range(partition_count))
        store.was_clean_stop = store._has_receipt = receipt
        store._check_newest()
        store._write_controls(list(store._at_start(is_alone, begins_absent=begins_absent)))
        if not receipt:
            log.write_receipt()
        if is_built:
            store.commit_by_id()
        log.forget_files()
        return store

    @staticmethod
    def _accepts_receipt(disk: Disk, log: SegmentLog) -> bool:
        last = log.last_record
        if log.is_sealed or last is None or last.kind != Kind.CLEAN_STOP or not disk.boot_id():
            return False
        return log.receipt.receipt == Receipt(last.payload, log.identity(), disk.boot_id())

    def _check_newest(self) -> None:
        left = CHECK_AT_START_BYTES_MAX
        for number in reversed(self._log.numbers[:-1]):
            left -= self._log.end_of(number)
            if left < 0:
                return
            self._log.verify(number)

    def _at_start(self, is_alone: Alone, *, begins_absent: bool) -> Iterator[Control]:
        alone = range(len(self._summaries)) if is_alone is True else is_alone or ()
        for p, summary in enumerate(self._summaries):
            yield from () if p in alone else branches.take_over_ended(p, summary)
            if self.was_clean_stop:
                continue
            is_active = summary.state is PartitionState.ACTIVE
            if begins_absent and not summary.failover_log:
                yield from branches.with_all_owed(p, branches.absence(p, summary, self._new_entry))
            elif is_active and p in alone:
                yield from self._new_branch(p, summary.mark)
            else:
                yield branches.memory_owed(p, summary)
                if is_active or summary.top > summary.range_end:
                    yield from self._kill_above(p, summary.mark)
                if is_active:
                    yield control(Kind.STATE, p, PartitionState.REPLICA)

    def _new_branch(self, p: int, mark: int) -> Iterator[Control]:
        """Kill what lies above the mark and begin a new branch there."""
        yield from self._kill_above(p, mark)
        last_branch = self._summaries[p].last_branch
        entry = self._new_entry(mark, last_branch)
        assert entry.branch > last_branch
        assert entry.seqno == mark
        yield control(Kind.ENTRY, p, entry)

    def _kill_above(self, p: int, seqno: int) -> Iterator[Control]:
        summary = self._summaries[p]
        is_entered = any(entry.seqno > seqno for entry in summary.failover_log[:1])
        if summary.top > seqno or is_entered:  # a copy has its source's entries before the changes
            self._by_id.settle(p, self._find_places)
            yield control(Kind.ROLLBACK, p, seqno)

    def _write_controls(self, controls: Sequence[Control]) -> None:
        if controls:
            self.withdraw_receipt()
            commit = encode_controls(self._log.commit_record, controls)
            self._append(commit)
            self.absorb(commit)

    # -- state

    @property
    def partitions(self) -> list[RecoveredPartition]:
        """The durable state of all partitions."""
        return [self.partition(p) for p in range(len(self._summaries))]

    def partition(self, partition_id: int) -> RecoveredPartition:
        """Return the durable state of one partition."""
        return self._summaries[partition_id].recovered()

    # -- writing

    def encode(self, batches: Sequence[FlushBatch]) -> EncodedCommit:
        """Return one group commit; CPU only. Batches that say nothing are left out."""
        return encode_batches(self._log.commit_record, batches)

    def append(self, commit: EncodedCommit) -> None:
        """Write a commit and make it durable: one write a part, one fdatasync. Blocks.

        Raises:
            UnavailableError: `disk_full`: nothing was written, the same commit may be appended
                later; `disk_failed`: the store must be opened anew.
        """
        assert not self._has_receipt, "withdraw the receipt before the first mutation"
        self._append(commit)

    def _append(self, commit: EncodedCommit) -> None:
        log = self._log
        commit.place = log.append(*commit.parts)
        commit.end, commit.checksum = log.place, log.checksum
        self.appended_bytes += commit.size

    def is_quick(self, commit: EncodedCommit) -> bool:
        """Return whether `append` costs one small write and fdatasync: fit for the loop."""
        return self._log.is_quick(commit.size)

    def absorb(self, commit: EncodedCommit) -> None:
        """Make an appended commit known to `find`; in the loop, in the order of appends."""
        segment, offset = commit.place
        offset += len(self._log.commit_record)
        for piece in commit.pieces:
            if isinstance(piece, Changes):
                self._absorb_changes(piece, offset)
                offset += sum(piece.lengths)
            else:
                self._absorb_control(piece, segment, offset)
                offset += len(piece.data)
        self._applied = Applied(self._log.log_id, commit.end, commit.checksum)

    def _absorb_changes(self, changes: Changes, offset: int) -> None:
        p, seqnos, keys, previous_seqnos, tombstones, lengths, is_marked = changes
        self._log.open_index.add_batch(  # the next append, which may seal it, comes after this
            p, seqnos, previous_seqnos, offset, lengths,
            is_marked=is_marked, tombstones=tombstones,
        )  # fmt: skip
        summary = self._summaries[p]
        self._by_id.note(p, keys, seqnos, changes.new_keys(summary.low_points.purge_seqno))
        assert seqnos[0] > summary.top
        summary.on_change(seqnos[-1], is_mark=is_marked)
        self._changed.add(p)
        self.replaced_total += len(seqnos) - previous_seqnos.count(0)

    def _absorb_control(self, control: Control, segment: int, offset: int) -> None:
        kind, p, _, content = control
        index = self._log.open_index
        if kind == Kind.MARK:
            index.of(p).marks.append(content)
        else:
            index.controls.append(offset)
        if kind == Kind.CLEAN_STOP:
            return
        if kind == Kind.ROLLBACK:
            killed = index.cut(p, content)
            apply_rollback(self._live, self._by_id, p, content, segment, killed)
        else:
            take_in(self._summaries[p], kind, content)
        self._changed.add(p)

    def set_low_points(self, points: Mapping[int, tuple[int, int]]) -> None:
        """Move (history_seqno, purge_seqno) of partitions, durably. No append may be under way."""
        controls = []
        for p, (history_seqno, purge_seqno) in points.items():
            summary = self._summaries[p]
            assert purge_seqno <= history_seqno <= summary.mark
            low_points = LowPoints(history_seqno, purge_seqno)
            controls.append(control(Kind.LOW_POINTS, p, low_points))
        self.withdraw_receipt()
        self._write_controls(controls)

    # -- reading

    def has_records(self, partition_id: int) -> bool:
        """Return False if nothing of the partition is on disk."""
        return self._summaries[partition_id].top > 0

    def find(self, partition_id: int, key: bytes) -> StoredChange | None:
        """Return the newest live record of a key, tombstones included. Blocks on the disk.

        Raises:
            CorruptionError: the record is damaged.
        """
        found = self.locate(partition_id, key)
        if found is None:
            return None
        change = self.read(partition_id, key, found)
        if change is None:
            self.refuse_absence(partition_id, found)
        return change

    def find_resident(self, partition_id: int, key: bytes) -> StoredChange | None:
        """Do what `find` does without waiting for the disk, but for pages of the by-id map.

        In the loop. Hot path of reading back.

        Raises:
            BlockingIOError: the record is not in memory; `locate` it and `read` it in a thread.
            CorruptionError: by-id is damaged.
        """
        found = self.locate(partition_id, key)
        if found is None:
            return None
        seqno, segment, offset = found
        data = self._log.read_record(segment, offset, may_wait=False)
        change = named_change(data, partition_id, key, seqno)
        if change is None:
            raise BlockingIOError("by-id names an old place")
        return change

    def locate(self, partition_id: int, key: bytes) -> ByIdValue | None:
        """Return seqno and place of the newest live record of a key; in the loop."""
        seqno = self._by_id.recent_seqno(partition_id, key)
        if seqno is None:
            return self._by_id.get(self._prefixes[partition_id] + key)
        for number in reversed(self._log.numbers):
            columns = self._log.recent_columns(number, partition_id)
            if columns is not None and (index := columns.find(seqno)) >= 0:
                return seqno, number, columns.offsets[index]
        raise AssertionError("what is recent is in the log")

    def read(self, partition_id: int, key: bytes, found: ByIdValue) -> StoredChange | None:
        """Return the record that `locate` found. Blocks; in any thread, while appends run.

        What changed meanwhile is told by another `locate`: the record is the key's newest one iff
        that finds the same seqno and nothing was rolled back. None: there is no such record.

        Raises:
            CorruptionError: the record is damaged.
        """
        seqno, segment, offset = found
        change = named_change(self._log.read_record(segment, offset), partition_id, key, seqno)
        if change is not None:
            return change
        for chunk in self._live.scan(partition_id, seqno - 1, seqno):
            if key_of(chunk[0].frame) == key:  # by-id may name what a compaction took away
                return chunk[0]
        return None

    def refuse_absence(self, partition_id: int, found: ByIdValue) -> None:
        """Refuse that there is no record that by-id names, unless it is a purged tombstone.

        Raises:
            CorruptionError: `by_id_damaged`.
        """
        if found[0] > self._summaries[partition_id].low_points.purge_seqno:
            raise self._by_id.says_wrong(partition_id, found)

    def _find_places(
        self, partition_id: int, seqnos: list[int], first_segment: int
    ) -> dict[int, tuple[int, int]]:
        """Return the places of sorted seqnos, all live, in segments from the first one on.

        And of others between them, where that is cheaper than to leave them out.
        """
        places: dict[int, tuple[int, int]] = {}
        for number in self._log.numbers:
            if number < first_segment:
                continue
            columns = self._log.recent_columns(number, partition_id)
            if columns is None or not columns.seqnos:
                continue
            places.update(columns.places(number, seqnos))  # a later segment's record is live
        return places

    def keys_beginning(self, prefix: bytes) -> list[set[bytes]]:
        """Return the keys with a prefix by partition, also some that are gone; nothing appends."""
        return self._by_id.keys_beginning(prefix, len(self.partitions))

    def scan(
        self, partition_id: int, after: int, upto: int, skip: Collection[int] = ()
    ) -> Iterator[list[StoredChange]]:
        """Yield live records with after < seqno <= upto, seqno ascending, in bounded chunks.

        Blocks; safe in a thread while appends run. Older versions of a key come too, unless they
        are in `skip` (see `superseded`); skipped ones are not read.

        Raises:
            CorruptionError: a record is damaged; names file and offset.
        """
        return self._live.scan(partition_id, after, upto, skip)

    def scan_frames(
        self, partition_id: int, after: int, upto: int, skip: Collection[int] = (), **form: bool
    ) -> Iterator[tuple[list[bytes], int]]:
        """Yield (frames, seqno of the last one) of the same records: as `scan`, but faster.

        With `is_described` each has its description in front.
        """
        return self._live.scan_frames(partition_id, after, upto, skip, **form)

    def superseded(self, partition_id: int, after: int, at: int) -> set[int]:
        """Return seqnos that records with after < seqno <= at replaced.

        A record is the newest of its key as of `at` iff it is not among them. Reads indexes only:
        some 25 bytes a record. Blocks.
        """
        return self._live.superseded(partition_id, after, at)

    def newest_mark(self, partition_id: int, seqno: int) -> int:
        """Return the newest mark <= `seqno` and >= history_seqno; 0 if there is none."""
        mark = self._live.newest_mark(partition_id, seqno)
        return mark if mark >= self._summaries[partition_id].low_points.history_seqno else 0

    def verify(self) -> int:
        """Read every sealed segment whole; return the bytes read. Blocks, long.

        Raises:
            CorruptionError: a segment is damaged; names file and offset.
        """
        return sum(self._log.verify(number) for number in self._log.numbers[:-1])

    # -- by-id

    def count_keys(self) -> int:
        """Return about how many keys have a record, tombstones included; at a start."""
        extra = 1 + len(self._summaries)  # what the map keeps beside them
        return max(0, self._by_id.count() - extra) + self._by_id.count_pending()

    def take_by_id(self) -> ByIdBatch:
        """Take what the map lacks; in the loop. `apply_by_id` must follow."""
        summaries = {p: self._summaries[p] for p in sorted(self._changed)}
        self._changed.clear()
        return self._by_id.take(self._applied, summaries)

    def apply_by_id(self, batch: ByIdBatch) -> None:
        """Apply a batch in one transaction; one at a time."""
        for _ in self.by_id_steps(batch):
            pass

    def by_id_steps(self, batch: ByIdBatch) -> Iterator[None]:
        """Apply a batch in steps of a few milliseconds, for the loop; all in one thread."""
        try:
            yield from self._by_id.apply_steps(batch, self._find_places)
        except BaseException:  # also when its steps are not taken to the end
            self._changed.update(p for p, _ in batch.summaries)  # the next batch has them, too
            raise
        self._log.forget_indexes(before=batch.applied.place.segment)

    def commit_by_id(self) -> None:
        """Take and apply at once; only while nothing is absorbed elsewhere."""
        self.apply_by_id(self.take_by_id())

    # -- state, history, rollback, stop: no append, absorb or by-id application may be under way

    def set_state(self, partition_id: int, state: PartitionState) -> None:
        """Give this copy another part to play, in the same history. Durable on return."""
        self.set_states([partition_id], state)

    def set_states(self, partition_ids: Iterable[int], state: PartitionState) -> None:
        """Do the same for several copies, in one commit."""
        self._write_controls([c for p in partition_ids for c in branches.state_of_copy(p, state)])

    def promise(self, promised: Mapping[int, int], *, begins: bool = False) -> None:
        """See to it that later branches are larger, by partition, and that none of these serves.

        In one commit, durable on return. `begins`: these are new copies, replicas from now on.
        """
        controls = list[Control]()
        for p, branch in promised.items():
            controls += branches.promise(p, self._summaries[p], branch)
            if begins:
                controls += branches.state_of_copy(p, PartitionState.REPLICA)
        self._write_controls(controls)

    def activate(self, partition_id: int, branch: int | None = None) -> RecoveredPartition:
        """Make one copy active, see `activate_all`; return what it is now."""
        self.activate_all({partition_id: branch})
        return self.partition(partition_id)

    def activate_all(self, branch_of: Mapping[int, int | None]) -> None:
        """Make copies active in new histories, by partition, each from its newest mark on.

        In one commit, durable on return. A branch is the last promise; None: one above all.
        """
        summaries, new_entry = self._summaries, self._new_entry
        every = (branches.activation(p, summaries[p], new_entry, b) for p, b in branch_of.items())
        self._write_controls([*chain.from_iterable(every)])

    def remove(self, partition_ids: Iterable[int]) -> None:
        """Forget partitions: nothing is left but their last branches. Durable on return."""
        self.withdraw_receipt()
        controls = list[Control]()
        for p in partition_ids:
            absence = branches.absence(p, self._summaries[p], self._new_entry)
            controls += branches.with_all_owed(p, [*self._kill_above(p, 0), *absence])
        self._write_controls(controls)

    def roll_back(self, partition_id: int, seqno: int) -> RecoveredPartition:
        """Go back to the newest mark <= `seqno` not below history_seqno; empty if there is none.

        On an active copy a new branch begins there. Durable on return. Scans of the partition that
        were begun before may go on and read what is dead now: their readers must be told.
        """
        self.withdraw_receipt()
        summary = self._summaries[partition_id]
        mark = self.newest_mark(partition_id, seqno)
        if summary.state is PartitionState.ACTIVE:
            controls = self._new_branch(partition_id, mark)
        else:
            controls = branches.with_all_owed(partition_id, self._kill_above(partition_id, mark))
        self._write_controls([*controls])
        return self.partition(partition_id)

    def withdraw_receipt(self) -> None:
        """Give up the clean stop, before the first mutation is accepted. Once; then free."""
        if self._has_receipt:
            if not withdraw_receipt(self._disk):
                self._log.write_receipt()
            self._has_receipt = False

    def stop(self) -> None:
        """Stop cleanly: everything was appended and absorbed. Blocks; closes the store.

        A large last segment is sealed: the next start reads its index instead of its records.
        """
        self.withdraw_receipt()
        if self._log.end > SEAL_AT_STOP_BYTES_MIN:
            with suppress(UnavailableError):  # then it is read whole
                self._log.roll()
        receipt = self._disk.random_bytes(16)
        self._write_controls([Control(Kind.CLEAN_STOP, 0, clean_stop_record(receipt))])
        self.commit_by_id()
        self._by_id.close(is_durable=True)
        log = self._log
        log.write_receipt(Receipt(receipt, log.identity(), self._disk.boot_id()))
        log.close()

    def close(self) -> None:
        """Close without a receipt, as a crash would."""
        self._by_id.close(is_durable=False)
        self._log.close()
