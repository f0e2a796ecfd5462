"""Columns: any set of partitions comes to the same with them, and reads hardly anything."""

from collections.abc import Iterable, Sequence
from itertools import chain, compress

from hypothesis import given
from hypothesis import strategies as st

from millstream.trees.core.columns import Column, ColumnCache, Columns
from millstream.trees.core.filtered import FilteredCache
from millstream.trees.core.masks import Mask
from millstream.trees.core.nodes import NodeCache, Nodes, leaf_body, sealed
from millstream.trees.core.reader import TreeReader
from support.views.tree_model import Rows, Store, Sums, Tree, key, rows_from, small_nodes

HALF = 0x5555555555555555


class ColumnSums(Sums):
    """Sums, of columns where a leaf has no value with a leading zero."""

    largest = 10**9

    def columns(self, leaves: Sequence[Sequence[bytes]]) -> list[Column | None]:
        return [
            None if any(value[:1] == b"0" for value in values) else list(map(int, values))
            for values in leaves
        ]

    def reduce_columns(self, columns: Iterable[Column], flags: bytes) -> bytes | None:
        values = list(compress(chain.from_iterable(columns), flags))
        assert values
        assert len(flags) == sum(map(len, columns))
        return None if max(values) > self.largest else b"%d" % sum(values)


class Asked:
    """A tree that is read by columns."""

    def __init__(self, tree: Tree, cache: ColumnCache | None = None) -> None:
        self.tree, self.sums = tree, ColumnSums()
        self.columns = ColumnCache() if cache is None else cache
        self.filtered, self.reads = FilteredCache(), 0

    def reader(self) -> TreeReader:
        self.source = Store(self.tree.store)
        columns = Columns(self.columns, 3, self.sums)
        return TreeReader(
            self.source, self.tree.root, NodeCache(0), self.sums, self.filtered, 3, None, columns
        )

    def check(self, wanted: int) -> int:
        """Ask; return how many nodes were read."""
        reader = self.reader()
        rows = self.tree.rows.values()
        expected = [int(value) for p, value in rows if wanted >> p & 1]
        found = reader.reduce(wanted=wanted)
        reads = self.source.reads
        assert found == (b"%d" % sum(expected) if expected else None)
        assert reader.count(wanted=wanted) == len(expected)
        return reads


def loaded(rows: Rows) -> Tree:
    made = Tree(Sums())
    with small_nodes():
        made.load(rows)
    return made


def numbered(count: int) -> Rows:
    return {
        k: (p, b"%d" % (at + 1)) for at, (k, (p, _)) in enumerate(rows_from(range(count)).items())
    }


ROWS = st.dictionaries(
    st.integers(0, 400).map(key),
    st.tuples(st.integers(0, 9) | st.just(700), st.integers(0, 99).map(lambda n: b"%02d" % n)),
    min_size=1,
    max_size=80,
)


@given(ROWS, ROWS, st.lists(st.integers(0, 1023), min_size=1, max_size=4), st.integers(50, 100))
def test_any_partitions_come_to_the_same(
    rows: Rows, changed: Rows, wanted: list[int], largest: int
) -> None:
    """Also where leaves have no column, or a column has no partial."""
    asked = Asked(loaded(rows))
    asked.sums.largest = largest
    for again in range(2):
        for partitions in wanted:
            asked.check(partitions)
            asked.check(partitions | 1 << 700)
        if not again:
            with small_nodes():
                asked.tree.apply(dict(changed))


def test_another_set_reads_no_leaf_again() -> None:
    asked = Asked(loaded(numbered(3000)))
    first = asked.check(HALF)
    assert first > 300
    second = asked.check(~HALF & (1 << 64) - 1)
    assert second < first / 3, "inner nodes alone"
    with small_nodes():
        asked.tree.apply({key(1501): (2, b"7"), key(0): None})
    assert asked.check(HALF) < 20


def test_what_is_prepared_is_not_read_again() -> None:
    asked = Asked(loaded(numbered(3000)))
    reader = asked.reader()
    reader.prepare()
    all_nodes = asked.source.reads
    assert all_nodes == len(asked.tree.store)
    assert asked.check(HALF) < all_nodes / 3
    again = asked.reader()
    again.prepare()
    assert asked.source.reads < all_nodes / 3


def test_a_tree_of_one_leaf_is_prepared_and_an_empty_one() -> None:
    asked = Asked(loaded({key(1): (1, b"5"), key(2): (2, b"6")}))
    asked.reader().prepare()
    assert asked.check(0b10) == 1
    asked.tree.root = None
    asked.reader().prepare()


def test_a_tree_without_room_is_not_read_so() -> None:
    rows = numbered(1000)
    small, large = ColumnCache(39_999), ColumnCache(40_000)
    for cache, has_room in ((small, False), (large, True)):
        asked = Asked(loaded(rows), cache)
        asked.check(HALF)
        assert bool(cache._young or cache._old) is has_room


def test_what_is_used_stays_within_the_bytes() -> None:
    columns = Columns(ColumnCache(100_000), 0, ColumnSums())
    leaf, _ = leaf_body([b"k"], [b"1"], b"\x01")
    nodes = Nodes(Store({number: sealed(number, leaf) for number in range(500)}))
    for number in range(500):
        columns.prepare(nodes, [0, number])
        assert columns.count(0, Mask(0b10)) == 1
    kept = [number for number in range(500) if columns.count(number, Mask(0b10)) is not None]
    assert 100 < len(kept) < 350
    assert kept[0] == 0
    assert kept[-1] == 499


def test_kinds_are_kept_apart() -> None:
    tree, cache = loaded(numbered(100)), ColumnCache()
    for kind in (0, 1):
        source = Store(tree.store)
        columns = Columns(cache, kind, ColumnSums())
        reader = TreeReader(
            source, tree.root, NodeCache(), Sums(), FilteredCache(), kind, None, columns
        )
        reader.prepare()
        assert source.reads == len(tree.store)
