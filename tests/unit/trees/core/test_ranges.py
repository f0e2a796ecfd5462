from hypothesis import given
from hypothesis import strategies as st

from millstream.trees.core.masks import Mask
from millstream.trees.core.nodes import leaf_body
from millstream.trees.core.ranges import (
    high_below,
    mask_below,
    parted,
    rows_in,
    slice_of,
    slots_in,
)

bounds = st.none() | st.tuples(st.integers(0, 30).map(lambda n: b"%02d" % n), st.booleans())


def in_range(key, low, high) -> bool:  # type: ignore[no-untyped-def]
    above = low is None or key > low[0] or (low[1] and key == low[0])
    return above and (high is None or key < high[0] or (high[1] and key == high[0]))


@given(st.sets(st.integers(0, 30)).map(sorted), bounds, bounds, st.integers(1, 4))
def test_children_and_rows_of_a_range(numbers, low, high, width) -> None:  # type: ignore[no-untyped-def]
    keys = [b"%02d" % number for number in numbers]
    begin, end = rows_in(keys, low, high)
    assert keys[begin:end] == [key for key in keys if in_range(key, low, high)]
    children = [keys[at : at + width] for at in range(0, len(keys), width)]
    slots = slots_in([child[-1] for child in children], low, high)
    for slot, child in enumerate(children):
        if slot not in slots:
            assert not any(in_range(key, low, high) for key in child)
        elif slot not in (slots[0], slots[-1]):
            assert all(in_range(key, low, high) for key in child)
        elif slot == slots[-1] and high_below(child[-1], high) is None:
            assert all(in_range(key, None, high) for key in child)


@given(st.sets(st.integers(0, 30), min_size=1).map(sorted), bounds, bounds)
def test_children_cut_by_a_bound_are_told_from_whole_ones(numbers, low, high) -> None:  # type: ignore[no-untyped-def]
    lasts = [b"%02d" % number for number in numbers]
    first, whole, last = parted(lasts, low, high)
    parts = [first, *whole, last]
    slots = slots_in(lasts, low, high)
    assert [slot for slot in parts if slot is not None] == list(slots)
    assert (first is not None) == (low is not None and bool(slots))
    for slot in whole:
        assert high_below(lasts[slot], high) is None
    if last is not None:
        assert high_below(lasts[last], high) == high


def test_what_of_a_child_is_wanted() -> None:
    mask = Mask(0b110)
    assert mask_below(None, 0b1) == (True, None)
    assert mask_below(mask, 0b10) == (True, None)
    assert mask_below(mask, 0b11) == (True, mask)
    assert mask_below(mask, 0b1) == (False, mask)


def test_a_slice_shares_what_is_whole_and_is_none_where_nothing_is_left() -> None:
    _, node = leaf_body([b"a", b"b", b"c"], [b"1", b"2", b"3"], [0, 1, 0])
    whole = slice_of(node, None, None, None)
    assert whole is not None
    assert whole.keys is node.keys
    part = slice_of(node, (b"a", False), (b"c", True), Mask(1))
    assert part is not None
    assert (part.keys, part.values, part.partitions) == ([b"c"], [b"3"], b"\x00")
    assert slice_of(node, (b"a", False), (b"c", False), Mask(1)) is None
    assert slice_of(node, (b"c", True), (b"a", True), None) is None
