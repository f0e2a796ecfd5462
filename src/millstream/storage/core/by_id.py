"""by-id: key -> newest record, as a map applied in bulk, and what waits for the next application.

    key: partition 2 | key        value: seqno 8 | segment 4 | offset 4
    key: ffff "applied"           value: log id 16 | segment 4 | offset 4 | checksum 4
    key: ffff | partition 2       value: summary of the partition at that place

Invariants:
1. The map holds only records that were durable in the log when they were applied, and with them,
   in one transaction, the place they reach and the summaries of the partitions there.
2. The log, not this map, carries durability: a map that was lost, or does not belong to the log,
   is built anew.
3. `get` sees pending changes, then those being applied, then the map.

Elsewhere: the map itself (`storage.aio.by_id`), building it (`recovery`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

from millstream.errors import CorruptionError
from millstream.storage.core.new_keys import KeyPage, NewKeys
from millstream.storage.core.segment_files import Place
from millstream.storage.core.summary import PartitionSummary

__all__ = [
    "BY_ID_DAMAGED",
    "PIECE_KEYS_MAX",
    "Applied",
    "ById",
    "ByIdBatch",
    "ByIdMap",
    "ByIdValue",
    "Piece",
    "partition_prefix",
]

_VALUE: Final = Struct(">QII")
_unpack_value: Final = _VALUE.unpack
_APPLIED: Final = Struct(">16sIII")
_APPLIED_KEY: Final = b"\xff\xffapplied"
_SUMMARY_PREFIX: Final = b"\xff\xff"
ByIdValue = tuple[int, int, int]
"""Seqno, segment and offset of a key's newest record."""


BY_ID_DAMAGED: Final = "by_id_damaged"
"""Code of the error that a damaged map raises."""
Piece = tuple[list[tuple[bytes, bytes]], list[bytes]]
"""Pairs to put, sorted by key, and keys to remove."""
UNMERGED_CHANGES_MAX: Final = 16 * 1024
"""Changes of one partition that wait to be merged: 3 ms. Of 64 even partitions none is merged
before by-id is brought up, unless it is asked."""
MERGED_KEYS_MAX: Final = 64 * 1024
"""Keys of one dictionary of merged changes."""
BOUND_BYTES_MAX: Final = 300
"""Most bytes of a bound of a page: more than any key has, and at most what the map takes."""
PIECE_KEYS_MAX: Final = 1024
"""Keys put in one step: about a millisecond."""


