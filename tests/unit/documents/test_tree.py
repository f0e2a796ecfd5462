"""Revision trees against a naive model of plain nodes."""

import os
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.documents.revisions import Path
from millstream.documents.tree import EMPTY, GrowingTree, Leaf
from support.budget import budget
from support.http.revision_forests import NaiveTree, order, worlds

EXAMPLES = settings(max_examples=budget(150), deadline=None)


def seen(tree):
    return {
        leaf.rev: (leaf.is_deleted, path.revs())
        for leaf in tree.leaves()
        if (path := tree.path(leaf.rev))
    }


def grown(sent):
    tree = EMPTY
    for path, is_deleted in sent:
        tree = tree.merged(path, is_deleted=is_deleted)
    return tree


def signature(number):
    return f"{number:032x}"


def ids(*numbers):
    return [signature(number) for number in numbers]


def whole(tree):
    """Parents stand before what leaves them, and no revision is in two branches."""
    nodes = set()
    for number, branch in enumerate(tree.branches):
        assert branch.parent < len(tree.branches)
        assert branch.parent != number
        if branch.parent >= 0:
            above = tree.branches[branch.parent]
            assert above.first < branch.first <= above.last
        for generation in range(branch.first, branch.last + 1):
            node = generation, branch.at(generation)
            assert node not in nodes
            nodes.add(node)
    return tree


@EXAMPLES
@given(worlds())
def test_it_knows_what_the_model_knows(sent):
    tree, naive = EMPTY, NaiveTree()
    for path, is_deleted in sent:
        tree = whole(tree.merged(path, is_deleted=is_deleted))
        naive.merge(path, is_deleted=is_deleted and (path.start, path.ids[0]) not in naive.parents)
        assert {rev: path for rev, (_, path) in seen(tree).items()} == {
            rev: path for rev, (_, path) in naive.seen().items()
        }
        assert [leaf.rev for leaf in tree.leaves()] == order(seen(tree))
        for generation, text in naive.parents:
            rev = f"{generation}-{text}"
            assert tree.contains(rev)
            assert tree.path(rev).revs() == naive.path((generation, text))
            below = {leaf for leaf in naive.leaves() if rev in naive.path(leaf)}
            assert [leaf.rev for leaf in tree.leaves_below(rev)] == [
                leaf.rev for leaf in tree.leaves() if leaf.rev in {f"{g}-{s}" for g, s in below}
            ]
        assert not tree.contains("1-unknown")
        known = [f"{generation}-{text}" for generation, text in naive.parents]
        assert tree.missing(["1-unknown", *known, "9-x"]) == ["1-unknown", "9-x"]


@EXAMPLES
@given(worlds(), st.randoms())
def test_no_order_changes_what_is_known(sent, random):
    """Also in pieces that are brought together: paths of one tree are merged into another."""
    by_leaf = dict(seen(grown(sent)))
    shuffled = list(sent)
    random.shuffle(shuffled)
    cut = random.randrange(len(sent) + 1)
    left, right = grown(shuffled[:cut]), grown(shuffled[cut:])
    for rev, (is_deleted, _) in seen(right).items():
        left = left.merged(right.path(rev), is_deleted=is_deleted)
    for tree in (grown(shuffled), left):
        assert {rev: path for rev, (_, path) in seen(tree).items()} == {
            rev: path for rev, (_, path) in by_leaf.items()
        }


@EXAMPLES
@given(worlds())
def test_what_is_known_changes_nothing(sent):
    tree = grown(sent)
    for path, is_deleted in sent:
        assert tree.merged(path, is_deleted=is_deleted) is tree
    for rev in seen(tree):
        assert tree.merged(tree.path(rev)) is tree


def test_the_winner_is_live_then_high_then_large():
    leaves = [
        (Path(1, ["a"]), False),
        (Path(1, ["b"]), False),
        (Path(2, ["a", "c"]), False),
        (Path(2, ["x", "d"]), False),
        (Path(7, ["z"]), True),
        (Path(8, ["y"]), True),
        (Path(8, [signature(1)]), True),
    ]
    wanted = ["2-x", "2-a", "1-b", "1-a", "8-y", f"8-{signature(1)}", "7-z"]
    for sent in list(permutations(leaves))[::97]:
        tree = grown(sent)
        assert tree.winner == Leaf("2-x", False)
        assert [leaf.rev for leaf in tree.leaves()] == wanted
        assert tree.conflicts() == wanted[1:4]
        assert tree.deleted_conflicts() == wanted[4:]
    assert grown(leaves[4:]).winner == Leaf("8-y", True)


