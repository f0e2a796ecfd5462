import json
import os
import signal
import subprocess
import sys

import pytest

from coordinators import bound
from millstream.access.users import UserStore

COMMAND = [sys.executable, "-m", "millstream.node.coord_child"]


@pytest.fixture
def start(tmp_path):
    started = []

    def run(listening, **changed):
        process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            pass_fds=(listening.fileno(),),
        )  # fmt: skip
        started.append(process)
        order = {
            "parent_pid": os.getpid(), "log_level": "info", "log_json": False,
            "directory": str(tmp_path / "coord"), "users": str(tmp_path / "users.json"),
            "coord": listening.fileno(), **changed,
        }  # fmt: skip
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def events(process):
    return map(json.loads, process.stdout)


def test_it_is_ready_tells_figures_and_stops(start):
    with bound() as listening:
        process = start(listening)
        told = events(process)
        assert next(told) == {"event": "ready"}
        figures = next(told)["figures"]
        assert figures["coord_groups"] == 1
        assert figures["coord_process_resident_bytes"] > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert b"stopped" in process.stderr.read()


def test_it_says_why_it_cannot_start(start, tmp_path):
    (tmp_path / "coord").write_text("a file")
    with bound() as listening:
        process = start(listening)
        event = next(events(process))
        assert event["event"] == "error"
        assert event["is_final"]
        assert process.wait(20) == 1


def test_a_certificate_that_cannot_be_read_is_named(start):
    with bound() as listening:
        event = next(events(start(listening, tls_cert="/no/such/file")))
        assert event["event"] == "error"
        assert "/no/such/file" in event["message"]


def test_users_are_those_that_the_engine_makes(start, tmp_path):
    with bound() as listening:
        process = start(listening)
        told = events(process)
        next(told)
        client = f"redis-cli -p {listening.getsockname()[1]} get key"
        assert b"NOAUTH" not in subprocess.check_output(client.split())
        UserStore(tmp_path / "users.json").put("admin", "secret")

        def asks_for_a_login():
            return b"NOAUTH" in subprocess.check_output(client.split())

        assert any(asks_for_a_login() for _ in told)
        known = f"redis-cli --no-auth-warning --user admin --pass secret {client[10:]}"
        assert b"NOAUTH" not in subprocess.check_output(known.split())
