import asyncio
import os
import signal
import sys

import pytest

from millstream.errors import UnavailableError
from millstream.node.processes import child_process
from millstream.node.processes.child_process import RESTART_WINDOW_S, RESTARTS_MAX
from millstream.node.processes.index_process import IndexProcess
from millstream.node.processes.orders import IndexOrder


@pytest.fixture
def make(tmp_path):
    made = []

    def build(*, modules=(), **options):
        order = IndexOrder(
            os.getpid(), str(tmp_path), f"unix:{tmp_path}/kv.sock", f"{tmp_path}/i.sock",
            modules, "info", False,
        )  # fmt: skip
        ready = asyncio.Queue()
        process = IndexProcess(order, ready.put_nowait, **options)
        made.append(process)
        return process, ready

    yield build
    for process in made:
        assert process.pid is None, "every test stops what it starts"


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - several kinds of it
            await asyncio.sleep(0.005)


async def test_it_is_started_answers_and_stops_cleanly(make, caplog):
    process, ready = make()
    with pytest.raises(UnavailableError, match="being started"):
        process.there()
    process.start()
    process.start()
    link = await ready.get()
    assert process.there() is link
    pid = process.pid
    assert await link.ask("tasks") == {"tasks": []}
    await process.stop()
    assert ready.get_nowait() is None
    assert ready.empty()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert "killed" not in caplog.text
    await process.stop()


async def test_one_that_dies_is_started_again_and_its_calls_end(make, monkeypatch):
    monkeypatch.setattr(child_process, "_BACKOFF_S", (0.01,))
    process, ready = make()
    process.start()
    link = await ready.get()
    first = process.pid
    os.kill(first, signal.SIGKILL)
    assert await ready.get() is None
    again = await ready.get()
    assert again is not link
    assert process.pid != first
    assert process.restarts_total == 1
    with pytest.raises(UnavailableError):
        await link.ask("tasks")
    assert await again.ask("tasks")
    await process.stop()


async def test_one_that_is_told_to_stop_from_outside_is_no_error(make, monkeypatch, caplog):
    monkeypatch.setattr(child_process, "_BACKOFF_S", (0.01,))
    process, ready = make()
    process.start()
    await ready.get()
    os.kill(process.pid, signal.SIGTERM)
    assert await ready.get() is None
    assert await ready.get() is not None
    await process.stop()
    assert process.restarts_total == 1
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_while_it_is_away_the_error_says_why(make):
    process, ready = make()
    process.start()
    await ready.get()
    os.kill(process.pid, signal.SIGKILL)
    await until(lambda: process.link is None and "signal 9" in process._why)
    with pytest.raises(UnavailableError, match="signal 9") as raised:
        process.there()
    assert raised.value.retry == "backoff"
    await process.stop()  # also while it waits


async def test_one_that_cannot_start_says_why(make):
    process, _ = make(modules=("no_such_module_here",))
    process.start()
    await until(lambda: "no_such_module_here" in process._why)
    await process.stop()


async def test_one_that_ended_before_it_was_told_anything_is_started_again(make, monkeypatch):
    process, ready = make()
    started = process._started

    def ended():
        monkeypatch.setattr(process, "_started", started)
        child = started()
        child.kill()
        child.wait()
        return child

    monkeypatch.setattr(process, "_started", ended)
    process.start()
    assert await ready.get()
    assert process.restarts_total == 1
    await process.stop()


async def test_one_that_the_system_cannot_start_is_tried_again(make, monkeypatch):
    monkeypatch.setattr(child_process, "_BACKOFF_S", (0.01,))
    process, _ = make(command=("/no/such/program",))
    process.start()
    await until(lambda: process.restarts_total == 2)
    assert "/no/such/program" in process._why
    await process.stop()


async def test_one_that_hangs_is_killed(make, monkeypatch):
    monkeypatch.setattr(child_process, "START_S_MAX", 0.05)
    monkeypatch.setattr(child_process, "STOP_SECONDS", 0.05)
    hangs = "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"
    process, _ = make(command=(sys.executable, "-c", hangs))
    process.start()
    await until(lambda: "not ready" in process._why)
    await process.stop()
    says_ready = f'print(\'{{"event":"ready"}}\', flush=True); {hangs}'
    process, ready = make(command=(sys.executable, "-c", says_ready))
    monkeypatch.setattr(child_process, "START_S_MAX", 20)
    process.start()
    await ready.get()
    await process.stop()


async def test_one_that_comes_nearer_is_waited_for(make, monkeypatch):
    monkeypatch.setattr(child_process, "START_S_MAX", 4.0)
    comes = """
import sys, time
for _ in range(10):
    time.sleep(0.5)
    print('{"event":"starting"}', flush=True)
print('{"event":"ready"}', flush=True)
sys.stdin.read()
"""
    process, ready = make(command=(sys.executable, "-c", comes))
    process.start()
    await ready.get()
    assert process.restarts_total == 0
    await process.stop()


async def test_restarts_are_bounded_in_a_window(make):
    process, _ = make()
    now, waited = 0.0, []
    for _ in range(RESTARTS_MAX + 2):
        waited.append(process._pause_s(now))
        now += waited[-1]
    assert waited[:RESTARTS_MAX] == [0.1, 0.5, 1, 2, 5]
    assert sum(waited[1 : RESTARTS_MAX + 1]) == pytest.approx(RESTART_WINDOW_S)
    assert waited[-1] > 0
    assert process._pause_s(now + 2 * RESTART_WINDOW_S) == 0.1


async def test_one_that_is_stopped_in_the_middle_of_its_start_is_gone(make):
    for turns in range(12):
        process, _ = make()
        process.start()
        for _ in range(turns):
            await asyncio.sleep(0)
        child = process._child
        process._tasks._tasks.copy().pop().cancel()
        await process.stop()
        assert child is None or child.returncode is not None
