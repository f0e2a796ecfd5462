"""A store of an index in memory that fails or is killed before any effect.

`before` is called with the kind of each effect first and may raise: `Crash`, the process ends
there, or an error of the store. What `durable()` returns is what a process that starts afterwards
finds. A commit is one effect, as it is on disk; a copy takes the store's place in one, too.
"""

from collections.abc import Callable, Iterator, Mapping

from millstream.errors import CorruptionError
from millstream.views.core.index.kept_roots import FreeList
from millstream.views.core.index.node_store import StoreCommit, Stored, StoreSizes

COMMIT, AHEAD, REMOVE, COPY = "commit", "ahead", "remove", "copy"


class Crash(Exception):
    """The process ends before an effect."""


class MemoryIndexStore:
    def __init__(self, before: Callable[[str], None] = lambda _: None) -> None:
        self.before = before
        self.nodes: dict[int, bytes] = {}
        self.headers: dict[int, bytes] = {}
        self.free_lists: dict[int, bytes] = {}
        self._copy: dict[int, bytes] | None = None

    def durable(self) -> "MemoryIndexStore":
        """What is found after the process ended."""
        found = MemoryIndexStore()
        found.nodes, found.headers = dict(self.nodes), dict(self.headers)
        found.free_lists = dict(self.free_lists)
        return found

    def stored(self) -> Stored:
        return Stored(dict(self.headers), dict(self.free_lists))

    def read(self, number: int) -> bytes:
        try:
            return self.nodes[number]
        except KeyError:
            raise CorruptionError(f"node {number} is missing", code="index_damaged") from None

    def numbers(self) -> Iterator[int]:
        yield from sorted(self.nodes)

    def write_ahead(self, nodes: Mapping[int, bytes]) -> None:
        self.before(AHEAD)
        self._put(nodes)

    def _put(self, nodes: Mapping[int, bytes]) -> None:
        assert not nodes.keys() & self.nodes.keys(), "a node's number is used again"
        self.nodes |= nodes

    def remove_from(self, number: int) -> None:
        self.before(REMOVE)
        self.nodes = {each: data for each, data in self.nodes.items() if each < number}

    def commit(self, commit: StoreCommit) -> None:
        self.before(COMMIT)
        self._put(commit.nodes)
        self.headers[commit.commit] = commit.header
        self.free_lists |= commit.free_lists
        for each in commit.dropped_headers:
            del self.headers[each]
        for each in commit.dropped_free_lists:
            del self.free_lists[each]
        for free in commit.removed:
            self._remove(self.nodes, free)
            if self._copy is not None:
                self._remove(self._copy, free)

    @staticmethod
    def _remove(nodes: dict[int, bytes], free: FreeList) -> None:
        for number in free.numbers:
            nodes.pop(number, None)
        for first, end in free.ranges:
            for number in [each for each in nodes if first <= each < end]:
                del nodes[number]

    def compact_step(self, nodes_max: int) -> bool:
        self.before(COPY)
        if self._copy is None:
            self._copy = {}
        after = max(self._copy, default=-1)
        numbers = sorted(number for number in self.nodes if number > after)[:nodes_max]
        self._copy |= {number: self.nodes[number] for number in numbers}
        if len(numbers) == nodes_max:
            return False
        self.nodes, self._copy = self._copy, None
        return True

    def sizes(self) -> StoreSizes:
        size = sum(map(len, self.nodes.values()))
        return StoreSizes(size, size, len(self.nodes))
