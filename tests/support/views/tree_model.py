"""What a tree is measured by: rows as a dict, kept nodes as a dict, reducers that show mistakes.

Elsewhere: the tests (tests/unit/trees/core).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from unittest.mock import patch

from millstream.errors import CorruptionError
from millstream.trees.core import packing
from millstream.trees.core.check import check, live_nodes
from millstream.trees.core.filtered import FilteredCache
from millstream.trees.core.nodes import NodeCache
from millstream.trees.core.reader import TreeReader
from millstream.trees.core.shapes import NO_REDUCER, Bound, Leaf, Operation, Reducer, Root
from millstream.trees.core.writer import TreeWriter

Rows = dict[bytes, tuple[int, bytes]]


SMALL = {
    "NODE_BYTES_MAX": 250,
    "_LEAF_BYTES_MIN": 100,
    "LEAF_ROWS_MAX": 8,
    "_LEAF_ROWS_MIN": 3,
    "INNER_CHILDREN_MAX": 5,
    "INNER_CHILDREN_MIN": 4,
    "_INNER_CHILDREN_LOW": 2,
}


@contextmanager
def small_nodes() -> Iterator[None]:
    """Few rows make a tree of many levels."""
    with ExitStack() as patches:
        for name, value in SMALL.items():
            patches.enter_context(patch.object(packing, name, value))
        yield


class Store(dict[int, bytes]):
    """Nodes by number; counts what is read."""

    reads = 0

    def read(self, number: int) -> bytes:
        self.reads += 1
        if number not in self:
            raise CorruptionError(f"node {number} is missing")
        return self[number]


class Sums:
    """Adds up values that are numbers, and counts calls."""

    calls = 0

    def reduce(self, leaves: Sequence[Leaf]) -> list[bytes]:
        self.calls += 1
        assert all(leaf.keys for leaf in leaves)
        return [b"%d" % sum(map(int, leaf.values)) for leaf in leaves]

    def rereduce(self, groups: Sequence[Sequence[bytes]]) -> list[bytes]:
        self.calls += 1
        assert all(groups)
        return [b"%d" % sum(map(int, group)) for group in groups]


class Joins:
    """Associative, not commutative: first and last key, number of rows, crc of all in order."""

    def reduce(self, leaves: Sequence[Leaf]) -> list[bytes]:
        return [_span(leaf.keys[0], leaf.keys[-1], len(leaf.keys)) for leaf in leaves]

    def rereduce(self, groups: Sequence[Sequence[bytes]]) -> list[bytes]:
        return [_joined([part.split(b"~") for part in group]) for group in groups]


def _span(first: bytes, last: bytes, count: int) -> bytes:
    return b"~".join((first.hex().encode(), last.hex().encode(), b"%d" % count))


def _joined(parts: list[list[bytes]]) -> bytes:
    for before, after in pairwise(parts):
        assert bytes.fromhex(before[1].decode()) < bytes.fromhex(after[0].decode()), "order"
    return b"~".join((parts[0][0], parts[-1][1], b"%d" % sum(int(part[2]) for part in parts)))


def span_of(rows: Iterable[bytes]) -> bytes | None:
    keys = sorted(rows)
    return _span(keys[0], keys[-1], len(keys)) if keys else None


class Tree:
    """A tree with its rows beside it; every change is checked in every way there is."""

    def __init__(self, reducer: Reducer = NO_REDUCER) -> None:
        self.store = Store()
        self.reducer = reducer
        self.root: Root | None = None
        self.rows: Rows = {}
        self.next_number = 1
        self.cache = NodeCache()
        self.filtered = FilteredCache()

    def apply(self, operations: dict[bytes, tuple[int, bytes] | None], clean: int = 0) -> None:
        listed: list[Operation] = [
            (key, *row) if (row := operations[key]) else (key, 0, None)
            for key in sorted(operations)
        ]
        self.change(lambda writer: writer.apply(self.root, listed, self.reducer, clean))
        self.rows = {k: row for k, row in self.rows.items() if not clean >> row[0] & 1}
        for key, row in operations.items():
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row
        self.check_rows()

    def clean(self, partitions: int, nodes_max: int) -> bool:
        done = []

        def step(writer: TreeWriter) -> Root | None:
            root, is_done = writer.clean(self.root, partitions, self.reducer, nodes_max)
            done.append(is_done)
            return root

        self.change(step)
        rows = self.read_rows()
        assert set(rows.items()) <= set(self.rows.items())
        gone = [self.rows[key] for key in self.rows.keys() - rows.keys()]
        assert all(partitions >> row[0] & 1 for row in gone)
        assert done == [not any(partitions >> row[0] & 1 for row in rows.values())]
        assert gone or done[0]
        self.rows = rows
        return done[0]

    def load(self, rows: Rows) -> None:
        listed = [(key, *rows[key]) for key in sorted(rows)]
        self.change(lambda writer: writer.load(listed, self.reducer))
        self.rows = rows
        self.check_rows()

    def change(self, act: Callable[[TreeWriter], Root | None]) -> None:
        """Change the tree; what was written and freed is exactly the difference."""
        before = set(live_nodes(self.store, self.root))
        writer = TreeWriter(self.store, self.next_number, cache=self.cache)
        root = act(writer)
        assert list(writer.written) == sorted(writer.written)
        assert not before & set(writer.written)
        self.store.update(writer.written)
        self.next_number = writer.next_number
        live = set(live_nodes(self.store, root))
        assert live == before - set(writer.freed) | set(writer.written)
        assert set(writer.freed) == before - live
        assert len(set(writer.freed)) == len(writer.freed)
        check(self.store, root, self.reducer)
        self.root = root

    def reader(self) -> TreeReader:
        return TreeReader(self.store, self.root, self.cache, self.reducer, self.filtered)

    def read_rows(self) -> Rows:
        return rows_of(self.reader().scan())

    def check_rows(self) -> None:
        assert self.read_rows() == self.rows

    def expected(
        self, low: Bound | None = None, high: Bound | None = None, wanted: int | None = None
    ) -> list[bytes]:
        return [
            key
            for key, (partition, _) in sorted(self.rows.items())
            if (low is None or key > low[0] or (low[1] and key == low[0]))
            and (high is None or key < high[0] or (high[1] and key == high[0]))
            and (wanted is None or wanted >> partition & 1)
        ]


def rows_of(leaves: Iterable[Leaf]) -> Rows:
    rows: Rows = {}
    for leaf in leaves:
        for key, value, partition in zip(*leaf, strict=True):
            assert key not in rows
            rows[key] = (partition, value)
    return rows


def keys_of(leaves: Iterable[Leaf]) -> list[bytes]:
    return [key for leaf in leaves for key in leaf.keys]


def key(number: int) -> bytes:
    return b"key-%06d" % number


def rows_from(numbers: Iterable[int], partitions: int = 64) -> Rows:
    """Rows whose value is their number and whose partition follows from it."""
    return {key(n): (n * 7919 % partitions, b"%d" % n) for n in numbers}
