"""What subtrees come to under a mask, kept: nodes never change, so it stays true.

A set of partitions that stays for a while (some move away, replicas are indexed ahead) is asked
for again and again. Without this every such question reads all mixed leaves; with it the second
one costs what an unmasked one does, and after a commit only the changed paths are read anew.

Invariants:
1. What is kept depends on the node, the wanted ones among its partitions, and the kind alone.
2. At most `FILTERED_MAX` are kept, the recently used ones.

Elsewhere: who asks (`reader`, `grouping`), decoded nodes (`nodes`).
"""

from __future__ import annotations

from typing import Final

__all__ = ["FILTERED_MAX", "FilteredCache", "Key", "Kind"]

FILTERED_MAX: Final = 65_536
"""Subtrees of one index whose counts and partials under a mask are kept."""

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
    """

    __slots__ = ("_half_max", "_old", "_young")

    def __init__(self, entries_max: int = FILTERED_MAX) -> None:
        self._half_max = entries_max // 2
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
        """Keep a count, or a partial."""
        if not self._half_max:
            return
        if len(self._young) >= self._half_max:
            self._old, self._young = self._young, {}
        self._young[key] = found
