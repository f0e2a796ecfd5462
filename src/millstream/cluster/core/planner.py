"""Plans where copies and index parts belong: balanced, spread over zones, with few moves.

Invariants:
1. The same input gives the same plan, and a planned layout is planned as it stands.
2. A row has as many zones as it can have.
3. Only what is missing, doubled in a zone, or more than one above another node's load moves.
4. A place stays empty only if there are fewer nodes than places.

Elsewhere: how a partition gets to its row (`cluster.core.moving`), when a plan is made
(`cluster.core.members`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millstream.model.rows import Row

__all__ = ["plan_index", "plan_rows", "rows_led_by_others"]


def plan_rows(rows: Sequence[Row], zones: Mapping[str, str], replicas: int) -> tuple[Row, ...]:
    """Return the wanted row of each partition.

    Args:
        rows: the present ones; () of a partition without copies.
        zones: of the nodes that may have copies.
        replicas: wanted copies besides the active one.
    """
    layout = _Layout(rows, zones, replicas + 1)
    layout.fill()
    layout.spread_zones()
    layout.balance()
    layout.balance_active()
    return layout.rows()


class _Layout:
    """Rows that are being changed, without empty places; `load` counts copies by node."""

    def __init__(self, rows: Sequence[Row], zones: Mapping[str, str], width: int) -> None:
        self.zones, self.width, self.names = zones, width, sorted(zones)
        self.spread = min(width, len(set(zones.values())))
        self.kept = [
            [name for name in row if name is not None and name in zones][:width] for row in rows
        ]
        self.load = dict.fromkeys(self.names, 0)
        for row in self.kept:
            for name in row:
                self.load[name] += 1

    def rows(self) -> tuple[Row, ...]:
        return tuple((*row, *[None] * (self.width - len(row))) for row in self.kept)

    def fill(self) -> None:
        """Fill places: a new zone first, then the node with the least load, then by name."""
        for row in self.kept:
            while len(row) < min(self.width, len(self.names)):
                coming = min(
                    (name for name in self.names if name not in row),
                    key=lambda name: (not self._fits(row, None, name), self.load[name], name),
                )
                row.append(coming)
                self.load[coming] += 1

    def spread_zones(self) -> None:
        """While a row has fewer zones than it could, move the copy with the most loaded node."""
        for row in self.kept:
            while len(self._zones_of(row)) < min(self.spread, len(row)):
                used = [self.zones[name] for name in row]
                leaving = max(
                    (name for name in row if used.count(self.zones[name]) > 1),
                    key=lambda name: (self.load[name], name),
                )
                coming = min(
                    (name for name in self.names if self.zones[name] not in used),
                    key=lambda name: (self.load[name], name),
                )
                self._move(row, leaving, coming)

    def balance(self) -> None:
        """While two nodes differ by 2 copies or more and one may move, move it."""
        while self._move_one():
            pass

    def _move_one(self) -> bool:
        for high in sorted(self.names, key=lambda name: (-self.load[name], name)):
            for low in sorted(self.names, key=lambda name: (self.load[name], name)):
                if self.load[high] - self.load[low] < 2:
                    break
                for row in self.kept:
                    if high in row and self._fits(row, high, low):
                        self._move(row, high, low)
                        return True
        return False

    def balance_active(self) -> None:
        """While a row's first node has 2 more active copies than another of it, swap them."""
        first = dict.fromkeys(self.names, 0)
        for row in self.kept:
            if row:
                first[row[0]] += 1
        is_moved = True
        while is_moved:  # each swap lowers the sum of squares
            is_moved = False
            for row in self.kept:
                best = min(row, key=lambda name: (first[name], name), default=None)
                if best is not None and first[row[0]] - first[best] >= 2:
                    first[row[0]] -= 1
                    first[best] += 1
                    row.remove(best)
                    row.insert(0, best)
                    is_moved = True

    def _fits(self, row: list[str], leaving: str | None, coming: str) -> bool:
        """Return whether the row may have this node: with as many zones as before, or enough."""
        if coming in row:
            return False
        rest = [name for name in row if name != leaving] + [coming]
        zones = len(self._zones_of(rest))
        return zones >= min(self.spread, len(rest)) or (
            leaving is not None and zones >= len(self._zones_of(row))
        )

    def _zones_of(self, row: list[str]) -> set[str]:
        return {self.zones[name] for name in row}

    def _move(self, row: list[str], leaving: str, coming: str) -> None:
        row[row.index(leaving)] = coming
        self.load[leaving] -= 1
        self.load[coming] += 1


def plan_index(
    owners: Sequence[str | None],
    nodes: Sequence[str],
    actives: Sequence[str | None] = (),
) -> tuple[str | None, ...]:
    """Return the wanted owner of each partition's index; of no nodes, None for each.

    Args:
        owners: the present ones.
        nodes: that may own index parts.
        actives: with equal load the node that has the partition active is taken; () where not
            all data nodes are index nodes.
    """
    if not nodes:
        return tuple(None for _ in owners)
    names = sorted(nodes)
    result = [owner if owner in names else None for owner in owners]
    load = {name: result.count(name) for name in names}

    def least_loaded(partition: int) -> str:
        near = actives[partition] if actives else None
        return min(names, key=lambda name: (load[name], name != near, name))

    for partition, owner in enumerate(result):
        if owner is None:
            result[partition] = coming = least_loaded(partition)
            load[coming] += 1
    while max(load.values()) - min(load.values()) > 1:
        high = max(names, key=lambda name: (load[name], name))
        partition = result.index(high)
        result[partition] = coming = least_loaded(partition)
        load[high] -= 1
        load[coming] += 1
    return tuple(result)


def rows_led_by_others(rows: Sequence[Row], leaving: frozenset[str]) -> tuple[Row, ...]:
    """Return the rows, led by other nodes where they can be; no copy moves."""
    first: dict[str, int] = {}
    for row in rows:
        if row[0] is not None:
            first[row[0]] = first.get(row[0], 0) + 1
    result = []
    for row in rows:
        others = [name for name in row if name is not None and name not in leaving]
        if row[0] in leaving and others:
            lead = min(others, key=lambda name: (first.get(name, 0), name))
            first[lead] = first.get(lead, 0) + 1
            row = (lead, *(name for name in row if name != lead))
        result.append(row)
    return tuple(result)
