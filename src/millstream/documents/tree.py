"""Revision trees: which revisions of a document are known, and which of them stand at the end.

A tree is a forest of *branches*. A branch is a run of revisions, each the parent of the next, that
ends in a leaf; it is a root, or leaves another branch behind one of its revisions. So there are as
many branches as leaves, and each revision is in one of them.

Invariants:
1. A tree never changes; a change makes another one, which shares what is as before.
2. A revision (generation and signature) has one parent: the one that was learned first.
3. The winner is the largest leaf by (not deleted, generation, signature); it does not depend on
   the order in which revisions were learned, nor do leaves and paths (without stemming).
4. Work is proportional to branches plus revisions touched, not to branches times their length.

Elsewhere: bodies (`documents.stored`), what may be written (`documents.updating`), branches cut
short (`documents.pruning`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from millstream.documents.revisions import (
    SIGNATURE_BYTES,
    Path,
    all_to_bytes,
    is_foreign,
    parse_rev,
    to_bytes,
)

__all__ = ["EMPTY", "Branch", "GrowingTree", "Leaf", "RevisionTree"]

_ROOT: Final = -1
_NO_NAMES: Final[Mapping[bytes, str]] = {}


class Leaf(NamedTuple):
    """A revision without children."""

    rev: str
    is_deleted: bool


class Branch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A run of revisions that ends in a leaf."""

    parent: int
    """Number of the branch that it leaves, behind generation `first - 1`; -1: a root."""
    first: int
    """Generation of its oldest revision."""
    signatures: bytes
    """16 bytes each, oldest first."""
    deleted: tuple[int, ...] = ()
    """The generations of the path that are known to be deletions, ascending."""

    @property
    def last(self) -> int:
        """Generation of the leaf."""
        return self.first + len(self.signatures) // SIGNATURE_BYTES - 1

    @property
    def is_deleted(self) -> bool:
        """Whether the leaf is a deletion."""
        return bool(self.deleted) and self.deleted[-1] == self.last

    def at(self, generation: int) -> bytes:
        """Return the signature of a generation that it has."""
        start = (generation - self.first) * SIGNATURE_BYTES
        return self.signatures[start : start + SIGNATURE_BYTES]


class _Place(NamedTuple):
    branch: int
    generation: int


