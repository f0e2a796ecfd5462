"""Checkpoint directories of streaming queries: which offset they stand at, and setting another.

Spark keeps a text file per batch, `offsets/N` before it begins and `commits/N` when it has ended:
a line with the version, a line about the batch, and a line per source.

Invariants:
1. What a checkpoint stands at is the end of its last batch that has ended; of one that has begun
   and not ended it is said that there is one.
2. A reset makes the batch that has begun, or else one more, end at the offset wanted: the next one
   begins there, with a number that no sink has seen. What stood there before is kept aside.
3. A reset that is cut off anywhere leaves a checkpoint at the old offset or at the new one.
4. Only what is understood is changed: local directories, one source that is ours, no state.

Elsewhere: offsets (`offsets`), whether a pipeline runs (`runs`), the command
(`cli.pipelines.offsets`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final, NamedTuple

from millstream.errors import ConditionError, UsageError
from millstream.pipelines.change_stream.offsets import Offset, offset_from_json, offset_to_json

__all__ = ["CheckpointState", "read_checkpoint", "reset_checkpoint"]

_VERSION: Final = "v1"
_BATCH: Final = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
_COMMIT: Final = f'{_VERSION}\n{{"nextBatchWatermarkMs":0}}'
_ASIDE: Final = "set-aside"


class CheckpointState(NamedTuple):
    """The state of a checkpoint. `batch_id`: of the last finished batch, -1 for none."""

    directory: Path
    batch_id: int
    offset: Offset | None
    begun: Offset | None
    """End of a batch that has begun and not ended."""


def read_checkpoint(path: Path) -> CheckpointState:
    """Return the position of a checkpoint.

    Args:
        path: what the query has as `checkpointLocation`, or the directory of a pipeline.

    Raises:
        UsageError: `no_checkpoint`, `other_checkpoint`, `bad_offset`.
    """
    directory = next((at for at in (path, path / "spark") if (at / "offsets").is_dir()), None)
    if directory is None:
        raise UsageError(f"{path} is not a checkpoint of a streaming query", code="no_checkpoint")
    begun = _numbers(directory / "offsets")
    ended = [number for number in _numbers(directory / "commits") if number in begun]
    batch_id = ended[-1] if ended else -1
    unfinished = [number for number in begun if number > batch_id]
    return CheckpointState(
        directory,
        batch_id,
        _offset_in(directory, batch_id) if ended else None,
        _offset_in(directory, unfinished[-1]) if unfinished else None,
    )


def reset_checkpoint(path: Path, offset: Offset) -> int:
    """Let a checkpoint go on from an offset. Return the number of the batch that records it.

    No query may be using it.

    Raises:
        UsageError: as `read_checkpoint`; `other_bucket`.
        ConditionError: `has_state`: the query keeps state, which would not fit the offset.
    """
    checkpoint = read_checkpoint(path)
    directory = checkpoint.directory
    held = checkpoint.offset or checkpoint.begun
    if held is not None and (held.bucket, held.bucket_uuid) != (offset.bucket, offset.bucket_uuid):
        raise UsageError(
            f"the checkpoint is one of bucket {held.bucket!r} ({held.bucket_uuid}), the offset of "
            f"{offset.bucket!r} ({offset.bucket_uuid})",
            code="other_bucket",
        )
    if any((directory / "state").glob("*")):
        raise ConditionError(
            f"{directory} holds state of the query that does not fit another offset: begin with "
            "a new checkpoint",
            code="has_state",
        )
    begun = [n for n in _numbers(directory / "offsets") if n > checkpoint.batch_id]
    batch = _batch_line(directory, checkpoint.batch_id)
    text = json.dumps(offset_to_json(offset), separators=(",", ":"))
    for number in begun or [checkpoint.batch_id + 1]:
        _keep_aside(directory, number)
        _write(directory / "offsets" / str(number), f"{_VERSION}\n{batch}\n{text}")
        _write(directory / "commits" / str(number), _COMMIT)
    return number


def _numbers(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdecimal())


def _batch_line(directory: Path, number: int) -> str:
    """Return what a batch says of itself, settings of the query among it."""
    try:
        return (directory / "offsets" / str(number)).read_text().splitlines()[1]
    except (FileNotFoundError, IndexError):
        return _BATCH


def _offset_in(directory: Path, number: int) -> Offset:
    path = directory / "offsets" / str(number)
    version, _, *sources = [*path.read_text().splitlines(), "", ""][:5]
    sources = [line for line in sources if line]
    if version != _VERSION or len(sources) != 1:
        raise UsageError(
            f"{path}: version {version!r} with {len(sources)} sources; only {_VERSION} with one "
            "source is understood",
            code="other_checkpoint",
        )
    try:
        return offset_from_json(json.loads(sources[0]))
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", code="other_checkpoint") from error


def _keep_aside(directory: Path, number: int) -> None:
    path = directory / "offsets" / str(number)
    if path.exists():
        (directory / _ASIDE).mkdir(exist_ok=True)
        _write(directory / _ASIDE / str(number), path.read_text())


def _write(path: Path, text: str) -> None:
    """Put a file there whole, and on the disk."""
    path.parent.mkdir(exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    with beside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    beside.replace(path)
