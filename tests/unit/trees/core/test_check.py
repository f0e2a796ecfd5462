from typing import Any

import pytest

from millstream.errors import CorruptionError
from millstream.trees.core.check import check, live_nodes
from millstream.trees.core.nodes import (
    decode_inner,
    decode_leaf,
    inner_body,
    leaf_body,
    sealed,
    set_of,
)
from millstream.trees.core.shapes import Root
from support.views.tree_model import NO_REDUCER, Sums, Tree, key, rows_from


@pytest.fixture
def tree() -> Tree:
    made = Tree(Sums())
    made.load(rows_from(range(3000)))
    return made


def leaf_number(tree: Tree) -> int:
    assert tree.root is not None
    return decode_inner(tree.root.number, tree.store[tree.root.number]).numbers[1]


def refuses(tree: Tree, root: Root | None, match: str) -> None:
    with pytest.raises(CorruptionError, match=match):
        check(tree.store, root, tree.reducer)


def test_an_empty_tree_is_whole() -> None:
    check(Tree().store, None, NO_REDUCER)
    assert list(live_nodes(Tree().store, None)) == []


def test_live_nodes_are_listed_without_reading_leaves(tree: Tree) -> None:
    tree.store.reads = 0
    assert set(live_nodes(tree.store, tree.root)) == set(tree.store)
    assert tree.store.reads == 1


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("count", 5, "count"),
        ("partitions", 1, "partitions"),
        ("partial", b"9", "partial"),
        ("height", 0, "no leaf"),
        ("height", 2, "no inner node"),
        ("number", 10_000, "missing"),
    ],
)
def test_a_root_that_lies(tree: Tree, field: str, value: Any, match: str) -> None:
    assert tree.root is not None
    refuses(tree, tree.root._replace(**{field: value}), match)


@pytest.mark.parametrize(
    ("column", "match"),
    [(0, "last key"), (1, "last key"), (2, "count"), (3, "partitions"), (4, "partial")],
)
def test_an_inner_node_that_lies(tree: Tree, column: int, match: str) -> None:
    assert tree.root is not None
    number = tree.root.number
    columns: list[Any] = [list(one) for one in decode_inner(number, tree.store[number])[:5]]
    columns[column][0] = columns[column][1] + (
        1 if column in (2, 3) else type(columns[column][1])()
    )
    tree.store[number] = sealed(number, inner_body(*columns)[0])
    refuses(tree, tree.root, match)


def test_keys_out_of_order(tree: Tree) -> None:
    number = leaf_number(tree)
    leaf = decode_leaf(number, tree.store[number])
    keys = [leaf.keys[1], leaf.keys[0], *leaf.keys[2:]]
    tree.store[number] = sealed(number, leaf_body(keys, leaf.values, leaf.partitions)[0])
    refuses(tree, tree.root, "out of order")
    keys = [key(0), *leaf.keys[1:]]
    tree.store[number] = sealed(number, leaf_body(keys, leaf.values, leaf.partitions)[0])
    refuses(tree, tree.root, "keys before it")


def test_nodes_too_full_and_too_empty(tree: Tree) -> None:
    number = leaf_number(tree)
    leaf = decode_leaf(number, tree.store[number])
    values = [value + bytes(100) for value in leaf.values]
    tree.store[number] = sealed(number, leaf_body(leaf.keys, values, leaf.partitions)[0])
    refuses(tree, tree.root, "overfull")


def test_two_nodes_too_empty_side_by_side(tree: Tree) -> None:
    assert tree.root is not None
    number = tree.root.number
    columns: list[Any] = [list(one) for one in decode_inner(number, tree.store[number])[:5]]
    for slot in (1, 2):
        child = columns[1][slot]
        leaf = decode_leaf(child, tree.store[child])
        body, node = leaf_body(leaf.keys[-1:], [b"1"], leaf.partitions[-1:])
        tree.store[child] = sealed(child, body)
        columns[2][slot], columns[3][slot], columns[4][slot] = 1, set_of(node.partitions), b"1"
    tree.store[number] = sealed(number, inner_body(*columns)[0])
    refuses(tree, tree.root, "underfull")


def test_a_node_used_twice(tree: Tree) -> None:
    assert tree.root is not None
    number = tree.root.number
    columns: list[Any] = [list(one) for one in decode_inner(number, tree.store[number])[:5]]
    for column in columns:
        column[1] = column[0]
    tree.store[number] = sealed(number, inner_body(*columns)[0])
    refuses(tree, tree.root, "used twice")


def test_a_root_over_one_child(tree: Tree) -> None:
    assert tree.root is not None
    old = tree.root
    body, _ = inner_body([key(2999)], [old.number], [old.count], [old.partitions], [old.partial])
    tree.store[9999] = sealed(9999, body)
    refuses(tree, old._replace(number=9999, height=old.height + 1), "one child")


def test_without_a_reducer_partials_are_believed_and_nothing_else(tree: Tree) -> None:
    assert tree.root is not None
    check(tree.store, tree.root._replace(partial=b"9"), None)
    with pytest.raises(CorruptionError, match="count"):
        check(tree.store, tree.root._replace(count=9), None)
