"""Revision trees cut short: stemmed to a number of generations, and without purged leaves.

Invariants:
1. Stemming keeps, of each leaf, its newest generations up to the limit, and nothing else; what was
   cut at the top is a root of its own.
2. A purge takes leaves, and ancestors that led to no other leaf; where nothing is left the tree is
   empty.
3. Work is proportional to branches, and to the revisions that are copied.

Elsewhere: trees (`documents.tree`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from millstream.documents.revisions import SIGNATURE_BYTES
from millstream.documents.tree import Branch, RevisionTree

__all__ = ["purged", "stemmed"]

_ROOT = -1


@dataclass(slots=True, eq=False)
class _Run:
    """A branch while it is cut."""

    branch: Branch
    parent: _Run | None
    lowest: int = 0
    """The oldest generation that a leaf at its end, or below, wants to be kept."""

    @property
    def first(self) -> int:
        return self.branch.first

    def cut_to(self, generation: int) -> None:
        """Drop what is older than a generation, and become a root."""
        branch = self.branch
        signatures = branch.signatures[(generation - branch.first) * SIGNATURE_BYTES :]
        deleted = tuple(one for one in branch.deleted if one >= generation)
        self.branch, self.parent = Branch(_ROOT, generation, signatures, deleted), None

    def lengthen(self, above: _Run, oldest: int) -> None:
        """Take over the revisions from `oldest` on that lead to it from the branch it leaves."""
        branch, before = self.branch, above.branch
        start = (oldest - before.first) * SIGNATURE_BYTES
        end = (branch.first - before.first) * SIGNATURE_BYTES
        signatures = before.signatures[start:end] + branch.signatures
        deleted = tuple(one for one in before.deleted if oldest <= one < branch.first)
        self.branch = Branch(_ROOT, oldest, signatures, deleted + branch.deleted)


def stemmed(tree: RevisionTree, limit: int) -> RevisionTree:
    """Return the tree with at most `limit` generations of each leaf."""
    branches = tree.branches
    if len(branches) == 1:
        only = branches[0]
        if only.last - only.first < limit:
            return tree
        run = _Run(only, None)
        run.cut_to(only.last - limit + 1)
        return _tree_of(tree, [run])
    firsts, lasts = (one.first for one in branches), (one.last for one in branches)
    if max(lasts, default=0) - min(firsts, default=0) < limit:
        return tree
    oldest = _oldest(branches)
    if all(branch.last - first < limit for branch, first in zip(branches, oldest, strict=True)):
        return tree
    runs = _runs(tree)
    for run in runs:
        run.lowest = run.branch.last - limit + 1
    below = _children(runs)
    for run in sorted(runs, key=lambda one: one.first, reverse=True):
        _stem(run, below.get(id(run), []), below)
    return _tree_of(tree, runs)


def _oldest(branches: Iterable[Branch]) -> list[int]:
    """Return the generation of the root that each branch comes from."""
    known = list(branches)
    found = [branch.first for branch in known]
    for number in sorted(range(len(known)), key=lambda n: known[n].first):
        parent = known[number].parent
        if parent != _ROOT:
            found[number] = found[parent]
    return found


def _stem(run: _Run, children: list[_Run], below: dict[int, list[_Run]]) -> None:
    """Cut one branch; those that leave it were cut before."""
    first, parent = run.first, run.parent
    whole, holder = _Run(run.branch, None), run
    kept_from = max(run.lowest, first)
    for child in sorted(children, key=lambda one: one.first, reverse=True):
        if child.lowest >= child.first:
            child.cut_to(child.lowest)
            continue
        oldest = max(child.lowest, first)
        if child.first - 1 >= kept_from:
            child.parent = holder
            if oldest < kept_from and holder is not run:
                holder.lengthen(whole, oldest)
            kept_from = min(kept_from, oldest)
            holder.lowest = min(holder.lowest, child.lowest)
            continue
        holder.cut_to(kept_from)
        child.lengthen(whole, oldest)
        child.parent = None
        holder, kept_from = child, oldest
    if holder.lowest < first and parent is not None:
        holder.parent = parent
        if holder is not run:
            siblings = below[id(parent)]
            siblings[siblings.index(run)] = holder
    else:
        holder.cut_to(kept_from)


def purged(tree: RevisionTree, revs: Iterable[str]) -> RevisionTree:
    """Return the tree without leaves, and what led to them alone."""
    numbers = {rev: number for number, rev in enumerate(tree.leaf_revs())}
    runs = _runs(tree)
    gone = {id(runs[numbers[rev]]) for rev in revs if rev in numbers}
    if not gone:
        return tree
    below = _children(runs)
    for run in sorted(runs, key=lambda one: one.first, reverse=True):
        if id(run) not in gone:
            continue
        left = [child for child in below.get(id(run), []) if id(child) not in gone]
        if left:
            heir = max(left, key=lambda one: one.first)
            heir.lengthen(run, run.first)
            heir.parent = run.parent
            for child in left:
                if child is not heir:
                    child.parent = heir
            below[id(heir)] = [*below.get(id(heir), []), *(c for c in left if c is not heir)]
            if run.parent is not None:
                siblings = below[id(run.parent)]
                siblings[siblings.index(run)] = heir
        elif run.parent is not None:
            below[id(run.parent)].remove(run)
    return _tree_of(tree, [run for run in runs if id(run) not in gone])


def _runs(tree: RevisionTree) -> list[_Run]:
    runs = [_Run(branch, None) for branch in tree.branches]
    for run in runs:
        if run.branch.parent != _ROOT:
            run.parent = runs[run.branch.parent]
    return runs


def _children(runs: Iterable[_Run]) -> dict[int, list[_Run]]:
    below: dict[int, list[_Run]] = {}
    for run in runs:
        if run.parent is not None:
            below.setdefault(id(run.parent), []).append(run)
    return below


def _tree_of(tree: RevisionTree, runs: list[_Run]) -> RevisionTree:
    numbers = {id(run): number for number, run in enumerate(runs)}
    branches = [
        Branch(
            _ROOT if run.parent is None else numbers[id(run.parent)],
            run.branch.first, run.branch.signatures, run.branch.deleted,
        )
        for run in runs
    ]  # fmt: skip
    if not tree.foreign:
        return RevisionTree(branches)
    left = b"".join(branch.signatures for branch in branches)
    used = {left[at : at + SIGNATURE_BYTES] for at in range(0, len(left), SIGNATURE_BYTES)}
    return RevisionTree(branches, {key: t for key, t in tree.foreign.items() if key in used})
