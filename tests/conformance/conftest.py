"""One node for all conformance tests: users, a bucket `documents`, and `default` for memcached.

Tests keep apart by their keys. Outside programs that are not installed skip their tests, which
`make ci` forbids.
"""

import subprocess
from collections.abc import Callable, Iterator

import pytest

from support.node.node_process import FREE, NodeProcess
from support.node.outside_program import outside_program

USER, PASSWORD = "ada", "correct horse, battery=staple"
RunProgram = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    directory = tmp_path_factory.mktemp("conformance") / "node"
    options = ("--bucket", "documents", "--bucket", "default:16", "--user", f"{USER}:{PASSWORD}")
    options += ("--coord", FREE)
    with NodeProcess(directory, *options) as running:
        yield running
        assert running.stop() == 0


@pytest.fixture(scope="session")
def login() -> tuple[str, str]:
    """Name and password of the node's user."""
    return USER, PASSWORD


@pytest.fixture
def run_program() -> RunProgram:
    """Run an outside program with bounded time; skip if it is not installed."""

    def run(name: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        command = [outside_program(name), *arguments]
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        if check:
            assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")
        return done

    return run
