"""Fixtures of the tests that have driver, executors and servers in processes of their own.

`source`: a bucket of a node that keeps the newest changes in memory only, so that a kill loses
them. `targets`: buckets of another node, by name.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.node.node_process import NodeProcess, free_port
from support.node.waiting import until
from support.pipelines.spark_bucket import BucketUnderTest

TARGETS = ("copy", "applied", "upserted")
PARTITIONS = 4


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    until(lambda: not [*processes_in(tmp_path)], lambda: [*processes_in(tmp_path)])
    for name in ("env", "spark", "spill"):  # a gigabyte
        shutil.rmtree(tmp_path / name, ignore_errors=True)


def processes_in(directory: Path) -> Iterator[str]:
    """Yield the programs that work in a directory or below."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if (process / "cwd").readlink().is_relative_to(directory):
                yield (process / "cmdline").read_text().replace("\0", " ")


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
