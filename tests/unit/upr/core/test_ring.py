"""The ring against a list."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.upr.core.ring import Recent, Ring

ENTRIES = st.lists(st.builds(Recent, st.integers(1, 12), st.sampled_from([b"a", b"b"])))


@given(ENTRIES, ENTRIES, st.integers(0, 13))
def test_entries_ascend_and_none_occurs_twice(
    stored: list[Recent], added: list[Recent], seqno: int
) -> None:
    ring = Ring(stored)
    ring.add(sorted(set(added)))
    everything = sorted({*stored, *added})
    assert ring.entries == everything
    assert ring.above(seqno) == [entry for entry in everything if entry.seqno > seqno]
    ring.drop(added)
    assert ring.entries == [entry for entry in everything if entry not in added]


@given(ENTRIES, st.integers(0, 13), st.integers(1, 5))
def test_surplus_is_the_oldest_never_above(
    stored: list[Recent], through: int, changes_max: int
) -> None:
    ring = Ring(stored, changes_max=changes_max)
    surplus = list(ring.surplus(through))
    assert surplus == list(ring.entries[: len(surplus)])
    assert all(entry.seqno <= through for entry in surplus)
    ring.drop(surplus)
    rest = [entry for entry in ring.entries if entry.seqno <= through]
    assert len(ring.entries) <= changes_max or not rest
