"""Decides what an indexer reads and when it commits, without connections, threads and clock.

Indexes of a bucket at near positions form a *group*, which is read over one connection; `plan`
makes the groups. A `Feed` takes what the source sends to a group:

    feed = Feed(starts, window_bytes=...)      # requests the streams
    feed.receive_data(read(), now)             # gathers changes
    if feed.due_in(now, is_awaited=...) == 0:
        parts = feed.take_parts(now)           # to be mapped and committed

Words: a *place* is where an index is in one partition (position and failover log). A
*part* is a range of changes of one partition, with the places where it begins and ends.

Invariants:
1. Whole snapshots of each partition are taken, in order, each from the end of the one before. Only
   a snapshot that fills the buffer alone is taken in pieces, whose positions say so.
2. A stream that ends, is refused or asks for a rollback ends the feed. The source judges positions
   before a new feed begins, so there is one path to a rollback.
3. Gathered changes are bounded by `GATHERED_BYTES_MAX` plus one read: while `is_full`, nothing is
   read before a commit.
4. A group is read from the lowest place of its members in each partition. Publishing a change
   again is harmless, and no change is skipped.
5. Indexes of a group are not separated again, so that groups do not change all the time.
6. An index that lacks far more than it has is rebuilt from sorted rows. Each rebuild makes it
   several times as large, so there are few.

Elsewhere: the first build (`views.core.index.first_build`), connections and threads
(`views.aio.indexing.indexing`), what a commit is (`views.core.index.index`).

Source: docs/design/0013-indexer.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.model.position import FailoverLog, Position, position_at
from millstream.upr.core.consumer import (
    WINDOW_BYTES,
    ChangesReceived,
    ConsumerCore,
    Event,
    ReplyReceived,
    RollbackRequired,
    SnapshotCompleted,
    SnapshotStarted,
    StreamEnded,
    StreamOpened,
    StreamRefused,
)
from millstream.wire.mcbp import Status, StreamEndReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "BUILD_CHANGES_MIN",
    "BUILD_SHARE",
    "COMMIT_CHANGES",
    "COMMIT_S",
    "GATHERED_BYTES_MAX",
    "JOIN_CHANGES_MAX",
    "Feed",
    "Group",
    "Member",
    "Part",
    "Place",
    "gap",
    "is_worth_building",
    "lowest",
    "plan",
]

COMMIT_CHANGES: Final = 5000
"""Changes in whole snapshots after which an indexer commits without waiting queries."""
COMMIT_S: Final = 2.0
"""Age of the oldest change gathered at which it commits."""
GATHERED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Most bytes of one group's changes that are not committed yet."""
BUILD_CHANGES_MIN: Final = 50_000
"""Changes that an index lacks at which it may be built anew; that many are brought in within some
seconds."""
BUILD_SHARE: Final = 3
"""An index is built anew that lacks so many times what it has: a build takes less for each change,
the less the larger it becomes, but has to begin from nothing."""
JOIN_CHANGES_MAX: Final = 20_000
"""Indexes that are no more seqnos apart, all partitions together, share their streams."""


class Place(NamedTuple):
    """The position of an index, or of a group, in a partition."""

    position: Position = Position()
    failover_log: FailoverLog = ()

    @property
    def complete(self) -> int:
        """The seqno up to which everything is there."""
        return self.position.seqno if self.position.is_closed else self.position.snap_start

    def as_complete(self) -> Place:
        """Return the place at that seqno."""
        seqno = self.complete
        if seqno == self.position.seqno or not self.failover_log:
            return self if seqno == self.position.seqno else Place()
        if not seqno:
            return Place()
        return self._replace(position=position_at(self.failover_log, seqno, seqno, seqno))


class Member(NamedTuple):
    """An index and its places.

    `running` names the group it is in, empty if none; `is_new`: to be built from sorted rows;
    `is_apart`: it is slow, and shares no group, so that it holds up no other index.
    """

    signature: str
    places: Mapping[int, Place]
    running: str = ""
    is_new: bool = False
    is_apart: bool = False


class Group(NamedTuple):
    """Indexes read over the same connections, and their starts. `is_first`: a first build."""

    signatures: tuple[str, ...]
    starts: dict[int, Place]
    is_first: bool


