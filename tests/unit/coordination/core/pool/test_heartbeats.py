"""`coordination.core.pool.heartbeats`: how often nodes ping one another."""

from __future__ import annotations

import pytest

from millstream.coordination.core.pool.effects import Posted
from millstream.coordination.core.pool.messages import Board
from millstream.vsr.core.values import OK
from support.coordination.pool_driver import asked, group_of, joined, led


@pytest.mark.parametrize(("interval", "rounds"), [
    (None, 20), (b"100 ms", 100), (b"500 ms", 20), (b"700 ms", 14), (b"2000 ms", 5), (b"??", 20),
])  # fmt: skip
def test_rounds_are_as_often_as_is_set_for_all_groups(
    monkeypatch: pytest.MonkeyPatch, interval: bytes | None, rounds: int
) -> None:
    world = joined(2)
    settings = () if interval is None else ((b"GLOBAL.VDS.INTERVAL", interval),)
    board = Board(group_of(world, 1), 5, (), settings)
    for node in world.nodes:
        world.step(node, Posted(board, {}))
    world.run(world.now_ms + 4000)
    pings: list[bool] = []

    def ping(receiver: bytes, *, is_answer: bool = False) -> None:
        pings.append(is_answer)

    monkeypatch.setattr(world.nodes[0].running.heartbeats, "ping", ping)
    world.run(world.now_ms + 10_000)
    assert rounds - 2 <= pings.count(False) <= rounds + 1


def test_a_node_is_removed_as_soon_though_rounds_are_rare() -> None:
    world = joined(4)
    board = Board(group_of(world, 1), 5, (), ((b"GLOBAL.VDS.INTERVAL", b"60000 ms"),))
    for node in world.nodes:
        world.step(node, Posted(board, {}))
    led(world, 1)
    world.run(world.now_ms + 10_000)
    world.crash(world.nodes[3])
    assert asked(world, world.nodes[2], "LEAVE 0404", for_ms=4000) == OK
