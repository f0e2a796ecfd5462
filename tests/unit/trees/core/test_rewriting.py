import gc
import random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.trees.core import rewriting
from millstream.trees.core.writer import TreeWriter
from support.budget import budget
from support.views.tree_model import Joins, Sums, Tree, key, keys_of, rows_from, small_nodes

numbers = st.integers(0, 400)
applied = st.tuples(
    st.dictionaries(
        numbers.map(key),
        st.none() | st.tuples(st.sampled_from([0, 1, 63, 300]), st.binary(max_size=90)),
        max_size=60,
    ),
    st.sampled_from([0, 0, 0, 1, 2, 1 << 300]),
)
emptied = st.tuples(numbers, st.integers(0, 200))
stepped = st.tuples(st.just("clean"), st.sampled_from([1, 6, 1 << 63]), st.integers(1, 9))


@settings(max_examples=budget(100))
@given(st.lists(applied | emptied | stepped, max_size=9), st.integers(0, 400), st.integers(0, 60))
def test_any_changes_give_what_a_dict_gives(  # type: ignore[no-untyped-def]
    changes, first, size
) -> None:
    tree = Tree(Joins())
    with small_nodes(), patch.object(rewriting, "LEAVES_TOGETHER_MAX", 3):
        tree.load({key(n): (n % 3, bytes(size)) for n in range(first)})
        for change in changes:
            if change[0] == "clean":
                tree.clean(*change[1:])
            elif isinstance(change[0], int):
                low, count = change
                tree.apply(dict.fromkeys(map(key, range(low, low + count))))
            else:
                tree.apply(*change)


