"""Sinks that repair themselves, without Spark, against a real node that loses its unflushed tail.

Spark's part is played by the test: offsets go through JSON, the rows of a batch come in any order,
a batch may be run again, in a new driver or the same. Whenever the reader is at rest, a table of
Parquet files and a second bucket hold exactly the documents of the node.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

from millstream.pipelines.change_stream.options import parse_options
from millstream.pipelines.change_stream.schema import ARROW_SCHEMA
from millstream.pipelines.sinks.bucket_target import BucketTarget
from millstream.pipelines.sinks.change_rows import rows_from
from millstream.pipelines.sinks.origin import BucketOrigin
from millstream.pipelines.sinks.parquet_target import ParquetTarget
from millstream.pipelines.sinks.repairing import Applied, RepairingSink, Row
from millstream.pipelines.source import MillstreamDataSource
from support.node.node_process import NodeProcess
from support.pipelines.spark_bucket import BucketUnderTest
from support.pipelines.spark_rows import planned_end

pytestmark = pytest.mark.slow

SCHEDULES = int(os.environ.get("MILLSTREAM_SCHEDULES", "6"))
"""`make kills` has more."""
BLOCKS = 3
"""Run at a time, where the suite is."""
FIRST = int(os.environ.get("MILLSTREAM_SEED", "1"))
TURNS = 12
KEYS = [f"k{n}" for n in range(60)]


class Pipeline:
    """A query as Spark would run it, into two sinks."""

    def __init__(
        self, source: BucketUnderTest, copy: BucketUnderTest, table: Path, rng: random.Random
    ) -> None:
        self.options = source.options(pollMs=0, numPartitions=2, rollback="rows")
        self.copy, self.table, self.rng = copy, table, rng
        self.closing: list[Callable[[], None]] = []
        self.start: Any = None
        self.logged: Any = None
        self.did: list[Applied] = []
        self.checks = 0
        self.restart()

    def close(self) -> None:
        for close in self.closing:
            close()
        self.closing = []

    def restart(self) -> None:
        """A new driver: nothing is left but the logged offsets and the sinks."""
        self.close()
        source = MillstreamDataSource(CaseInsensitiveDict(self.options))
        self.reader = source.streamReader(from_arrow_schema(ARROW_SCHEMA))
        origin, bucket = (
            BucketOrigin(parse_options(self.options)),
            BucketTarget(self.copy.options()),
        )
        targets = ParquetTarget(self.table), bucket
        self.sinks = [RepairingSink(target, origin) for target in targets]
        self.closing = [self.reader.stop, origin.close, bucket.close]

    def step(self) -> bool:
        """Plan and run one batch; False when nothing is new."""
        if self.start is None:
            self.start = self.reader.initialOffset()
        if self.logged is None:
            end = planned_end(self.reader, self.start, self.rng)
            if end == self.start:
                return False
            self.logged = end
        rows = list(self.rows())
        self.rng.shuffle(rows)
        # Killed after the first sink, or after both but before the batch was logged as done.
        sinks = self.sinks[: self.rng.choice((1, 2, 2, 2))]
        done = [sink.apply(rows, 0) for sink in sinks]
        self.did.append(done[0])
        if len(done) < len(self.sinks) or self.rng.random() < 0.15:
            self.restart()
        else:
            self.start, self.logged = self.logged, None
        return True

    def rows(self) -> Iterator[Row]:
        for partition in self.reader.partitions(self.start, self.logged):
            for batch in self.reader.read(partition):
                yield from rows_from(batch)

    def lose_leases(self, source: BucketUnderTest) -> None:
        for p, entry in (self.logged or self.start or {"p": {}})["p"].items():
            if entry[5] is not None:
                with source.client() as client:
                    client.release_lease(entry[5], [int(p)])

    def check(self, source: BucketUnderTest) -> None:
        expected = present(source)
        rows = ParquetTarget(self.table).table().to_pylist()
        assert {row["key"]: row["value"] for row in rows if row["key"] in KEYS} == expected
        assert present(self.copy) == expected
        self.checks += 1


def present(bucket: BucketUnderTest) -> dict[str, bytes]:
    with bucket.client() as client:
        return {key: bytes(found.data) for key, found in client.get_many(KEYS).items()}


def write(bucket: BucketUnderTest, rng: random.Random, turn: int) -> None:
    changes = {key: rng.choice([b"%d" % turn, None]) for key in rng.sample(KEYS, 20)}
    bucket.write(changes)
    if rng.random() < 0.4:  # what was written so far outlives a kill
        with bucket.client() as client:
            for p in range(4):
                client.upsert(f"flush{p}", turn, durability="persisted")


@pytest.mark.parametrize("block", range(BLOCKS))
def test_sinks_equal_the_node_after_any_loss(
    own_node: Callable[..., NodeProcess], tmp_path: Path, block: int
) -> None:
    numbers = range(block, SCHEDULES, BLOCKS)
    buckets = [f"--bucket=s{number}:4" for number in numbers]
    lossy = own_node("--flush-interval", "600000", *buckets, name="lossy")
    copy = BucketUnderTest(own_node("--bucket", "copy:4", name="other").ready["kv"], "copy")
    told = Applied()
    for number in numbers:
        rng = random.Random(FIRST + number)
        source = BucketUnderTest(lossy.ready["kv"], f"s{number}")
        with copy.client() as client:
            keys = [*KEYS, *(f"_millstream:sink:{p}" for p in range(4))]
            client.apply_many([(key, None) for key in keys]).raise_first()
        pipeline = Pipeline(source, copy, tmp_path / str(number), rng)
        try:
            live(pipeline, source, lossy, rng)
        except Exception as error:
            raise AssertionError(f"MILLSTREAM_SEED={FIRST + number}") from error
        finally:
            pipeline.close()
        told = Applied(*(sum(values) for values in zip(told, *pipeline.did, strict=True)))
    # The schedules have what they are made for, whatever the seed.
    assert min(told.rollbacks, told.fetched, told.sweeps, told.deletions) > len(numbers)


def live(
    pipeline: Pipeline, source: BucketUnderTest, node: NodeProcess, rng: random.Random
) -> None:
    events: list[Callable[[], object]] = [pipeline.step] * 7
    events += [pipeline.restart, lambda: pipeline.lose_leases(source)]
    for turn in range(TURNS):
        write(source, rng, turn)
        rng.choice(events)()
        if turn % 6 == 3:
            node.kill()
            node.start()
        if turn % 6 == 5:
            while pipeline.step():
                pass
            pipeline.check(source)


def test_durable_reads_are_never_undone(
    own_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = own_node("--bucket", "b:4", "--flush-interval", "600000")
    bucket = BucketUnderTest(node.ready["kv"], "b")
    schema = from_arrow_schema(ARROW_SCHEMA)
    source = MillstreamDataSource(CaseInsensitiveDict(bucket.options(durableOnly=True, pollMs=0)))
    reader = source.streamReader(schema)
    start = reader.initialOffset()
    bucket.write(dict.fromkeys(KEYS, b"lost"))
    start = reader.latestOffset(start, ReadAllAvailable())
    assert [entry[1] for entry in start["p"].values()] == [0] * 4
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    batch = source.reader(schema)
    assert [rows for part in batch.partitions() for rows in batch.read(part)] == []
    with bucket.client() as client:
        client.upsert("k0", b"kept", durability="persisted")
    bucket.write({"k0": b"lost"})
    end = reader.latestOffset(start, ReadAllAvailable())
    rows = [
        row
        for part in reader.partitions(start, end)
        for rows in reader.read(part)
        for row in rows_from(rows)
    ]
    assert b"kept" in [row.value for row in rows if row.key == "k0"]
    end = reader.latestOffset(end, ReadAllAvailable())
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    node.kill()
    node.start()
    # The history is another one, but nothing that was read is lost: no error.
    after = reader.latestOffset(end, ReadAllAvailable())
    assert all(entry[8] == entry[1] for entry in after["p"].values())
    reader.stop()