class RevisionTree:
    """What is known of a document's revisions.

    Args:
        branches: numbered by their place.
        foreign: texts of signatures that are not 32 hex digits, by their 16 bytes.
        former: a tree that it was made of; what is worked out of branches of both is taken over.
    """

    __slots__ = ("_revs", "_winner", "branches", "foreign")

    def __init__(
        self,
        branches: Sequence[Branch] = (),
        foreign: Mapping[bytes, str] = _NO_NAMES,
        former: RevisionTree | None = None,
    ) -> None:
        self.branches = branches
        self.foreign = foreign
        self._winner: int | None = None
        self._revs: list[str] | None = None
        if former is not None and former._revs is not None:
            same = min(len(branches), len(former.branches))
            self._revs = [
                rev if before is branch else self._leaf(branch).rev
                for rev, before, branch in zip(
                    former._revs[:same], former.branches[:same], branches[:same], strict=True
                )
            ]
            self._revs += [self._leaf(branch).rev for branch in branches[same:]]

    # ---- leaves

    @property
    def is_empty(self) -> bool:
        """Whether there is no revision at all: what a purge may leave."""
        return not self.branches

    @property
    def winner_branch(self) -> int:
        """Number of the branch that ends in the winner; there is one."""
        if self._winner is None:
            branches = self.branches
            assert branches, "a tree without revisions has no winner"
            numbers = range(len(branches))
            self._winner = max(numbers, key=self._rank) if len(branches) > 1 else 0
        return self._winner

    @property
    def winner(self) -> Leaf:
        """The leaf that the document shows; there is one."""
        return self._leaf(self.branches[self.winner_branch])

    def leaves(self) -> list[Leaf]:
        """Return all leaves: the winner, the other live ones, then deleted ones, descending."""
        return [self._leaf(self.branches[number]) for number in self.ordered()]

    def ordered(self) -> list[int]:
        """Return the numbers of the branches in the order of `leaves`."""
        return sorted(range(len(self.branches)), key=self._rank, reverse=True)

    def conflicts(self) -> list[str]:
        """Return live leaves other than the winner, descending."""
        return [leaf.rev for leaf in self.leaves()[1:] if not leaf.is_deleted]

    def deleted_conflicts(self) -> list[str]:
        """Return deleted leaves other than the winner, descending."""
        return [leaf.rev for leaf in self.leaves()[1:] if leaf.is_deleted]

    def leaf(self, rev: str) -> Leaf | None:
        """Return the leaf of this revision; None if it is not a leaf."""
        number = self.branch_of_leaf(rev)
        return None if number is None else self._leaf(self.branches[number])

    def branch_of_leaf(self, rev: str) -> int | None:
        """Return the number of the branch that ends in a revision, None if none does."""
        generation, signature = _packed(rev)
        for number, branch in enumerate(self.branches):
            if branch.signatures.endswith(signature) and branch.last == generation:
                return number
        return None

    def leaf_revs(self) -> list[str]:
        """Return the revisions of the leaves in the order of their branches; not to be changed."""
        if self._revs is None:
            if self.foreign:
                self._revs = [self._leaf(branch).rev for branch in self.branches]
            else:  # the same in half the time
                self._revs = [
                    f"{one.first + len(one.signatures) // SIGNATURE_BYTES - 1}"
                    f"-{one.signatures[-SIGNATURE_BYTES:].hex()}"
                    for one in self.branches
                ]
        return self._revs

    def leaves_below(self, rev: str) -> list[Leaf]:
        """Return the leaves that a revision led to, in the order of `leaves`; itself if a leaf."""
        place = self._place(*_packed(rev))
        if place is None:
            return []
        below = {place.branch}
        by_first = sorted(range(len(self.branches)), key=lambda n: self.branches[n].first)
        for number in by_first:
            branch = self.branches[number]
            if branch.parent in below and (
                branch.parent != place.branch or branch.first > place.generation
            ):
                below.add(number)
        return [self._leaf(self.branches[number]) for number in self.ordered() if number in below]

    def leaf_at(self, number: int) -> Leaf:
        """Return the leaf of the branch with this number."""
        return self._leaf(self.branches[number])

    def _leaf(self, branch: Branch) -> Leaf:
        last = branch.last
        text = self._text(branch.signatures[-SIGNATURE_BYTES:])
        return Leaf(f"{last}-{text}", bool(branch.deleted) and branch.deleted[-1] == last)

    def _rank(self, number: int) -> tuple[bool, int, bytes]:
        branch = self.branches[number]
        signature = branch.signatures[-SIGNATURE_BYTES:]
        if self.foreign:
            signature = self._text(signature).encode()
        last = branch.last
        return not branch.deleted or branch.deleted[-1] != last, last, signature

    def _text(self, signature: bytes) -> str:
        return self.foreign.get(signature) or signature.hex()

    # ---- revisions

    def contains(self, rev: str) -> bool:
        """Return whether a revision is known, as a leaf or an ancestor of one."""
        return self._place(*_packed(rev)) is not None

    def missing(self, revs: Iterable[str]) -> list[str]:
        """Return those of the revisions that are not known, in their order.

        Each branch is looked at once, however many are asked for.
        """
        asked = list(revs)
        wanted: dict[int, dict[bytes, str]] = {}
        for rev in asked:
            generation, signature = _packed(rev)
            wanted.setdefault(generation, {})[signature] = rev
        known: set[str | None] = set()
        for branch in self.branches:
            for generation in _within(wanted, branch.first, branch.last):
                known.add(wanted[generation].get(branch.at(generation)))
        return [rev for rev in asked if rev not in known]

    def possible_ancestors(self, missing: Iterable[str]) -> list[str]:
        """Return the leaves whose generation is below the highest of what is missing."""
        highest = max((parse_rev(rev)[0] for rev in missing), default=0)
        return [self._leaf(branch).rev for branch in self.branches if branch.last < highest]

    def is_deletion(self, rev: str) -> bool:
        """Return whether a revision is known to be a deletion."""
        place = self._place(*_packed(rev))
        return place is not None and place.generation in self.branches[place.branch].deleted

    def path(self, rev: str) -> Path | None:
        """Return a revision with its known ancestors, None if it is not known."""
        place = self._place(*_packed(rev))
        return None if place is None else self._path(place)

    def winner_path(self) -> Path:
        """Return the winner with its known ancestors."""
        number = self.winner_branch
        return self._path(_Place(number, self.branches[number].last))

    def _path(self, place: _Place) -> Path:
        number, generation = place
        pieces = []
        while number != _ROOT:
            branch = self.branches[number]
            pieces.append(branch.signatures[: (generation - branch.first + 1) * SIGNATURE_BYTES])
            number, generation = branch.parent, branch.first - 1
        digits = b"".join(reversed(pieces)).hex()
        size = 2 * SIGNATURE_BYTES
        ids = [digits[at : at + size] for at in range(len(digits) - size, -1, -size)]
        if self.foreign:
            ids = [self._text(bytes.fromhex(one)) for one in ids]
        return Path(place.generation, ids)

    def _place(self, generation: int, signature: bytes) -> _Place | None:
        for number, branch in enumerate(self.branches):
            start = (generation - branch.first) * SIGNATURE_BYTES
            if start >= 0 and branch.signatures[start : start + SIGNATURE_BYTES] == signature:
                return _Place(number, generation)
        return None

    # ---- changes

    def extended(
        self, rev: str | None, signature: str, *, is_deleted: bool = False
    ) -> RevisionTree:
        """Return the tree with a child of a leaf, or with a first revision where `rev` is None."""
        if rev is None:
            packed = to_bytes(signature)
            branch = Branch(_ROOT, 1, packed, (1,) if is_deleted else ())
            return RevisionTree([*self.branches, branch], self._named([signature], [packed]), self)
        number = self.branch_of_leaf(rev)
        assert number is not None, "only leaves are extended"
        return self.with_children({number: signature}, is_deleted=is_deleted)

    def with_children(
        self, children: Mapping[int, str], *, is_deleted: bool = False
    ) -> RevisionTree:
        """Return the tree with children of leaves, by the numbers of their branches."""
        branches = list(self.branches)
        packed = [to_bytes(signature) for signature in children.values()]
        for number, signature in zip(children, packed, strict=True):
            branches[number] = _longer(branches[number], signature, is_deleted=is_deleted)
        return RevisionTree(branches, self._named(children.values(), packed), self)

    def merged(self, path: Path, *, is_deleted: bool = False) -> RevisionTree:
        """Return the tree with a revision and its ancestors; the same one if it knows them all."""
        oldest, whole, new = _packed_path(path)
        grown = _Merge(list(self.branches), oldest, whole).run(is_deleted=is_deleted)
        foreign = {**self.foreign, **new} if new else self.foreign
        return self if grown is None else RevisionTree(grown, foreign, self)

    def _named(self, texts: Iterable[str], packed: Iterable[bytes]) -> Mapping[bytes, str]:
        new = _foreign(texts, packed)
        return {**self.foreign, **new} if new else self.foreign


