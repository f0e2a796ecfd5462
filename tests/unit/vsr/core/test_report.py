"""Trouble that lasts is told from an ordinary fail-over."""

import pytest

from millstream.vsr.core.report import STUCK_MS
from support.coordination.coordination_group import Group


@pytest.mark.parametrize(("trouble_ms", "is_stuck"), [(0.0, False), (STUCK_MS, True)])
def test_long_trouble_means_stuck(trouble_ms: float, is_stuck: bool) -> None:
    report = Group(1).replicas[0].report()
    assert report._replace(trouble_ms=trouble_ms).is_stuck is is_stuck


def test_a_member_that_was_replaced_does_not_impair_the_group() -> None:
    group = Group(3, learners=1)
    replaced = (group.leader + 1) % 3
    group.change(*sorted({0, 1, 2, 3} - {replaced}))
    group.tick(times=20)
    report = group.replicas[replaced].report()
    assert (report.role, report.is_quorum_ok) == ("retired", False)
    assert not report.is_impaired
    assert not report.is_member
    assert report._replace(trouble="the group was forced to go on without it").is_impaired


def test_a_member_without_a_quorum_is_impaired() -> None:
    group = Group(3)
    group.tick(times=2)
    assert not any(replica.report().is_impaired for replica in group.replicas)
    group.without(*(number for number in range(3) if number != group.leader))
    group.tick(times=10)
    report = group.replicas[group.leader].report()
    assert report.is_member
    assert report.is_impaired
    assert report._replace(trouble="").is_impaired
