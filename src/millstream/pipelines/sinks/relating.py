"""Rows that are computed from the documents of several tables, kept in a store of their own.

    tables = [SideTable("/data/joined/0"), SideTable("/data/joined/1")]
    sink = RelatingSink(tables, target, derive, "/data/joined")
    ...                                     # a batch is applied to each table
    sink.update(batch_id)

A table is files that never change, so the names of its files are a state of it: a snapshot. The
file `_relation` names the snapshots that the store may stand for. A batch of the sink compares
them with the tables as they are now, and writes the rows that differ.

Invariants:
1. The store stands for one of the snapshots in `_relation`, or lies between the two. There are
   two from before the first write of a batch until its commit.
2. Files that `_relation` names stay until it no longer names them.
3. If there are two, the sink first brings the store to the second one: a row that only an
   interrupted batch may have written is replaced or removed. So it does not matter where a
   process was killed, or what the batch has when it comes again.
4. A row is written with a load that counts batches; it is kept in the store, too. A store that
   does not know the load of `_relation` is another one, and is refused.

Cost: memory of the driver for the rows that differ, not for the tables.

Elsewhere: how rows are computed (`pipelines.relation_frames`), what the tables hold
(`sinks.transforming`), rollbacks (`sinks.repairing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from millstream.errors import CorruptionError, UsageError
from millstream.model.partitions import partition_of
from millstream.pipelines.sinks.grouping import computed_row
from millstream.pipelines.sinks.parquet_target import ParquetTarget
from millstream.pipelines.sinks.repairing import WHOLE, KeyedTarget, Row
from millstream.runtime.files import write_atomically
from millstream.upr.core.repair import LoadState

__all__ = ["MARKER", "DeriveChanged", "RelatingSink", "SideTable", "Snapshot"]

MARKER: Final = "_relation"
PARTS: Final = 16
"""Parts of the store: of a table of files a batch writes those anew that it changes."""
ROWS_OF_A_PUT: Final = 10_000

Snapshot = tuple[tuple[str, ...], ...]
"""The files of each table, by name, in their order."""
DeriveChanged = Callable[[Sequence[Snapshot], Snapshot], Iterable[tuple[str, bytes | None]]]
"""Snapshots that the store may stand for, and the one wanted, to the rows that differ: key and
JSON, None for a row that is gone. A key comes once."""


class SideTable(ParquetTarget):
    """A table that keeps the files in `pinned` beside its own."""

    def __init__(self, path: str | Path) -> None:
        self.pinned: AbstractSet[str] = frozenset()
        super().__init__(path)

    def snapshot(self) -> tuple[str, ...]:
        """Return the names of its files."""
        return tuple(sorted(file.name for file in self.files()))

    def _clean(self, kept: AbstractSet[str]) -> None:
        super()._clean(kept | self.pinned)


class _Marker(msgspec.Struct, frozen=True):
    """The content of `_relation`; `load`: what the store has, or one less if there are two."""

    load: int
    snapshots: tuple[Snapshot, ...]
    v: int = 1


_MARKERS: Final = msgspec.json.Decoder(_Marker)


class RelatingSink:
    """Keeps a store equal to rows that are derived from tables.

    Args:
        tables: they change by the batches that come before `update` only.
        target: the store; it has nothing else.
        derive: computes rows.
        path: directory of `_relation`.

    Raises:
        CorruptionError: `damaged`: `_relation` cannot be read.
    """

    def __init__(
        self,
        tables: Sequence[SideTable],
        target: KeyedTarget,
        derive: DeriveChanged,
        path: str | Path,
    ) -> None:
        self._tables = tuple(tables)
        self._target = target
        self._derive = derive
        self._path = Path(path) / MARKER
        self._marker = self._read()
        self._pin()

    def update(self, batch_id: int, query_id: str = "") -> None:
        """Write the rows that the tables' last batches concern.

        Raises:
            UsageError: `other_checkpoint`: the store is not the one of the tables, or another
                query writes it.
        """
        if len(self._marker.snapshots) > 1:
            self._bring(batch_id, query_id, self._marker.snapshots[-1])
        self._bring(batch_id, query_id, tuple(table.snapshot() for table in self._tables))

    def _bring(self, batch_id: int, query_id: str, now: Snapshot) -> None:
        """Bring the store to a snapshot; invariants 1 and 3."""
        known = self._marker.snapshots
        self._target.begin([WHOLE, *range(PARTS)], PARTS)
        self._target.enter(batch_id, query_id)
        load = self._load()
        changed: Iterator[tuple[str, bytes | None]] = iter(())
        if known != (now,):
            self._mark(_Marker(load, known if now in known else (*known, now)))
            load += 1
            changed = iter(self._derive(known, now))
        for part in range(PARTS):
            self._target.set_state(part, LoadState(load))
        while rows := list(islice(changed, ROWS_OF_A_PUT)):
            self._put(rows, load)
        for part in range(PARTS):
            self._target.drop_tombstones(part, load)
        self._target.commit(batch_id)
        if known != (now,):
            self._mark(_Marker(load, (now,)))

    def _load(self) -> int:
        """Return the load of the store, 0 if it is new; invariant 4."""
        state = self._target.state(0)
        found = 0 if state is None else state.load
        known = self._marker
        if found not in (known.load, known.load + len(known.snapshots) - 1):
            raise UsageError(
                f"the target has seen batch {found} of these rows, but {self._path} was written "
                f"with batch {known.load}: the target was emptied or is another one, or the "
                "directory is. Begin with an empty target, a new directory and a new checkpoint",
                code="other_checkpoint",
            )
        return found

    def _put(self, rows: Sequence[tuple[str, bytes | None]], load: int) -> None:
        by_part: dict[int, list[Row]] = {}
        for key, value in rows:
            part = partition_of(key.encode(), PARTS)
            by_part.setdefault(part, []).append(computed_row(part, key, value, load))
        for part, mine in by_part.items():
            self._target.put(part, mine, load)

    def _read(self) -> _Marker:
        try:
            return _MARKERS.decode(self._path.read_bytes())
        except FileNotFoundError:
            return _Marker(0, (tuple(() for _ in self._tables),))
        except msgspec.DecodeError as error:
            raise CorruptionError(
                f"{self._path} cannot be read: {error}. Begin with an empty target, a new "
                "directory and a new checkpoint",
                code="damaged",
            ) from error

    def _mark(self, marker: _Marker) -> None:
        write_atomically(self._path, msgspec.json.encode(marker), mode=0o644)
        self._marker = marker
        self._pin()

    def _pin(self) -> None:
        for number, table in enumerate(self._tables):
            table.pinned = {
                name for snapshot in self._marker.snapshots for name in snapshot[number]
            }
