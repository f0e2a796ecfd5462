import random
from collections.abc import Sequence
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.trees.core.reader import TreeReader
from millstream.trees.core.shapes import Leaf
from support.views.tree_model import (
    Joins,
    Sums,
    Tree,
    key,
    keys_of,
    rows_from,
    rows_of,
    small_nodes,
    span_of,
)

COUNT = 4000
bounds = st.none() | st.tuples(
    st.integers(-5, COUNT + 5).map(lambda n: key(n) if n >= 0 else b""), st.booleans()
)
wanted_sets = st.none() | st.sampled_from([0, 1, 2**64 - 1, 2**32 - 1, 1 << 70])
wanted_sets |= st.integers(0, 2**64 - 1) | st.integers(0, 2**700 - 1)


@pytest.fixture(
    scope="module", params=["mixed", "by range", "many levels", "by range, many levels"]
)
def tree(request: pytest.FixtureRequest) -> Tree:
    made = Tree(Joins())
    rows = rows_from(range(0, COUNT, 2), partitions=700 if request.param == "many levels" else 64)
    if "by range" in request.param:
        rows = {key(n): (n // 500, b"%d" % n) for n in range(0, COUNT, 2)}
    with small_nodes() if "many levels" in request.param else nullcontext():
        made.load(rows)
    assert made.root is not None
    assert made.root.height >= 4 or "many levels" not in request.param
    return made


@given(
    low=bounds,
    high=bounds,
    wanted=wanted_sets,
    descending=st.booleans(),
    skip=st.integers(0, COUNT),
)
def test_ranges_masks_directions_and_skips(tree, low, high, wanted, descending, skip) -> None:  # type: ignore[no-untyped-def]
    reader = tree.reader()
    expected = tree.expected(low, high, wanted)
    assert reader.count(low, high, wanted) == len(expected)
    assert reader.reduce(low, high, wanted) == span_of(expected)
    found = list(reader.scan(low, high, descending=descending, wanted=wanted, skip=skip))
    if descending:
        expected.reverse()
    assert keys_of(found) == expected[skip:]
    assert rows_of(found).items() <= tree.rows.items()


def test_get_finds_what_is_there(tree: Tree) -> None:
    keys = [b"", *(key(n) for n in range(0, COUNT + 900, 3)), b"zz"]
    found = tree.reader().get(keys)
    assert found == {one: tree.rows[one][1] for one in keys if one in tree.rows}
    assert tree.reader().get([]) == {}


def test_an_empty_tree() -> None:
    reader = TreeReader(Tree().store, None)
    assert list(reader.scan()) == []
    assert list(reader.groups(lambda key: key)) == []
    assert reader.get([b"a"]) == {}
    assert reader.count() == 0
    assert reader.reduce() is None


def test_counts_reductions_and_skips_read_only_the_borders() -> None:
    tree = Tree(Sums())
    tree.load(rows_from(range(60_000)))
    reader = TreeReader(tree.store, tree.root, None, tree.reducer)
    low, high = (key(700), True), (key(58_000), False)
    for act in (
        lambda: reader.count(low, high) == 57_300,
        lambda: reader.reduce(low, high) == b"%d" % sum(range(700, 58_000)),
        lambda: next(reader.scan(low, high, skip=40_000)).keys[0] == key(40_700),
        lambda: next(reader.scan(descending=True, skip=40_000)).keys[0] == key(19_999),
    ):
        tree.store.reads = 0
        assert act()
        assert tree.store.reads <= 6


def test_a_mask_costs_nothing_where_subtrees_are_wanted_or_not_as_a_whole() -> None:
    tree = Tree(Sums())
    tree.load({key(n): (n // 1000, b"1") for n in range(60_000)})
    reader = TreeReader(tree.store, tree.root, None, tree.reducer)
    tree.store.reads = 0
    assert reader.reduce(wanted=0b0110) == b"2000"
    assert reader.count(wanted=0b0110) == 2000
    assert tree.store.reads < 24
    assert reader.count(wanted=2**64 - 1) == 60_000


def test_few_leaves_and_rows_wait_for_the_reducer() -> None:
    class Bounded(Sums):
        leaves = rows = 0

        def reduce(self, leaves):  # type: ignore[no-untyped-def]
            self.leaves = max(self.leaves, len(leaves))
            self.rows = max(self.rows, *(len(leaf.keys) for leaf in leaves))
            return super().reduce(leaves)

    tree = Tree(bounded := Bounded())
    tree.load(rows_from(range(60_000)))
    bounded.calls = bounded.leaves = bounded.rows = 0
    wanted = 2**64 - 1 & ~(1 << 5)
    total = sum(n for n in range(60_000) if n * 7919 % 64 != 5)
    reader = TreeReader(tree.store, tree.root, tree.cache, tree.reducer)
    assert reader.reduce(wanted=wanted) == b"%d" % total
    assert 10 < bounded.leaves <= 512
    assert bounded.calls < 10
    assert 3000 < bounded.rows < 5000


def test_readers_share_a_cache() -> None:
    tree = Tree(Sums())
    tree.load(rows_from(range(2000)))
    keys_of(tree.reader().scan())
    tree.store.reads = 0
    assert len(keys_of(tree.reader().scan())) == 2000
    assert tree.store.reads == 0


def test_random_changes_with_a_shared_cache_never_show_old_rows() -> None:
    tree = Tree(Sums())
    rng = random.Random(8)
    for turn in range(20):
        tree.apply({key(n): (n % 64, b"%d" % turn) for n in rng.sample(range(2000), 50)})
        low, high = sorted(key(rng.randrange(2000)) for _ in range(2))
        bounds = (low, True), (high, True)
        assert keys_of(tree.reader().scan(*bounds)) == tree.expected(*bounds)


class Stalling(Joins):
    """Comes to `LATE` where it stalls, and wherever that went in."""

    LATE = b"late"
    tries = 100

    def __init__(self) -> None:
        self.stalls_at: bytes = b""
        self.calls = 0

    def reduce(self, leaves: Sequence[Leaf]) -> list[bytes]:
        self.calls += len(leaves)
        parts = super().reduce(leaves)
        stalls = [bool(self.stalls_at) and self.stalls_at in leaf.keys for leaf in leaves]
        return [
            self.LATE if is_late else part for part, is_late in zip(parts, stalls, strict=True)
        ]

    def rereduce(self, groups: Sequence[Sequence[bytes]]) -> list[bytes]:
        late = [self.LATE in group for group in groups]
        joined = iter(super().rereduce([group for group in groups if self.LATE not in group]))
        return [self.LATE if each else next(joined) for each in late]

    def is_lasting(self, partial: bytes) -> bool:
        return partial != self.LATE

    def is_to_be_tried(self, partial: bytes) -> bool:
        return self.tries > 0 and not self.is_lasting(partial)


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("wanted", [None, 0b1110])
def test_a_partial_in_doubt_is_made_again_from_its_rows(wanted: int | None, is_kept: bool) -> None:
    reducer = Stalling()
    reducer.stalls_at = key(321)
    made = Tree(reducer)
    with small_nodes():
        made.load(rows_from(range(600), partitions=4))
    assert made.root is not None
    assert made.root.partial == reducer.LATE
    reducer.stalls_at = b""

    def read() -> TreeReader:
        filtered = made.filtered if is_kept else None
        return TreeReader(made.store, made.root, made.cache, reducer, filtered, 0, reducer)

    expected = made.expected(wanted=wanted)
    for ask in (
        lambda: read().reduce(wanted=wanted),
        lambda: read().reduce((key(0), True), (key(599), True), wanted=wanted),
        lambda: next(read().groups(lambda _: b"", wanted=wanted))[2],
        lambda: next(read().groups(lambda _: b"", wanted=wanted, descending=True))[2],
    ):
        assert ask() == span_of(expected)
    reducer.calls = 0
    assert read().reduce(wanted=wanted) == span_of(expected)
    if is_kept:
        assert reducer.calls == 0, "what was made again is kept"
    elif wanted is None:
        assert reducer.calls <= 2, "the rest is as the tree has it"
    reducer.tries = 0
    assert TreeReader(made.store, made.root, None, reducer, None, 0, reducer).reduce() == b"late"


@pytest.mark.parametrize("wanted", [None, 0b1110])
def test_what_is_in_doubt_is_not_kept_in_memory(wanted: int | None) -> None:
    reducer = Stalling()
    made = Tree(reducer)
    with small_nodes():
        reducer.stalls_at = key(321)
        made.load(rows_from(range(600), partitions=4))

    def read() -> TreeReader:
        return TreeReader(made.store, made.root, made.cache, reducer, made.filtered, 0, reducer)

    assert read().reduce(wanted=wanted) == reducer.LATE
    reducer.stalls_at = b""
    assert read().reduce(wanted=wanted) == span_of(made.expected(wanted=wanted))
