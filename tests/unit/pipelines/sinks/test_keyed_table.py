"""What a batch collects before its table writes it: schedules over a table in memory."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from millstream.pipelines.sinks.keyed_table import (
    TABLE_SCHEMA,
    VERSION_COLUMNS,
    Held,
    KeyedTable,
    held_from,
    loaded_table,
)
from millstream.pipelines.sinks.repairing import KeyedTarget, RepairingSink
from millstream.upr.core.repair import LoadState
from simulators.pipeline_world import TableWorld
from support.budget import budget
from support.pipelines.node_double import FalseNode
from support.streams.keyed_double import FalseOrigin, false_row

SCHEDULES = budget(60)


class MemoryTable(KeyedTable):
    """A table that is an Arrow table, replaced by each batch."""

    def __init__(self) -> None:
        super().__init__("the table")
        self.rows = TABLE_SCHEMA.empty_table()
        self.kept: dict[int, LoadState] = {}

    def begin(self, partitions: Collection[int], partition_count: int) -> None:
        self.restart(self.kept)

    def last_writer(self) -> None:
        return None

    def stored_versions(self, partition: int) -> Held:
        mine = self.rows.filter(pa.compute.equal(self.rows.column("partition"), partition))
        return held_from(mine.select(VERSION_COLUMNS), partition)

    def commit(self, batch_id: int) -> None:
        changed = {
            (p, key): pair for p, rows in self.changed.items() for key, pair in rows.items()
        }
        gone = {(p, key) for p, keys in self.gone.items() for key in keys}
        assert not gone & changed.keys()
        kept = [
            row
            for row in self.rows.to_pylist()
            if (row["partition"], row["key"]) not in gone | changed.keys()
        ]
        old = pa.Table.from_pylist(kept, TABLE_SCHEMA)
        self.rows = pa.concat_tables([old, loaded_table(changed.values())])
        self.kept = self.states


class MemoryWorld(TableWorld):
    """Batches fail before the table is replaced, or the driver dies after it."""

    restarts = False

    def make_target(self) -> KeyedTarget:
        return MemoryTable()

    def live(self, p: int) -> dict[str, bytes | None]:
        return {
            row["key"]: row["value"]
            for row in self.target.rows.to_pylist()
            if row["partition"] == p and row["op"] == "put"
        }


def test_the_target_equals_the_source_at_rest() -> None:
    for seed in range(SCHEDULES):
        MemoryWorld(seed, repairs=True).run()


def test_existing_data_is_not_written_again() -> None:
    node = FalseNode(1)
    node.write(0, 1, 1)
    table = MemoryTable()
    sink = RepairingSink(table, FalseOrigin(node))
    rows = [false_row(0, 1, 1, 1, 1), false_row(0, 1, 2, 2, None)]
    sink.apply(rows)
    table.begin([0], 1)
    table.put(0, rows, 1)
    assert table.changed == {0: {}}
    table.retain(0, {"1"})
    table.put(0, rows[1:], 1)
    assert list(table.changed[0]) == [rows[1].key]
    assert table.gone == {0: set()}
