"""Leases and contact: who may serve plain requests, acknowledge, and hand a partition over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from millstream.model.cluster_maps import DataRecord, MapKey
from millstream.model.serving_rights import (
    Contact,
    Right,
    contact_until_ms,
    lease_until_ms,
    may_acknowledge,
    may_hand_over,
    may_serve,
    what_is_served,
)
from support.cluster.scene import KEY

RECORD = DataRecord(KEY, "a", 4, (("a", "b", "c"),))
GIVEN, NONE = Right(True, False), Right(False, False)


def right(now_ms: int, **others: object) -> Right:
    facts = {"is_active": True, "lease_ms": 100, "is_admitted": True, "contact_ms": None}
    return may_serve(now_ms=now_ms, **(facts | others))  # type: ignore[arg-type]


def test_a_lease_ends_before_the_session_can() -> None:
    assert lease_until_ms(5000, 1200) == 6000
    assert right(99).by_lease
    assert not right(100).by_lease


def test_a_lease_needs_a_session_and_admission_and_an_active_copy() -> None:
    assert not right(1, lease_ms=None).is_given
    assert not right(1, is_admitted=False).is_given
    assert not right(1, is_active=False, contact_ms=500).is_given
    assert right(400, is_admitted=False, contact_ms=500) == Right(False, True)
    assert not right(500, lease_ms=None, contact_ms=500).is_given


def test_contact_is_with_a_majority_that_promised_nothing_above_the_branch() -> None:
    rows = (("a", "b", "c"),)
    contacts = {"b": Contact(1000, 4), "c": Contact(1300, 4)}
    assert contact_until_ms("a", 4, rows, contacts, 500) == 1800, "one of them is enough"
    promised = contacts | {"c": Contact(1300, 5)}
    assert contact_until_ms("a", 4, rows, promised, 500) == 1500
    assert contact_until_ms("a", 4, rows, {"c": Contact(1300, 5)}, 500) is None
    assert contact_until_ms("a", 4, rows, {"z": Contact(1300, 4)}, 500) is None


def test_contact_is_with_a_majority_of_every_row() -> None:
    rows = (("a", "b", "c"), ("b", "c", "d"))
    contacts = {"b": Contact(1000, 4), "c": Contact(1300, 4)}
    assert contact_until_ms("a", 4, rows, contacts, 500) == 1500, "both, of the second row"
    assert contact_until_ms("a", 4, rows, {"c": Contact(1300, 4)}, 500) is None


def test_empty_places_never_answer_and_a_majority_of_one_is_always_in_contact() -> None:
    assert contact_until_ms("a", 4, (("a", None, None),), {}, 500) is None
    until = contact_until_ms("a", 4, (("a",),), {}, 500)
    assert until is not None
    assert right(2**60, lease_ms=None, contact_ms=until).by_contact


@given(
    st.dictionaries(st.sampled_from("bcd"), st.builds(Contact, st.integers(0, 900), st.just(4)))
)
def test_contact_never_lasts_longer_than_the_window_after_the_newest(
    contacts: dict[str, Contact],
) -> None:
    until = contact_until_ms("a", 4, (("a", "b", "c"), ("b", "d", "a")), contacts, 500)
    if until is not None:
        assert until <= max(one.sent_ms for one in contacts.values()) + 500


def test_a_follower_acknowledges_to_no_source_with_an_older_record() -> None:
    newer = replace(RECORD, at=MapKey(1, 6))
    assert may_acknowledge(RECORD, newer)
    assert may_acknowledge(RECORD, RECORD)
    assert not may_acknowledge(newer, RECORD)
    assert not may_acknowledge(RECORD, None)
    assert may_acknowledge(None, None)


def test_a_partition_is_handed_to_the_wanted_node_by_who_may_serve() -> None:
    moving = replace(RECORD, rows=(("a", "b"), ("b", "a")), since=KEY)
    assert may_hand_over(moving, "b", GIVEN)
    assert not may_hand_over(moving, "a", GIVEN)
    assert not may_hand_over(moving, "b", NONE)


@pytest.mark.parametrize(
    ("isolation", "served"),
    [("stop", (False, False)), ("read_only", (True, False)), ("serve", (True, True))],
)
def test_isolation_says_what_a_copy_without_a_right_serves(
    isolation: str, served: tuple[bool, bool]
) -> None:
    assert what_is_served(NONE, isolation, is_active=True) == served  # type: ignore[arg-type]
    assert what_is_served(NONE, isolation, is_active=False) == (False, False)  # type: ignore[arg-type]
    assert what_is_served(GIVEN, "stop", is_active=True) == (True, True)
