"""What a consumer keeps between runs: whole positions, failover logs, ends it can go back to.

As JSON:

    {"v": 1, "bucket": "orders", "bucket_uuid": "<hex>", "partitions": {"0": {
        "position": ["<12 hex digits>", seqno, snap_start, snap_end],      (a fifth: purge seqno)
        "failover_log": [["<12 hex digits>", seqno, branch], ...],         newest first
        "ends": [seqno, ...], "began_at": seqno}}}

Invariants:
1. `ends` ascend: ends of complete snapshots that the reader has held, at most `ENDS_MAX` of them
   (older ones are thinned out), none above the position.
2. A reader that keeps every change it was sent can restore its state exactly at each of `ends`;
   one that began at `began_at` holds nothing below it, so also at every seqno up to there.

Elsewhere: where it is kept (`upr.aio.checkpoints`), positions in motion (`upr.core.follower`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from millstream.errors import CorruptionError
from millstream.model.limits import PARTITIONS_MAX
from millstream.model.position import (
    FailoverEntry,
    FailoverLog,
    Position,
    position_from_json,
    position_to_json,
)

__all__ = [
    "ENDS_MAX",
    "Checkpoint",
    "StreamProgress",
    "checkpoint_from_json",
    "checkpoint_to_json",
]

ENDS_MAX: Final = 16
_VERSION: Final = 1


class StreamProgress(NamedTuple):
    """The position of a reader in one partition, and the positions it can go back to."""

    position: Position = Position()
    failover_log: FailoverLog = ()
    ends: tuple[int, ...] = ()
    began_at: int = 0

    def with_end(self, position: Position) -> StreamProgress:
        """Return the progress at the end of a complete snapshot."""
        ends = (*self.ends, position.seqno)
        if len(ends) > ENDS_MAX:
            # Every second one of the older half goes, so that some old point always remains.
            half = ENDS_MAX // 2
            ends = (*ends[:half:2], *ends[half:])
        return self._replace(position=position, ends=ends)

    def undo_point(self, seqno: int) -> int:
        """Return the newest seqno not above `seqno` that the reader can restore exactly."""
        return max((end for end in self.ends if end <= seqno), default=min(seqno, self.began_at))

    def undone_to(self, position: Position) -> StreamProgress:
        """Return the progress after going back to a position that `undo_point` gave."""
        ends = tuple(end for end in self.ends if end <= position.seqno)
        began_at = min(self.began_at, position.seqno)
        return self._replace(position=position, ends=ends, began_at=began_at)


class Checkpoint(NamedTuple):
    """Progress of the partitions of one bucket."""

    bucket: str
    bucket_uuid: str
    progress: dict[int, StreamProgress]


class _ProgressForm(msgspec.Struct):
    position: list[str | int]
    failover_log: list[tuple[str, int, int]] = []
    ends: list[int] = []
    began_at: int = 0


class _CheckpointForm(msgspec.Struct):
    v: int
    bucket: str
    bucket_uuid: str
    partitions: dict[str, _ProgressForm]


_decode_form = msgspec.json.Decoder(_CheckpointForm).decode


def checkpoint_to_json(checkpoint: Checkpoint) -> bytes:
    """Return the JSON text of a checkpoint."""
    partitions = {
        str(partition_id): _ProgressForm(
            position_to_json(progress.position),
            [(f"{entry.uuid:012x}", entry.seqno, entry.branch) for entry in progress.failover_log],
            list(progress.ends),
            progress.began_at,
        )
        for partition_id, progress in sorted(checkpoint.progress.items())
    }
    form = _CheckpointForm(_VERSION, checkpoint.bucket, checkpoint.bucket_uuid, partitions)
    return msgspec.json.encode(form)


def checkpoint_from_json(text: bytes, *, name: str) -> Checkpoint:
    """Reverse `checkpoint_to_json`.

    Args:
        text: JSON.
        name: of the file or place it comes from, for the message.

    Raises:
        CorruptionError: not a checkpoint, or one of a newer version.
    """
    try:
        form = _decode_form(text)
        if form.v != _VERSION:
            raise ValueError(f"version {form.v}, this program reads {_VERSION}")
        progress = {
            _partition_id(number): _progress_of(progress)
            for number, progress in form.partitions.items()
        }
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptionError(
            f"{name} is not a checkpoint: {error}; move it away to start again"
        ) from error
    return Checkpoint(form.bucket, form.bucket_uuid, progress)


def _partition_id(text: str) -> int:
    number = int(text)
    if not 0 <= number < PARTITIONS_MAX:
        raise ValueError(f"partition {number}")
    return number


def _progress_of(form: _ProgressForm) -> StreamProgress:
    log = tuple(
        FailoverEntry(int(uuid, 16), seqno, branch) for uuid, seqno, branch in form.failover_log
    )
    return StreamProgress(position_from_json(form.position), log, tuple(form.ends), form.began_at)
