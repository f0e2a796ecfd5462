"""Programs made for other 9P servers against the file service: diodls and diodcat."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from support.node.node_process import FREE, NodeProcess

RunProgram = Callable[..., subprocess.CompletedProcess[bytes]]
Run = Callable[..., str]


@pytest.fixture(scope="module")
def files_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node without users: these programs have no passwords."""
    directory: Path = tmp_path_factory.mktemp("files") / "node"
    with NodeProcess(directory, "--coord", FREE, "--ninep", FREE) as running:
        with redis.Redis(*running.address("coord"), protocol=3) as client:
            client.execute_command("CREATENAMESPACE", "/app")
            client.execute_command("CREATE", "BINARY", "/app/key", b"written by RESP")
            client.execute_command("CREATE", "COUNTER", "/app/.hits")
            client.execute_command("COUNTER", "INC", "7", "/app/.hits")
        yield running
        assert running.stop() == 0


@pytest.fixture
def run_tool(files_node: NodeProcess, run_program: RunProgram) -> Run:
    host, port = files_node.address("ninep")

    def run(name: str, aname: str, *words: str) -> str:
        return run_program(name, "-s", f"{host}:{port}", "-a", aname, *words).stdout.decode()

    return run


def test_a_value_written_by_resp_is_read(run_tool: Run) -> None:
    assert run_tool("diodcat", "/app/key", ".data") == "written by RESP"
    assert run_tool("diodcat", "/", "app/key/.data") == "written by RESP"
    assert run_tool("diodcat", "/app", "%2Ehits/.value") == "7\n"


def test_directories_are_listed(run_tool: Run) -> None:
    shown = run_tool("diodls", "/app", "/").split()
    assert shown == [
        ".acl", ".attr", ".config", ".ctl", ".data", ".version", "%2Ehits", "key",
    ]  # fmt: skip
    long = run_tool("diodls", "/", "-l", "/app").splitlines()
    assert sum(line.startswith("d") for line in long) == 4
    data = next(line for line in long if line.endswith(".data"))
    assert data.startswith("-rw-rw-rw-")


def test_nothing_above_the_attach_is_seen(
    run_tool: Run, run_program: RunProgram, files_node: NodeProcess
) -> None:
    assert "key" in run_tool("diodls", "/app", "..").split()
    host, port = files_node.address("ninep")
    words = ("-s", f"{host}:{port}", "-a", "/app/key", "../key/.data")
    done = run_program("diodcat", *words, check=False)
    assert done.returncode != 0
    assert b"No such file" in done.stderr
