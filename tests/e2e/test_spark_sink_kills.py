"""The transactional writer without Spark, killed by kill -9 between any two requests to a node.

The node is killed, too, at times. In the end every batch is there whole, written by one set of
attempts.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.node.node_process import NodeProcess
from support.pipelines import sink_driver
from support.pipelines.sink_driver import ROWS, TASKS
from support.pipelines.spark_bucket import BucketUnderTest

pytestmark = pytest.mark.slow

BATCHES = 6
KILLS_MAX = 9
REQUESTS_MAX = 90
"""About those of two batches."""
SEEDS = [int(seed) for seed in os.environ.get("MILLSTREAM_SEED", "1").split(",")]


def found(bucket: BucketUnderTest, attempts: int) -> dict[str, Any]:
    """The documents that any attempt may have written."""
    keys = [f"k{task}.{n}" for task in range(TASKS) for n in range(ROWS)]
    of_attempts = itertools.product(range(BATCHES), range(attempts), range(TASKS))
    keys += [f"x{batch}.{attempt}.{task}" for batch, attempt, task in of_attempts]
    with bucket.client() as client:
        return {key: document.value for key, document in client.get_many(keys).items()}


def drive(rng: random.Random, node: NodeProcess, driver: Any) -> int:
    """Let attempts be killed until one comes to the end; return its number."""
    for attempt in itertools.count():
        number = rng.randint(1, REQUESTS_MAX) if attempt < KILLS_MAX else 0
        when = rng.choice(["before", "after"])
        driver.stdin.write(f"{attempt} {number} {when}\n")
        driver.stdin.flush()
        status = int(driver.stdout.readline())
        assert status in (0, -signal.SIGKILL)
        if status == 0:
            return attempt
        if rng.random() < 0.25:
            node.kill()
            node.start()
    raise AssertionError("never")


@pytest.mark.parametrize("seed", SEEDS)
def test_each_batch_is_written_whole_by_one_set_of_attempts(
    own_node: Callable[..., NodeProcess], tmp_path: Path, seed: int
) -> None:
    node = own_node("--bucket", "b:4", "--flush-interval", "200")
    bucket = BucketUnderTest(node.ready["kv"], "b")
    options = bucket.options(transactional="true", sinkId="s")
    log = tmp_path / "commits"
    log.write_text("0")
    command = [sys.executable, sink_driver.__file__, json.dumps(options), str(log), str(BATCHES)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        last = drive(random.Random(seed), node, driver)
        assert driver.stdin is not None
        driver.stdin.close()
    assert last >= 3
    documents = found(bucket, last + 1)
    written = defaultdict(set)
    for key in documents:
        if key.startswith("x"):
            batch, attempt, task = map(int, key[1:].split("."))
            written[batch].add((attempt, task))
    assert sorted(written) == list(range(BATCHES))
    for batch, parts in written.items():
        assert len({attempt for attempt, _ in parts}) == 1, (batch, parts)
        assert len(parts) == TASKS
    newest = [value for key, value in documents.items() if key.startswith("k")]
    assert len(newest) == TASKS * ROWS
    ((winner, _), *_) = written[BATCHES - 1]
    assert all(value == [BATCHES - 1, winner] for value in newest)
