"""What is set for a group tunes its members, and is taken back."""

import pytest

from millstream.coordination.core.group_state import GroupState
from millstream.vsr.core.replica.replica import Replica
from millstream.vsr.core.tuning import TUNED, Tuning, numbers_of


@pytest.mark.parametrize(
    ("beat_ms", "ticks", "tick_ms", "slow_ms"),
    [(10, 1, 10, 100), (100, 1, 100, 100), (250, 3, 250 / 3, 250), (10_000, 100, 100, 10_000)],
)
def test_a_member_is_woken_at_least_once_for_each_beat(
    beat_ms: int, ticks: int, tick_ms: float, slow_ms: int
) -> None:
    tuned = Tuning()
    tuned.heartbeat_ms = beat_ms
    assert (tuned.ticks_per_beat, tuned.tick_ms, tuned.beat_ms) == (ticks, tick_ms, slow_ms)


def test_each_setting_is_of_a_replica_and_is_taken_back() -> None:
    tuning = Replica(GroupState(), lambda: 0.5).state.tuning
    before = {attribute: getattr(tuning, attribute) for attribute in TUNED.values()}
    settings = dict.fromkeys(TUNED, b"7") | {b"GROUP.VIEW.TIMEOUT": b"300-400 ms"}
    tuning.tune(settings)
    found = {attribute: getattr(tuning, attribute) for attribute in TUNED.values()}
    assert found == dict.fromkeys(before, 7) | {"view_time_out_ms": (300, 400)}
    tuning.tune({b"GROUP.PIPELINE": b"5"})
    after = {attribute: getattr(tuning, attribute) for attribute in TUNED.values()}
    assert after == before | {"pipeline_max": 5}


def test_a_kept_value_is_a_number_or_a_range() -> None:
    assert numbers_of(b"100 ms") == 100
    assert numbers_of(b"512") == 512
    assert numbers_of(b"600-900 ms") == (600, 900)
