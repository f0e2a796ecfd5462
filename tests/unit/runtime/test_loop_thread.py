"""`runtime.loop_thread`: what runs there is waited for, and ends with it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from millstream.runtime.loop_thread import LoopThread


async def name() -> str:
    return threading.current_thread().name


def test_work_runs_in_the_thread() -> None:
    thread = LoopThread("there")
    assert thread.run(name()) == "there"
    thread.stop()
    thread.stop()
    assert thread.is_stopped
    assert not [one for one in threading.enumerate() if one.name == "there"]


def test_who_waits_when_it_stops_is_told() -> None:
    thread = LoopThread("there")
    errors: list[BaseException] = []
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    def waits() -> None:
        try:
            thread.run(wait())
        except BaseException as error:  # noqa: BLE001 - this is the thread's end
            errors.append(error)

    waiting = threading.Thread(target=waits)
    waiting.start()
    assert begun.wait(60)
    thread.stop()
    waiting.join(60)
    assert [type(error) for error in errors] == [CancelledError]
    with pytest.raises(CancelledError):
        thread.run(name())
