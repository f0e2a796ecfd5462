"""libmemcached's programs against the plain memcached port, binary protocol.

`memccapable -b` knows 27 tests; all must pass. Its text-protocol tests do not apply: the port
speaks the binary protocol only.
"""

import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.node.node_process import NodeProcess

RunProgram = Callable[..., subprocess.CompletedProcess[bytes]]
CAPABILITIES = (
    "noop", "quit", "quitq", "set", "setq", "flush", "flushq", "add", "addq", "replace",
    "replaceq", "delete", "deleteq", "get", "getq", "getk", "getkq", "incr", "incrq", "decr",
    "decrq", "version", "append", "appendq", "prepend", "prependq", "stat",
)  # fmt: skip


def test_memccapable(node: NodeProcess, run_program: RunProgram) -> None:
    """One run, since its tests build on each other: the flush ones clear what others wrote."""
    host, port = node.memcached
    where = ("-h", host, "-p", str(port))
    run_program("memcflush", "--binary", "--servers={}:{}".format(*node.memcached))
    done = run_program("memccapable", *where, "-t", "10", "-b", "-v", check=False)
    said = (done.stdout + done.stderr).decode(errors="replace")
    verdicts = dict(re.findall(r"^binary (\w+)\s+\[(pass|FAIL)\]$", said, re.MULTILINE))
    assert verdicts == dict.fromkeys(CAPABILITIES, "pass"), said


def test_memccat_reads_what_memccp_wrote(
    node: NodeProcess, run_program: RunProgram, tmp_path: Path
) -> None:
    server = "--servers={}:{}".format(*node.memcached)
    file = tmp_path / "letter.txt"
    file.write_text("dear reader\n" * 1000)
    run_program("memccp", server, "--binary", "--flag=7", str(file))
    shown = run_program("memccat", server, "--binary", "letter.txt")
    assert shown.stdout.strip() == file.read_bytes().strip()
    flags = run_program("memccat", server, "--binary", "--flags", "letter.txt")
    assert flags.stdout.split()[0] == b"7"
    run_program("memcrm", server, "--binary", "letter.txt")
    assert run_program("memccat", server, "--binary", "letter.txt", check=False).stdout == b""


@pytest.mark.parametrize("load", ["set", "get", "mget"])
def test_memcslap_loads(node: NodeProcess, run_program: RunProgram, load: str) -> None:
    server = "--servers={}:{}".format(*node.memcached)
    done = run_program(
        "memcslap", server, "--binary", "--concurrency=4", "--execute-number=500",
        "--initial-load=500", f"--test={load}",
    )  # fmt: skip
    said = (done.stdout + done.stderr).decode(errors="replace")
    assert not re.search(r"error|fail", said, re.IGNORECASE), said


def test_memcstat_shows_figures(node: NodeProcess, run_program: RunProgram) -> None:
    server = "--servers={}:{}".format(*node.memcached)
    shown = run_program("memcstat", server, "--binary").stdout.decode()
    found = dict(re.findall(r"^\s*(\S+): (.*)$", shown, re.MULTILINE))
    assert int(found["curr_connections"]) >= 1
    assert int(found["changes_high"]) >= int(found["changes_persisted"])
    assert found["version"][0].isdigit()


def test_memcexist_and_memctouch(
    node: NodeProcess, run_program: RunProgram, tmp_path: Path
) -> None:
    server = "--servers={}:{}".format(*node.memcached)
    file = tmp_path / "brief.txt"
    file.write_text("soon gone")
    run_program("memccp", server, "--binary", str(file))
    run_program("memcexist", server, "--binary", "brief.txt")
    run_program("memctouch", server, "--binary", "--expire=1", "brief.txt")
    until = time.monotonic() + 60
    while run_program("memccat", server, "--binary", "brief.txt", check=False).stdout:
        assert time.monotonic() < until
        time.sleep(0.05)  # nobody tells of an expiry: asked again
    assert run_program("memcexist", server, "--binary", "brief.txt", check=False).returncode


def test_memcflush_later(node: NodeProcess, run_program: RunProgram, tmp_path: Path) -> None:
    server = "--servers={}:{}".format(*node.memcached)
    file = tmp_path / "flushed.txt"
    file.write_text("soon gone")
    run_program("memccp", server, "--binary", str(file))
    run_program("memcflush", server, "--binary", "--expire=1")
    until = time.monotonic() + 60
    while run_program("memccat", server, "--binary", "flushed.txt", check=False).stdout:
        assert time.monotonic() < until
        time.sleep(0.05)  # nobody tells of an expiry: asked again
