from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millstream.trees.core.nodes import LeafNode, inner_body, leaf_body
from millstream.trees.core.packing import (
    INNER_CHILDREN_MAX,
    INNER_CHILDREN_MIN,
    LEAF_ROWS_MAX,
    NODE_BYTES_MAX,
    cuts_of_inner,
    cuts_of_leaf,
    fit_together,
    is_overfull,
    is_underfull,
)

lengths = st.lists(
    st.sampled_from([0, 1, 10, 60, 255, 256, 1000, 4000, 70_000]) | st.integers(0, 2000),
    min_size=1,
    max_size=600,
)


@given(lengths, st.booleans(), st.booleans())
def test_leaves_are_cut_within_bounds_and_not_smaller_than_need_be(
    lengths: list[int], is_wide: bool, is_load: bool
) -> None:
    keys = [b"%06d" % number for number in range(len(lengths))]
    values = [bytes(length) for length in lengths]
    partitions = [1000 if is_wide else 5] * len(keys)
    ends = cuts_of_leaf(keys, values, is_wide=is_wide, is_load=is_load)
    assert ends[-1] == len(keys)
    nodes = []
    for begin, end in pairwise([0, *ends]):
        nodes.append(leaf_body(keys[begin:end], values[begin:end], partitions[begin:end])[1])
    assert not any(map(is_overfull, nodes))
    for node, other in pairwise(nodes):
        assert not (is_underfull(node) and is_underfull(other) and fit_together(node, other))


@given(lengths, st.sampled_from([0, 63, 64, 1023]), st.booleans())
def test_inner_nodes_are_cut_the_same_way(
    lengths: list[int], partition: int, is_load: bool
) -> None:
    lasts = [b"%06d" % number for number in range(len(lengths))]
    columns = [
        lasts,
        [2**40] * len(lasts),
        [2**31] * len(lasts),
        [1 << partition] * len(lasts),
        [bytes(length) for length in lengths],
    ]
    ends = cuts_of_inner(lasts, columns[3], columns[4], is_load=is_load)  # type: ignore[arg-type]
    assert ends[-1] == len(lasts)
    nodes = []
    for begin, end in pairwise([0, *ends]):
        nodes.append(inner_body(*(column[begin:end] for column in columns))[1])  # type: ignore[arg-type]
    assert not any(map(is_overfull, nodes))
    for node, other in pairwise(nodes):
        assert not (is_underfull(node) and is_underfull(other) and fit_together(node, other))


def leaf(count: int, length: int) -> LeafNode:
    keys = [b"%03d" % number for number in range(count)]
    return leaf_body(keys, [bytes(length)] * count, bytes(count))[1]


def test_a_leaf_is_full_by_bytes_or_rows_but_one_row_may_have_any_size() -> None:
    assert not is_overfull(leaf(LEAF_ROWS_MAX, 5))
    assert is_overfull(leaf(LEAF_ROWS_MAX + 1, 5))
    assert is_overfull(leaf(2, NODE_BYTES_MAX // 2))
    assert not is_overfull(leaf(1, 5 * 1024 * 1024))


def test_an_inner_node_may_have_a_few_children_of_any_size() -> None:
    def inner(count: int, length: int) -> bool:
        lasts = [b"%03d" % number for number in range(count)]
        ones = [1] * count
        return is_overfull(inner_body(lasts, ones, ones, ones, [bytes(length)] * count)[1])

    assert not inner(INNER_CHILDREN_MIN, 100_000)
    assert inner(INNER_CHILDREN_MIN + 1, 100_000)
    assert not inner(INNER_CHILDREN_MAX, 2)
    assert inner(INNER_CHILDREN_MAX + 1, 2)


def test_evenly_cut_or_nearly_full() -> None:
    keys, values = [b"%04d" % number for number in range(100)], [bytes(90)] * 100
    assert cuts_of_leaf(keys, values, is_wide=False, is_load=False) == [34, 68, 100]
    assert cuts_of_leaf(keys, values, is_wide=False, is_load=True) == [34, 68, 100]
    assert cuts_of_leaf(keys[:50], values[:50], is_wide=False, is_load=False) == [25, 50]
    assert cuts_of_leaf(keys[:50], values[:50], is_wide=False, is_load=True) == [34, 50]
