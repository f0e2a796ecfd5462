"""Salvages the longest readable beginning of a damaged log.

Invariants:
1. Everything after the first damage is set aside, never removed. So are the receipt and `reached`,
   which would report it as missing.
2. A start treats the remaining log as one that was not stopped cleanly: an earlier state of the
   bucket, with a new history.

Elsewhere: the caller (`data_directory.acceptance`), opening a log (`storage.core.segment_log`).
"""

from __future__ import annotations

import os
import re
import shutil
import struct
from pathlib import Path
from typing import Final, NamedTuple

from millstream.data_directory.unchanged_disk import UnchangedDisk
from millstream.errors import MillstreamError
from millstream.runtime.files import sync_directory
from millstream.storage.core.live import LiveLog
from millstream.storage.core.reached import REACHED_NAME
from millstream.storage.core.receipt import RECEIPT_NAME
from millstream.storage.core.records import walk
from millstream.storage.core.recovery import load_summaries
from millstream.storage.core.segment import HEADER_BYTES, decode_header
from millstream.storage.core.segment_files import segment_name
from millstream.storage.core.segment_log import LogSizes, SegmentLog
from millstream.storage.core.summary import PartitionSummary

__all__ = ["salvage_log"]

_SEGMENT: Final = re.compile(r"[0-9]{8}\.seg")
_UNREADABLE: Final = (
    MillstreamError, OSError, AssertionError, ValueError, LookupError, struct.error,
)  # fmt: skip


class _Whole(NamedTuple):
    """The last segment that is kept, and where it is cut (-1: it is complete)."""

    last: int
    end: int = -1


def salvage_log(directory: Path, partition_count: int) -> str:
    """Keep the readable beginning of a bucket's log; return what was done, for people. Blocks.

    Args:
        directory: of the bucket.
        partition_count: of the bucket.

    Raises:
        OSError: it cannot be read or written.
    """
    path = directory / "log"
    path.mkdir(exist_ok=True)
    numbers = [int(name[:8]) for name in sorted(os.listdir(path)) if _SEGMENT.fullmatch(name)]
    whole = _longest(path, numbers, partition_count)
    lost = [segment_name(number) for number in numbers if number > whole.last]
    cut = segment_name(whole.last)
    if not lost and whole.end < 0:
        for name in (REACHED_NAME, RECEIPT_NAME):
            (path / name).unlink(missing_ok=True)
        sync_directory(path)
        if not numbers:
            return "its log is gone, and with it all documents; the bucket begins empty"
        return "its log is taken as it is"
    aside = _new_directory(directory)
    if whole.end >= 0:
        shutil.copy2(path / cut, aside / cut)
        with (path / cut).open("r+b") as file:
            file.truncate(whole.end)
            os.fsync(file.fileno())
    for name in [*lost, REACHED_NAME, RECEIPT_NAME]:
        if (path / name).exists():
            (path / name).rename(aside / name)
    for changed in (aside, path, directory):
        sync_directory(changed)
    end = f"{cut}, offset {whole.end}" if whole.end >= 0 else f"{cut}"
    left = f"its log ends with {end} now" if whole.last else "nothing is left of its log"
    return f"{left}; what was behind is in {aside}"


def _longest(path: Path, numbers: list[int], partition_count: int) -> _Whole:
    last = numbers[-1] if numbers else 0
    while last:
        damaged: int | None = last
        for whole in (_Whole(last), _Whole(last, _end_of(path, last))):
            if whole.end == HEADER_BYTES:
                continue  # it is empty
            damaged = _first_damage(path, numbers, whole, partition_count)
            if damaged is None:
                return whole
        before = last if damaged is None or damaged >= last else damaged + 1
        last = max((number for number in numbers if number < before), default=0)
    return _Whole(0)


def _first_damage(
    path: Path, numbers: list[int], whole: _Whole, partition_count: int
) -> int | None:
    """Return the number of the first damaged segment; the last segment if unknown."""
    hidden = [segment_name(number) for number in numbers if number > whole.last]
    sizes = {segment_name(whole.last): whole.end} if whole.end >= 0 else {}
    disk = UnchangedDisk(path, [*hidden, REACHED_NAME, RECEIPT_NAME], sizes)
    number = whole.last
    try:
        log = SegmentLog(disk, LogSizes())
        try:
            for number in log.numbers[:-1]:
                log.verify(number)
            number = whole.last
            if log.is_sealed:
                log.verify(number)
            load_summaries(LiveLog(log, [PartitionSummary() for _ in range(partition_count)]))
        finally:
            log.close()
    except _UNREADABLE:
        return number
    return None


def _end_of(path: Path, number: int) -> int:
    """Return the end of the whole records of a segment, or the end of its header."""
    file = UnchangedDisk(path).open(segment_name(number))
    header = decode_header(file.read_at(0, HEADER_BYTES))
    end = HEADER_BYTES
    if header is not None and not header.rewriting.first:  # a compacted segment has its marks last
        for found in walk(file.read_at, HEADER_BYTES, file.size()):
            end = found.offset + found.length
    file.close()
    return end


def _new_directory(directory: Path) -> Path:
    number = 1
    while (aside := directory / f"log.lost-{number}").exists():
        number += 1
    aside.mkdir()
    return aside
