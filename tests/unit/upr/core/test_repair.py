"""Loads and the floor, for every reader that repairs itself."""

import pytest

from millstream.upr.core.repair import LoadState


def test_a_reader_undoes_by_fetching_at_or_above_its_floor_and_loads_anew_below() -> None:
    state = LoadState(floor=5)
    assert [state.undo_point(seqno) for seqno in (0, 4, 5, 9)] == [0, 0, 5, 9]
    assert LoadState().undo_point(0) == 0


def test_the_floor_rises_to_what_was_forgotten_and_never_falls_within_a_load() -> None:
    state = LoadState(2, 5, is_loading=True)
    assert state.forgot(9) == LoadState(2, 9, is_loading=True)
    assert state.forgot(3) == state


def test_a_load_ends_with_its_own_sweep() -> None:
    state = LoadState(floor=9).begun(2, 4)
    assert state == LoadState(2, 4, is_loading=True)
    assert [state.is_swept_by(load) for load in (1, 2, 3)] == [False, True, False]
    assert state.swept() == LoadState(2, 4)
    assert not state.swept().is_swept_by(2), "a batch that comes again sweeps once"


def test_loads_count_up() -> None:
    with pytest.raises(AssertionError, match="count up"):
        LoadState(load=2).begun(2, 0)
