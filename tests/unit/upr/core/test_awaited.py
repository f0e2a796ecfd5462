"""Barriers over several sources, without any of them."""

from collections.abc import Iterable

from millstream.upr.core.awaited import Awaited
from millstream.upr.core.messages import Reached

HERE, THERE = object(), object()


def at(partitions: Iterable[int]) -> dict[int, Reached]:
    return {number: Reached(0xA, 10 * number) for number in partitions}


def test_a_barrier_waits_for_all_sources() -> None:
    awaited = Awaited()
    number = awaited.add([1, 2, 3])
    here, there = awaited.cookie_for(HERE, {1, 2}), awaited.cookie_for(THERE, {3})
    assert here is not None
    assert there is not None
    assert here != there
    assert awaited.cookie_for(HERE, {1, 2}) is None, "it is under way"
    awaited.on_reached(here, at({1, 2}))
    assert awaited.take_done() == {}
    awaited.on_reached(there, at({3}))
    assert awaited.take_done() == {number: at({1, 2, 3})}, "each source adds its partitions"
    assert awaited.take_done() == {}


def test_a_cookie_is_for_all_barriers_that_lack_something_there() -> None:
    awaited = Awaited()
    first = awaited.add([1, 2])
    early = awaited.cookie_for(HERE, {1, 2})
    second = awaited.add([2])
    late = awaited.cookie_for(HERE, {1, 2})
    assert early is not None
    assert late is not None
    awaited.on_reached(early, at({1, 2}))
    assert list(awaited.take_done()) == [first], (
        "what was sent before the second proves nothing for it"
    )
    awaited.on_reached(late, at({1, 2}))
    assert list(awaited.take_done()) == [second]


def test_who_is_not_named_is_asked_for_again() -> None:
    awaited = Awaited()
    number = awaited.add([1, 2])
    cookie = awaited.cookie_for(HERE, {1, 2})
    assert cookie is not None
    awaited.on_reached(cookie, at({1}))  # the stream of 2 had ended there
    assert awaited.cookie_for(HERE, {1}) is None
    again = awaited.cookie_for(THERE, {2})
    assert again is not None
    awaited.on_reached(again, at({2}))
    assert list(awaited.take_done()) == [number]


def test_a_lost_source_proves_nothing_and_what_has_ended_is_not_waited_for() -> None:
    awaited = Awaited()
    number = awaited.add([1, 2])
    cookie = awaited.cookie_for(HERE, {1, 2})
    assert cookie is not None
    awaited.on_lost(HERE)
    awaited.on_reached(cookie, at({1, 2}))
    assert awaited.take_done() == {}
    awaited.on_end(2)
    again = awaited.cookie_for(HERE, {1})
    assert again is not None
    awaited.on_reached(again, at({1}))
    assert list(awaited.take_done()) == [number]
    awaited.add([])
    assert len(awaited.take_done()) == 1, "nothing to wait for"
