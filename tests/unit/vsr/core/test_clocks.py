"""Entries show a time that a quorum's clocks could show."""

from collections.abc import Callable

from millstream.vsr.core.clocks import AHEAD_MS_MAX, Clocks
from support.coordination.coordination_group import Group

A, B, C = (bytes([number]) * 16 for number in (1, 2, 3))
FAR = 10**12


def test_a_clock_that_is_right_is_believed() -> None:
    clocks = Clocks()
    for member, wall_ms in ((A, 5000), (B, 5100), (C, 4900)):
        clocks.hear(member, wall_ms, 100.0)
    clocks.compare((A, B, C))
    assert clocks.stamp_ms(9000, 4100.0) == 9000


def test_a_clock_that_is_far_ahead_is_not() -> None:
    clocks = Clocks()
    clocks.hear(A, FAR, 100.0)
    clocks.hear(B, 5000, 100.0)
    clocks.compare((A, B, C))
    assert clocks.stamp_ms(FAR, 1100.0) == 6000 + AHEAD_MS_MAX


def test_while_too_few_are_known_the_log_is_believed() -> None:
    clocks = Clocks()
    clocks.hear(A, FAR, 100.0)
    clocks.compare((A, B, C), ended_ms=7000)
    assert [clocks.stamp_ms(FAR, now_ms) for now_ms in (200.0, 90_000.0)] == [17_000, 17_000]


def test_non_members_do_not_count() -> None:
    clocks = Clocks()
    for member, wall_ms in ((A, FAR), (B, FAR), (C, 0)):
        clocks.hear(member, wall_ms, 0.0)
    clocks.compare((C,))
    clocks.compare((A, B, C), ended_ms=0)
    assert clocks.stamp_ms(FAR, 0.0) == AHEAD_MS_MAX


def with_clocks(group: Group, ahead: Callable[[int], int]) -> None:
    """Have node i's wall clock ahead by `ahead(i)`."""
    for number, replica in enumerate(group.replicas):
        step = replica.step
        replica.step = (  # type: ignore[method-assign]
            lambda now, wall, *events, step=step, number=number:
            step(now, wall + ahead(number), *events)
        )  # fmt: skip


def test_a_primary_with_a_wrong_clock_spoils_no_time_stamps() -> None:
    group = Group(3)
    with_clocks(group, lambda number: FAR if number == 2 else 0)
    while group.leader != 2:
        old = group.leader
        group.without(old)
        while group.leader == old:
            group.tick(*(number for number in range(3) if number != old))
        group.whole()
        group.tick(times=5)
    group.set(2, 1)
    group.settle()
    last = group.replicas[2].log.last
    assert last is not None
    assert last.ts_ms <= group.now + AHEAD_MS_MAX