@pytest.mark.parametrize("together", [1, 2, 3])
def test_leaves_written_early_are_joined_like_others(
    monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr(rewriting, "LEAVES_TOGETHER_MAX", together)
    for seed in range(8):
        tree, rng = Tree(Joins()), random.Random(seed)
        size = rng.choice([9, 90, 900])
        tree.load({key(n): (n % 5, bytes(size)) for n in range(0, 900, 2)})
        for _ in range(6):
            low = rng.randrange(900)
            gone = {one: None for one in tree.rows if key(low) <= one < key(low + 300)}
            kept = rng.sample(sorted(gone), min(len(gone), 9))
            changed = {one: (1, b"%d" % rng.randrange(9)) for one in kept}
            added = {key(rng.randrange(900)): (2, bytes(rng.randrange(size))) for _ in range(30)}
            tree.apply(gone | added | changed, clean=rng.choice([0, 0, 1 << 3]))


def test_a_batch_without_effect_touches_nothing() -> None:
    tree = Tree(Sums())
    tree.load(rows_from(range(5000)))
    root, store = tree.root, dict(tree.store)
    tree.apply({key(7): tree.rows[key(7)], b"absent": None, b"zzz": None})
    assert tree.root is root
    assert tree.store == store


def test_only_the_way_to_a_changed_row_is_written() -> None:
    tree = Tree(Sums())
    tree.load(rows_from(range(50_000)))
    assert tree.root is not None
    assert tree.root.height == 2
    writer = TreeWriter(tree.store, tree.next_number)
    tree.store.reads = 0
    root = writer.apply(tree.root, [(key(777), 1, b"5")], tree.reducer)
    assert root is not None
    assert len(writer.written) == len(writer.freed) == 3
    assert tree.store.reads == 3


def test_a_level_is_reduced_in_one_call() -> None:
    tree = Tree(sums := Sums())
    tree.load(rows_from(range(20_000)))
    operations = [(key(n), 1, b"1") for n in range(0, 20_000, 100)]
    sums.calls = 0
    writer = TreeWriter(tree.store, tree.next_number)
    writer.apply(tree.root, operations, sums)
    assert tree.root is not None
    assert sums.calls == tree.root.height + 1


def test_a_tree_that_shrinks_loses_its_levels() -> None:
    tree = Tree(Joins())
    tree.load(rows_from(range(30_000)))
    keys = sorted(tree.rows)
    rng = random.Random(5)
    while keys:
        rng.shuffle(keys)
        take = 1 + len(keys) * 2 // 3
        tree.apply(dict.fromkeys(keys[:take]))
        keys = keys[take:]
    assert tree.root is None


def test_neighbours_under_two_parents_are_joined() -> None:
    tree = Tree(Joins())
    tree.load(rows_from(range(30_000)))
    tree.apply({one: None for at, one in enumerate(sorted(tree.rows)) if at % 60})
    assert tree.root is not None
    assert tree.root.count == 500
    assert tree.root.height == 1


def test_a_hole_in_the_middle_leaves_a_tree_in_order() -> None:
    tree = Tree(Joins())
    tree.load(rows_from(range(30_000)))
    tree.apply(dict.fromkeys(map(key, range(1000, 29_000))))
    assert len(tree.rows) == 2000


def test_leaves_whose_partitions_all_go_are_dropped_unread() -> None:
    tree = Tree(Sums())
    tree.load({key(n): (n // 1000, b"1") for n in range(20_000)})
    tree.store.reads = 0
    writer = TreeWriter(tree.store, tree.next_number)
    root = writer.apply(tree.root, (), tree.reducer, clean=0b1110)
    assert root is not None
    assert root.count == 17_000
    assert len(writer.freed) > 16
    assert tree.store.reads < 12


def test_operations_come_after_cleaning() -> None:
    tree = Tree(Sums())
    tree.load(rows_from(range(3000)))
    tree.apply({key(0): (0, b"100"), key(64): (1, b"200"), key(6000): (0, b"300")}, clean=0b11)
    assert tree.rows[key(0)] == (0, b"100")


@pytest.mark.slow
def test_values_of_some_megabytes_and_long_keys() -> None:
    tree = Tree()
    tree.apply({bytes([n]) * 70_000: (n, bytes(n * 40_000)) for n in range(1, 60)})
    tree.apply({bytes([n]) * 70_000 + b"a": (n, b"") for n in range(1, 60)})
    tree.apply({bytes([n]) * 70_000: None for n in range(1, 60, 2)})
    assert tree.root is not None
    assert keys_of(tree.reader().scan()) == sorted(tree.rows)


def test_large_partials_leave_a_tree_that_branches() -> None:
    class Large(Sums):
        def reduce(self, leaves):  # type: ignore[no-untyped-def]
            return [bytes(2100)] * len(leaves)

        def rereduce(self, groups):  # type: ignore[no-untyped-def]
            return [bytes(2100)] * len(groups)

    tree = Tree(Large())
    tree.load(rows_from(range(0, 20_000, 2)))
    assert tree.root is not None
    assert tree.root.height <= 5
    tree.apply({key(n): (1, bytes(200)) for n in range(1, 20_000, 7)})
    tree.apply(dict.fromkeys(map(key, range(0, 19_000, 3))))


def test_old_roots_stay_readable_while_their_nodes_are_kept() -> None:
    tree = Tree(Sums())
    rng = random.Random(3)
    kept = []
    for _ in range(12):
        numbers = rng.sample(range(3000), 300)
        gone = {key(n): None for n in numbers if n % 3 == 0}
        tree.apply(rows_from(n for n in numbers if n % 3) | gone)
        kept.append((tree.reader(), dict(tree.rows)))
    for reader, rows in kept:
        assert keys_of(reader.scan()) == sorted(rows)
        assert reader.count() == len(rows)
        assert reader.reduce() == b"%d" % sum(int(value) for _, value in rows.values())


@pytest.mark.slow
def test_a_pass_leaves_nothing_for_the_garbage_collector() -> None:
    tree = Tree(Sums())
    tree.load(rows_from(range(20_000)))
    writer = TreeWriter(tree.store, tree.next_number)
    own = (rewriting._Visit, rewriting.Rewriting)
    gc.collect()
    gc.disable()
    try:
        writer.apply(tree.root, [(key(n), 1, b"1") for n in range(0, 20_000, 50)], tree.reducer)
        left = [one for one in gc.get_objects() if type(one) in own]
    finally:
        gc.enable()
    assert not left


def test_what_stood_apart_is_joined_when_what_stood_between_is_gone() -> None:
    """Small leaves that could not be joined with the large rows between them."""
    for seed in range(12):
        rng, tree = random.Random(seed), Tree(Joins())
        rows = {key(10 * n): (0, bytes(3800)) for n in range(1, 120)}
        rows |= {key(10 * n + rest): (1, b"") for n in range(120) for rest in range(1, 6)}
        tree.load(rows)
        for count in (1, 2, 5, 40, 60):
            large = [one for one, row in tree.rows.items() if row[1]]
            gone = dict.fromkeys(rng.sample(large, min(count, len(large))))
            small = rng.sample(range(120), rng.choice([0, 3, 30]))
            tree.apply(gone | {key(10 * n + 1): (2, b"%d" % count) for n in small})
