import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptionError
from millstream.views.core.index.header import Header, with_checksum
from millstream.views.core.index.kept_roots import (
    KEPT_BOUNDS,
    FreeList,
    KeptBounds,
    decode_free_list,
    encode_free_list,
    retained,
    runnable,
)

BOUNDS = KeptBounds(newest_min=2, roots_max=6, age_ms_max=100, spacing_ms=10, waiting_nodes_min=50)


def header(commit, committed_ms, nodes=0):
    return Header(
        signature="",
        collation="",
        reduces=(),
        commit=commit,
        committed_ms=committed_ms,
        nodes=nodes,
    )


def after(times, bounds=BOUNDS, free=(), nodes=0):
    """Make one commit after the other; return the times of those kept."""
    kept = []
    for commit, now_ms in enumerate(times):
        kept = retained([*kept, header(commit, now_ms, nodes)], dict(free), now_ms, bounds)
    return [each.committed_ms for each in kept]


def test_the_newest_are_kept_and_older_ones_spaced_in_time():
    assert after([0, 1]) == [0, 1]
    assert after([0, 1, 2, 3]) == [0, 2, 3]
    assert after(range(31)) == [0, 10, 20, 29, 30]


def test_kept_roots_are_bounded_in_age_and_number():
    assert after([0, 20, 40, 101, 102]) == [20, 40, 101, 102]
    assert after([0, 1, 500, 501]) == [500, 501]
    assert after(range(0, 91, 10)) == [40, 50, 60, 70, 80, 90]


def test_a_clock_that_goes_back_keeps_the_newest():
    assert after([1000, 5, 6])[-2:] == [5, 6]


def test_old_roots_hold_only_so_many_nodes():
    free = [(commit, FreeList(tuple(range(20)))) for commit in range(1, 5)]
    assert after([0, 10, 20, 30, 40], free=free) == [20, 30, 40]
    assert after([0, 10, 20, 30, 40], free=free, nodes=80) == [0, 10, 20, 30, 40]
    free = [(commit, FreeList(ranges=((0, 1000),))) for commit in range(1, 5)]
    assert after([0, 10, 20, 30, 40], free=free) == [30, 40]


def test_a_range_counts_as_the_nodes_that_were_there():
    """An index that is built anew frees every number it ever gave; most were let go long ago."""
    headers = [
        msgspec.structs.replace(header(commit, 10 * commit, 30), next_node=1000 + commit)
        for commit in range(1, 5)
    ]
    for end, count in ((1004, 4), (1014, 4), (1030, 2)):  # 31, 41 and 57 nodes at most
        free = {4: FreeList(ranges=((1, end),))}
        assert len(retained(headers, free, 40, BOUNDS)) == count


@given(st.lists(st.integers(0, 40)), st.integers(1, 5), st.integers(0, 9), st.integers(0, 20))
def test_kept_roots_are_a_subset_of_former_roots(gaps, newest, more, spacing):
    bounds = KeptBounds(newest, newest + more, 100, spacing, 50)
    kept, now_ms = [], 0
    for commit, gap in enumerate(gaps):
        now_ms += gap
        offered = [*kept, header(commit, now_ms)]
        kept = retained(offered, {}, now_ms, bounds)
        assert kept == [each for each in offered if each in kept]
        assert kept[-newest:] == offered[-newest:]
        assert len(kept) <= newest + more
        times = [each.committed_ms for each in kept[:-newest]]
        assert all(now_ms - each <= 100 for each in times)
        assert all(b - a >= spacing for a, b in itertools.pairwise(times))


def test_free_lists_run_when_no_older_root_is_needed():
    free = {3: FreeList((1,)), 4: FreeList((2,)), 6: FreeList((3,))}
    assert runnable(free, 2) == []
    assert runnable(free, 4) == [3, 4]
    assert KEPT_BOUNDS.newest_min >= 2  # snapshots rely on it


@given(st.lists(st.integers(0, 2**64 - 1)), st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 2)))
def test_a_free_list_comes_back_from_its_bytes(numbers, ranges):
    free = FreeList(tuple(numbers), tuple(ranges))
    assert decode_free_list(encode_free_list(free)) == free


def test_random_bytes_are_not_a_free_list():
    with pytest.raises(CorruptionError):
        decode_free_list(with_checksum(b"\x91\x01"))
    with pytest.raises(CorruptionError, match="checksum"):
        decode_free_list(encode_free_list(FreeList((1,)))[:-1] + b"x")
