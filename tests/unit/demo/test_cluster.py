"""What the play compares; the whole of it runs in tests/e2e."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rich.console import Console

from millstream.demo import cluster
from millstream.demo.cluster import COPIES, _Play
from millstream.demo.run import Outcome
from millstream.demo.timeline import Timeline
from millstream.demo.truth import Truth
from millstream.model.partitions import PartitionState
from millstream.model.standing import Standing, standing_to_json


@pytest.fixture
def play(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "PARTITIONS", 1)
    return _Play(Console(), tmp_path, Outcome(Truth(), timeline=Timeline()), [])


def test_what_is_missing_too_much_or_wrong_differs(play):
    check = play._compare("rows", {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 9, "d": 4})
    assert check.differences == 3
    assert check.samples[0] == "b: expected 9, found 2"
    assert not check.is_right
    assert play._compare("rows", {"a": 1}, {"a": 1}).is_right


@pytest.mark.parametrize(
    ("copies", "wrong"),
    [
        ([("active", 7), ("replica", 7), ("replica", 7)], 0),
        ([("active", 7), ("replica", 6), ("replica", 7)], 1),
        ([("active", 7), ("active", 7), ("replica", 7)], 1),
        ([("active", 7), ("replica", 7), ("dead", 7)], 1),
        ([("replica", 7), ("replica", 7), ("replica", 7)], 1),
        ([("dead", 0)] * 3, 1),
    ],
)
def test_copies_are_compared_with_the_active_one(play, copies, wrong):
    def http(name):
        state, end = copies[int(name)]
        kind = PartitionState[state.upper()]
        one = standing_to_json(Standing(0, kind, 1, 1, end, end, 1, is_intact=True, is_whole=True))
        return SimpleNamespace(request=lambda method, path: {"standings": [one]})

    play._nodes = SimpleNamespace(names=[str(n) for n in range(COPIES)], http=http)
    assert play._odd_copies() == wrong
