import asyncio
import time

import pytest

from millstream.runtime.metrics import (
    LoopLag,
    free_bytes,
    machine_bytes,
    processor_seconds,
    resident_bytes,
)


async def test_a_blocked_loop_is_seen(monkeypatch):
    monkeypatch.setattr("millstream.runtime.metrics._INTERVAL_S", 0.001)
    lag = LoopLag()
    lag.start()
    time.sleep(0.02)  # noqa: ASYNC251 - blocking the loop is the point
    while lag.worst_ms < 15:  # noqa: ASYNC110 - the probe's own timer is what we wait for
        await asyncio.sleep(0)
    lag.stop()
    lag.stop()
    assert lag.last_ms >= 0


def test_the_process_knows_its_size():
    assert resident_bytes() > 1_000_000
    assert processor_seconds() > 0


def test_the_size_is_asked_for_by_one_call_of_the_system(monkeypatch):
    """Each call may wait for the interpreter's lock."""
    resident_bytes()
    monkeypatch.setattr("builtins.open", None)
    monkeypatch.setattr("os.open", None)
    assert resident_bytes() > 1_000_000


def test_the_space_left_is_known(tmp_path):
    assert free_bytes(tmp_path) > 0


@pytest.mark.parametrize(
    ("content", "is_less"), [("1000000\n", True), ("max\n", False), (None, False)]
)
def test_the_memory_there_is_may_be_that_of_a_container(tmp_path, monkeypatch, content, is_less):
    limit = tmp_path / "memory.max"
    if content is not None:
        limit.write_text(content)
    monkeypatch.setattr("millstream.runtime.metrics._CONTAINER_LIMITS", (str(limit),))
    assert (machine_bytes() == 1_000_000) == is_less
    assert machine_bytes() > 1_000_000 or is_less