class Part(NamedTuple):
    """What was gathered of one partition: the changes in (start, end], in order."""

    start: Position
    end: Position
    failover_log: FailoverLog
    frames: list[bytes]
    sides: list[bytes]


def is_worth_building(places: Mapping[int, Place], highs: Mapping[int, int]) -> bool:
    """Return whether building an index anew from sorted rows is sooner done than catching up.

    Args:
        places: of the index.
        highs: of the partitions that can be read now, the newest seqno.
    """
    seqnos = {partition: place.position.seqno for partition, place in places.items()}
    if any(seqno and partition not in highs for partition, seqno in seqnos.items()):
        return False  # its rows would be lost
    lacking = sum(max(0, highs.get(p, 0) - seqno) for p, seqno in seqnos.items())
    return lacking >= max(BUILD_CHANGES_MIN, BUILD_SHARE * sum(seqnos.values()))


def gap(one: Mapping[int, Place], other: Mapping[int, Place]) -> int:
    """Return how many seqnos two indexes are apart."""
    return sum(
        abs(one.get(partition, Place()).complete - other.get(partition, Place()).complete)
        for partition in one.keys() | other.keys()
    )


def plan(members: Iterable[Member], gap_max: int = JOIN_CHANGES_MAX) -> list[Group]:
    """Divide indexes into groups.

    New ones are one group; of the others each is with the furthest one that it is near enough
    to. Running together, they stay together. Each that is apart is a group of its own.
    """
    first: list[Member] = []
    apart: list[Group] = []
    units: dict[str, list[Member]] = {}
    for member in members:
        is_first = member.is_new and not member.running
        if member.is_apart:
            apart.append(Group((member.signature,), lowest([member]), is_first=is_first))
        elif is_first:
            first.append(member)
        else:
            units.setdefault(member.running or f"index {member.signature}", []).append(member)
    groups: list[list[Member]] = []
    for unit in sorted(units.values(), key=_sum_of, reverse=True):
        for group in groups:
            if gap(lowest(group), lowest(unit)) <= gap_max:
                group += unit
                break
        else:
            groups.append(list(unit))
    found = [Group(_signatures(group), lowest(group), is_first=False) for group in groups]
    if first:
        found.append(Group(_signatures(first), lowest(first), is_first=True))
    return found + apart


def _sum_of(unit: Sequence[Member]) -> int:
    return sum(place.complete for place in lowest(unit).values())


def _signatures(members: Sequence[Member]) -> tuple[str, ...]:
    return tuple(sorted(member.signature for member in members))


def lowest(members: Sequence[Member]) -> dict[int, Place]:
    """Return from where to read: a common place as it is, else the lowest complete one."""
    found: dict[int, Place] = {}
    for partition in sorted({p for member in members for p in member.places}):
        places = [member.places[partition] for member in members if partition in member.places]
        lowest = min(places, key=lambda place: place.complete)
        is_common = all(place.position == lowest.position for place in places)
        found[partition] = lowest if is_common else lowest.as_complete()
    return found


class _Reading:
    """What was gathered of one partition."""

    __slots__ = ("complete", "complete_at", "frames", "log", "position", "sides", "start")

    def __init__(self, place: Place) -> None:
        self.start = place.position
        """The start of the next part."""
        self.log = place.failover_log
        self.position = place.position
        self.complete: Position | None = None
        """End of the last whole snapshot among the frames."""
        self.complete_at = 0
        """Number of frames that belong to whole snapshots."""
        self.frames: list[bytes] = []
        self.sides: list[bytes] = []

    def cut(self, end: Position, count: int) -> Part:
        assert 0 <= count <= len(self.frames) == len(self.sides), "frames and sides differ"
        assert self.start.seqno <= end.seqno, "a part ends before its start"
        part = Part(self.start, end, self.log, self.frames[:count], self.sides[:count])
        del self.frames[:count], self.sides[:count]
        self.start, self.complete, self.complete_at = end, None, 0
        return part


