"""Trouble that lasts is told from an ordinary fail-over."""

import pytest

from millstream.vsr.core.report import STUCK_MS
from support.coordination.coordination_group import Group


@pytest.mark.parametrize(("trouble_ms", "is_stuck"), [(0.0, False), (STUCK_MS, True)])
def test_long_trouble_means_stuck(trouble_ms: float, is_stuck: bool) -> None:
    report = Group(1).replicas[0].report()
    assert report._replace(trouble_ms=trouble_ms).is_stuck is is_stuck
