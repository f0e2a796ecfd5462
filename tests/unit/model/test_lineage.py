"""Lineage bytes can be read back, and only whole ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.model.lineage import (
    Lineage,
    as_of,
    born,
    decode,
    encode,
    is_lineage,
    with_run,
)

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
    assert not is_lineage(data)
    with pytest.raises(ValueError, match="lineage"):
        decode(data)


@given(st.binary(max_size=12))
def test_any_bytes_are_told_apart(data: bytes) -> None:
    try:
        decode(data)
    except ValueError:
        assert not is_lineage(data)
    else:
        assert is_lineage(data) == (data[0] != 0)


def test_no_branch_is_zero() -> None:
    assert is_lineage(born(1, 0))
    assert not is_lineage(born(0, 1))


@given(NUMBERS, NUMBERS, st.lists(st.tuples(NUMBERS, st.integers(1, 5)), max_size=5))
def test_an_older_version_had_the_runs_begun_by_then(
    branch: int, seqno: int, runs: list[tuple[int, int]]
) -> None:
    generation, data = 1, born(branch, seqno)
    versions = {1: data}
    for run_branch, generations in runs:
        data = with_run(data, run_branch, generation + 1)
        for _ in range(generations):
            generation += 1
            versions[generation] = data
    for older, lineage in versions.items():
        assert as_of(data, older) == lineage
        assert as_of(lineage, older) is lineage
