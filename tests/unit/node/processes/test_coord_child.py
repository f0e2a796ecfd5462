import asyncio
import errno
import json
import os
import signal
import sys

import pytest
import redis

from millstream.access.users import UserStore
from millstream.errors import UnavailableError
from millstream.node.processes import coord_child
from millstream.runtime.tasks import Tasks
from support.coordination.coordinators import bound

COMMAND = [sys.executable, "-m", "millstream.node.processes.coord_child"]


@pytest.fixture
def start(tmp_path, launch):
    def run(listening, **changed):
        order = {
            "parent_pid": os.getpid(), "log_level": "info", "log_json": False,
            "directory": str(tmp_path / "coord"), "users": str(tmp_path / "users.json"),
            "coord": listening.fileno(), **changed,
        }  # fmt: skip
        return launch(COMMAND, json.dumps(order).encode() + b"\n", pass_fds=(listening.fileno(),))

    return run


def events(process):
    """What it tells once it has started, without the lines of its log."""
    told = map(json.loads, process.stdout)
    return (event for event in told if event["event"] not in ("starting", "log"))


def test_it_is_ready_tells_figures_and_stops(start):
    with bound() as listening:
        process = start(listening)
        told = events(process)
        assert next(told) == {"event": "ready"}
        figures = next(told)["figures"]
        assert figures["coord_groups"] == 1
        assert figures["coord_process_resident_bytes"] > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert b"stopped" in process.stderr.read()


def test_it_says_that_it_gets_on_before_it_is_ready(start):
    with bound() as listening:
        process = start(listening)
        assert json.loads(process.stdout.readline()) == {"event": "starting"}
        assert next(events(process)) == {"event": "ready"}


def test_it_says_why_it_cannot_start(start, tmp_path):
    (tmp_path / "coord").write_text("a file")
    with bound() as listening:
        process = start(listening)
        event = next(events(process))
        assert event["event"] == "error"
        assert event["is_final"]
        assert process.wait(60) == 1


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

        def asks_for_a_login(**login):
            with redis.Redis(port=listening.getsockname()[1], **login) as client:
                try:
                    client.get("key")
                except redis.AuthenticationError:
                    return True
                return False

        assert not asks_for_a_login()
        UserStore(tmp_path / "users.json").put("admin", "secret")
        assert any(asks_for_a_login() for _ in told)
        assert not asks_for_a_login(username="admin", password="secret")


async def test_no_descriptor_for_a_figure_ends_nothing(monkeypatch):
    class Nothing:
        def figures(self):
            return {}

        def token_settings(self):
            return {}

    def no_descriptor():
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(coord_child, "FIGURES_S", 0.0)
    monkeypatch.setattr(coord_child, "resident_bytes", no_descriptor)
    said = asyncio.get_running_loop().create_future()
    tasks = Tasks()
    tasks.start(
        coord_child._tell_figures(
            Nothing(), UserStore(), lambda event: said.done() or said.set_result(event)
        ),
        name="figures",
    )
    assert (await said)["figures"]["coord_process_resident_bytes"] == 0
    await tasks.stop()


@pytest.mark.parametrize(
    ("error", "is_so"),
    [
        (OSError(errno.EIO, ""), True),
        (OSError(errno.EMFILE, ""), False),
        (OSError(errno.ENFILE, ""), False),
        (UnavailableError("", code="disk_failed"), True),
        (ValueError(), False),
    ],
)
def test_what_is_of_the_disk(error, is_so):
    assert coord_child._is_of_the_disk(error) == is_so
