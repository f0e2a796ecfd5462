"""Fixtures of the suites that run Spark: one session, one node, a bucket for each test.

`spark`: the session of the whole run. `shared_node`: a node. `bucket`: a `BucketUnderTest` of it,
with four partitions, that no other test has had. `make_bucket`: makes more of them. `own_node`:
makes nodes that a test may stop, kill and start again at the same address.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from millstream.pipelines import local_session
from support.node.node_process import NodeProcess, free_port
from support.pipelines.spark_bucket import BucketUnderTest

# Java that lives for a minute: half the time of a start on two busy processors is its compiler's.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
PARTITIONS = 4
_numbers = itertools.count()


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    session = local_session("millstream-tests", cores=2)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("shared") / "node") as node:
        yield node


@pytest.fixture
def make_bucket(shared_node: NodeProcess) -> Callable[[], BucketUnderTest]:
    def make() -> BucketUnderTest:
        name = f"b{next(_numbers)}"
        page = f"http://{shared_node.ready['http']}/_millstream/buckets/{name}"
        content = b'{"partitions":%d}' % PARTITIONS
        asked = Request(page, content, {"Content-Type": "application/json"}, method="PUT")
        with urlopen(asked) as answer:
            assert answer.status == 201
        return BucketUnderTest(shared_node.ready["kv"], name)

    return make


@pytest.fixture
def bucket(make_bucket: Callable[[], BucketUnderTest]) -> BucketUnderTest:
    return make_bucket()


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    made: list[NodeProcess] = []

    def make(*options: str, name: str = "node") -> NodeProcess:
        port = free_port()
        # One option and its value, so that the helper sees that the listener has an address.
        node = NodeProcess(tmp_path / name, "--kv", f"127.0.0.1:{port}", *options)
        made.append(node)
        return node.start()

    yield make
    for node in made:
        node.kill()
