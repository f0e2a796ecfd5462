"""Fixtures of the tests that have driver, executors and servers in processes of their own.

`source`: a bucket of a node that keeps the newest changes in memory only, so that a kill loses
them. `targets`: buckets of another node, by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from node_process import NodeProcess, free_port
from spark_bucket import BucketUnderTest

TARGETS = ("copy", "applied", "upserted")
PARTITIONS = 4


@pytest.fixture
def source_node(tmp_path: Path) -> Iterator[NodeProcess]:
    address = f"127.0.0.1:{free_port()}"
    options = ["--bucket", f"source:{PARTITIONS}", "--flush-interval", "600000"]
    with NodeProcess(tmp_path / "source", "--kv", address, *options) as node:
        yield node


@pytest.fixture
def source(source_node: NodeProcess) -> BucketUnderTest:
    return BucketUnderTest(source_node.ready["kv"], "source")


@pytest.fixture
def targets(tmp_path: Path) -> Iterator[dict[str, BucketUnderTest]]:
    options = [f"--bucket={name}:{PARTITIONS}" for name in TARGETS]
    with NodeProcess(tmp_path / "targets", *options) as node:
        yield {name: BucketUnderTest(node.ready["kv"], name) for name in TARGETS}
