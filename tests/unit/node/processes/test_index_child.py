import json
import os
import signal
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "millstream.node.processes.index_child"]


@pytest.fixture
def start(tmp_path, launch):
    def run(**changed):
        order = {
            "parent_pid": os.getpid(), "buckets": str(tmp_path), "kv": "unix:/nowhere",
            "socket": str(tmp_path / "i.sock"), "modules": [], "log_level": "info",
            "log_json": False, **changed,
        }  # fmt: skip
        return launch(COMMAND, json.dumps(order).encode() + b"\n")

    return run


def test_it_says_that_it_is_ready_and_stops(start, tmp_path):
    process = start()
    assert json.loads(process.stdout.readline()) == {"event": "ready"}
    assert (tmp_path / "i.sock").is_socket()
    process.send_signal(signal.SIGINT)  # is for who started it
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert b"stopped" in process.stderr.read()


def test_it_says_why_it_cannot_start(start, tmp_path):
    process = start(socket=str(tmp_path / "no" / "directory.sock"))
    event = json.loads(process.stdout.readline())
    assert event["event"] == "error"
    assert process.wait(60) == 1


def test_it_ends_with_the_pipe_of_who_started_it(start):
    process = start()
    assert process.stdout.readline()
    process.stdin.close()
    process.stdin = None
    assert process.wait(60) == 1


def test_it_runs_for_nobody_else(start):
    assert start(parent_pid=1).wait(60) == 1


def test_it_imports_nothing_of_the_web_before_it_asks_another_node():
    program = (
        "import sys, millstream.node.processes.index_child; assert 'aiohttp' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