def test_a_leaf_is_extended():
    tree = EMPTY.extended(None, signature(1)).extended(f"1-{signature(1)}", "foreign")
    tree = tree.extended("2-foreign", signature(3), is_deleted=True)
    assert tree.winner == Leaf(f"3-{signature(3)}", True)
    assert tree.winner_path() == Path(3, [signature(3), "foreign", signature(1)])
    assert tree.is_deletion(f"3-{signature(3)}")
    assert not tree.is_deletion("2-foreign")
    assert len(tree.branches) == 1
    again = tree.extended(tree.winner.rev, signature(4))
    assert again.winner == Leaf(f"4-{signature(4)}", False)
    assert again.is_deletion(f"3-{signature(3)}")
    with pytest.raises(AssertionError):
        tree.extended("2-foreign", signature(5))


def test_roots_grow_upwards_and_meet():
    tree = EMPTY.merged(Path(7, ids(7, 6, 5))).merged(Path(10, ids(10, 9, 8)), is_deleted=True)
    assert [leaf.rev for leaf in tree.leaves()] == [f"7-{signature(7)}", f"10-{signature(10)}"]
    joined = tree.merged(Path(9, ids(9, 8, 7, 6)))
    assert joined.leaves() == [Leaf(f"10-{signature(10)}", True)]
    assert joined.winner_path() == Path(10, ids(10, 9, 8, 7, 6, 5))
    grown_up = joined.merged(Path(6, ids(6, 5, 4, 3)))
    assert grown_up.winner_path() == Path(10, ids(10, 9, 8, 7, 6, 5, 4, 3))
    beside = joined.merged(Path(7, [*ids(77, 6), signature(5)]))
    assert [leaf.rev for leaf in beside.leaves()] == [f"7-{signature(77)}", f"10-{signature(10)}"]


def test_a_stranger_is_a_conflict():
    tree = EMPTY.merged(Path(2, ids(2, 1))).merged(Path(2, ids(4, 3)))
    assert tree.conflicts() == [f"2-{signature(2)}"]


def test_what_is_missing_and_where_to_go_on_from():
    tree = EMPTY.merged(Path(3, ids(3, 2, 1))).merged(Path(2, ids(22, 1)))
    revs = [f"2-{signature(2)}", f"4-{signature(4)}", "3-x"]
    assert tree.missing(revs) == revs[1:]
    assert tree.possible_ancestors(revs[1:]) == [f"3-{signature(3)}", f"2-{signature(22)}"]
    assert tree.possible_ancestors(["3-x"]) == [f"2-{signature(22)}"]
    assert tree.possible_ancestors([]) == []
    assert tree.path("3-x") is None
    assert tree.leaves_below("3-x") == []
    assert EMPTY.is_empty
    assert not EMPTY.contains("1-a")


def test_peers_that_disagree_about_ancestors_break_nothing():
    """A revision has the parent that was told first, and is in the tree once, as a leaf or not."""
    tree = EMPTY.merged(Path(3, ["c", "b", "a"]))
    assert tree.merged(Path(3, ["c", "x", "y"])) is tree
    longer = tree.merged(Path(4, ["d", "c", "x"]))
    assert longer.path("4-d") == Path(4, ["d", "c", "b", "a"])
    assert [leaf.rev for leaf in longer.leaves()] == ["4-d"]


@EXAMPLES
@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.lists(st.sampled_from("abc"), min_size=1, max_size=6)),
        max_size=8,
    )
)
def test_nonsense_breaks_nothing(sent):
    tree = EMPTY
    for start, names in sent:
        path = Path(max(start, len(names)), names)
        tree = tree.merged(path)
        assert tree.contains(path.rev)
        revs = [leaf.rev for leaf in tree.leaves()]
        assert len(set(revs)) == len(revs)
        for branch in tree.branches:
            if branch.parent >= 0:
                above = tree.branches[branch.parent]
                assert above.first < branch.first <= above.last


def test_a_long_history_costs_little_to_go_on_with():
    path = Path(1000, [os.urandom(16).hex() for _ in range(1000)])
    tree = EMPTY.merged(path)
    longer = tree.merged(Path(1001, [signature(1), *path.ids]))
    assert len(longer.branches) == 1
    assert longer.winner_path().ids[1:] == path.ids


few = st.integers(0, 3).map(signature) | st.just("foreign")
paths = st.builds(
    lambda some, above: Path(len(some) + above, some),
    st.lists(few, min_size=1, max_size=4),
    st.integers(0, 2),
)


@EXAMPLES
@given(st.lists(st.tuples(paths, st.booleans()), max_size=8), st.integers(0, 8))
def test_a_growing_tree_is_what_merging_one_by_one_makes(sent, begun):
    """Also where makers do not agree which revision came before another one."""
    tree = grown(sent[:begun])
    growing = GrowingTree(tree)
    for path, is_deleted in sent[begun:]:
        assert growing.contains(path.rev) == tree.contains(path.rev)
        following = tree.merged(path, is_deleted=is_deleted)
        assert growing.merge(path, is_deleted=is_deleted) == (following is not tree)
        tree = following
        made = growing.tree()
        assert list(made.branches) == list(tree.branches)
        assert made.foreign == tree.foreign
        assert made.leaf_revs() == tree.leaf_revs()
