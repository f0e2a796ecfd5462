"""A kept place comes back as it was, and an illegal one is never made."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptionError
from millstream.model.position import FailoverEntry, Position
from millstream.upr.core.kept import Kept, Recent, Ring, kept_from_json, kept_to_json
from millstream.upr.core.repair import LoadState

LOG = (FailoverEntry(0xB, 10, 7), FailoverEntry(0xA, 0, 3))


@pytest.mark.parametrize(
    "kept",
    [
        Kept(),
        Kept(Position(0xA, 0, 0, 0, 4), LOG, LoadState(3, 4, is_loading=True)),
        Kept(Position(0xB, 5, 0, 12, 4), LOG),
        Kept(Position(0xB, 20, 12, 30), LOG, LoadState(2, 9), is_undoing=True),
        Kept(Position(0xA, 10, 10, 10), LOG, LoadState()),
    ],
)
def test_it_comes_back(kept: Kept) -> None:
    assert kept_from_json(kept_to_json(kept), name="here") == kept


@pytest.mark.parametrize(
    "members",
    [
        {"position": Position(0xB, 20, 12, 19)},
        {"position": Position(0xB, 20, 21, 30)},
        {"position": Position(0xB, 20, 12, 1 << 64)},
        {"position": Position(0xB, 20, 12, 30, 4)},
        {"position": Position(0xB, 5, 0, 12, -1), "loaded": LoadState(is_loading=True)},
        {"position": Position(0xA, 20, 12, 30)},
        {"position": Position(0xC, 20, 12, 30)},
        {"failover_log": ()},
        {"failover_log": LOG[::-1]},
        {"failover_log": (LOG[0], *LOG)},
        {"failover_log": (*LOG, FailoverEntry(0, 0, 0))},
        {"loaded": LoadState(0)},
        {"loaded": LoadState(is_loading=True)},
        {"loaded": LoadState(floor=-1)},
    ],
)
def test_an_illegal_one_is_never_made(members: dict[str, Any]) -> None:
    legal: dict[str, Any] = {
        "position": Position(0xB, 20, 12, 30), "failover_log": LOG, "loaded": LoadState()
    }  # fmt: skip
    Kept(**legal)
    with pytest.raises(CorruptionError, match="no place to go on from"):
        Kept(**{**legal, **members})


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b'{"v":1}',
        kept_to_json(Kept()).replace(b'"v":1', b'"v":2'),
        kept_to_json(Kept()).replace(b'"load":1', b'"load":0'),
        kept_to_json(Kept()).replace(b'"000000000000"', b'"xyz"'),
        kept_to_json(Kept(failover_log=LOG)).replace(b'"00000000000b"', b'"?"'),
    ],
)  # fmt: skip
def test_nonsense_is_named_with_its_place(text: bytes) -> None:
    with pytest.raises(CorruptionError, match="here is not the position of a reader"):
        kept_from_json(text, name="here")


# -- the ring

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
