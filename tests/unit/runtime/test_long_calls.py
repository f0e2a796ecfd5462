"""Calls in another process: what comes back, and what a process that dies costs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millstream.errors import UnavailableError, UsageError
from millstream.runtime import long_calls as module
from millstream.runtime.long_calls import BESIDE_BYTES_MIN, CallProcesses, _exactly, call_apart

LARGE = os.urandom(BESIDE_BYTES_MIN + 1)


@pytest.fixture
def processes() -> Iterator[CallProcesses]:
    made = CallProcesses(2, call_s=30)
    yield made
    made.close()


def test_what_comes_back_is_what_the_function_returns(processes: CallProcesses) -> None:
    given = {"a": [LARGE, b"small", None], "again": LARGE}
    found = processes.call(dict, given)
    assert found == given
    assert found["a"][0] is found["again"], "sent once"


def test_it_runs_in_another_process_which_stays(processes: CallProcesses) -> None:
    pids = {processes.call(os.getpid) for _ in range(3)}
    assert len(pids) == 1
    assert os.getpid() not in pids


def test_what_the_function_raises_is_raised_here(processes: CallProcesses) -> None:
    from millstream.documents.json_text import parse

    with pytest.raises(UsageError) as refused:
        processes.call(parse, b"{")
    assert refused.value.code == "bad_json"
    assert processes.call(parse, b"{}") == {}


def test_at_most_so_many_run_at_a_time(processes: CallProcesses) -> None:
    with ThreadPoolExecutor(5) as threads:
        began_s = time.monotonic()
        list(threads.map(lambda _: processes.call(time.sleep, 0.1), range(5)))
    assert time.monotonic() - began_s > 0.3, "three rounds of two"
    assert len(processes._idle) == 2


def test_one_that_dies_costs_its_call_only(processes: CallProcesses) -> None:
    with pytest.raises(UnavailableError) as failed:
        processes.call(os.abort)
    assert failed.value.code == "long_call_failed"
    assert processes.call(len, LARGE) == len(LARGE)


def test_one_that_ended_when_it_was_idle_costs_nothing(processes: CallProcesses) -> None:
    os.kill(processes.call(os.getpid), 9)
    assert processes.call(len, LARGE) == len(LARGE)


def test_one_that_takes_too_long_is_ended() -> None:
    processes = CallProcesses(1, call_s=1)
    with pytest.raises(UnavailableError) as failed:
        processes.call(time.sleep, 60)
    assert failed.value.code == "long_call_failed"
    assert not processes._idle


def test_one_that_takes_too_much_memory_is_ended() -> None:
    processes = CallProcesses(1, memory_bytes=256 * 1024**2)
    with pytest.raises(UnavailableError) as failed:
        processes.call(bytes, 1024**3)
    assert failed.value.code == "long_call_failed"
    assert not processes._idle


def test_an_idle_one_ends_and_so_does_one_without_a_parent(processes: CallProcesses) -> None:
    pid = processes.call(os.getpid)
    process = processes._idle.pop()
    process._end.close()
    assert process._process.wait(10) == 0
    assert not Path(f"/proc/{pid}").exists()


async def test_in_a_loop_others_go_on_meanwhile(processes: CallProcesses) -> None:
    running = asyncio.ensure_future(processes.run(time.sleep, 0.1))
    await asyncio.sleep(0)
    assert not running.done()
    assert await running is None


def test_a_process_knows_no_secret(
    processes: CallProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_CLUSTER_SECRET", "s")
    assert processes.call(os.getenv, "MILLSTREAM_CLUSTER_SECRET") is None


def test_bytes_that_arrive_in_parts_are_put_together() -> None:
    class End:
        def recv(self, size: int, _: int) -> bytes:
            return b"x" * min(size, 3)

    assert _exactly(End(), 8) == b"x" * 8  # type: ignore[arg-type]
    assert call_apart == module._processes.call
