"""Trees cut short, against the model: every path cut by itself, the rest brought together."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.documents.pruning import purged, stemmed
from millstream.documents.revisions import Path
from millstream.documents.tree import EMPTY, Branch, RevisionTree
from support.budget import budget
from support.http.revision_forests import NaiveTree, worlds

EXAMPLES = settings(max_examples=budget(250), deadline=None)


def both(sent):
    tree, naive = EMPTY, NaiveTree()
    for path, is_deleted in sent:
        node = path.start, path.ids[0]
        is_new = node not in naive.parents
        tree = tree.merged(path, is_deleted=is_deleted)
        naive.merge(path, is_deleted=is_deleted and is_new)
    return tree, naive


def revs_of(nodes):
    return {f"{generation}-{text}" for generation, text in nodes}


def assert_same(tree, naive):
    """The same leaves, paths, deletions and texts, and a tree of the form that trees have."""
    nodes = set()
    for number, branch in enumerate(tree.branches):
        if branch.parent >= 0:
            above = tree.branches[branch.parent]
            assert branch.parent != number
            assert above.first < branch.first <= above.last
        assert list(branch.deleted) == sorted(branch.deleted)
        assert all(branch.first <= one <= branch.last for one in branch.deleted)
        for generation in range(branch.first, branch.last + 1):
            assert (generation, branch.at(generation)) not in nodes
            nodes.add((generation, branch.at(generation)))
    assert len(nodes) == len(naive.parents)
    seen = {leaf.rev: tree.path(leaf.rev).revs() for leaf in tree.leaves()}
    assert seen == {rev: path for rev, (_, path) in naive.seen().items()}
    for rev in revs_of(naive.parents):
        assert tree.is_deletion(rev) == (rev in revs_of(naive.deleted))
    texts = {text for _, text in naive.parents if len(text) != 32}
    assert set(tree.foreign.values()) == texts


@EXAMPLES
@given(worlds(max_nodes=24), st.integers(1, 8))
def test_each_leaf_keeps_its_newest_generations(sent, limit):
    tree, naive = both(sent)
    short = stemmed(tree, limit)
    assert_same(short, naive.stemmed(limit))
    assert short.leaves() == tree.leaves()
    assert_same(stemmed(short, limit), naive.stemmed(limit))


@EXAMPLES
@given(worlds(max_nodes=20), st.integers(1, 8), st.integers(1, 8))
def test_a_smaller_limit_later_is_the_smaller_limit(sent, limit, smaller):
    tree, naive = both(sent)
    twice = stemmed(stemmed(tree, max(limit, smaller)), min(limit, smaller))
    assert_same(twice, naive.stemmed(min(limit, smaller)))


@EXAMPLES
@given(worlds(max_nodes=24), st.data())
def test_a_purge_takes_leaves_and_what_led_to_them_alone(sent, data):
    tree, naive = both(sent)
    leaves = sorted(naive.leaves())
    gone = data.draw(st.lists(st.sampled_from(leaves), unique=True))
    short = purged(tree, [*sorted(revs_of(gone)), "7-unknown"])
    for leaf in gone:
        naive.purge(leaf)
    naive.deleted &= naive.parents.keys()
    assert_same(short, naive)
    assert short.is_empty == (len(gone) == len(leaves))
    if not gone:
        assert short is tree


def test_what_is_no_leaf_is_not_purged():
    tree = EMPTY.merged(Path(3, ["c", "b", "a"]))
    assert purged(tree, ["2-b", "1-a", "3-x"]) is tree


def test_what_is_short_stays_as_it_is():
    tree = EMPTY.merged(Path(3, ["c", "b", "a"])).merged(Path(3, ["d", "b", "a"]))
    assert stemmed(tree, 3) is tree
    assert stemmed(EMPTY, 3) is EMPTY


def test_a_fork_above_the_cut_makes_two_roots_and_one_below_stays():
    tree = EMPTY.merged(Path(5, ["e", "d", "c", "b", "a"]), is_deleted=True)
    tree = tree.merged(Path(5, ["f", "d", "c"])).merged(Path(2, ["x", "a"]))
    short = stemmed(tree, 2)
    assert short.path("5-e") == Path(5, ["e", "d"])
    assert short.path("5-f") == Path(5, ["f", "d"])
    assert short.path("2-x") == Path(2, ["x", "a"])
    assert [leaf.rev for leaf in short.leaves()] == ["5-f", "2-x", "5-e"]
    shorter = stemmed(tree, 1)
    assert [branch.parent for branch in shorter.branches] == [-1, -1, -1]


def test_three_that_part_at_one_revision_keep_what_each_wants():
    """The second takes over what led to it, the third joins on and wants more of it."""
    sent = [
        (Path(5, list("edcba")), False), (Path(4, list("yxb")), False),
        (Path(3, list("zb")), False),
    ]  # fmt: skip
    tree, naive = both(sent)
    short = stemmed(tree, 3)
    assert_same(short, naive.stemmed(3))
    assert short.path("3-z") == Path(3, ["z", "b", "a"])
    assert short.path("4-y").revs()[:3] == ["4-y", "3-x", "2-b"]
    assert short.path("5-e") == Path(5, ["e", "d", "c"])
    assert_same(stemmed(short, 1), naive.stemmed(1))


def test_a_leaf_below_a_longer_one_may_keep_more_than_the_limit():
    """What another leaf keeps joins on where a path still reaches it."""
    tree = EMPTY.merged(Path(6, list("fedcba"))).merged(Path(4, list("xcba")))
    short = stemmed(tree, 4)
    assert short.path("4-x") == Path(4, list("xcba"))
    assert short.path("6-f") == Path(6, list("fedcba"))


def comb(branches, generations):
    """A trunk that one branch leaves behind each of its revisions, each as long as the trunk."""
    text = [number.to_bytes(16, "big") for number in range(2 * branches * generations)]
    made = [Branch(-1, 1, b"".join(text[:generations]))]
    for number in range(1, branches):
        start = generations * number
        first = 2 + number * (generations - 1) // branches
        made.append(Branch(0, first, b"".join(text[start : start + generations])))
    return RevisionTree(made)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 10, 1000, 1500])
def test_many_long_branches_are_cut(limit):
    tree = comb(1000, 1000)
    short = stemmed(tree, limit)
    assert len(short.branches) == 1000
    assert sorted(short.leaf_revs()) == sorted(tree.leaf_revs())
    assert all(len(one.signatures) <= 16 * 2 * max(limit, 1000) for one in short.branches)


def test_all_of_many_conflicts_are_purged():
    tree = comb(1000, 100)
    left = purged(tree, tree.leaf_revs()[:-1])
    assert left.leaf_revs() == tree.leaf_revs()[-1:]
    assert purged(tree, tree.leaf_revs()).is_empty
