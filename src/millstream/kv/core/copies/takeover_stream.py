"""A feed that also takes partitions over: their active copies move here from the source.

    feed.take_over(partition_id)            # it follows the source already, by `follow`
    ...effects: ChangeState, answered by `on_state_changed`; TakenOver at the end

The copy's stream is closed and requested again as a take-over. At the source's request the copy
then becomes pending, and active once it has all changes.

Invariants:
1. The copy changes its state only while that stream is open and its epoch is that of the request
   (`ChangeState` contains the epoch, which is checked again). So a promotion, a rollback or an
   operator's command ends a take-over.
2. Each `take_over` ends with one `TakenOver`, unless the connection is lost before.
3. Once the copy is active, nothing is undone here: the source has stopped for good.

Elsewhere: streams and changes (`kv.core.copies.replica_stream`), making states durable
(`kv.aio.copies`), the source's side (`upr.core.takeover`).

Source: docs/reference/wire/streams.md.
"""

from __future__ import annotations

from typing import Final

from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.agreeing_stream import AgreeingFeed
from millstream.kv.core.copies.feed_effects import ChangeState, TakenOver
from millstream.kv.core.copies.replica_stream import Line, Stage
from millstream.model.partitions import PartitionState
from millstream.upr.core.consumer import (
    WINDOW_BYTES,
    Event,
    StateRequested,
    StreamEnded,
    StreamOpened,
)
from millstream.upr.core.follower import StreamOptions
from millstream.wire.mcbp import Status, StreamFlag

__all__ = ["TakingFeed"]

_TAKE_OVER: Final = StreamOptions(flags=StreamFlag.TAKEOVER)
_SETTABLE: Final = (PartitionState.PENDING, PartitionState.ACTIVE)


class _Taking:
    """A running take-over."""

    __slots__ = ("failure", "is_asked", "wanted")

    def __init__(self) -> None:
        self.is_asked = False
        """The requested or open stream is the one that takes over."""
        self.wanted = PartitionState.REPLICA
        """The state that the copy is changing to."""
        self.failure = ""


class TakingFeed(AgreeingFeed):
    """A feed with take-overs; the arguments are those of `Feed`."""

    def __init__(
        self, bucket: Bucket, name: bytes, node_name: str, *, window_bytes: int = WINDOW_BYTES
    ) -> None:
        super().__init__(bucket, name, node_name, window_bytes=window_bytes)
        self._takings: dict[int, _Taking] = {}

    def take_over(self, partition_id: int) -> None:
        """Take over a partition that follows the source; does nothing if already running."""
        if partition_id in self._takings:
            return
        self._begin_taking(partition_id)
        line = self._lines[partition_id]
        if line.stage is Stage.OPEN:
            self._close(line)
        elif line.stage is Stage.RESTING:
            self._ask(line)

    def give_up_taking(self, partition_id: int) -> None:
        """End a take-over without success, unless its copy is already becoming active."""
        taking, line = self._takings.get(partition_id), self._lines.get(partition_id)
        if taking is None or line is None:
            return
        taking.failure = "it was given up"
        if line.stage is Stage.OPEN:
            self._close(line)

    def on_state_changed(self, partition_id: int, failure: str) -> None:
        """The copy has the requested state durably; if not, `failure` says why."""
        taking, line = self._takings.get(partition_id), self._lines.get(partition_id)
        if taking is None or line is None or line.stage is not Stage.MOVING:
            return  # the stream ended meanwhile
        self._core.answer_state(partition_id, Status.ETMPFAIL if failure else Status.SUCCESS)
        taking.failure = taking.failure or failure
        line.stage, line.epoch = Stage.OPEN, line.partition.epoch
        is_pending = taking.wanted is PartitionState.PENDING
        if failure or (is_pending and (taking.failure or line.is_stale)):
            self._close(line)
        elif taking.wanted is PartitionState.ACTIVE:
            line.stage = Stage.CLOSING  # the source ends the stream
            taking.failure = ""
            self._end(partition_id)

    # -- inside

    def _begin_taking(self, partition_id: int) -> None:
        self._takings[partition_id] = _Taking()

    def _end(self, partition_id: int) -> None:
        taking = self._takings.pop(partition_id)
        self._effects.append(TakenOver(partition_id, taking.failure))

    def _options(self, line: Line) -> StreamOptions:
        taking = self._takings.get(line.partition.partition_id)
        if taking is None:
            return super()._options(line)
        taking.is_asked = True
        return _TAKE_OVER

    def _disagree(self, partition_id: int, why: str) -> None:
        taking, line = self._takings.get(partition_id), self._lines.get(partition_id)
        if taking is not None and line is not None and line.stage is Stage.AGREEING:
            taking.failure = taking.failure or why
        super()._disagree(partition_id, why)

    def _rest(self, line: Line) -> None:
        partition_id = line.partition.partition_id
        taking = self._takings.get(partition_id)
        if taking is None:
            super()._rest(line)
        elif not (taking.is_asked or taking.failure) and line.may_follow and line.is_wanted:
            self._ask(line)
        else:
            taking.failure = taking.failure or line.failure or "the stream of it has ended"
            self._end(partition_id)
            super()._rest(line)

    def _on_opened(self, event: StreamOpened) -> None:
        taking = self._takings.get(event.partition_id)
        if taking is not None and (taking.failure or not taking.is_asked):
            self._close(self._lines[event.partition_id])
        else:
            super()._on_opened(event)

    def _on_event(self, event: Event) -> None:
        match event:
            case StateRequested(partition_id, state):
                self._on_state_requested(self._lines[partition_id], state)
            case StreamEnded(partition_id, _, reason):
                taking = self._takings.get(partition_id)
                if taking is not None and taking.is_asked:
                    message = f"the source ended it with reason {reason}"
                    taking.failure = taking.failure or message
                super()._on_event(event)
            case _:
                super()._on_event(event)

    def _on_state_requested(self, line: Line, state: int) -> None:
        partition_id = line.partition.partition_id
        taking = self._takings.get(partition_id)
        is_due = line.stage is Stage.OPEN and not line.is_stale and state in _SETTABLE
        if taking is None or taking.failure or not is_due:
            self._core.answer_state(partition_id, Status.ETMPFAIL)
            if line.stage is Stage.OPEN:
                self._close(line)
            return
        taking.wanted = PartitionState(state)
        line.stage = Stage.MOVING
        self._effects.append(ChangeState(partition_id, taking.wanted, line.epoch))
