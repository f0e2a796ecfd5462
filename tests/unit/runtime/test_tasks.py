import asyncio
import logging

from millstream.runtime.tasks import Tasks


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
