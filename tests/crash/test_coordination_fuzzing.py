"""Bytes by chance find nothing here (`make fuzz` for longer), and mistakes where they are made."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from millstream.coordination.core.namespace import tables
from millstream.coordination.core.namespace.state.run import Run
from millstream.coordination.core.resp.session import RespSession
from simulators.coordination_fuzz.codecs import codecs
from simulators.coordination_fuzz.resp_sessions import fronts
from simulators.coordination_fuzz.twins import twins

Target = Callable[[bytes], None]


def by_chance(target: Target, size: int, many: int) -> None:
    for seed in range(many):
        target(random.Random(seed).randbytes(size))


@pytest.mark.parametrize(
    ("target", "size", "many"), [(codecs, 60, 1500), (fronts, 1000, 200), (twins, 2000, 25)]
)
def test_bytes_by_chance_find_nothing(target: Target, size: int, many: int) -> None:
    by_chance(target, size, many)


def test_a_refused_command_that_leaves_something_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "roll_back", lambda _run, _mark: None)
    with pytest.raises(AssertionError, match="and yet changed"):
        by_chance(twins, 2000, 50)


def test_replies_out_of_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def filled(resp: RespSession, slot: object) -> None:
        slots = resp._slots
        for each in [each for each in slots if each.text]:
            slots.remove(each)
            resp._out.append(each.text)
            resp._out_bytes += len(each.text)
        resp.wake()

    monkeypatch.setattr(RespSession, "filled", filled)
    with pytest.raises(AssertionError, match="out of order"):
        by_chance(fronts, 1000, 300)


def test_a_record_that_cannot_be_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "StructError", LookupError)
    with pytest.raises(Exception, match="unpack"):
        by_chance(codecs, 60, 5000)