class Feed:
    """The streams of one group over one connection.

    Args:
        starts: from where each partition is read.
        window_bytes: flow control window of the connection.
    """

    def __init__(self, starts: Mapping[int, Place], *, window_bytes: int = WINDOW_BYTES) -> None:
        self._starts = starts
        self._readings = {partition: _Reading(place) for partition, place in starts.items()}
        self._consumer = ConsumerCore(window_bytes=window_bytes, document_meta=True)
        self._bytes = 0
        self._complete_count = 0
        self._oldest_at: float | None = None
        self.ended = ""
        """Why this feed brings nothing more; empty while it does."""
        self.is_denied = False
        """The user may not read, and asking again is in vain."""

    @property
    def is_read(self) -> bool:
        """Whether it brings nothing more."""
        return bool(self.ended)

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be read before something was committed."""
        return self._bytes >= GATHERED_BYTES_MAX

    @property
    def gathered_bytes(self) -> int:
        """Bytes of changes that are not taken yet."""
        return self._bytes

    def open(self, name: bytes) -> bytes:
        """Return what opens the connection and asks for all streams."""
        self._consumer.start(name)
        for partition, (position, log) in self._starts.items():
            self._consumer.follow(partition, position, log)
        return self._consumer.take_bytes()

    def take_bytes(self) -> bytes:
        """Return what is to be sent; while the feed is full, nothing is acknowledged."""
        return self._consumer.take_bytes(is_handled=not self.is_full)

    def receive_data(self, data: bytes, now: float) -> None:
        """Gather what has come.

        Args:
            data: as read.
            now: seconds on a clock that only goes forward.

        Raises:
            RemoteProtocolError: the source broke the protocol.
            AccessError: the right to stream was lost.
        """
        for event in self._consumer.receive_data(data):
            self._on_event(event, now)

    def _on_event(self, event: Event, now: float) -> None:
        match event:
            case ChangesReceived(partition, position, frames, sides):
                reading = self._readings[partition]
                reading.position = position
                reading.frames += frames
                reading.sides += sides
                self._bytes += sum(map(len, frames))
                if self._oldest_at is None:
                    self._oldest_at = now
            case SnapshotCompleted(partition, position):
                reading = self._readings[partition]
                self._complete_count += len(reading.frames) - reading.complete_at
                reading.position = reading.complete = position
                reading.complete_at = len(reading.frames)
                if self._oldest_at is None:  # of seqnos alone: their changes were superseded
                    self._oldest_at = now
            case SnapshotStarted(partition, position):
                self._readings[partition].position = position
            case StreamOpened(partition, _, log):
                self._readings[partition].log = log
            case StreamEnded(partition, _, reason):
                self._end(f"the stream of partition {partition} ended (reason {reason})")
                self.is_denied |= reason == StreamEndReason.LOST_PRIVILEGES
            case StreamRefused(partition, status):
                self._end(f"the stream of partition {partition} was refused (0x{status:02x})")
                self.is_denied |= status == Status.EACCESS
            case RollbackRequired(partition):
                self._consumer.give_up(partition)
                self._end(f"the history of partition {partition} changed")
            case ReplyReceived():
                pass

    def _end(self, why: str) -> None:
        self.ended = self.ended or why

    def due_in(self, now: float, *, is_awaited: bool) -> float | None:
        """Return in how many seconds to commit, 0 now; None: there is nothing to commit."""
        if self.is_full:
            return 0.0
        if not any(reading.complete for reading in self._readings.values()):
            return None
        if is_awaited or self._complete_count >= COMMIT_CHANGES:
            return 0.0
        assert self._oldest_at is not None
        return max(0.0, self._oldest_at + COMMIT_S - now)

    def take_parts(self, now: float) -> dict[int, Part]:
        """Return what is to be committed next: whole snapshots, or pieces where none is whole."""
        parts = {
            partition: reading.cut(reading.complete, reading.complete_at)
            for partition, reading in self._readings.items()
            if reading.complete is not None
        }
        if not parts and self.is_full:
            parts = {
                partition: reading.cut(reading.position, len(reading.frames))
                for partition, reading in self._readings.items()
                if reading.frames
            }
        self._bytes -= sum(len(frame) for part in parts.values() for frame in part.frames)
        assert self._bytes >= 0, "more bytes were taken than gathered"
        self._complete_count = 0
        self._oldest_at = now if self._bytes else None
        return parts