EMPTY: Final = RevisionTree()
"""The tree of a document that never was, or of which a purge left nothing."""


class GrowingTree:
    """A tree that many paths are brought into, one after the other.

    Each takes time for its own revisions, however many branches there are: the branch of every
    revision is known.

    Args:
        tree: what it begins with.
    """

    def __init__(self, tree: RevisionTree) -> None:
        self._former = tree
        self._branches = list(tree.branches)
        self._foreign = dict(tree.foreign)
        self._places: dict[tuple[int, bytes], int | tuple[int, ...]] = {}
        """Number of the branch of each revision, by generation and signature; of several branches
        where makers did not agree."""
        self._place_all()

    def _place_all(self) -> None:
        self._places = {}
        for number, branch in enumerate(self._branches):
            signatures = branch.signatures
            for at in range(0, len(signatures), SIGNATURE_BYTES):
                generation = branch.first + at // SIGNATURE_BYTES
                self._place((generation, signatures[at : at + SIGNATURE_BYTES]), number)

    def _place(self, rev: tuple[int, bytes], number: int) -> None:
        known = self._places.setdefault(rev, number)
        if known != number and not (isinstance(known, tuple) and number in known):
            self._places[rev] = (known, number) if isinstance(known, int) else (*known, number)

    def contains(self, rev: str) -> bool:
        """See `RevisionTree.contains`."""
        return _packed(rev) in self._places

    def merge(self, path: Path, *, is_deleted: bool = False) -> bool:
        """Do what `RevisionTree.merged` does; return whether anything was new."""
        oldest, whole, new = _packed_path(path)
        revs = [
            (oldest + at // SIGNATURE_BYTES, whole[at : at + SIGNATURE_BYTES])
            for at in range(0, len(whole), SIGNATURE_BYTES)
        ]
        met = set[int]()
        for rev in revs:
            known = self._places.get(rev, ())
            met.update((known,) if isinstance(known, int) else known)
        before = len(self._branches)
        grown = _Merge(self._branches, oldest, whole, met).run(is_deleted=is_deleted)
        if grown is None:
            return False
        self._foreign.update(new)
        if grown is not self._branches:  # some were joined, and numbers are others
            self._branches = grown
            self._place_all()
            return True
        for number in (*met, *range(before, len(grown))):
            branch = grown[number]
            for generation, signature in revs:
                is_within = branch.first <= generation <= branch.last
                if is_within and branch.at(generation) == signature:
                    self._place((generation, signature), number)
        return True

    def tree(self) -> RevisionTree:
        """Return the tree as it is now."""
        return RevisionTree(list(self._branches), dict(self._foreign), self._former)


def _packed_path(path: Path) -> tuple[int, bytes, Mapping[bytes, str]]:
    """Return the oldest generation, all signatures, and the texts of those that are foreign."""
    ids = path.ids[::-1]
    oldest = path.start - len(ids) + 1
    whole = all_to_bytes(ids)
    if whole is not None:
        return oldest, whole, _NO_NAMES
    packed = [to_bytes(signature) for signature in ids]
    return oldest, b"".join(packed), _foreign(ids, packed)


def _foreign(texts: Iterable[str], packed: Iterable[bytes]) -> Mapping[bytes, str]:
    return {
        signature: text
        for text, signature in zip(texts, packed, strict=True)
        if is_foreign(text, signature)
    }


def _packed(rev: str) -> tuple[int, bytes]:
    generation, signature = parse_rev(rev)
    return generation, to_bytes(signature)


def _within(generations: Collection[int], first: int, last: int) -> Iterable[int]:
    """Return those of the generations from `first` to `last`."""
    if last - first < len(generations):
        return [one for one in range(first, last + 1) if one in generations]
    return [one for one in generations if first <= one <= last]


def _longer(branch: Branch, signatures: bytes, *, is_deleted: bool) -> Branch:
    """Return a branch with revisions behind its leaf, the last of them a deletion or not."""
    longer = branch.signatures + signatures
    deleted = branch.deleted
    if is_deleted:
        deleted = (*deleted, branch.first + len(longer) // SIGNATURE_BYTES - 1)
    return Branch(branch.parent, branch.first, longer, deleted)


class _Met(NamedTuple):
    """A branch that has revisions in common with a path, from generation `low` to `high`."""

    low: int
    high: int
    number: int


class _Merge:
    """Brings one path into a list of branches, which it changes.

    What the path has in common with the forest are runs: the first begins at the path's oldest
    revision, or at a root that grows upwards; each further one at a root whose ancestors the path
    tells.
    """

    def __init__(
        self,
        branches: list[Branch],
        oldest: int,
        signatures: bytes,
        candidates: Iterable[int] | None = None,
    ) -> None:
        self._branches = branches
        self._candidates = range(len(branches)) if candidates is None else sorted(candidates)
        """Numbers of the branches that may have revisions of the path."""
        self._oldest = oldest
        self._signatures = signatures
        self._newest = oldest + len(signatures) // SIGNATURE_BYTES - 1
        self._removed: set[int] = set()
        self._is_changed = False

    def run(self, *, is_deleted: bool) -> list[Branch] | None:
        """Return the branches, None if nothing was new."""
        at: _Place | None = None
        for met in sorted(self._met()):
            at = self._follow(at, met)
        if at is None:
            deleted = (self._newest,) if is_deleted else ()
            self._branches.append(Branch(_ROOT, self._oldest, self._signatures, deleted))
        elif at.generation < self._newest:
            self._graft(at, is_deleted=is_deleted)
        elif not self._is_changed:
            return None
        return _renumbered(self._branches, self._removed) if self._removed else self._branches

    def _met(self) -> list[_Met]:
        oldest, newest = self._oldest, self._newest
        found = []
        for number in self._candidates:
            branch = self._branches[number]
            first = branch.first
            if first == oldest == newest:  # of one revision, as the first ones of conflicts are
                if branch.signatures.startswith(self._signatures):
                    found.append(_Met(first, first, number))
                continue
            last = first + len(branch.signatures) // SIGNATURE_BYTES - 1
            low = max(oldest, first)
            high = min(newest, last)
            if low > high:
                continue
            # Makers who agree have the same behind nothing that differs; others are put up with.
            is_high_same = branch.at(high) == self._at(high)
            is_low_same = is_high_same if low == high else branch.at(low) == self._at(low)
            if is_high_same:
                found.append(_Met(low if is_low_same else high, high, number))
            elif is_low_same:
                found.append(_Met(low, self._common_end(branch, low, high), number))
        return found

    def _common_end(self, branch: Branch, low: int, high: int) -> int:
        """Return the last generation up to which branch and path are the same; `low` is."""
        ours = memoryview(branch.signatures)[(low - branch.first) * SIGNATURE_BYTES :]
        theirs = memoryview(self._signatures)[(low - self._oldest) * SIGNATURE_BYTES :]
        same, end = 1, high - low + 1
        while same < end:
            middle = (same + end + 1) // 2
            if ours[: middle * SIGNATURE_BYTES] == theirs[: middle * SIGNATURE_BYTES]:
                same = middle
            else:
                end = middle - 1
        return low + same - 1

    def _follow(self, at: _Place | None, met: _Met) -> _Place:
        branch = self._branches[met.number]
        is_root_inside = branch.parent == _ROOT and branch.first == met.low
        if at is None:
            if is_root_inside and branch.first > self._oldest:
                self._put_in_front(met.number, self._oldest, self._oldest, _ROOT)
        elif is_root_inside and branch.first > at.generation:
            self._join(at, met.number)
        elif met.high <= at.generation:
            return at
        return _Place(met.number, met.high)

    def _put_in_front(self, number: int, first: int, start: int, parent: int) -> None:
        """Begin a root at `first` with the revisions of the path from `start` on."""
        branch = self._branches[number]
        new = self._piece(start, branch.first)
        self._branches[number] = Branch(parent, first, new + branch.signatures, branch.deleted)
        self._is_changed = True

    def _join(self, at: _Place, number: int) -> None:
        """Attach a root to a revision of another branch, with the path's revisions between."""
        above = self._branches[at.branch]
        if at.generation < above.last:
            self._put_in_front(number, at.generation + 1, at.generation + 1, at.branch)
            return
        root = self._branches[number]
        between = self._piece(at.generation + 1, root.first)
        self._branches[number] = Branch(
            above.parent, above.first, above.signatures + between + root.signatures,
            above.deleted + root.deleted,
        )  # fmt: skip
        _hand_over(self._branches, at.branch, number)
        self._removed.add(at.branch)
        self._is_changed = True

    def _graft(self, at: _Place, *, is_deleted: bool) -> None:
        new = self._piece(at.generation + 1, self._newest + 1)
        above = self._branches[at.branch]
        if at.generation == above.last:
            self._branches[at.branch] = _longer(above, new, is_deleted=is_deleted)
            return
        deleted = (self._newest,) if is_deleted else ()
        self._branches.append(Branch(at.branch, at.generation + 1, new, deleted))

    def _at(self, generation: int) -> bytes:
        start = (generation - self._oldest) * SIGNATURE_BYTES
        return self._signatures[start : start + SIGNATURE_BYTES]

    def _piece(self, start: int, end: int) -> bytes:
        """Return the path's signatures from a generation up to another one."""
        oldest = self._oldest
        return self._signatures[
            (start - oldest) * SIGNATURE_BYTES : (end - oldest) * SIGNATURE_BYTES
        ]


def _hand_over(branches: list[Branch], before: int, after: int) -> None:
    """Move branches that left one branch to another, which has its revisions now."""
    for number, branch in enumerate(branches):
        if branch.parent == before:
            branches[number] = msgspec.structs.replace(branch, parent=after)


def _renumbered(branches: Sequence[Branch], removed: set[int]) -> list[Branch]:
    """Return the branches that stay, their parents by their new numbers."""
    numbers: dict[int, int] = {_ROOT: _ROOT}
    for number in range(len(branches)):
        if number not in removed:
            numbers[number] = len(numbers) - 1
    return [
        msgspec.structs.replace(branch, parent=numbers[branch.parent])
        for number, branch in enumerate(branches)
        if number not in removed
    ]
