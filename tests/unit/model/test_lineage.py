"""Lineage bytes can be read back, and only whole ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.lineage import Lineage, born, decode, encode, with_run

NUMBERS = st.integers(0, 2**53 - 1)


def test_a_newborn_has_one_run() -> None:
    assert decode(born(77, 5)) == Lineage(77, 5, ((77, 1),))


@given(NUMBERS, NUMBERS, st.lists(st.tuples(NUMBERS, NUMBERS), max_size=5))
def test_runs_are_added_at_the_end(branch: int, seqno: int, runs: list[tuple[int, int]]) -> None:
    data = born(branch, seqno)
    for run_branch, generation in runs:
        data = with_run(data, run_branch, generation)
    assert decode(data) == Lineage(branch, seqno, ((branch, 1), *runs))
    assert encode(decode(data)) == data


def test_it_is_short() -> None:
    assert len(born(2**52, 1_000_000)) <= 11


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01\x01\x01", b"\x01\x81"])
def test_cut_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="lineage"):
        decode(data)
