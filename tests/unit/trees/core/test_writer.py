import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptionError
from millstream.trees.core import writer as writer_module
from millstream.trees.core.check import check, live_nodes
from millstream.trees.core.nodes import NodeCache, decode_inner
from millstream.trees.core.packing import LEAVES_TOGETHER_BYTES_MAX
from millstream.trees.core.reader import TreeReader
from millstream.trees.core.shapes import NO_REDUCER
from millstream.trees.core.writer import TreeWriter
from support.views.tree_model import Joins, Store, Sums, Tree, key, rows_from, rows_of


@pytest.mark.parametrize("count", [0, 1, 2, 57, 4096, 4097, 30_000])
def test_loaded_rows_are_there(count: int) -> None:
    tree = Tree(Joins())
    tree.load(rows_from(range(count)))
    assert (tree.root is None) == (count == 0)


@given(
    st.dictionaries(
        st.binary(max_size=40), st.tuples(st.integers(0, 700), st.binary(max_size=600))
    )
)
def test_any_rows_are_loaded(rows: dict[bytes, tuple[int, bytes]]) -> None:
    Tree(Joins()).load(rows)


def test_a_load_hands_nodes_over_in_order_and_holds_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "SINK_BYTES_MAX", 100_000)
    monkeypatch.setattr(writer_module, "LEAVES_PER_CALL_MAX", 20)
    store = Store()
    portions: list[int] = []

    def sink(nodes: dict[int, bytes]) -> None:
        assert list(nodes) == sorted(nodes)
        assert not store or max(store) < min(nodes)
        portions.append(sum(map(len, nodes.values())))
        store.update(nodes)

    writer = TreeWriter(store, 1, sink)
    rows = rows_from(range(120_000))
    root = writer.load(((k, *rows[k]) for k in sorted(rows)), Sums())
    assert len(portions) > 2
    assert max(portions) < 200_000
    assert min(writer.written) > max(store)
    store.update(writer.written)
    check(store, root, Sums())
    assert set(live_nodes(store, root)) == set(store)
    assert rows_of(TreeReader(store, root).scan()) == rows


@pytest.mark.parametrize("rows", [[b"b", b"a"], [b"a", b"a"]])
def test_rows_out_of_order_are_the_callers_mistake(rows: list[bytes]) -> None:
    writer = TreeWriter(Store(), 1)
    with pytest.raises(AssertionError):
        writer.load([(key, 0, b"") for key in rows], NO_REDUCER)
    with pytest.raises(AssertionError):
        writer.apply(None, [(key, 0, b"") for key in rows], NO_REDUCER)


def test_one_writer_serves_several_trees_and_several_changes_of_one() -> None:
    store, writer = Store(), TreeWriter(Store(), 10)
    first = second = None
    for turn in range(5):
        rows = [(key(n), n % 7, b"%d" % turn) for n in range(turn, 3000, 5)]
        first = writer.apply(first, rows, Sums())
        second = writer.apply(second, rows, NO_REDUCER)
    assert not writer.freed
    store.update(writer.written)
    check(store, first, Sums())
    check(store, second, NO_REDUCER)
    live = [*live_nodes(store, first), *live_nodes(store, second)]
    assert sorted(live) == sorted(store)


def test_many_operations_are_cut_into_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "OPERATIONS_PER_PASS_MAX", 100)
    tree = Tree(Joins())
    tree.load(rows_from(range(0, 3000, 2)))
    tree.apply(rows_from(range(0, 3000, 3)), clean=0b111)
    tree.apply(dict.fromkeys(tree.rows))
    assert tree.root is None
    tree.apply(rows_from(range(777)))


@pytest.mark.parametrize("nodes_max", [1, 3, 50])
def test_cleaning_goes_on_until_nothing_is_left(nodes_max: int) -> None:
    tree = Tree(Sums())
    tree.load(rows_from(range(6000)))
    rng = random.Random(nodes_max)
    partitions, steps = 0b1011, 0
    while not tree.clean(partitions, nodes_max):
        steps += 1
        assert steps < 1000
        if rng.random() < 0.1:  # changes go on meanwhile
            tree.apply({key(n): (n % 64, b"7") for n in rng.sample(range(9000), 5)})
    assert tree.root is not None
    assert not tree.root.partitions & partitions
    assert steps > 30 / nodes_max - 2


