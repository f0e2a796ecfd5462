"""A counter moves on a line with two ends, or on a circle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.namespace.state.counter_values import Counter, Counters
from millstream.coordination.core.namespace.state.elements import Elements
from millstream.coordination.core.namespace.tables import Tables
from millstream.errors import CorruptionError
from millstream.vsr.core.snapshots import Pieces


@given(st.integers(-128, 127), st.integers(-1000, 1000))
def test_eight_bits_go_round_as_in_a_machine(value: int, count: int) -> None:
    moved = Counter(8, value=value).moved(count, is_wrapping=True).value
    expected = (value + count) & 255
    assert moved == (expected - 256 if expected > 127 else expected)


@given(st.integers(0, 255), st.integers(-1000, 1000))
def test_eight_bits_stop(value: int, count: int) -> None:
    moved = Counter(8, is_unsigned=True, value=value).moved(count, is_wrapping=False).value
    assert moved == min(max(value + count, 0), 255)


@pytest.mark.parametrize("text", [b"", b"\0\x08\0\0", b"\0\x08\0\0\1\1"])
def test_an_invalid_counter_is_not_read(text: bytes) -> None:
    tables = Tables()
    Counters(tables, Elements(Tables()))
    one = (1).to_bytes(8, "big")
    record = one + (8).to_bytes(4, "big") + len(text).to_bytes(4, "big") + one + text
    with pytest.raises(CorruptionError):
        for _ in tables.restore(Pieces([record])):
            pass
