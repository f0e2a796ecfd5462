import asyncio
import gc
import logging
import threading

import pytest

from millstream.runtime.tasks import Tasks, in_thread, until_done


async def test_tasks_are_named_kept_and_cancelled():
    tasks = Tasks()
    task = tasks.start(asyncio.Event().wait(), name="waits for ever")
    assert task.get_name() == "waits for ever"
    assert len(tasks) == 1
    await tasks.stop()
    assert task.cancelled()
    assert len(tasks) == 0
    await tasks.stop()


async def test_an_error_is_logged_and_told(caplog):
    told = []
    tasks = Tasks(told.append)

    async def fail():
        raise ValueError("broken")

    task = tasks.start(fail(), name="breaks")
    with caplog.at_level(logging.ERROR):
        await asyncio.wait([task])
        await asyncio.sleep(0)
    assert [str(error) for error in told] == ["broken"]
    assert "task breaks failed" in caplog.text


async def test_what_runs_may_be_waited_for():
    tasks, gate = Tasks(), asyncio.Event()
    await tasks.finish()
    task = tasks.start(gate.wait(), name="waits")
    asyncio.get_running_loop().call_soon(gate.set)
    await tasks.finish()
    assert task.result() is True


@pytest.mark.parametrize("fails", [False, True])
async def test_who_is_cancelled_ends_after_what_runs_in_a_thread(caplog, fails):
    begun, gate, ended = threading.Event(), threading.Event(), []

    def change(name, *, suffix):
        begun.set()
        assert gate.wait(60)
        ended.append(name + suffix)
        if fails:
            raise OSError("no space")

    task = asyncio.ensure_future(in_thread(change, "file", suffix=".new"))
    assert await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    with caplog.at_level(logging.INFO):
        await asyncio.wait([task])
    assert task.cancelled()
    assert ended == ["file.new"]
    assert ("no space" in caplog.text) is fails


async def test_what_runs_in_a_thread_gives_its_result_or_error():
    assert await in_thread(int, "7") == 7
    with pytest.raises(ValueError, match="invalid"):
        await in_thread(int, "x")


async def test_asyncio_does_not_complain_of_an_error_whose_caller_was_cancelled():
    loop, told = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: told.append(context["message"]))
    running = loop.create_future()
    task = asyncio.ensure_future(until_done(running))
    await asyncio.sleep(0)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
    running.set_exception(OSError("no space"))
    await asyncio.wait([task])
    assert task.cancelled()
    del running, task
    gc.collect()
    assert not told
