"""Offline verification of an index: every node of every kept root, and their agreement.

Checked are: all headers are of one index and their commits grow; the newest commit's trees are
complete (order, counts, sets of partitions, reductions, sizes of nodes); the back-index names
exactly the rows of the trees; nodes of older kept roots are there and unchanged; free lists name
no node that a root of their commit or a later one needs.

Invariants:
1. Nothing is changed.
2. A node that several roots share is read once for all older roots together.
3. Reductions by functions of the design document are not verified, because no function runs here.

Elsewhere: what a tree must be (`trees.core.check`), the directory
(`views.aio.indexing.index_check`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from millstream.errors import CorruptionError
from millstream.trees.core.check import check
from millstream.trees.core.nodes import Nodes
from millstream.trees.core.reader import TreeReader
from millstream.trees.core.shapes import NO_REDUCER, Reducer, Root
from millstream.views.core.index.back_index import split_back_key, split_back_value
from millstream.views.core.index.header import Header, decode_header, members_of
from millstream.views.core.index.kept_roots import decode_free_list
from millstream.views.core.index.node_store import Stored
from millstream.views.core.reduce.builtin_reduces import rule_of
from millstream.views.core.reduce.reductions import ReduceLimit, ViewReducer
from millstream.views.core.rows import row_key

__all__ = ["CheckedStore", "IndexCheck", "check_index"]

ReducersOf = Callable[[Sequence[str]], Sequence[Reducer]]
_LIMITS: Final[tuple[ReduceLimit, ...]] = ("true", "false")
"""The setting under which results were reduced is not kept: either may be right."""


class CheckedStore(Protocol):
    """What is checked, opened for reading."""

    def stored(self) -> Stored:
        """Return headers and free lists."""

    def read(self, number: int) -> bytes:
        """Return a node; CorruptionError if it is missing."""

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of all nodes that are stored, ascending."""


@dataclass(slots=True)
class IndexCheck:
    """What was found in one index."""

    signature: str
    commit: int = 0
    kept_roots: int = 0
    nodes: int = 0
    rows: list[int] = field(default_factory=list)
    """Rows of each tree, in all partitions."""
    documents: int = 0
    """Documents that have rows."""
    unused_nodes: int = 0
    """Nodes of a killed commit. The next start removes them."""
    damage: str = ""
    """Empty if all is well."""


def reducers_of(reduces: Sequence[str]) -> Sequence[Reducer]:
    """Return the reducers that may have made a tree's partials; none: they cannot be had."""
    if any(rule_of(reduce) is None for reduce in reduces):
        return ()
    return [ViewReducer(reduces, limit=limit) for limit in _LIMITS]


def check_index(
    store: CheckedStore, signature: str, reducers: ReducersOf = reducers_of
) -> IndexCheck:
    """Check an index; reads all of it. Damage is in what is returned.

    Args:
        store: the index's own.
        signature: what its directory is called.
        reducers: of the names of a tree's reduces, those that may have made its partials.
    """
    found = IndexCheck(signature)
    try:
        _check(store, found, reducers)
    except CorruptionError as error:
        found.damage = str(error)
    return found


def _check(store: CheckedStore, found: IndexCheck, reducers: ReducersOf) -> None:
    stored = store.stored()
    if not stored.headers:
        return  # made, and never begun
    headers = [decode_header(stored.headers[commit]) for commit in sorted(stored.headers)]
    newest = headers[-1]
    found.commit, found.kept_roots = newest.commit, len(headers)
    found.rows = [0 if root is None else root.count for root in newest.trees]
    found.documents = 0 if newest.back is None else newest.back.count
    for commit, header in zip(sorted(stored.headers), headers, strict=True):
        _demand(header.commit == commit, f"header {commit} says it is {header.commit}")
        _demand(header.signature == found.signature, f"header {commit} is of {header.signature}")
        _check_partitions(header)
    for root, names in zip(newest.trees, newest.reduces, strict=True):
        _check_tree(store, root, reducers(names))
    check(store, newest.back, NO_REDUCER)
    _check_back_index(store, newest)
    _check_nodes(store, stored, headers, found)


