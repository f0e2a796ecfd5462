"""Executors of their own, the package brought to them in the three ways that the guide names.

The Python of all processes has the libraries or nothing, never the package: it is there only if
the way that is tested has brought it.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from support.pipelines.spark_bucket import BucketUnderTest
from support.pipelines.spark_cluster import (
    Job,
    StandaloneCluster,
    bare_python,
    package_archive,
    packed_python,
)

KEYS = [f"k{n}" for n in range(3_000)]
LOCAL_CLUSTER = "local-cluster[2,1,1024]"

Targets = dict[str, BucketUnderTest]


@pytest.fixture
def addresses(source: BucketUnderTest, targets: Targets) -> tuple[str, str]:
    source.write({key: {"n": n} for n, key in enumerate(KEYS)})
    return source.address, targets["copy"].address


def present(bucket: BucketUnderTest) -> dict[str, bytes]:
    with bucket.client() as client:
        return {key: bytes(found.data) for key, found in client.get_many(KEYS).items()}


def check(found: dict[str, Any], source: BucketUnderTest, targets: Targets, place: Path) -> None:
    """All three buckets are right; executors had the package below `place`."""
    assert found["partitions"] == 4
    assert found["batches"] >= 2
    assert all(Path(file).is_relative_to(place) for file in found["executors"]), found
    expected = present(source)
    assert len(expected) == len(KEYS)
    assert all(present(target) == expected for target in targets.values())


@pytest.mark.nightly  # the last one brings the package in the same way
def test_py_files(
    source: BucketUnderTest, targets: Targets, addresses: tuple[str, str], tmp_path: Path
) -> None:
    archive, python = package_archive(tmp_path), bare_python(tmp_path)
    with Job(tmp_path) as job:
        job.submit(
            LOCAL_CLUSTER, addresses, "--py-files", str(archive),
            PYSPARK_PYTHON=str(python), PYTHONPATH=str(archive),
        )  # fmt: skip
        check(job.found(), source, targets, tmp_path / "spark" / "work")


def test_a_packed_environment(
    source: BucketUnderTest, targets: Targets, addresses: tuple[str, str], tmp_path: Path
) -> None:
    archive = packed_python(tmp_path)
    with Job(tmp_path) as job:
        job.submit(
            LOCAL_CLUSTER, addresses, "--archives", f"{archive}#env",
            PYSPARK_PYTHON="./env/bin/python",
        )  # fmt: skip
        check(job.found(), source, targets, tmp_path / "spark" / "work")


def test_a_master_and_two_workers_of_which_one_is_killed(
    source: BucketUnderTest, targets: Targets, addresses: tuple[str, str], tmp_path: Path
) -> None:
    archive, python = package_archive(tmp_path), bare_python(tmp_path)
    with StandaloneCluster(tmp_path) as cluster, Job(tmp_path) as job:
        job.submit(
            cluster.address, addresses, "--py-files", str(archive), held=("copy", "follow"),
            PYSPARK_PYTHON=str(python), PYTHONPATH=str(archive),
        )  # fmt: skip
        pid = job.stopped_in("copy")
        os.kill(cluster.executor_of(pid), signal.SIGKILL)  # the worker starts another one
        lost = cluster.worker_of(job.stopped_in("follow"))
        cluster.kill(lost)
        (left,) = {*cluster.workers} - {lost}
        check(job.found(), source, targets, tmp_path / left)
