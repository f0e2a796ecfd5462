"""`millstream pipeline offsets` on the checkpoints of real queries: made, compared, reset."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.pipelines.spark_bucket import BucketUnderTest, KeyedState

FIRST = {f"k{n}": {"n": n} for n in range(100)}
SECOND = {f"m{n}": {"n": n} for n in range(50)}


def offsets(*words: str | Path, given: str = "") -> str:
    command = [sys.executable, "-m", "millstream", "pipeline", "offsets", *map(str, words)]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def keys_read(
    bucket: BucketUnderTest, spark: Any, checkpoint: Path, **options: object
) -> tuple[list[str], list[int]]:
    """Run a query to the present end; return the keys it brought, and the numbers of batches."""
    state = KeyedState()
    state.run_to_end(bucket.stream(spark, **options), checkpoint)
    found = [row.key for _, rows in state.batches for row in rows if row.key]
    return sorted(found), [number for number, _ in state.batches]


@pytest.mark.slow
def test_queries_begin_where_an_offset_says_that_was_made_or_reset(
    spark: Any, bucket: BucketUnderTest, tmp_path: Path
) -> None:
    one, other, here = tmp_path / "one", tmp_path / "other", tmp_path / "here.json"
    bucket.write(FIRST)
    assert keys_read(bucket, spark, one)[0] == sorted(FIRST)
    node = "--connect", bucket.address
    here.write_text(offsets("make", bucket.name, *node))
    rows = json.loads(offsets("diff", one, here, "--json"))
    assert [row["seqnos"] for row in rows] == [0, 0, 0, 0]

    # A new query begins at an offset that was made.
    bucket.write(SECOND)
    assert keys_read(bucket, spark, other, startingOffsets=here.read_text())[0] == sorted(SECOND)
    assert json.loads(offsets("show", other, "--json"))["bucket"] == bucket.name

    # One that has gone on goes back, under numbers that no sink has seen, and on from there.
    assert keys_read(bucket, spark, one)[0] == sorted(SECOND)
    rows = json.loads(offsets("diff", here, one, "--json"))
    assert sum(row["seqnos"] for row in rows) == len(SECOND)
    before = max(int(file.name) for file in (one / "commits").glob("[0-9]*"))
    offsets("reset", one, "--to", here)
    again, numbers = keys_read(bucket, spark, one)
    assert again == sorted(SECOND)
    assert min(numbers) > before

    # From where another one stands, from the beginning, and past what is to be skipped.
    offsets("reset", one, "--to", other)
    assert keys_read(bucket, spark, one)[0] == []
    earliest = offsets("make", bucket.name, "--at", "earliest", *node)
    offsets("reset", one, "--to", "-", given=earliest)
    assert keys_read(bucket, spark, one)[0] == sorted(FIRST | SECOND)
    bucket.write(FIRST)
    offsets("reset", one, "--to", "-", given=offsets("make", bucket.name, *node))
    bucket.write({"last": {"n": 1}})
    assert keys_read(bucket, spark, one)[0] == ["last"]
