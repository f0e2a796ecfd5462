"""A store in memory for a repairing sink, and the source as such a sink sees it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache

from millstream.model.partitions import partition_of
from millstream.pipelines.sinks.repairing import (
    OP_DELETE,
    OP_PUT,
    OriginPosition,
    Row,
    StoredVersion,
)
from millstream.upr.core.repair import LoadState
from support.pipelines.node_double import FalseNode


class DictTarget:
    """A `repairing.KeyedTarget`; `rows` is partition -> key -> (row, load), with tombstones."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, tuple[Row, int]]] = {}
        self.states: dict[int, LoadState] = {}
        self.committed: list[int] = []
        self.entered: list[tuple[int, str]] = []

    def begin(self, partitions: Collection[int], partition_count: int = 1) -> None:
        for p in partitions:
            self.rows.setdefault(p, {})

    def enter(self, batch_id: int, query_id: str) -> None:
        self.entered.append((batch_id, query_id))

    def state(self, partition: int) -> LoadState | None:
        return self.states.get(partition)

    def set_state(self, partition: int, state: LoadState) -> None:
        self.states[partition] = state

    def versions(self, partition: int, keys: Collection[str]) -> Mapping[str, StoredVersion]:
        held = self.rows[partition]
        return {
            key: StoredVersion(partition, row.branch, row.seqno, key, row.is_deleted, load)
            for key in keys
            if key in held
            for row, load in [held[key]]
        }

    def keys_above(self, partition: int, branch: int, seqno: int) -> Collection[str]:
        held = self.rows[partition]
        return [k for k, (row, _) in held.items() if row.branch < branch and row.seqno > seqno]

    def put(self, partition: int, rows: Sequence[Row], load: int) -> None:
        for row in rows:
            self.rows[partition][row.key] = row, load

    def sweep(self, partition: int, load: int) -> None:
        held = self.rows[partition]
        self.rows[partition] = {key: pair for key, pair in held.items() if pair[1] >= load}

    def retain(self, partition: int, keys: AbstractSet[str]) -> None:
        held = self.rows[partition]
        self.rows[partition] = {key: pair for key, pair in held.items() if key in keys}

    def drop_tombstones(self, partition: int, seqno: int) -> int:
        held = self.rows[partition]
        tombstones = {key: row.seqno for key, (row, _) in held.items() if row.is_deleted}
        gone = {key: at for key, at in tombstones.items() if at <= seqno}
        for key in gone:
            del held[key]
        return max(gone.values(), default=0)

    def commit(self, batch_id: int) -> None:
        self.committed.append(batch_id)

    def live(self, partition: int) -> dict[str, bytes | None]:
        held = self.rows.get(partition, {})
        return {key: row.value for key, (row, _) in held.items() if not row.is_deleted}


class FalseOrigin:
    """A false node as a `repairing.Origin`; `durable` maps partition -> durable seqno."""

    def __init__(self, node: FalseNode) -> None:
        self.node = node
        self.durable: dict[int, int] = {}
        self.fetched: list[str] = []

    @property
    def partition_count(self) -> int:
        return len(self.node.partitions)

    def positions(self, partitions: Collection[int]) -> Mapping[int, OriginPosition]:
        return {
            p: OriginPosition(part.branch, self.durable.get(p, 0), part.purge_seqno)
            for p in partitions
            for part in [self.node.partitions[p]]
        }

    def newest(self, partition: int, keys: Collection[str]) -> Mapping[str, Row]:
        self.fetched.extend(keys)
        return {row.key: row for row in self._rows(partition) if row.key in set(keys)}

    def everything(self, partition: int) -> Iterator[Sequence[Row]]:
        rows = self._rows(partition)
        yield rows[:2]
        yield rows[2:]

    def _rows(self, partition: int) -> list[Row]:
        part = self.node.partitions[partition]
        return [
            false_row(partition, part.branch, seqno, key, value, self.partition_count)
            for key, (seqno, value) in part.newest().items()
        ]


def false_row(
    partition: int, branch: int, seqno: int, key: int, value: int | None, count: int = 1
) -> Row:
    name = name_of(partition, key, count)
    if value is None:
        return Row(OP_DELETE, partition, branch, seqno, name)
    return Row(OP_PUT, partition, branch, seqno, name, value=b"%d" % value)


@cache
def name_of(partition: int, key: int, count: int = 1) -> str:
    """A name for a key that belongs to this of `count` partitions."""
    names = (f"{key}" if n == 0 else f"{key}.{n}" for n in itertools.count())
    return next(name for name in names if partition_of(name.encode(), count) == partition)
