"""Trees cut: what is older than a limit (stemming), what is purged.

Invariants:
1. Stemming keeps of every leaf the newest `limit` generations, all leaves, and, of what it keeps,
   all that is known about parents. A chain that is cut becomes a root.
2. A purge takes leaves away, and of their ancestors those that led to no other leaf.
3. Work is proportional to branches plus bytes, whatever the limit.

Elsewhere: trees (`documents.tree`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from millstream.documents.revisions import SIGNATURE_BYTES
from millstream.documents.tree import Branch, RevisionTree

__all__ = ["stemmed", "without"]

_ROOT: Final = -1


def stemmed(tree: RevisionTree, limit: int) -> RevisionTree:
    """Return a tree with the newest generations of each leaf; the same one if these are all.

    Args:
        tree: of any kind.
        limit: generations, from 1.
    """
    branches = tree.branches
    if not branches:
        return tree
    if max(one.last for one in branches) - min(one.first for one in branches) < limit:
        return tree
    kept = _Stemming(branches, limit).run()
    return tree if kept is None else RevisionTree(kept, _named(tree.foreign, kept))


def without(tree: RevisionTree, numbers: Collection[int]) -> RevisionTree:
    """Return a tree without the leaves of some branches, by their numbers."""
    pieces = {number: _Piece.of(branch) for number, branch in enumerate(tree.branches)}
    below: dict[int, list[int]] = {}
    for number in _children_first(tree.branches):
        children = below.get(number, [])
        if number in numbers:
            if not children:
                del pieces[number]
                continue
            heir = pieces[max(children, key=lambda one: pieces[one].first)]
            heir.take(pieces[number], heir.first - 1)
            pieces[number] = heir  # what left the branch leaves its heir
        if tree.branches[number].parent != _ROOT:
            below.setdefault(tree.branches[number].parent, []).append(number)
    kept = [piece for number, piece in pieces.items() if number not in numbers]
    for piece in kept:
        if piece.parent != _ROOT:
            piece.above = pieces[piece.parent]
    found = _numbered(kept)
    return RevisionTree(found, _named(tree.foreign, found))


class _Piece:
    """A run of revisions in the making, which ends in a leaf."""

    __slots__ = ("above", "deleted", "first", "last", "parent", "signatures")

    def __init__(
        self, parent: int, first: int, signatures: bytes, deleted: tuple[int, ...]
    ) -> None:
        self.parent = parent
        """Number of the branch that it leaves, as they were numbered before."""
        self.first = first
        self.signatures = signatures
        self.deleted = deleted
        self.last = first + len(signatures) // SIGNATURE_BYTES - 1
        self.above: _Piece | None = None
        """What it leaves now."""

    @classmethod
    def of(cls, branch: Branch) -> _Piece:
        return cls(branch.parent, branch.first, branch.signatures, branch.deleted)

    def cut(self, first: int, last: int) -> _Piece:
        """Return a part of it."""
        start, end = first - self.first, last + 1 - self.first
        return _Piece(
            self.parent if first == self.first else _ROOT,
            first,
            self.signatures[start * SIGNATURE_BYTES : end * SIGNATURE_BYTES],
            tuple(one for one in self.deleted if first <= one <= last),
        )

    def take(self, other: _Piece, last: int) -> None:
        """Put in front what another one has up to the generation before this one's first."""
        part = other if other.last == last else other.cut(other.first, last)
        self.signatures = part.signatures + self.signatures
        self.deleted = part.deleted + self.deleted
        self.first, self.parent = part.first, part.parent


class _Stemming:
    """Cuts the branches of a tree at a limit.

    A revision is kept iff the lowest leaf behind it is less than `limit` generations younger. So
    of a branch pieces may stay: the one with its leaf, and older ones that end where lower leaves
    part from it; such a piece is given to a branch that leads to one of these.
    """

    def __init__(self, branches: Sequence[Branch], limit: int) -> None:
        self._branches = branches
        self._limit = limit
        self._lowest = [branch.last for branch in branches]
        self._children: dict[int, list[int]] = {}
        self._pieces: list[list[_Piece]] = [[] for _ in branches]
        """Of each branch, newest first; a piece may be in several lists."""

    def run(self) -> list[Branch] | None:
        """Return the branches that stay, None if all do as they are."""
        branches, lowest = self._branches, self._lowest
        order = _children_first(branches)
        for number in order:
            parent = branches[number].parent
            if parent != _ROOT:
                lowest[parent] = min(lowest[parent], lowest[number])
                self._children.setdefault(parent, []).append(number)
        for number in order:
            self._cut(number)
        leaves = [pieces[0] for pieces in self._pieces]
        for piece in leaves:
            if piece.parent != _ROOT:
                piece.above = self._found(piece.parent, piece.first - 1)
        sizes = [sum(len(one.signatures) for one in some) for some in (branches, leaves)]
        return None if sizes[0] == sizes[1] else _numbered(leaves)

    def _cut(self, number: int) -> None:
        whole, limit = _Piece.of(self._branches[number]), self._limit
        top, low = whole.last, whole.last
        heir: _Piece | None = None
        for child in sorted(
            self._children.get(number, ()), key=lambda one: -self._branches[one].first
        ):
            at = self._branches[child].first - 1
            if top and low - limit > at:
                self._keep(number, whole, max(low - limit + 1, whole.first), top, heir)
                top = 0
            if at <= self._lowest[child] - limit:
                continue  # the child is cut off itself
            if not top:
                top, low, heir = at, self._lowest[child], self._found(child, at + 1)
            low = min(low, self._lowest[child])
        if top:
            self._keep(number, whole, max(low - limit + 1, whole.first), top, heir)

    def _keep(
        self, number: int, whole: _Piece, first: int, last: int, heir: _Piece | None
    ) -> None:
        """Keep a part of a branch, as a piece of its own or in front of a child's."""
        part = whole.cut(first, last)
        if heir is not None:
            heir.take(part, last)
            part = heir
        self._pieces[number].append(part)

    def _found(self, number: int, generation: int) -> _Piece | None:
        for piece in self._pieces[number]:
            if piece.first <= generation <= piece.last:
                return piece
        return None


def _children_first(branches: Sequence[Branch]) -> list[int]:
    return sorted(range(len(branches)), key=lambda number: -branches[number].first)


def _numbered(pieces: Sequence[_Piece]) -> list[Branch]:
    numbers = {id(piece): number for number, piece in enumerate(pieces)}
    return [
        Branch(
            _ROOT if piece.above is None else numbers[id(piece.above)],
            piece.first, piece.signatures, piece.deleted,
        )
        for piece in pieces
    ]  # fmt: skip


def _named(foreign: Mapping[bytes, str], branches: Sequence[Branch]) -> Mapping[bytes, str]:
    """Return the names that are still in use."""
    if not foreign:
        return foreign
    used = set()
    for branch in branches:
        signatures = branch.signatures
        used |= foreign.keys() & {
            signatures[at : at + SIGNATURE_BYTES]
            for at in range(0, len(signatures), SIGNATURE_BYTES)
        }
    return {signature: foreign[signature] for signature in used}