class ByIdMap(Protocol):
    """An ordered map of bytes; survives the death of the process, not that of the machine.

    What reads or writes raises a CorruptionError of code `BY_ID_DAMAGED` if the map is damaged;
    `clear` makes it usable again.
    """

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys, in their order."""

    def count(self) -> int:
        """Return how many keys there are."""

    def keys(self, prefix: bytes) -> Iterator[bytes]:
        """Yield the keys with a prefix, in order; holds no transaction between two of them."""

    def page(self, low: bytes, high: bytes, count: int, *, descending: bool) -> list[bytes]:
        """Return the first keys of [low, high), from its end if `descending`; `count` at most."""

    def apply_steps(self, pieces: Iterable[Piece]) -> Iterator[None]:
        """Put and remove piece by piece, in one transaction that ends with the last step.

        A generator: whoever runs it may do other things, but no other write, between two steps.
        """

    def clear(self) -> None:
        """Remove everything."""

    def checksum(self) -> tuple[int, str]:
        """Return the checksum of the pages, and of which state they are. Blocks; in any thread."""

    def seal(self, found: tuple[int, str]) -> None:
        """Let the next start compare the pages with a checksum, if nothing has changed since."""

    def distrust(self) -> None:
        """Let the next start rebuild the map: its content is wrong."""

    def close(self, *, is_durable: bool) -> None:
        """Close; `is_durable`: make everything durable first, so that a new boot may trust it."""


class Applied(NamedTuple):
    """How far the map goes: a place in the log, and the crc32 of its segment up to there."""

    log_id: bytes
    place: Place
    checksum: int


class Recent:
    """What the log got of one partition since the map was brought up to date.

    Columns are kept as they come and merged when they are asked for, so that a commit costs
    nothing per change; where many have come they are merged unasked, so that whoever asks first
    does not hold the loop. Pages need only the new keys, since the others are in the map or in
    what is older.
    """

    __slots__ = (
        "_columns",
        "_merged",
        "_merged_count",
        "_unmerged_changes",
        "count",
        "new_keys",
    )

    def __init__(self) -> None:
        self._columns: list[tuple[Sequence[bytes], Sequence[int]]] = []
        self._merged: list[dict[bytes, int]] = [{}]
        """Oldest first; several, since one that grows large holds the loop by itself."""
        self._merged_count = 0
        self._unmerged_changes = 0
        self.new_keys = NewKeys()
        """Those that no older record may have; perhaps also some without a record here."""
        self.count = 0
        """Changes, those of one key counted each."""

    def add(self, keys: Sequence[bytes], seqnos: Sequence[int], new_keys: Sequence[bytes]) -> None:
        """Add the records of a commit; `new_keys`: keys that no older record may have."""
        self._columns.append((keys, seqnos))
        self.new_keys.add(new_keys)
        self.count += len(keys)
        self._unmerged_changes += len(keys)
        if self._unmerged_changes > UNMERGED_CHANGES_MAX:
            self._merge()

    def after(self, earlier: Recent | None) -> Recent:
        """Return both as one."""
        if earlier is None:
            return self
        both = Recent()
        for keys, seqnos in (*earlier._columns, *self._columns):
            both.add(keys, seqnos, ())
        both.new_keys = self.new_keys.after(earlier.new_keys)
        return both

    def seqno_of(self, key: bytes) -> int | None:
        """Return the seqno of the newest record of a key; in the thread that adds."""
        if self._unmerged_changes:
            self._merge()
        for merged in reversed(self._merged):
            seqno = merged.get(key)
            if seqno is not None:
                return seqno
        return None

    def _merge(self) -> None:
        for keys, seqnos in self._columns[self._merged_count :]:
            if len(self._merged[-1]) >= MERGED_KEYS_MAX:
                self._merged.append({})
            self._merged[-1].update(zip(keys, seqnos, strict=True))
        self._merged_count, self._unmerged_changes = len(self._columns), 0

    def merged(self) -> dict[bytes, int]:
        """Return key -> seqno of its newest record; in any thread, while nothing is added."""
        merged: dict[bytes, int] = {}
        for keys, seqnos in self._columns:
            merged.update(zip(keys, seqnos, strict=True))
        return merged


FindPlaces = Callable[[int, list[int], int], Mapping[int, tuple[int, int]]]
"""(partition, sorted seqnos, first segment to look into) -> their places, perhaps others, too."""


class ByIdBatch(NamedTuple):
    """What one transaction applies: `changes`, then over them `recent`."""

    changes: Mapping[bytes, ByIdValue | None]
    recent: dict[int, Recent]
    first_segment: int
    applied: Applied
    summaries: list[tuple[int, bytes]]


def partition_prefix(partition_id: int) -> bytes:
    """Return what the keys of a partition begin with."""
    return partition_id.to_bytes(2, "big")


class ById:
    """The map and the changes that wait for it."""

    def __init__(self, store: ByIdMap) -> None:
        self._map = store
        self.checksum, self.seal = store.checksum, store.seal
        """Once the map rests: see `ByIdMap`."""
        self._applying = ByIdBatch({}, {}, 0, Applied(b"", Place(0, 0), 0), [])
        self._first_segment = 0
        self._recent: dict[int, Recent] = {}
        self._recent_count = 0
        self._older: tuple[Mapping[bytes, Any], int, Mapping[bytes, Any], int, list[bytes]] = (
            {}, 0, {}, 0, [],
        )  # fmt: skip
        """What of `pending` and of what is being applied was sorted, how long, and its keys."""
        self.pending: dict[bytes, ByIdValue | None] = {}
        """(seqno, segment, offset) by map key, older than what is recent; None removes it."""

    def begin_at(self, segment: int) -> None:
        """Set the segment being written: records noted from now on are in it or later."""
        self._first_segment = segment

    def note(
        self,
        partition_id: int,
        keys: Sequence[bytes],
        seqnos: Sequence[int],
        new_keys: Sequence[bytes],
    ) -> None:
        """Learn of records in the log; the columns `keys` and `seqnos` must not change later.

        Args:
            partition_id: of the records.
            keys: of the records.
            seqnos: of the records.
            new_keys: those of the keys that had no record, or one that was purged.
        """
        recent = self._recent.get(partition_id)
        if recent is None:
            recent = self._recent[partition_id] = Recent()
        recent.add(keys, seqnos, new_keys)
        self._recent_count += len(keys)

    def recent_seqno(self, partition_id: int, key: bytes) -> int | None:
        """Return the seqno of the newest record of a key, if it is not in the map yet."""
        recent = self._recent.get(partition_id)
        seqno = None if recent is None else recent.seqno_of(key)
        if seqno is None:
            recent = self._applying.recent.get(partition_id)
            seqno = None if recent is None else recent.seqno_of(key)
        return seqno

    def get(self, key: bytes) -> ByIdValue | None:
        """Return the newest record of a map key (partition prefix + key), but for recent ones."""
        for waiting in (self.pending, self._applying.changes):
            if key in waiting:
                return waiting[key]
        data = self._map.get(key)
        if data is None:
            return None
        try:
            return _unpack_value(data)
        except struct.error as error:
            raise _damaged(error) from error

    def says_wrong(self, partition_id: int, found: ByIdValue) -> CorruptionError:
        """Return the error for a key that the log does not have where the map says it is."""
        self._map.distrust()
        seqno, segment, offset = found
        place = f"seqno {seqno} of partition {partition_id} at segment {segment}, offset {offset}"
        return _damaged(ValueError(f"it names {place}, which is not in the log"))

    def keys(self, partition_id: int) -> Iterator[bytes]:
        """Yield the keys of a partition that have a record, in no order, tombstones included."""
        prefix = partition_prefix(partition_id)
        older = {**self._applying.changes, **self.pending}
        waiting = {key[2:]: value for key, value in older.items() if key[:2] == prefix}
        recent: dict[bytes, int] = {}
        for waits in (self._applying.recent, self._recent):
            if partition_id in waits:
                recent |= waits[partition_id].merged()
        yield from recent
        for key in self._map.keys(prefix):
            if key[2:] not in waiting and key[2:] not in recent:
                yield key[2:]
        for key, value in waiting.items():
            if value is not None and key not in recent:
                yield key

    def page(
        self, partition_id: int, low: bytes, high: bytes, count: int, *, descending: bool
    ) -> list[bytes]:
        """Return the first keys of [low, high) of a partition, in order; `count` at most.

        From its end if `descending`. Tombstones are included, perhaps also keys that are gone.
        Costs what the page holds, once what waits for the map, and what `NewKeys` costs.
        """
        prefix = partition_prefix(partition_id)
        low, high = low[:BOUND_BYTES_MAX], high[:BOUND_BYTES_MAX]
        page = KeyPage(low, high, count, descending=descending)
        found = self._map.page(prefix + low, prefix + high, count, descending=descending)
        page.add([key[2:] for key in found])
        page.add_sorted(self._older_keys(), prefix)
        for waits in (self._applying.recent, self._recent):
            if partition_id in waits:
                waits[partition_id].new_keys.add_to(page)
        return page.keys

    def _older_keys(self) -> list[bytes]:
        pending, changes = self.pending, self._applying.changes
        first, first_count, second, second_count, keys = self._older
        is_known = first is pending and second is changes
        if not (is_known and first_count == len(pending) and second_count == len(changes)):
            keys = sorted({*pending, *changes})
            self._older = pending, len(pending), changes, len(changes), keys
        return keys

    def keys_beginning(self, prefix: bytes, partition_count: int) -> list[set[bytes]]:
        """Return the keys with a prefix by partition; perhaps also some that are gone."""
        found: list[set[bytes]] = [set() for _ in range(partition_count)]
        for key in (*self._applying.changes, *self.pending):
            if key.startswith(prefix, 2) and (p := int.from_bytes(key[:2], "big")) < len(found):
                found[p].add(key[2:])
        for waits in (self._applying.recent, self._recent):
            for p, recent in waits.items():
                found[p].update(key for key in recent.merged() if key.startswith(prefix))
        for p, keys in enumerate(found):
            keys.update(key[2:] for key in self._map.keys(partition_prefix(p) + prefix))
        return found

    def count_pending(self) -> int:
        """Return how many changes wait."""
        applying = self._applying
        older = sum(recent.count for recent in applying.recent.values())
        return len(self.pending) + len(applying.changes) + self._recent_count + older

    def take(self, applied: Applied, summaries: Mapping[int, PartitionSummary]) -> ByIdBatch:
        """Take what waits; call it in the thread that calls `note`."""
        before = self._applying
        recent = {
            p: self._recent.get(p, Recent()).after(before.recent.get(p))
            for p in {**before.recent, **self._recent}
        }
        encoded = {p: summary.encode() for p, summary in summaries.items()}
        batch = ByIdBatch(
            {**before.changes, **self.pending} if before.changes else self.pending,
            recent,
            before.first_segment if before.recent else self._first_segment,
            applied,
            sorted({**dict(before.summaries), **encoded}.items()),
        )
        self._applying, self.pending, self._recent = batch, {}, {}
        self._recent_count = 0
        self._first_segment = applied.place.segment
        return batch

    def settle(self, partition_id: int, find_places: FindPlaces) -> None:
        """Look up the places of what is recent of a partition; nothing may be being applied.

        Also of what could not be applied.
        """
        failed = self._applying.recent.pop(partition_id, None)
        recent = self._recent.pop(partition_id, None)
        if recent is not None:
            self._recent_count -= recent.count
        for waits, first in (
            (failed, self._applying.first_segment),
            (recent, self._first_segment),
        ):
            if waits is not None:
                self.pending.update(_resolved({partition_id: waits}, first, find_places))

    def apply_steps(self, batch: ByIdBatch, find_places: FindPlaces) -> Iterator[None]:
        """Apply a batch in one transaction, in steps that are short enough for a loop."""
        yield from self._map.apply_steps(_pieces(batch, find_places))
        if self._applying is batch:
            self._applying = batch._replace(changes={}, recent={}, summaries=[])

    def reached(self) -> Place:
        """Return how far the map goes, in the log."""
        applied = self.applied()
        return Place(0, 0) if applied is None else applied.place

    def count(self) -> int:
        """Return how many keys the map has, and what is kept beside them."""
        return self._map.count()

    def amend(
        self,
        partition_id: int,
        keys: Sequence[bytes],
        seqnos: Sequence[int],
        offsets: Sequence[int],
        segments: range,
    ) -> None:
        """Say where records stand that a compaction moved; offset 0: forget those keys.

        Only of keys whose newest record has the seqno named and stood in one of `segments`, the
        last of which they stand in now. Keys ascend. A transaction of its own: nothing may be
        being applied.
        """
        prefix, puts, removals = partition_prefix(partition_id), [], []
        full = [prefix + key for key in keys]
        found = self._map.get_many(full)
        for key, seqno, offset, data in zip(full, seqnos, offsets, found, strict=True):
            if data is not None:
                named, segment, _ = _unpacked(_VALUE, data)
                if named == seqno and segment in segments:
                    if offset:
                        puts.append((key, _VALUE.pack(seqno, segments[-1], offset)))
                    else:
                        removals.append(key)
        if puts or removals:
            for _ in self._map.apply_steps([(puts, removals)]):
                pass
        recent = self._recent.get(partition_id)
        if removals and recent is not None:
            recent.new_keys.add(key[2:] for key in removals)

    def fill(self, values: Mapping[bytes, ByIdValue | None]) -> None:
        """Apply values while the map is built anew."""
        for _ in self._map.apply_steps([_sorted(values)]):
            pass

    def applied(self) -> Applied | None:
        """Return how far the map goes, None if it is empty or half built."""
        data = self._map.get(_APPLIED_KEY)
        if data is None:
            return None
        log_id, segment, offset, checksum = _unpacked(_APPLIED, data)
        return Applied(log_id, Place(segment, offset), checksum)

    def summary(self, partition_id: int) -> PartitionSummary:
        """Return the summary of a partition as applied."""
        data = self._map.get(_SUMMARY_PREFIX + partition_prefix(partition_id))
        if data is None:
            return PartitionSummary()
        try:
            return PartitionSummary.decode(data)
        except (struct.error, ValueError) as error:
            raise _damaged(error) from error

    def clear(self) -> None:
        """Empty the map and what waits for it."""
        self._applying = self._applying._replace(changes={}, recent={}, summaries=[])
        self.pending, self._recent, self._recent_count = {}, {}, 0
        self._map.clear()

    def close(self, *, is_durable: bool) -> None:
        """Close the map."""
        self._map.close(is_durable=is_durable)


def _unpacked(layout: Struct, data: bytes) -> tuple[Any, ...]:
    try:
        return layout.unpack(data)
    except struct.error as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> CorruptionError:
    return CorruptionError(f"by-id is damaged: {error}; restart", code=BY_ID_DAMAGED)


def _resolved(
    recent: Mapping[int, Recent], first_segment: int, find_places: FindPlaces
) -> dict[bytes, ByIdValue | None]:
    """Return what is recent with its places, by map key."""
    found: dict[bytes, ByIdValue | None] = {}
    for partition_id, waits in recent.items():
        prefix, newest = partition_prefix(partition_id), waits.merged()
        places = find_places(partition_id, sorted(newest.values()), first_segment)
        for key, seqno in newest.items():
            found[prefix + key] = (seqno, *places[seqno])
    return found


def _pieces(batch: ByIdBatch, find_places: FindPlaces) -> Iterator[Piece]:
    """Cut a batch into pieces of some milliseconds, in the order of the map."""
    changes: dict[bytes, dict[bytes, ByIdValue | None]] = {}
    for key, value in batch.changes.items():
        changes.setdefault(key[:2], {})[key] = value
    partition_ids = {*batch.recent, *(int.from_bytes(prefix, "big") for prefix in changes)}
    for partition_id in sorted(partition_ids):
        prefix = partition_prefix(partition_id)
        recent = batch.recent.get(partition_id)
        newest = {} if recent is None else recent.merged()
        yield [], []
        older = changes.get(prefix, {})
        puts, removals = _sorted({k: v for k, v in older.items() if k[2:] not in newest})
        yield [], removals
        for at in range(0, len(puts), PIECE_KEYS_MAX):
            yield puts[at : at + PIECE_KEYS_MAX], []
        places = find_places(partition_id, sorted(newest.values()), batch.first_segment)
        yield [], []
        keys = sorted(newest)
        for at in range(0, len(keys), PIECE_KEYS_MAX):
            yield [], []
            pack = _VALUE.pack
            yield (
                [
                    (prefix + key, pack(newest[key], *places[newest[key]]))
                    for key in keys[at : at + PIECE_KEYS_MAX]
                ],
                [],
            )
    log_id, place, checksum = batch.applied
    puts = [(_SUMMARY_PREFIX + partition_prefix(p), data) for p, data in batch.summaries]
    yield [*puts, (_APPLIED_KEY, _APPLIED.pack(log_id, *place, checksum))], []


def _sorted(
    values: Mapping[bytes, ByIdValue | None],
) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """Return pairs to put and keys to remove; keys alone sort in a fraction of the pairs' time."""
    puts, removals, pack = list[tuple[bytes, bytes]](), list[bytes](), _VALUE.pack
    for key in sorted(values):
        value = values[key]
        if value is None:
            removals.append(key)
        else:
            puts.append((key, pack(*value)))
    return puts, removals
