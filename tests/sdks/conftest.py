"""Official SDKs in other languages, each against a node with users and one without.

A test takes `client`, a program that has opened the bucket `documents`: it runs for every SDK.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from uuid import uuid4

import pytest

from support.cluster.managed_nodes import ManagedNodes
from support.node.node_process import NodeProcess
from support.node.sdk_client import COMMANDS, SdkClient

LOGIN = ("ada", "correct horse, battery=staple")
ANYONE = ("anyone", "anything")
MakeClient = Callable[[str], SdkClient]


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with one user, an administrator."""
    directory = tmp_path_factory.mktemp("sdks") / "node"
    options = ("--bucket", "documents", "--user", ":".join(LOGIN), "--no-memcached")
    with NodeProcess(directory, *options) as running:
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="session")
def open_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node without users."""
    directory = tmp_path_factory.mktemp("open") / "node"
    with NodeProcess(directory, "--bucket", "documents:16", "--no-memcached") as running:
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagedNodes]:
    """A managed cluster of n1, n2 and n3, each with all partitions."""
    directory = tmp_path_factory.mktemp("three")
    with ExitStack() as stack:

        def make(*options: str, name: str) -> NodeProcess:
            node = NodeProcess(directory / name, *options)
            stack.callback(node.kill)
            return node

        yield ManagedNodes(make).found("n1", "n2", "n3", replicas=2)


@pytest.fixture(scope="session", params=sorted(COMMANDS))
def sdk(request: pytest.FixtureRequest) -> str:
    """Name of an SDK."""
    return str(request.param)


@pytest.fixture(scope="session")
def client(node: NodeProcess, sdk: str) -> Iterator[SdkClient]:
    """A program that has opened the bucket of the node with users."""
    with SdkClient(sdk) as running:
        running.connect(node.kv, LOGIN)
        running.do("open", bucket="documents")
        yield running
        running.do("close")


@pytest.fixture
def key() -> str:
    """A key that no other test uses."""
    return f"doc-{uuid4()}"
