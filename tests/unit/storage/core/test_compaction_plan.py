from hypothesis import given
from hypothesis import strategies as st

from millstream.storage.core.compaction_plan import (
    DEAD_SHARE_KEPT,
    RUN_SEGMENTS_MAX,
    SEGMENTS_BASE_MAX,
    SegmentCounts,
    choose_run,
    is_due,
)

FULL = 1000


def segments(*sizes):
    """(live bytes, dead bytes) in log order."""
    return [
        SegmentCounts(n, live + dead, dead, live + dead, dead, 0)
        for n, (live, dead) in enumerate(sizes, 1)
    ]


def test_nothing_to_do():
    assert choose_run([], FULL) == []
    assert choose_run(segments((900, 0), (900, 0), (500, 100)), FULL) == []
    assert choose_run(segments((900, 0), (900, 0), (500, 100)), FULL, kept_share=0) == [3]


def test_the_segment_with_most_dead_goes_first():
    assert choose_run(segments((900, 100), (500, 500), (700, 300)), FULL) == [2]
    assert choose_run(segments((900, 100), (500, 500), (700, 300)), FULL, done=[2]) == [3]
    assert choose_run(segments((900, 100), (500, 500)), FULL, done=[1, 2]) == []


def test_small_and_mostly_dead_neighbours_come_along():
    made = segments((900, 0), (100, 800), (0, 900), (120, 0), (400, 500), (900, 0))
    assert choose_run(made, FULL) == [2, 3, 4, 5]
    made = segments((0, 900), *[(10, 0)] * 50)
    assert len(choose_run(made, FULL)) == RUN_SEGMENTS_MAX


def test_what_is_alive_fits_into_one_segment():
    assert choose_run(segments((450, 500), (450, 500), (450, 500)), FULL) == [1, 2]


def test_too_many_segments_are_merged_where_it_costs_least():
    made = segments(*[(100, 0)] * (SEGMENTS_BASE_MAX + 50), (20, 0), (20, 0), (20, 0))
    assert choose_run(made, FULL) == [SEGMENTS_BASE_MAX + n for n in (51, 52, 53)]
    assert choose_run(segments(*[(600, 0)] * 200), FULL) == [], "no two fit into one"


def test_when_it_begins():
    assert not is_due(1000, 600, 100)
    assert is_due(1000, 601, 100)
    assert not is_due(0, 100, 100)


sizes = st.lists(st.tuples(st.integers(0, FULL), st.integers(0, FULL)), max_size=60)


@given(sizes)
def test_rewriting_ends_and_leaves_little_that_is_dead(found):
    """As the driver does it: each run becomes one segment without dead records."""
    now = [s for s in segments(*found) if s.bytes]
    done, rounds = set(), 0
    while run := choose_run(now, FULL, done):
        places = [at for at, s in enumerate(now) if s.number in run]
        assert places == list(range(places[0], places[0] + len(run)))
        live = sum(now[at].live_bytes for at in places)
        assert live <= FULL
        left = SegmentCounts(run[-1], live + 10, 0, 1, 0, 0)
        now[places[0] : places[-1] + 1] = [left]
        done.add(run[-1])
        rounds += 1
        assert rounds <= 2 * len(found)
    dead, live = sum(s.dead_bytes for s in now), sum(s.live_bytes for s in now)
    assert dead <= DEAD_SHARE_KEPT * live
