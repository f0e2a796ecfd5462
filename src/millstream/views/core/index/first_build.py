"""Reads one snapshot of every partition, for the first build of indexes.

    build = FirstBuild(partitions)
    send(build.connect(name))
    build.receive_data(read())
    while (batch := build.take_batch()): ...    # mapped and sorted
    build.whole                            # partition -> position of the index after the build

Invariants:
1. A document of a partition in `whole` comes at most once. A partition whose snapshot was begun
   again, interrupted or rolled back is in `left_out`: its rows are void, and its position stays 0.
2. At most `STREAMS_MAX` partitions are read at a time, and gathered changes are bounded by
   `GATHERED_BYTES_MAX` plus one read.
3. After a lost connection the next one reads the partitions of which nothing had arrived.

Elsewhere: later changes (`views.core.index.indexer`), sorting (`views.aio.indexing.sorting`).

Source: docs/design/0013-indexer.md.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.model.position import FailoverLog, Position
from millstream.upr.core.consumer import (
    WINDOW_BYTES,
    ChangesReceived,
    ConsumerCore,
    Event,
    RollbackRequired,
    SnapshotCompleted,
    SnapshotStarted,
    StreamEnded,
    StreamOpened,
    StreamRefused,
)
from millstream.upr.core.follower import StreamOptions
from millstream.views.core.index.indexer import GATHERED_BYTES_MAX, Place
from millstream.wire.mcbp import StreamEndReason, StreamFlag

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["BATCH_CHANGES", "STREAMS_MAX", "Batch", "FirstBuild"]

STREAMS_MAX: Final = 4
"""Partitions that are read at a time."""
BATCH_CHANGES: Final = 2000
"""Changes that are mapped at a time."""
_TO_LATEST: Final = StreamOptions(flags=StreamFlag.TO_LATEST)


class Batch(NamedTuple):
    """Changes of any partitions; those of one are in order."""

    frames: list[bytes]
    sides: list[bytes]


class _UnderWay:
    """A partition that is being read."""

    __slots__ = ("has_begun", "log")

    def __init__(self) -> None:
        self.log: FailoverLog = ()
        self.has_begun = False


class FirstBuild:
    """The first snapshots of some partitions."""

    def __init__(self, partitions: Iterable[int], *, window_bytes: int = WINDOW_BYTES) -> None:
        self._window_bytes = window_bytes
        self._consumer = ConsumerCore(window_bytes=window_bytes, document_meta=True)
        self._waiting = deque(sorted(partitions))
        self._under_way: dict[int, _UnderWay] = {}
        self._batches: deque[Batch] = deque()
        self._bytes = 0
        self._seqnos: dict[int, int] = {}
        self.whole: dict[int, Place] = {}
        """Partitions of which everything was given out, and where that ends."""
        self.left_out: set[int] = set()
        """Partitions whose rows are void, and those that could not be read."""
        self.changes_total = 0

    @property
    def is_read(self) -> bool:
        """Whether nothing more is to be read; batches may still wait."""
        return not self._waiting and not self._under_way

    @property
    def is_full(self) -> bool:
        """Whether batches are to be taken before more is read."""
        return self._bytes >= GATHERED_BYTES_MAX

    @property
    def positions(self) -> dict[int, int]:
        """The progress of each partition, for statistics."""
        return dict(self._seqnos)

    def connect(self, name: bytes) -> bytes:
        """Begin with a new connection; return what opens it and asks for the first streams."""
        for partition, under_way in self._under_way.items():
            if under_way.has_begun:
                self.left_out.add(partition)
            else:
                self._waiting.appendleft(partition)
        self._under_way.clear()
        self._consumer = ConsumerCore(window_bytes=self._window_bytes, document_meta=True)
        self._consumer.start(name)
        self._ask_for_more()
        return self._consumer.take_bytes()

    def take_bytes(self) -> bytes:
        """Return what is to be sent; while batches wait, nothing is acknowledged."""
        return self._consumer.take_bytes(is_handled=not self.is_full)

    def take_batch(self) -> Batch | None:
        """Return what is to be mapped next; small batches wait for more, unless all is read."""
        if len(self._batches) < 2 and not (self._batches and (self.is_read or self.is_full)):
            return None
        batch = self._batches.popleft()
        self._bytes -= sum(map(len, batch.frames))
        assert self._bytes >= 0, "more bytes were taken than gathered"
        assert len(batch.frames) == len(batch.sides), "frames and sides differ"
        return batch

    def receive_data(self, data: bytes) -> None:
        """Gather what has come.

        Raises:
            RemoteProtocolError: the source broke the protocol.
            AccessError: the right to stream was lost.
        """
        for event in self._consumer.receive_data(data):
            self._on_event(event)

    def _on_event(self, event: Event) -> None:
        match event:
            case ChangesReceived(partition, position, frames, sides):
                if partition in self._under_way:
                    self._gather(frames, sides)
                    self._seqnos[partition] = position.seqno
            case SnapshotStarted(partition):
                self._on_marker(partition)
            case SnapshotCompleted(partition, position):
                if (under_way := self._under_way.pop(partition, None)) is not None:
                    assert partition not in self.left_out, "void rows count as whole"
                    self.whole[partition] = Place(position, under_way.log)
                    self._seqnos[partition] = position.seqno
                    self._ask_for_more()
            case StreamOpened(partition, _, log):
                if partition in self._under_way:
                    self._under_way[partition].log = log
            case StreamEnded(partition, position, reason):
                is_empty = reason == StreamEndReason.OK and not position.seqno
                self._give_up(partition, is_void=not is_empty)
            case StreamRefused(partition):
                self._give_up(partition, is_void=True)
            case RollbackRequired(partition):
                self._consumer.give_up(partition)
                self._give_up(partition, is_void=True)
            case _:
                pass

    def _on_marker(self, partition: int) -> None:
        """A second marker: a restarted snapshot repeats documents; or it is one too many."""
        under_way = self._under_way.get(partition)
        if under_way is not None and not under_way.has_begun:
            under_way.has_begun = True
            return
        if self._consumer.is_open(partition):
            self._consumer.close_stream(partition)
        self._give_up(partition, is_void=True)

    def _give_up(self, partition: int, *, is_void: bool) -> None:
        """A partition ends without a whole snapshot; harmless for those that have one."""
        if self._under_way.pop(partition, None) is None:
            return
        if is_void:
            self.left_out.add(partition)
        self._ask_for_more()

    def _gather(self, frames: list[bytes], sides: Sequence[bytes]) -> None:
        """Add to the newest batch if it has room."""
        self.changes_total += len(frames)
        self._bytes += sum(map(len, frames))
        if not self._batches or len(self._batches[-1].frames) >= BATCH_CHANGES:
            self._batches.append(Batch([], []))
        self._batches[-1].frames.extend(frames)
        self._batches[-1].sides.extend(sides)

    def _ask_for_more(self) -> None:
        while self._waiting and len(self._under_way) < STREAMS_MAX:
            partition = self._waiting.popleft()
            assert partition not in self.whole, "a whole partition is read again"
            self._under_way[partition] = _UnderWay()
            self._consumer.follow(partition, Position(), (), _TO_LATEST)
