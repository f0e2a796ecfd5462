import asyncio
import os
import signal
import socket
import sys

import pytest

from millstream.errors import CorruptionError, UnavailableError
from millstream.node.processes import child_process, coord_process
from millstream.node.processes.coord_process import NO_FIGURES, CoordProcess
from millstream.node.processes.orders import CoordOrder
from millstream.node.processes.supervisor import EXIT_DISK_FAILED
from support.coordination.coordinators import bound


@pytest.fixture
def make(tmp_path):
    made = []

    def build(**options):
        listening = bound()
        order = CoordOrder(
            os.getpid(), "info", False, str(tmp_path / "coord"), str(tmp_path / "users.json"),
            listening.fileno(),
        )  # fmt: skip
        failures = []
        process = CoordProcess(order, (listening.fileno(),), failures.append, **options)
        made.append((process, listening))
        return process, listening.getsockname(), failures

    yield build
    for process, listening in made:
        listening.close()
        assert process.pid is None, "every test stops what it starts"


def script(text):
    return sys.executable, "-c", "import sys\n" + text


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - several kinds of it
            await asyncio.sleep(0.005)


def said(address, *words):
    """Ask over RESP; blocks."""
    with socket.create_connection(address, 20) as client:
        client.sendall(b" ".join(words) + b"\r\n")
        return client.recv(100)


async def ask(address, *words):
    async with asyncio.timeout(60):
        while True:
            answer = await asyncio.to_thread(said, address, *words)
            if not answer.startswith(b"-NOT"):
                return answer
            await asyncio.sleep(0.01)


async def test_clients_are_served_once_it_is_ready_and_again_after_its_death(make, monkeypatch):
    monkeypatch.setattr(child_process, "_BACKOFF_S", (0.01,))
    process, address, failures = make()
    process.start()
    await process.until_ready()
    assert await ask(address, b"SET", b"key", b"value") == b"+OK\r\n"
    await until(lambda: process.figures()["coord_committed_total"] >= 2)
    assert process.figures()["coord_process_up"] == 1
    assert set(process.figures()) == set(NO_FIGURES)
    key = b"GLOBAL.AUTH.ISSUER"
    assert process.token_settings == {}
    assert await ask(address, b"CONFIG", b"SET", b"GLOBAL", key, b"https://id") == b"+OK\r\n"
    await until(lambda: process.token_settings == {key.decode(): "https://id"})
    assert (await ask(address, b"AUTH", b"eve", b"guess")).startswith(b"-")
    await until(lambda: process.failed_logins)
    assert [one[:3] for one in process.failed_logins] == [("eve", "127.0.0.1", 1)]
    os.kill(process.pid, signal.SIGKILL)
    await until(lambda: process.restarts_total == 1 and process.figures()["coord_process_up"])
    assert not process.failed_logins
    assert await ask(address, b"GET", b"key") == b"$5\r\nvalue\r\n"
    assert process.token_settings == {key.decode(): "https://id"}
    await process.stop()
    assert process.figures() == {**NO_FIGURES, "coord_process_restarts_total": 1}
    assert failures == []


async def test_what_cannot_start_is_told_to_who_waits(make, tmp_path):
    (tmp_path / "coord").mkdir()
    (tmp_path / "coord" / "node.toml").write_text("rubbish")
    (tmp_path / "coord" / "pool").write_text("rubbish")
    process, _, _ = make()
    process.start()
    with pytest.raises(CorruptionError, match=r"node\.toml and its copy are gone or damaged"):
        await process.until_ready()
    await process.stop()


async def test_one_that_is_only_late_is_waited_for(make):
    process, _, _ = make(command=script("""print('{"event":"error","message":"later"}')"""))
    process.start()
    with pytest.raises(UnavailableError, match="later"):
        await process.until_ready()
    await process.stop()


async def test_the_first_start_is_waited_for_as_long_as_it_comes_nearer(
    make, monkeypatch, tmp_path
):
    monkeypatch.setattr(coord_process, "START_S_MAX", 0.05)
    comes = f"""
import pathlib, time
print('{{"event":"starting"}}', flush=True)
while not pathlib.Path({str(tmp_path / "go")!r}).exists():
    time.sleep(0.01)
print('{{"event":"ready"}}', flush=True)
sys.stdin.read()
"""
    process, _, _ = make(command=script(comes.strip()))
    process.start()
    await until(lambda: process._goes_on)
    waiting = asyncio.ensure_future(process.until_ready())
    for _ in range(50):  # far longer than one that says nothing is waited for
        process.goes_on()
        await asyncio.sleep(0.01)
    assert not waiting.done()
    (tmp_path / "go").touch()
    while not waiting.done():
        process.goes_on()
        await asyncio.sleep(0.01)
    await waiting
    await process.stop()
    process, _, _ = make(command=script("sys.stdin.read()"))
    process.start()
    with pytest.raises(UnavailableError, match="does not start"):
        await process.until_ready()
    await process.stop()


async def test_a_failed_disk_ends_the_node(make, monkeypatch):
    monkeypatch.setattr(child_process, "_BACKOFF_S", (20,))
    command = script(f"""print('{{"event":"ready"}}', flush=True); sys.exit({EXIT_DISK_FAILED})""")
    process, _, failures = make(command=command)
    process.start()
    await until(lambda: failures)
    assert failures[0].code == "disk_failed"
    await process.stop()


async def test_a_start_that_ends_again_and_again_is_given_up(make, monkeypatch):
    monkeypatch.setattr(child_process, "_BACKOFF_S", (0.0,))
    monkeypatch.setattr(child_process, "RESTARTS_MAX", 2)
    monkeypatch.setattr(coord_process, "RESTARTS_MAX", 2)
    process, _, failures = make(command=script("sys.exit(1)"))
    process.start()
    await until(lambda: process._first.done())
    with pytest.raises(UnavailableError, match="3 times before it served; the log says why"):
        await process.until_ready()
    assert failures == []
    await process.stop()


async def test_a_disk_that_failed_before_another_start_ends_the_node(make, monkeypatch, tmp_path):
    monkeypatch.setattr(child_process, "_BACKOFF_S", (0.01, 20))
    command = script(f"""
import pathlib
marker = pathlib.Path({str(tmp_path / "began")!r})
if not marker.exists():
    marker.touch()
    print('{{"event":"ready"}}', flush=True)
    sys.exit(1)
print('{{"event":"error","message":"the disk failed"}}', flush=True)
sys.exit({EXIT_DISK_FAILED})
""")
    process, _, failures = make(command=command)
    process.start()
    await process.until_ready()
    await until(lambda: failures)
    assert failures[0].code == "disk_failed"
    await process.stop()
