"""What a node says of its purges."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.databases.purges import PURGE_S_MAX, Purges, is_none
from millstream.model.bucket_map import BucketMap
from support.views.distributed_nodes import FalseRunning


@pytest.fixture
def running() -> Any:
    return FalseRunning(1)


async def test_each_purge_changes_what_is_said_and_while_one_runs_nothing_is_said_twice(
    running: Any,
) -> None:
    purges = Purges(lambda _: running, lambda: 0.0)
    said = [purges.said("b"), purges.said("b")]
    assert said == ["0.0"] * 2
    assert is_none(said[0])
    for _ in range(2):
        await purges.begin("b")
    said += [purges.said("b") for _ in range(3)]
    await purges.end("b")
    said += [purges.said("b") for _ in range(3)]
    await purges.end("b")
    assert purges.said("b") == "4.0"
    said.append("4.0")
    assert len(set(said[1:])) == len(said) - 1
    assert not any(map(is_none, said[2:]))


async def test_one_that_is_never_made_is_over_and_leaves_its_mark(running: Any) -> None:
    now = 0.0
    purges = Purges(lambda _: running, lambda: now)
    await purges.begin("b")
    now = PURGE_S_MAX
    found = purges.said("b")
    assert found == purges.said("b") != "1.0"
    await purges.end("b")
    assert purges.said("b") not in (found, "1.0")


def test_another_map_is_another_text(running: Any) -> None:
    purges = Purges(lambda _: running, lambda: 0.0)
    running.bucket.map = BucketMap(7, (), ())
    assert purges.said("b") == "0.7"
