import json
import os
import signal
import subprocess
import sys

import msgspec
import pytest

COMMAND = [sys.executable, "-m", "millstream.node.engine_process"]


@pytest.fixture
def start(launch):
    def run(settings, supervisor_pid=None):
        order = {"supervisor_pid": supervisor_pid or os.getpid(), "settings": settings}
        return launch(COMMAND, msgspec.json.encode(order) + b"\n")

    return run


def test_it_tells_its_addresses_and_stops(start, make_settings):
    process = start(make_settings())
    event = json.loads(process.stdout.readline())
    assert event["event"] == "ready"
    assert event["listeners"]["kv"].startswith("127.0.0.1:")
    process.send_signal(signal.SIGINT)  # is the supervisor's
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


def test_it_tells_why_it_cannot_start(start, make_settings, tmp_path):
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "x").write_text("")
    process = start(make_settings())
    event = json.loads(process.stdout.readline())
    assert event["event"] == "error"
    assert event["is_usage"]
    assert event["is_final"]
    assert process.wait(60) == 1


def test_it_ends_with_its_supervisors_pipe(start, make_settings):
    process = start(make_settings())
    assert process.stdout.readline()
    process.stdin.close()
    process.stdin = None
    assert process.wait(60) == 1


def test_without_an_order_it_does_nothing():
    done = subprocess.run(COMMAND, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stdout == b""
