"""The source's reader without Spark, against a real node that is killed and restarted.

Spark's part is played by the test: offsets go through JSON, a batch may be run again in a new
reader. Whenever the reader is at rest the keyed state equals the node's documents, or the reader
has refused to go on, naming partition and seqno; then it begins anew.
"""

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from millstream.errors import RollbackRequiredError
from millstream.pipelines.source import MillstreamDataSource
from support.node.node_process import NodeProcess
from support.pipelines.spark_bucket import BucketUnderTest
from support.pipelines.spark_rows import planned_end

pytestmark = pytest.mark.slow

ROUNDS = 40
SEEDS = [int(seed) for seed in os.environ.get("MILLSTREAM_SEED", "1").split(",")]
KEYS = [f"k{n}" for n in range(150)]
SCHEMA = StructType(
    [
        StructField("op", StringType()),
        StructField("partition", IntegerType()),
        StructField("branch", LongType()),
        StructField("seqno", LongType()),
        StructField("key", StringType()),
        StructField("value", BinaryType()),
    ]
)


class Driver:
    """A query as Spark would run it."""

    def __init__(self, bucket: BucketUnderTest, rng: random.Random) -> None:
        self.bucket, self.rng = bucket, rng
        self.reader: Any = None
        self.begin_anew()

    def begin_anew(self) -> None:
        self.restart()
        self.rows: dict[str, tuple[int, int, bytes | None]] = {}
        self.start: Any = None
        self.logged: Any = None

    def restart(self) -> None:
        if self.reader is not None:
            self.reader.stop()
        options = self.bucket.options(pollMs=0, numPartitions=2)
        self.reader = MillstreamDataSource(CaseInsensitiveDict(options)).streamReader(SCHEMA)

    def step(self) -> bool:
        """Plan and run one batch; False when nothing is new."""
        if self.start is None:
            self.start = self.reader.initialOffset()
        if self.logged is None:
            end = planned_end(self.reader, self.start, self.rng)
            if end == self.start:
                return False
            self.logged = end
        for partition in self.reader.partitions(self.start, self.logged):
            for batch in self.reader.read(partition):
                for row in batch.to_pylist():
                    self.apply(row)
        if self.rng.random() < 0.15:
            self.restart()  # the batch is run again
        else:
            self.start, self.logged = self.logged, None
        return True

    def apply(self, row: dict[str, Any]) -> None:
        if row["op"] in ("put", "delete", "expire"):
            version = row["branch"], row["seqno"], row["value"]
            held = self.rows.get(row["key"])
            if held is None or version[:2] >= held[:2]:
                self.rows[row["key"]] = version

    def live(self) -> dict[str, bytes]:
        return {key: value for key, (_, _, value) in self.rows.items() if value is not None}


def present(bucket: BucketUnderTest) -> dict[str, bytes]:
    with bucket.client() as client:
        return {key: bytes(found.data) for key, found in client.get_many(KEYS).items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_state_is_right_at_rest_or_the_reader_refuses(
    own_node: Callable[..., NodeProcess], seed: int
) -> None:
    rng = random.Random(seed)
    node = own_node("--bucket", "b:4", "--flush-interval", "10000")
    bucket = BucketUnderTest(node.ready["kv"], "b")
    driver = Driver(bucket, rng)
    refused = rested = 0
    for turn in range(ROUNDS):
        changes = {key: rng.choice([b"%d" % turn, None]) for key in rng.sample(KEYS, 40)}
        bucket.write(changes)
        event = rng.choice(["read", "read", "read", "kill", "stop", "driver"])
        try:
            if event == "driver":
                driver.restart()
            for _ in range(rng.randint(0, 3)):
                driver.step()
            if event in ("kill", "stop"):
                node.kill() if event == "kill" else node.stop()
                node.start()
            if turn % 4 == 3:
                while driver.step():
                    pass
                assert driver.live() == present(bucket)
                rested += 1
        except RollbackRequiredError as error:
            said = str(error)
            refused += f"partition {error.partition_id} of" in said
            driver.begin_anew()
    driver.reader.stop()
    assert rested
    assert refused  # a kill soon after a write that was read
