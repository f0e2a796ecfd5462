"""Which builds wait for a pipeline, and for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.views.core.index.offers import (
    ATTACHED_S,
    DECLINED_S,
    OFFER_CHANGES_MIN,
    OFFER_S,
    Offers,
)

LARGE = OFFER_CHANGES_MIN


@pytest.fixture
def offers():
    made = Offers()
    made.heard([], 0)
    return made


def test_without_a_pipeline_nothing_is_offered():
    offers = Offers()
    assert not offers.holds("s", LARGE, 0)
    assert not offers.take("s", 0)
    offers.heard([], 0)
    assert not offers.holds("s", LARGE, ATTACHED_S), "it went away"


def test_small_builds_are_not_offered(offers):
    assert not offers.holds("s", LARGE - 1, 0)
    assert offers.holds("s", LARGE, 0)
    assert offers.heard([], 0) == ["s"]
    assert not offers.holds("s", LARGE - 1, 1)
    assert offers.heard([], 1) == []


def test_builds_of_unknown_size_wait_without_an_offer(offers):
    assert offers.holds("s", None, 0)
    assert offers.heard([], 0) == []
    assert not offers.take("s", 0)
    assert offers.holds("s", LARGE, 1)
    assert offers.heard([], 1) == ["s"]


def test_builds_of_unknown_size_are_built_after_the_wait(offers):
    """What was not offered is not declined; it has all its time once it is known to be large."""
    assert offers.holds("s", None, OFFER_S - 1)
    offers.heard([], 2 * OFFER_S)
    now = 2 * OFFER_S - 1
    assert not offers.holds("s", None, now)
    assert not offers.is_held("s")
    assert offers.holds("s", LARGE, now)
    assert offers.holds("s", None, now + 1), "not asked what it lacks"
    assert offers.heard([], now + 1) == []
    assert offers.holds("s", LARGE, now + OFFER_S - 1)
    assert offers.heard([], now + OFFER_S - 1) == ["s"]
    assert not offers.holds("s", None, now + OFFER_S)
    assert not offers.holds("s", LARGE, now + OFFER_S)
    assert offers.heard([], now + OFFER_S) == []


def test_builds_no_longer_needed_are_not_offered(offers):
    assert offers.holds("s", LARGE, 0)
    offers.withdraw("s", 6, is_needed=False)
    assert offers.heard([], 6) == []
    assert not offers.take("s", 6)
    offers.heard([], 100)
    assert offers.holds("s", LARGE, 100)
    assert offers.holds("s", LARGE, 100 + OFFER_S - 1)


def test_repeated_short_requests_get_the_build(offers):
    """Each waits for less than an offer lasts, and all of them together no longer."""
    assert offers.holds("s", LARGE, 0)
    offers.withdraw("s", OFFER_S - 3, is_needed=True)
    offers.withdraw("s", OFFER_S - 2, is_needed=True)
    assert offers.heard([], 500) == []
    assert offers.holds("s", LARGE, 500)
    assert not offers.holds("s", LARGE, 503)


def test_how_long_it_was_not_known_to_be_large_is_remembered(offers):
    assert offers.holds("s", None, 0)
    offers.withdraw("s", 1, is_needed=True)
    offers.heard([], OFFER_S)
    assert not offers.holds("s", None, OFFER_S)
    assert offers.holds("s", LARGE, OFFER_S)


def test_an_offer_without_taker_is_declined(offers):
    assert offers.holds("s", LARGE, 0)
    assert offers.holds("s", LARGE, OFFER_S - 1)
    assert not offers.holds("s", LARGE, OFFER_S)
    assert offers.heard([], OFFER_S) == []
    assert not offers.holds("s", LARGE, OFFER_S + DECLINED_S - 1)
    offers.heard([], OFFER_S + DECLINED_S)
    assert offers.holds("s", LARGE, OFFER_S + DECLINED_S)


def test_a_taken_build_is_waited_for_while_its_pipeline_reports(offers):
    assert offers.holds("s", LARGE, 0)
    assert offers.take("s", 1)
    assert offers.take("s", 1), "asked again: the answer was lost"
    assert offers.is_taken("s")
    for now in range(1, 1000, 10):
        assert offers.heard(["s"], now) == []
        assert offers.holds("s", LARGE, now)
        assert offers.lapsed(now + 1) == []
    now = 991 + ATTACHED_S
    offers.heard(["other"], now)
    assert offers.lapsed(now) == ["s"]
    offers.taken_back("s", now)
    assert not offers.holds("s", LARGE, now)
    assert offers.lapsed(now) == []


def test_a_finished_build_is_returned_at_once(offers):
    offers.holds("s", LARGE, 0)
    offers.ended("s")
    assert offers.lapsed(0) == [], "it was not taken"
    offers.take("s", 0)
    offers.ended("s")
    assert offers.lapsed(0) == ["s"]


def test_a_forgotten_build_starts_over(offers):
    offers.holds("s", LARGE, 0)
    offers.take("s", 0)
    offers.forget("s")
    assert not offers.is_taken("s")
    assert not offers.take("s", 0)
    assert offers.holds("s", LARGE, 0)


STEP_KINDS = ["heard", "works", "holds", "unknown", "idle", "done", "take", "end", "wait"]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(STEP_KINDS),
        st.integers(0, 9),
    ),
    max_size=40,
)


@given(STEPS)
def test_every_wait_for_a_build_ends(steps):
    """Whatever happened before: once the pipeline is silent the node builds within the bounds."""
    offers, now = Offers(), 0.0

    def hold(changes=LARGE):
        for signature in offers.lapsed(now):
            offers.taken_back(signature, now)
        return offers.holds("s", changes, now)

    for step, seconds in steps:
        now += seconds
        if step in ("heard", "works"):
            offers.heard(["s"] if step == "works" else [], now)
        elif step == "holds":
            hold()
        elif step == "unknown":
            hold(None)
        elif step in ("idle", "done"):
            offers.withdraw("s", now, is_needed=step == "idle")
        elif step == "take":
            offers.take("s", now)
        elif step == "end":
            offers.ended("s")
    now += max(ATTACHED_S, OFFER_S)
    assert not hold()
