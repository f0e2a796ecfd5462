"""How far a run is."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.replication.core import tracking
from millstream.replication.core.batches import Done
from millstream.replication.core.logs import Statistics
from millstream.replication.core.places import NOWHERE, Place
from millstream.replication.core.tracking import Mark, Tracker

RECORD = ("a record",)


def done(accepted=(), refused=(), leaves=None):
    return Done(frozenset(accepted), (), frozenset(refused), Statistics(), leaves or {})


def test_the_place_moves_over_what_is_over_only():
    tracker = Tracker(Place(0))
    first, second = tracker.opened(Mark(Place(1))), tracker.opened(Mark(Place(2)))
    tracker.ended(second, done())
    assert tracker.at.place == Place(0)
    assert tracker.pending == 2
    tracker.ended(first, done())
    assert tracker.at.place == Place(2)
    assert tracker.pending == 0


def test_it_stops_where_something_has_to_be_recorded():
    tracker = Tracker(Place(0))
    for number in range(1, 4):
        tracker.opened(Mark(Place(number), records=RECORD if number == 2 else ()))
    for number in (1, 2, 3):
        tracker.ended(number, done())
    assert tracker.at.place == Place(2)
    tracker.recorded(Place(1))
    assert tracker.is_held
    tracker.recorded(Place(2))
    assert tracker.at.place == Place(3)
    assert not tracker.is_held


def test_exceptions_leave_by_later_batches_only():
    tracker = Tracker(Place(0), ["old"])
    for number in (1, 2):
        tracker.opened(Mark(Place(number)))
    tracker.ended(2, done(refused=["x"]))
    tracker.ended(1, done(["x", "old"]))
    assert tracker.exceptions == {"x"}
    third = tracker.opened(Mark(Place(3)))
    tracker.ended(third, done(["x"]))
    assert tracker.exceptions == set()


def test_what_is_settled_before_all_batches():
    tracker = Tracker(Place(0), ["a", "b"])
    tracker.settle(0, done(["a"], ["b"]))
    assert tracker.exceptions == {"b"}


@given(st.permutations(range(1, 7)))
def test_any_order_ends_at_the_end(order):
    tracker = Tracker(Place(0))
    for number in range(1, 7):
        tracker.opened(Mark(Place(number)))
    over = set()
    for number in order:
        tracker.ended(number, done())
        over.add(number)
        whole = next(n for n in range(7) if n + 1 not in over)
        assert tracker.at.place == Place(whole)


def test_refusals_beyond_a_bound_are_counted(monkeypatch):
    monkeypatch.setattr(tracking, "REFUSED_MAX", 3)
    tracker = Tracker(NOWHERE, ["x"])
    tracker.settle(0, done(refused=["a", "b", "x"]))
    tracker.settle(0, done(refused=["c"]))
    assert tracker.exceptions == {"x", "a", "b"}
    assert tracker.dropped == 1
    tracker.settle(0, done(["a"]))
    tracker.settle(0, done(refused=["c"]))
    assert (tracker.exceptions, tracker.dropped) == ({"x", "b", "c"}, 1)


def test_the_leaves_of_a_refused_document_are_those_of_the_newest_batch():
    tracker = Tracker(NOWHERE, ["x", "y"], {"x": ("1-a",)})
    first, second = (tracker.opened(Mark(Place(number))) for number in (1, 2))
    tracker.ended(second, done(refused=["x"], leaves={"x": ("2-b",)}))
    tracker.ended(first, done(refused=["x", "y"], leaves={"x": ("1-a",)}))
    assert tracker.leaves == {"x": ("2-b",)}, "of y nothing is known"
    tracker.ended(tracker.opened(Mark(Place(3))), done(["x"]))
    assert tracker.leaves == {}
