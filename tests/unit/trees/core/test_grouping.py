from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.trees.core import grouping
from millstream.trees.core.grouping import GroupWalk, Partials
from millstream.trees.core.masks import Mask
from millstream.trees.core.nodes import Nodes, leaf_body
from millstream.trees.core.packing import LEAVES_TOGETHER_BYTES_MAX
from millstream.trees.core.reader import TreeReader
from millstream.trees.core.shapes import Leaf
from support.views.tree_model import Joins, Sums, Tree, key, rows_from, small_nodes, span_of

COUNT = 3000


@pytest.fixture(scope="module", params=["few levels", "many levels"])
def tree(request: pytest.FixtureRequest) -> Tree:
    made = Tree(Joins())
    with small_nodes() if request.param == "many levels" else nullcontext():
        made.load(rows_from(range(COUNT), partitions=8) | {key(n): (0, b"x") for n in range(500)})
    return made


@given(
    width=st.integers(0, 10),
    wanted=st.none() | st.integers(0, 255),
    low=st.none() | st.tuples(st.integers(0, COUNT).map(key), st.booleans()),
    high=st.none() | st.tuples(st.integers(0, COUNT).map(key), st.booleans()),
    descending=st.booleans(),
)
def test_groups_are_those_of_the_rows(tree, width, wanted, low, high, descending) -> None:  # type: ignore[no-untyped-def]
    expected: dict[bytes, list[bytes]] = {}
    for one in tree.expected(low, high, wanted):
        expected.setdefault(one[:width], []).append(one)
    names = sorted(expected, reverse=descending)
    groups = tree.reader().groups(
        lambda key: key[:width], low, high, wanted=wanted, descending=descending
    )
    found = list(groups)
    firsts = [expected[name][-1 if descending else 0] for name in names]
    assert [one for one, _, _ in found] == firsts
    assert [value for _, value, _ in found] == [tree.rows[one][1] for one in firsts]
    assert [partial for _, _, partial in found] == [span_of(expected[name]) for name in names]


def test_wide_groups_are_read_at_their_borders_only() -> None:
    tree = Tree(Sums())
    tree.load(rows_from(range(60_000)))
    reader = TreeReader(tree.store, tree.root, None, tree.reducer)
    tree.store.reads = 0
    found = list(reader.groups(lambda key: key[:6]))
    assert [partial for _, _, partial in found] == [
        b"%d" % sum(range(begin, begin + 10_000)) for begin in range(0, 60_000, 10_000)
    ]
    assert tree.store.reads < 40


def test_groups_are_reduced_many_at_a_time_but_the_first_come_soon() -> None:
    tree = Tree(sums := Sums())
    tree.load(rows_from(range(20_000)))
    groups = tree.reader().groups(lambda key: key)
    sums.calls, tree.store.reads = 0, 0
    assert next(groups) == (key(0), b"0", b"0")
    assert tree.store.reads < 5
    assert sum(1 for _ in groups) == 19_999
    assert sums.calls < 150


@pytest.mark.parametrize("descending", [False, True])
def test_little_waits_in_one_wide_group(monkeypatch: pytest.MonkeyPatch, descending: bool) -> None:
    monkeypatch.setattr(grouping, "PARTIALS_WAITING_MAX", 8)
    monkeypatch.setattr(grouping, "LEAVES_PER_CALL_MAX", 4)
    tree = Tree(Joins())
    tree.load(rows_from(range(3000), partitions=3))
    for wanted in (0b111, 0b101):
        keys = tree.expected(wanted=wanted)
        (group,) = tree.reader().groups(lambda _: b"", wanted=wanted, descending=descending)
        assert group[0] == keys[-1 if descending else 0]
        assert group[2] == span_of(keys) == tree.reader().reduce(wanted=wanted)


def test_partials_of_nothing_are_none() -> None:
    partials = Partials(Sums())
    assert partials.result() is None
    node = leaf_body([b"a", b"b"], [b"5", b"1"], [0, 1])[1]
    partials.add_rows(node, None, None, Mask(0b100))
    assert partials.result() is None
    partials.add_rows(node, None, None, Mask(0b1))
    partials.extend([b"7"])
    partials.add_rows(node, (b"a", False), None, Mask(0b11))
    assert partials.result() == b"13"


def test_rows_filtered_together_keep_their_place() -> None:
    partials, mask = Partials(Joins()), Mask(0b11 | 1 << 700)
    for number in range(300):
        rows_of = [number % 3, 700 if number > 150 else 2]
        keys = [b"%05d" % number, b"%05d+" % number]
        partials.add_rows(leaf_body(keys, keys, rows_of)[1], None, None, mask)
        if number % 7 == 0:
            partials.extend(Joins().reduce([Leaf([b"%05d-" % number], [b""], b"\x00")]))
    found = partials.result()
    assert found is not None
    assert found.endswith(b"~%d" % (200 + 149 + 43))


class Weighed(Sums):
    """Notes the most bytes of values in one leaf."""

    most = 0

    def reduce(self, leaves):  # type: ignore[no-untyped-def]
        self.most = max(self.most, *(sum(map(len, leaf.values)) for leaf in leaves))
        return [b"%d" % len(leaf.keys) for leaf in leaves]


def test_large_rows_are_filtered_in_small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "LEAVES_TOGETHER_BYTES_MAX", 100_000)
    tree = Tree(weighed := Weighed())
    tree.load({key(n): (n % 2, bytes(1500)) for n in range(400)})
    weighed.most = 0
    reader = TreeReader(tree.store, tree.root, tree.cache, tree.reducer)
    assert reader.reduce(wanted=0b1) == b"200"
    assert 40_000 < weighed.most < 60_000


def test_few_groups_of_large_rows_wait() -> None:
    tree = Tree(Weighed())
    tree.load({key(n): (0, bytes(200_000)) for n in range(400)})
    assert tree.root is not None
    walk = GroupWalk(Nodes(tree.store), tree.reducer, lambda key: key, False)
    most = count = 0
    for _ in walk.run(tree.root, None, None, None):
        most, count = max(most, len(walk._waiting)), count + 1
    assert count == 400
    assert most * 200_000 < 2 * LEAVES_TOGETHER_BYTES_MAX
