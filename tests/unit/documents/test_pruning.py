"""Trees are cut as a model of plain nodes is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.documents.pruning import stemmed, without
from millstream.documents.revisions import Path
from millstream.documents.tree import EMPTY
from revision_forests import NaiveTree, worlds

EXAMPLES = settings(max_examples=250, deadline=None)


def paths(tree):
    return {leaf.rev: tree.path(leaf.rev).revs() for leaf in tree.leaves()}


def both(sent):
    tree, naive = EMPTY, NaiveTree()
    for path, is_deleted in sent:
        tree = tree.merged(path, is_deleted=is_deleted)
        naive.merge(path, is_deleted=is_deleted)
    return tree, naive


def known(naive):
    return {rev: path for rev, (_, path) in naive.seen().items()}


def foreign_texts(tree):
    return {
        text for path in paths(tree).values() for rev in path
        if (text := rev.partition("-")[2]).startswith("f")
    }  # fmt: skip


@EXAMPLES
@given(worlds(30), st.integers(1, 6))
def test_a_limit_cuts_every_leaf(sent, limit):
    tree, naive = both(sent)
    cut = stemmed(tree, limit)
    naive.stem(limit)
    assert paths(cut) == known(naive)
    assert set(cut.leaves()) == set(tree.leaves())
    assert set(cut.foreign.values()) == foreign_texts(cut)
    assert stemmed(cut, limit) is cut
    assert all(tree.is_deletion(rev) == cut.is_deletion(rev) for rev in paths(cut))


@EXAMPLES
@given(worlds(20), st.data())
def test_a_purge_takes_leaves_and_what_only_they_had(sent, data):
    tree, naive = both(sent)
    revs = tree.leaf_revs()
    numbers = data.draw(st.sets(st.sampled_from(range(len(revs)))))
    cut = without(tree, numbers)
    for number in numbers:
        generation, _, text = revs[number].partition("-")
        naive.purge((int(generation), text))
    assert paths(cut) == known(naive)
    assert set(cut.foreign.values()) == foreign_texts(cut)
    everything = without(tree, range(len(revs)))
    assert everything.is_empty


def test_a_branch_may_fall_in_pieces():
    """The long one is cut above where the short one left it, which keeps what is theirs."""
    long = Path(12, [f"a{one}" for one in range(12, 0, -1)])
    tree = EMPTY.merged(long).merged(Path(5, ["b5", "b4", "a3", "a2", "a1"]))
    assert paths(stemmed(tree, 4)) == {
        "12-a12": ["12-a12", "11-a11", "10-a10", "9-a9"],
        "5-b5": ["5-b5", "4-b4", "3-a3", "2-a2"],
    }


@pytest.mark.parametrize("limit", [1, 999, 1000])
def test_a_long_line_is_cut(limit):
    ids = [f"{one:032x}" for one in range(1000)]
    tree = EMPTY.merged(Path(1000, ids))
    assert stemmed(tree, limit).winner_path() == Path(1000, ids[:limit])
    assert stemmed(EMPTY, limit) is EMPTY
