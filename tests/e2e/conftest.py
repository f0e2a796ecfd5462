"""Fixtures of the suites that run whole processes.

`node`: a node with an empty data directory, free ports and the bucket `default`, running when the
test begins. `make_node(*options)`: the same with other options, as many as a test needs, each in
the directory `name`; the same name twice is the same data directory. `own_node`: makes running
nodes that a test may kill and start again at the same kv address.

`shared_node`: a running node with an empty bucket `default`, for tests that neither stop it nor
read its log. A worker starts one; each test has the bucket anew.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.http.http_calls import call
from support.node.node_process import NodeProcess, free_port

MakeNode = Callable[..., NodeProcess]


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[MakeNode]:
    made: list[NodeProcess] = []

    def make(
        *options: str,
        name: str = "node",
        env: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> NodeProcess:
        node = NodeProcess(tmp_path / name, *options, env=env, prefix=prefix)
        made.append(node)
        return node

    yield make
    for node in made:
        node.kill()


@pytest.fixture
def node(make_node: MakeNode) -> NodeProcess:
    return make_node("--bucket", "default").start()


@pytest.fixture(scope="session")
def node_of_the_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("shared") / "node", "--bucket", "default") as node:
        yield node


@pytest.fixture
def shared_node(node_of_the_worker: NodeProcess) -> NodeProcess:
    http = node_of_the_worker.http
    assert call(http, "DELETE", "/default")[0] == 200
    assert call(http, "PUT", "/default")[0] == 201
    return node_of_the_worker


@pytest.fixture
def own_node(make_node: MakeNode) -> Callable[..., NodeProcess]:
    def make(*options: str, name: str = "node") -> NodeProcess:
        # One option and its value, so that the helper sees that the listener has an address.
        return make_node("--kv", f"127.0.0.1:{free_port()}", *options, name=name).start()

    return make
