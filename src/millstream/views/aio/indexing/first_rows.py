"""Rows of a first build, which leave memory as sorted runs.

Invariants:
1. At most `SORT_BYTES_MAX` of them are in memory. The rest is in files of a folder.
2. `close` leaves nothing behind.

Elsewhere: the sort (`views.aio.indexing.sorting`), who maps and loads
(`views.aio.indexing.served_index`).
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import chain
from typing import TYPE_CHECKING, Final

from millstream.views.aio.indexing.sorting import Row, RowSorter
from millstream.views.core.index.back_index import first_rows_of
from millstream.views.core.index.header import MAP_ERRORS_KEPT_MAX, MapFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

    from millstream.views.aio.indexing.index_mapping import MappedChanges

__all__ = ["SORT_BYTES_MAX", "FirstRows"]

SORT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Most bytes of rows of one index in memory during its first build."""


class FirstRows:
    """Rows of a first build: one sort for the back-index and one for each tree.

    Args:
        tree_count: how many trees there are.
        folder: where the runs are written.
    """

    def __init__(self, tree_count: int, folder: Path) -> None:
        bytes_max = SORT_BYTES_MAX // (tree_count + 1)
        self._tree_count = tree_count
        self._back = RowSorter(folder, bytes_max=bytes_max)
        self._trees = [RowSorter(folder, bytes_max=bytes_max) for _ in range(tree_count)]
        self._failures: dict[tuple[int, int], deque[MapFailure]] = {}
        """The last failures, by partition and tree."""
        self._failed: Counter[tuple[int, int]] = Counter()

    def add(self, mapped: MappedChanges) -> None:
        """Keep the rows of some documents. Each document comes once."""
        back, trees = first_rows_of(mapped.documents, self._tree_count)
        self._back.add(back)
        for sorter, rows in zip(self._trees, trees, strict=True):
            sorter.add(rows)
        for partition, failure in mapped.failures:
            key = (partition, failure.tree)
            self._failed[key] += 1
            kept = self._failures.setdefault(key, deque(maxlen=MAP_ERRORS_KEPT_MAX))
            kept.append(failure)

    def failures_of(self, partition: int) -> tuple[list[MapFailure], dict[int, int]]:
        """Return the last failures of a partition, and how many each tree had before them."""
        kept = {tree: each for (p, tree), each in self._failures.items() if p == partition}
        before = {tree: self._failed[partition, tree] - len(each) for tree, each in kept.items()}
        return [failure for each in kept.values() for failure in each], before

    def portions(self) -> list[Iterator[list[Row]]]:
        """Return the rows of the back-index and of each tree in order, in portions."""
        return [sorter.portions() for sorter in (self._back, *self._trees)]

    def sorted_rows(
        self, left_out: Collection[int], check: Callable[[], None]
    ) -> tuple[Iterable[Row], list[Iterable[Row]]]:
        """Return the rows without those of some partitions.

        `check` is called now and then, and may raise.
        """

        def rows(sorter: RowSorter) -> Iterable[Row]:
            return chain.from_iterable(_others(sorter.portions(), frozenset(left_out), check))

        return rows(self._back), [rows(sorter) for sorter in self._trees]

    def close(self) -> None:
        """Forget everything."""
        for sorter in (self._back, *self._trees):
            sorter.close()


def _others(
    portions: Iterator[list[Row]], left_out: frozenset[int], check: Callable[[], None]
) -> Iterator[list[Row]]:
    for portion in portions:
        check()
        yield [row for row in portion if row[1] not in left_out] if left_out else portion
