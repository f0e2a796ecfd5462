"""Reads a format of ours as Spark does, in this process and without a JVM."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict, DataSource
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

KINDS = {
    "string": StringType(), "int": IntegerType(), "bigint": LongType(), "binary": BinaryType(),
    "timestamp": TimestampType(),
}  # fmt: skip


def struct_of(text: str) -> StructType:
    """Return the schema that a text such as `key string, seqno bigint` stands for."""
    pairs = [column.split() for column in text.split(", ")]
    return StructType([StructField(name, KINDS[kind]) for name, kind in pairs])


def rows_of(
    source: type[DataSource],
    schema: str = "",
    *,
    after_planning: Callable[[], object] = lambda: None,
    **options: object,
) -> tuple[int, list[dict[str, Any]]]:
    """Plan and run a batch; return the number of tasks, and the rows of all."""
    made = source(CaseInsensitiveDict({name: str(value) for name, value in options.items()}))
    text = schema or str(made.schema())
    reader = made.reader(struct_of(text))
    parts = list(reader.partitions())
    after_planning()
    executor = cloudpickle.loads(cloudpickle.dumps(reader))
    rows = [
        row
        for part in parts
        for batch in executor.read(cloudpickle.loads(cloudpickle.dumps(part)))
        for row in batch.to_pylist()  # type: ignore[union-attr]
    ]
    return len(parts), rows


def planned_end(reader: Any, start: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return where a batch from `start` ends, as checkpoints keep it; half are cut short."""
    limit = ReadMaxRows(rng.randint(1, 60)) if rng.random() < 0.5 else None
    end = reader.latestOffset(start, limit or ReadAllAvailable())
    kept: dict[str, Any] = json.loads(json.dumps(end))
    return kept