@pytest.mark.slow
def test_a_step_of_cleaning_writes_few_nodes() -> None:
    tree = Tree(Sums())
    tree.load(rows_from(range(60_000)))
    writer = TreeWriter(tree.store, tree.next_number)
    tree.store.reads = 0
    root, is_done = writer.clean(tree.root, 1, Sums(), 4)
    assert not is_done
    assert root is not tree.root
    assert tree.store.reads <= 12
    assert len(writer.written) <= 12


def test_cleaning_what_is_not_there_changes_nothing() -> None:
    tree = Tree(Sums())
    tree.load(rows_from(range(500)))
    writer = TreeWriter(tree.store, tree.next_number)
    assert writer.clean(tree.root, 1 << 64, Sums(), 1) == (tree.root, True)
    assert writer.clean(None, 1, Sums(), 1) == (None, True)
    assert not writer.written
    assert not writer.freed


def test_a_missing_node_is_corruption() -> None:
    tree = Tree()
    tree.load(rows_from(range(500)))
    writer = TreeWriter(Store(), tree.next_number)
    with pytest.raises(CorruptionError):
        writer.apply(tree.root, [(b"a", 0, b"")], NO_REDUCER)


class Weighed(Sums):
    """Notes the most bytes of values that it was given at once."""

    most = 0

    def reduce(self, leaves):  # type: ignore[no-untyped-def]
        self.most = max(self.most, sum(len(value) for leaf in leaves for value in leaf.values))
        return [b"%d" % len(leaf.keys) for leaf in leaves]


def test_large_rows_wait_in_small_numbers() -> None:
    size, count = 200_000, 200
    most = LEAVES_TOGETHER_BYTES_MAX + 35 * size
    tree = Tree(weighed := Weighed())
    tree.load({key(n): (n % 2, bytes(size)) for n in range(count)})
    tree.apply({key(n): (n % 2, bytes(size + 1)) for n in range(count)})
    reader = TreeReader(tree.store, tree.root, None, weighed)
    assert reader.reduce(wanted=0b1) == b"%d" % (count // 2)
    assert reader.reduce((key(1), True), (key(count - 2), True)) == b"%d" % (count - 2)
    assert len(list(reader.groups(lambda key: key))) == count
    assert len(list(reader.groups(lambda key: key[:-2], wanted=0b1))) == 2
    assert size < weighed.most < most


def test_loading_large_rows_holds_few_of_them() -> None:
    portions: list[int] = []
    alive = 0

    def rows():  # type: ignore[no-untyped-def]
        nonlocal alive
        for n in range(400):
            alive += 1
            yield key(n), 0, bytes(200_000)

    def sink(nodes: dict[int, bytes]) -> None:
        nonlocal alive
        portions.append(alive)
        alive -= sum(len(node) > 100_000 for node in nodes.values())

    TreeWriter(Store(), 1, sink).load(rows(), Weighed())
    assert len(portions) > 5
    assert max(portions) * 200_000 < 5 * LEAVES_TOGETHER_BYTES_MAX


def test_one_large_node_does_not_drive_the_others_out_of_a_cache() -> None:
    tree = Tree()
    tree.load(rows_from(range(2000)) | {key(5000): (0, bytes(1_500_000))})
    cache = NodeCache(2_000_000)
    reader = TreeReader(tree.store, tree.root, cache)
    for _ in range(2):
        tree.store.reads = 0
        assert sum(len(leaf.keys) for leaf in reader.scan()) == 2001
    assert tree.store.reads == 1


@pytest.mark.parametrize("kept_max", [3, 1000])
def test_new_inner_nodes_are_handed_out_decoded(
    monkeypatch: pytest.MonkeyPatch, kept_max: int
) -> None:
    monkeypatch.setattr(writer_module, "INNERS_KEPT_MAX", kept_max)
    monkeypatch.setattr(writer_module, "OPERATIONS_PER_PASS_MAX", 500)
    store = Store()
    loading = TreeWriter(store, 1, store.update)
    rows = rows_from(range(20_000))
    root = loading.load(((k, *rows[k]) for k in sorted(rows)), Sums())
    store.update(loading.written)
    assert root is not None
    assert not loading.inners  # what is loaded is not held in memory
    writer = TreeWriter(store, loading.next_number)
    writer.apply(root, [(key(n), 1, b"7") for n in range(0, 20_000, 20)], Sums())  # two passes
    assert 0 < len(writer.inners) <= kept_max
    for number, node in writer.inners.items():
        assert node == decode_inner(number, writer.written[number])
