"""`coordination.core.pool.admin_requests`: each command has one answer in time."""

from __future__ import annotations

from support.coordination.pool_driver import asked, joined


def test_a_join_that_nobody_answers_changes_nothing() -> None:
    world = joined(1)
    (node,) = world.nodes
    pool_ids = node.running.tables.pool_ids
    answer = asked(world, node, "JOIN nowhere 1 nowhere 2", for_ms=12_000)
    assert answer is not None
    assert answer.startswith(b"-ERR no node answers")
    assert node.running.tables.pool_ids == pool_ids
    for words in ("JOIN", "JOIN there", "JOIN there 0", "JOIN node1 7000"):
        answer = asked(world, node, words)
        assert answer is not None
        assert answer.startswith(b"-BADARG")


def test_a_join_said_again_does_not_end_with_the_first_one() -> None:
    world = joined(1)
    (node,) = world.nodes
    first = world.admin(node, "JOIN nowhere 1")
    world.run(world.now_ms + 5000)
    second = world.admin(node, "JOIN nowhere 1")
    world.run(world.now_ms + 6000)
    assert world.answers[first].startswith(b"-ERR no node answers")
    assert second not in world.answers
    world.run(world.now_ms + 6000)
    assert world.answers[second].startswith(b"-ERR no node answers")
