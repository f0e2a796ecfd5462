from hypothesis import given
from hypothesis import strategies as st

from millstream.kv.core.queue.low_points import SAMPLES_PER_WINDOW, HistoryWindow, allowed_points

SECOND = 1_000_000_000


def test_history_is_over_after_the_time_or_the_bytes():
    window = HistoryWindow(100, 1000)
    assert window.over(0, 0) is None
    window.take(0, 0, 7, [5, 50])
    assert window.over(99 * SECOND, 999) is None
    assert window.over(100 * SECOND, 0).marks[0] == 5
    window.take(101 * SECOND, 0, 9, [6, 60])
    assert window.over(102 * SECOND, 999).marks[0] == 5
    assert window.over(102 * SECOND, 1000).marks[0] == 6
    assert window.over(900 * SECOND, 1000).replaced_total == 9


def test_passes_are_rarer_while_bytes_end_history_only():
    window = HistoryWindow(100, 1000)
    assert window.slack_bytes(0, None) == 0
    window.take(0, 0, 0, [0])
    assert window.slack_bytes(10 * SECOND, window.over(10 * SECOND, 1000)) == 1000
    assert window.slack_bytes(100 * SECOND, window.over(100 * SECOND, 1000)) == 0


def test_samples_are_taken_as_the_window_needs_them():
    window = HistoryWindow(160, 1600)
    assert window.is_sample_due(0, 0)
    window.take(0, 0, 0, [0])
    assert not window.is_sample_due(9 * SECOND, 99)
    assert window.is_sample_due(10 * SECOND, 0)
    assert window.is_sample_due(0, 100)


def test_few_samples_are_kept():
    window = HistoryWindow(160, 10**9)
    for n in range(1000):
        if window.is_sample_due(n * SECOND, 0):
            window.take(n * SECOND, 0, 0, [n])
        window.over(n * SECOND, 0)
    assert len(window._samples) <= SAMPLES_PER_WINDOW + 2


def test_what_is_written_after_a_rollback_is_not_old():
    window = HistoryWindow(100, 1000)
    window.take(0, 0, 0, [50, 50])
    window.rolled_back(0, 20)
    assert list(window.over(100 * SECOND, 0).marks) == [20, 50]


def test_a_clock_that_goes_back_makes_nothing_old_for_ever_or_at_once():
    window = HistoryWindow(100, 10**9)
    window.take(5000 * SECOND, 0, 0, [1])
    assert window.is_sample_due(1000 * SECOND, 0)
    window.take(1000 * SECOND, 0, 0, [2])
    assert window.over(1001 * SECOND, 0) is None
    assert window.over(1100 * SECOND, 0).marks[0] == 2


def test_an_empty_window_keeps_nothing():
    window = HistoryWindow(0, 0)
    window.take(3, 3, 0, [9])
    assert window.over(3, 3).marks[0] == 9


SEQNOS = st.integers(0, 20)
POINTS = st.tuples(SEQNOS, SEQNOS)


@given(POINTS.map(sorted), POINTS, SEQNOS, POINTS)
def test_low_points_pass_nothing_that_somebody_needs(present, wanted, mark, limits):
    present = present[1], present[0]
    history, purge = allowed_points(present, wanted, mark, limits)
    assert history >= present[0]
    assert purge >= present[1]
    assert purge <= history
    if history > present[0]:
        assert history <= min(wanted[0], mark, limits[0])
    if purge > present[1]:
        assert purge <= min(wanted[1], mark - 1, limits[1])