def _check_partitions(header: Header) -> None:
    indexed = {p for p, state in header.states.items() if state != "cleanup"}
    same = header.positions.keys() == header.failover_logs.keys() == header.purge_seqnos.keys()
    _demand(
        same and header.positions.keys() == indexed and indexed >= {*members_of(header.void)},
        f"header {header.commit}: positions and states are of different partitions",
    )
    known = 0
    for root in header.roots:
        known |= 0 if root is None else root.partitions
    strange = {*members_of(known)} - header.states.keys()
    _demand(not strange, f"header {header.commit}: rows of unknown partitions {sorted(strange)}")


def _check_tree(store: CheckedStore, root: Root | None, reducers: Sequence[Reducer]) -> None:
    for reducer in reducers[:-1]:
        try:
            check(store, root, reducer)
        except CorruptionError:
            continue
        return
    check(store, root, reducers[-1] if reducers else None)


def _check_back_index(store: CheckedStore, header: Header) -> None:
    """Compare sums over all rows; both sides are read once and nothing of them is kept."""
    wanted = header.countable
    in_trees = _sum_of(
        (tree, p, key)
        for tree, root in enumerate(header.trees)
        for p, key, _ in _rows(store, root, wanted)
    )
    named = _sum_of(
        (tree, p, row_key(ekey, split_back_key(key)[1]))
        for p, key, value in _rows(store, header.back, wanted)
        for tree, ekeys in split_back_value(value)
        for ekey in ekeys
    )
    _demand(in_trees == named, "its back-index names other rows than its trees have")


def _sum_of(rows: Iterable[tuple[int, int, bytes]]) -> tuple[int, int]:
    count = total = 0
    for row in rows:
        count += 1
        total += hash(row)
    return count, total


def _rows(
    store: CheckedStore, root: Root | None, wanted: int
) -> Iterator[tuple[int, bytes, bytes]]:
    for leaf in TreeReader(store, root).scan(wanted=wanted):
        yield from zip(leaf.partitions, leaf.keys, leaf.values, strict=True)


def _check_nodes(
    store: CheckedStore, stored: Stored, headers: Sequence[Header], found: IndexCheck
) -> None:
    """From the newest root to the oldest: nodes are there, and no free list names them."""
    free = {commit: decode_free_list(data) for commit, data in stored.free_lists.items()}
    waiting = dict(free)
    live: set[int] = set()
    nodes = Nodes(store)
    for at, header in reversed(list(enumerate(headers))):
        new = [n for root in header.roots for n in _nodes_of(nodes, root, live)]
        _demand(max(new, default=0) < header.next_node, f"header {header.commit}: node too large")
        older = headers[at - 1].commit if at else -1
        for commit in [each for each in waiting if each > older]:
            # `live` is now what the roots of that commit and later ones need.
            freed = waiting.pop(commit)
            _demand(
                live.isdisjoint(freed.numbers) and not _meets(live, freed.ranges),
                f"free list {commit} names nodes that are needed",
            )
    numbers = list(store.numbers())
    found.nodes = len(numbers)
    for commit in free:
        live.update(free[commit].numbers)
    ranges = [span for each in free.values() for span in each.ranges]
    found.unused_nodes = sum(
        n not in live and not any(first <= n < end for first, end in ranges) for n in numbers
    )


def _meets(live: set[int], ranges: Iterable[tuple[int, int]]) -> bool:
    return any(first <= n < end for first, end in ranges for n in live)


def _nodes_of(nodes: Nodes, root: Root | None, seen: set[int]) -> Iterator[int]:
    """Read the nodes that no root before had; yield their numbers."""
    stack = [] if root is None else [(root.number, root.height)]
    while stack:
        number, height = stack.pop()
        if number in seen:
            continue
        seen.add(number)
        yield number
        if height:
            stack += [(child, height - 1) for child in nodes.inner(number).numbers]
        else:
            nodes.leaf(number)


def _demand(is_so: bool, what: str) -> None:
    if not is_so:
        raise CorruptionError(f"index: {what}; remove its directory: it is built anew",
                              code="index_damaged")  # fmt: skip
