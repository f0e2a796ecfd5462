"""`coordination.core.pool.admin_commands`: commands by their names."""

from __future__ import annotations

from millstream.coordination.core.pool.admin_commands import ADMIN_MAX
from support.coordination.pool_driver import asked, joined, led


def test_unknown_commands_are_refused_by_name() -> None:
    world = joined(1)
    (node,) = world.nodes
    for words in ("FROBNICATE", "GROUP", "GROUP FLY 1", ""):
        answer = asked(world, node, words)
        assert answer is not None
        assert answer.startswith(b"-BADARG there is no ADMIN")


def test_commands_under_way_are_bounded() -> None:
    world = joined(1)
    node = led(world, 1)
    tickets = [world.admin(node, "STATUS 1") for _ in range(ADMIN_MAX + 1)]
    assert world.answers[tickets[-1]].startswith(b"-BUSY")
    assert tickets[0] not in world.answers
