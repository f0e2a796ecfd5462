"""The formats where driver and executors are processes of their own.

`cluster_job.py` is the driver, without this suite's PYTHONPATH: the package is an archive that
Spark brings to the executors, and that the driver's machine has on its path. (The process that
plans a stream does not get what Spark brings.)
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

import millstream
from millstream.pipelines.java import find_java_home
from spark_bucket import BucketUnderTest

SOURCE = Path(millstream.__file__).parent.parent
PACKAGES = (
    "millstream",
    "pyspark_millstream",
    "pyspark_millstream_view",
    "pyspark_millstream_meta",
)
JOB = Path(__file__).with_name("cluster_job.py")
ROWS = 2_000
QUICK = (
    "spark.ui.enabled=false", "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1",
    "spark.sql.shuffle.partitions=2",
)  # fmt: skip
JOB_S = 240

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def target(shared_node: Any, _bucket_names: Iterator[str]) -> BucketUnderTest:
    return BucketUnderTest(shared_node.ready["kv"], next(_bucket_names))


def environment(**more: str) -> dict[str, str]:
    """Return what processes of Spark get: nothing of this suite's own paths."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    home = {"SPARK_HOME": str(Path(pyspark.__file__).parent), "JAVA_HOME": str(find_java_home())}
    return env | home | {"PYSPARK_PYTHON": sys.executable} | more


def run(
    master: str, bucket: BucketUnderTest, target: BucketUnderTest, directory: Path,
    *settings: str, **env: str,
) -> dict[str, Any]:  # fmt: skip
    """Run the job; return what it found."""
    words = [master, bucket.address, bucket.name, target.name, str(directory / "checkpoint")]
    done = subprocess.run(
        [sys.executable, str(JOB), *words, *QUICK, *settings], cwd=directory,
        env=environment(**env), capture_output=True, text=True, timeout=JOB_S,
        check=False,
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if not line.startswith(("\tat ", "26/"))]
    assert done.returncode == 0, "\n".join(said)[:6000]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(found: dict[str, Any], target: BucketUnderTest) -> None:
    assert found == {"partitions": 4, "has_failed": False}
    with target.client() as client:  # inserted by the batch, then upserted by the stream
        assert sum(position.high_seqno for position in client.positions()) >= 2 * ROWS
        assert bytes(client.get("k7").data) == b'{"n":7}'


@pytest.fixture
def filled(bucket: BucketUnderTest) -> BucketUnderTest:
    bucket.write({f"k{n}": {"n": n} for n in range(ROWS)})
    return bucket


def test_py_files_on_executors_of_their_own(
    filled: BucketUnderTest, target: BucketUnderTest, tmp_path: Path
) -> None:
    package = tmp_path / "package"
    for name in PACKAGES:
        shutil.copytree(SOURCE / name, package / name)
    files = shutil.make_archive(str(tmp_path / "millstream"), "zip", package)
    work = f"spark.worker.dir={tmp_path}"
    settings = (f"spark.submit.pyFiles={files}", work)
    found = run(
        "local-cluster[2,1,1024]", filled, target, tmp_path, *settings, PYTHONPATH=files
    )  # fmt: skip
    check(found, target)
