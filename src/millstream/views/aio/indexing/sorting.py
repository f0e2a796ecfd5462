"""External merge sort: any number of rows in order, with bounded memory and runs on disk.

    with RowSorter(folder, bytes_max=...) as sorter:
        sorter.add(rows)                 # [(key, partition, value), ...], as often as needed
        for row in sorter.rows(): ...

Rows are sorted in small runs. Runs are merged in portions: a portion is the part of each run that
is certainly not above the rest of another run. One call of `sort` orders it, because it detects
the runs. So no call holds the interpreter for long, and no Python code runs per comparison.

Invariants:
1. `rows` yields all added rows ordered by key. The order of equal keys is undefined.
2. Memory holds at most `bytes_max` bytes of rows, or while merging one block of each run.
3. There are at most `RUNS_MAX` runs on disk; more are merged into one.
4. The files have no name, so they disappear with the process.

Elsewhere: what the rows are (`views.core.rows`), the tree made of them (`trees`).
"""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from operator import itemgetter
from struct import Struct
from typing import IO, TYPE_CHECKING, Final, NamedTuple, Self

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

__all__ = ["RUNS_MAX", "Row", "RowSorter", "merged"]

Row = tuple[bytes, int, bytes]
"""Key, partition, value."""
RUNS_MAX: Final = 64
"""Sorted runs of one sort on disk."""
_RUN_ROWS: Final = 4096
"""Rows sorted at a time in memory."""
_BLOCK_ROWS: Final = 512
"""Rows that are written and read at a time."""
_ROW_BYTES: Final = 180
"""What a row in memory takes beside its bytes."""

_LENGTH: Final = Struct(">I")
_key: Final = itemgetter(0)
_value: Final = itemgetter(2)
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Row]).decode


class _Extent(NamedTuple):
    """Where a run is in the file."""

    begin: int
    end: int


class RowSorter:
    """Sorts rows by key.

    Args:
        folder: for the runs; on the disk of the index.
        bytes_max: of rows in memory.
    """

    def __init__(self, folder: Path, *, bytes_max: int) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._bytes = 0
        self._small: list[Row] = []
        self._sorted: list[list[Row]] = []
        self._file: IO[bytes] | None = None
        self._extents: list[_Extent] = []
        self.count = 0
        """Rows added."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def run_count(self) -> int:
        """Runs on disk."""
        return len(self._extents)

    def add(self, rows: Sequence[Row]) -> None:
        """Add rows.

        Raises:
            OSError: the disk is full.
        """
        self.count += len(rows)
        self._bytes += len(rows) * _ROW_BYTES
        self._bytes += sum(map(len, map(_key, rows))) + sum(map(len, map(_value, rows)))
        self._small += rows
        if len(self._small) >= _RUN_ROWS:
            self._sort_small()
        if self._bytes >= self._bytes_max:
            self._spill()

    def rows(self) -> Iterator[Row]:
        """Yield all rows in order."""
        for portion in self.portions():
            yield from portion

    def portions(self) -> Iterator[list[Row]]:
        """Yield all rows in order, some at a time."""
        self._sort_small()
        runs = [self._read(extent) for extent in self._extents]
        runs += [_blocks(run) for run in self._sorted]
        return merged(runs)

    def close(self) -> None:
        """Forget everything."""
        self._small, self._sorted, self._extents = [], [], []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _sort_small(self) -> None:
        for at in range(0, len(self._small), _RUN_ROWS):
            self._sorted.append(sorted(self._small[at : at + _RUN_ROWS], key=_key))
        self._small = []

    def _spill(self) -> None:
        """Move what is in memory to the disk."""
        self._sort_small()
        if len(self._extents) >= RUNS_MAX:
            self._merge_runs()
        portions = merged([_blocks(run) for run in self._sorted])
        self._extents.append(self._write(self._opened(), portions))
        self._sorted, self._bytes = [], 0

    def _merge_runs(self) -> None:
        """Make one run of all that are on disk, in a new file."""
        file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed by `close`
        extent = self._write(file, merged([self._read(extent) for extent in self._extents]))
        if self._file is not None:
            self._file.close()
        self._file, self._extents = file, [extent]

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - see above
        return self._file

    def _write(self, file: IO[bytes], portions: Iterable[list[Row]]) -> _Extent:
        begin = file.seek(0, 2)
        for portion in portions:
            for at in range(0, len(portion), _BLOCK_ROWS):
                data = _encode(portion[at : at + _BLOCK_ROWS])
                file.write(_LENGTH.pack(len(data)) + data)
        file.flush()
        return _Extent(begin, file.tell())

    def _read(self, extent: _Extent) -> Iterator[list[Row]]:
        """Yield the blocks of a run. Other runs are read from the same file in between."""
        file = self._opened()
        at = extent.begin
        while at < extent.end:
            file.seek(at)
            (size,) = _LENGTH.unpack(file.read(_LENGTH.size))
            yield _decode(file.read(size))
            at += _LENGTH.size + size


def merged(runs: Sequence[Iterator[list[Row]]]) -> Iterator[list[Row]]:
    """Yield the rows of sorted runs in order, some at a time.

    Args:
        runs: each yields blocks, none empty, in order.
    """
    heads: list[tuple[list[Row], Iterator[list[Row]]]] = []
    for run in runs:
        block = next(run, None)
        if block is not None:
            heads.append((block, run))
    while len(heads) > 1:
        # What is not above the lowest end of the blocks in hand: no later block has less.
        bound = min(block[-1][0] for block, _ in heads)
        portion: list[Row] = []
        following: list[tuple[list[Row], Iterator[list[Row]]]] = []
        for block, run in heads:
            count = bisect_right(block, bound, key=_key)
            portion += block[:count]
            rest = block[count:] or next(run, [])
            if rest:
                following.append((rest, run))
        portion.sort(key=_key)
        heads = following
        yield portion
    for block, run in heads:
        yield block
        yield from run


def _blocks(run: list[Row]) -> Iterator[list[Row]]:
    for at in range(0, len(run), _BLOCK_ROWS):
        yield run[at : at + _BLOCK_ROWS]
