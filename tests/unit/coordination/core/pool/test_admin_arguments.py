"""`coordination.core.pool.admin_arguments`: nodes by their ids, and words that mean nothing."""

from __future__ import annotations

import pytest

from support.coordination.pool_driver import asked, joined


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("STATUS 99", b"-ERROR_DOES_NOT_EXISTS"),
        ("STATUS x", b"-ERROR_DOES_NOT_EXISTS"),
        (f"STATUS {'9' * 5000}", b"-ERROR_DOES_NOT_EXISTS"),
        ("NODES all", b"-BADARG"),
        ("LEAVE now", b"-BADARG"),
        ("LOG 1 x 5", b"-BADARG"),
        ("SNAPSHOT", b"-BADARG"),
        ("GROUP CREATE 5 01", b"-BADARG 01 does not begin"),
        ("GROUP CREATE 5 ffff", b"-BADARG ffff does not begin"),
        ("GROUP CREATE 5 0101 0101 0202", b"-BADCONFIG"),
        ("GROUP CREATE 5 0101 0202", b"-BADCONFIG"),
        ("GROUP CREATE 0 0101", b"-BADARG"),
    ],
)
def test_what_is_not_understood_is_refused(words: str, code: bytes) -> None:
    world = joined(2)
    answer = asked(world, world.nodes[0], words)
    assert answer is not None
    assert answer.startswith(code)


def test_of_a_node_that_lives_and_one_that_was_removed_the_first_is_meant() -> None:
    world = joined(2)
    (one, two) = world.nodes
    one.running.tables.add_tombstone(b"\x02\x02" + b"x" * 14)
    one.running.state.is_changed = True
    answer = asked(world, one, "LEAVE 0202")
    assert answer is not None
    assert answer.startswith(b"-CONFLICT the node is alive")
    assert one.running.tables.node(two.id) is not None
