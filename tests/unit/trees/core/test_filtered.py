import pytest

from millstream.trees.core import reader
from millstream.trees.core.filtered import FilteredCache
from millstream.trees.core.nodes import NodeCache
from millstream.trees.core.reader import TreeReader
from support.views.tree_model import Joins, Sums, Tree, key, rows_from, small_nodes, span_of

HALF = 0x5555555555555555
COUNT = 3000


def test_what_was_put_is_found_until_half_of_the_room_is_full_again() -> None:
    cache = FilteredCache(4)
    cache.put((0, 1, 3), b"one")
    cache.put((-1, 1, 3), 7)
    assert cache.get((0, 1, 3)) == (b"one",)
    assert cache.get((-1, 1, 3)) == (7,)
    assert cache.get((1, 1, 3)) is None
    assert cache.get((0, 1, 2)) is None
    cache.put((0, 2, 3), None)
    assert cache.get((0, 2, 3)) == (None,), "no rows are an answer, too"
    cache.put((0, 3, 3), b"")
    cache.put((0, 4, 3), b"")
    assert cache.get((-1, 1, 3)) is None


def test_what_is_used_stays() -> None:
    cache = FilteredCache(4)
    for number in range(50):
        cache.put((0, number, 1), b"")
        cache.put((0, 1000, 1), b"used") if not number else None
        assert cache.get((0, 1000, 1)) == (b"used",)
    assert cache.get((0, 0, 1)) is None


def test_a_cache_without_room_keeps_nothing() -> None:
    cache = FilteredCache(0)
    cache.put((0, 1, 1), b"one")
    assert cache.get((0, 1, 1)) is None


def test_large_partials_are_bounded_by_their_bytes() -> None:
    cache = FilteredCache(1000, bytes_max=64_000)
    for number in range(500):
        cache.put((0, number, 1), bytes(1000))
        cache.put((-1, number, 1), number)
    kept = [cache.get((0, number, 1)) for number in range(500)]
    assert 0 < len([one for one in kept if one]) <= 64
    assert kept[-1]
    cache.put((1, 1, 1), bytes(10_000))
    assert cache.get((1, 1, 1)) is None, "it would drive out many"


class _Counting:
    """A store that counts what is read of it."""

    def __init__(self, store: object) -> None:
        self._store, self.read_count = store, 0

    def read(self, number: int) -> bytes:
        self.read_count += 1
        return self._store.read(number)  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
def tree() -> Tree:
    made = Tree(Joins())
    with small_nodes():
        made.load(rows_from(range(COUNT), partitions=64))
    return made


def reads(tree: Tree, ask: str) -> int:
    """Return how many nodes a masked question reads, without a cache of decoded nodes."""
    source = _Counting(tree.store)
    asked = TreeReader(source, tree.root, NodeCache(0), tree.reducer, tree.filtered)
    if ask == "groups":
        found = list(asked.groups(lambda key: b"", wanted=HALF))
        assert [partial for _, _, partial in found] == [span_of(tree.expected(wanted=HALF))]
    elif ask == "skip":
        expected = tree.expected(wanted=HALF)
        leaves = asked.scan(wanted=HALF, skip=len(expected) - 1)
        assert [one for leaf in leaves for one in leaf.keys] == expected[-1:]
    else:
        expected = tree.expected(wanted=HALF)
        assert asked.reduce(wanted=HALF) == span_of(expected)
        assert asked.count(wanted=HALF) == len(expected)
    return source.read_count


@pytest.mark.parametrize("ask", ["reduce", "groups", "skip"])
def test_the_second_question_reads_paths_alone(tree: Tree, ask: str) -> None:
    first = reads(tree, ask)
    assert first > 300
    assert reads(tree, ask) * 10 < first


def test_after_a_change_its_paths_are_read_anew(tree: Tree) -> None:
    first = reads(tree, "reduce")
    with small_nodes():
        tree.apply({key(1501): (2, b"new"), key(0): None})
    assert reads(tree, "reduce") * 20 < first


def test_few_large_rows_wait_for_the_reducer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Weighed(Sums):
        most = 0

        def reduce(self, leaves):  # type: ignore[no-untyped-def]
            weight = sum(len(value) for leaf in leaves for value in leaf.values)
            self.most = max(self.most, weight)
            return [b"%d" % len(leaf.keys) for leaf in leaves]

    monkeypatch.setattr(reader, "LEAVES_TOGETHER_BYTES_MAX", 100_000)
    tree = Tree(weighed := Weighed())
    tree.load({key(n): (n % 2, bytes(1500)) for n in range(400)})
    weighed.most = 0
    assert tree.reader().reduce(wanted=0b1) == b"200"
    assert 40_000 < weighed.most < 60_000
