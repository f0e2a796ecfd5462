"""What subtrees come to under a mask, kept: nodes never change, so it stays true.

A set of partitions that stays for a while (some move away, replicas are indexed ahead) is asked
for again and again. Without this every such question reads all mixed leaves; with it the second
one costs what an unmasked one does, and after a commit only the changed paths are read anew.

Invariants:
1. What is kept depends on the node, the wanted ones among its partitions, and the kind alone.
2. At most `FILTERED_MAX` are kept, of at most `FILTERED_BYTES_MAX`: the recently used ones.

Elsewhere: who asks (`reader`, `grouping`), decoded nodes (`nodes`).
"""

from __future__ import annotations

from typing import Final

__all__ = ["FILTERED_BYTES_MAX", "FILTERED_MAX", "FilteredCache", "Key", "Kind"]

FILTERED_MAX: Final = 65_536
"""Subtrees of one index whose counts and partials under a mask are kept."""
FILTERED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Most bytes of the partials that are kept. Most partials have a few bytes, some reduces make
kilobytes of each subtree."""
_SHARE_OF_ONE: Final = 16

Kind = int
"""What is kept of a subtree: a number of the caller's for each reducer; -1: its count."""
Key = tuple[Kind, int, int]
"""Kind, number of the node, the wanted ones among its partitions."""
_Found = int | bytes | None


class FilteredCache:
    """Counts and partials by kind, node and wanted partitions; several threads may use it.

    Two halves, as in `nodes.NodeCache`: the older one is forgotten when the younger is full.

    Args:
        entries_max: of both halves together; 0: nothing is kept.
        bytes_max: of the partials of both.
    """

    __slots__ = ("_bytes", "_half_bytes_max", "_half_max", "_old", "_young")

    def __init__(
        self, entries_max: int = FILTERED_MAX, bytes_max: int = FILTERED_BYTES_MAX
    ) -> None:
        self._half_max, self._half_bytes_max = entries_max // 2, bytes_max // 2
        self._bytes = 0
        self._young: dict[Key, _Found] = {}
        self._old: dict[Key, _Found] = {}

    def get(self, key: Key) -> tuple[_Found] | None:
        """Return what is kept, in a tuple: None in it is a partial of no rows."""
        young, old = self._young, self._old
        if key in young:
            return (young[key],)
        if key in old:
            found = old[key]
            self.put(key, found)
            return (found,)
        return None

    def put(self, key: Key, found: _Found) -> None:
        """Keep a count, or a partial; not one that would drive out many."""
        size = len(found) if isinstance(found, bytes) else 0
        if not self._half_max or size > self._half_bytes_max // _SHARE_OF_ONE:
            return
        self._bytes += size
        if len(self._young) >= self._half_max or self._bytes > self._half_bytes_max:
            self._old, self._young, self._bytes = self._young, {}, size
        self._young[key] = found
