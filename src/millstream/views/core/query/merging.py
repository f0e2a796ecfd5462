"""Merges the parts of several nodes into one answer: rows by key, groups by reducing again.

The rows of a part are sorted. A row can be sent if it is not after the smallest of the last rows
received from each node, because no later row comes before it.

Invariants:
1. The answer equals that of one node with all partitions, in the same order (in any order if the
   query is not sorted).
2. At most one message of each node waits here for another node: the caller reads only from the
   nodes in `waiting`.
3. `skip` and `limit` are applied only here; each node is asked for the sum of both.
4. All parts are of one index: a part with another signature is refused.

Elsewhere: the parts (`views.core.query.partial_answers`), requests
(`views.aio.serving.gathering`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import replace
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from millstream.errors import RemoteProtocolError, RoutingError
from millstream.views.core.design.emits import cut_rows, emits_in
from millstream.views.core.query.executor import Group
from millstream.views.core.query.partial_answers import Counts, Groups, Rows
from millstream.views.core.query.wait_for import vector_from_json, vector_to_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from millstream.model.position import Position
    from millstream.views.core.query.parameters import Query
    from millstream.views.core.query.partial_answers import PartMessage

__all__ = ["GroupMerge", "Heads", "RowMerge", "merge_counts", "part_query"]


class GroupReducer(Protocol):
    """The reduces of a tree (`views.core.reduce.reductions`)."""

    def rereduce(self, groups: Sequence[Sequence[bytes]]) -> list[bytes]:
        """Return one partial result per group of such."""


class Heads(NamedTuple):
    """What an answer says before its rows."""

    total_rows: int | None
    offset: int | None
    update_seq: str | None


def part_query(query: Query) -> Query:
    """Return what each node is asked: all rows that may be among those answered."""
    limit = None if query.limit is None else query.skip + query.limit
    return replace(query, skip=0, limit=limit)


def merge_counts(counts: Sequence[Counts], query: Query) -> Heads:
    """Return the head of the whole answer.

    Raises:
        RoutingError: `design_differs`: the nodes have different versions of a design document.
    """
    if len({each.signature for each in counts}) > 1:
        raise RoutingError(
            "nodes have different versions of this design document: ask again in a moment",
            code="design_differs",
        )
    total_rows = offset = None
    if query.sorted and all(each.total_rows is not None for each in counts):
        total_rows = sum(each.total_rows or 0 for each in counts)
        offset = min(sum(each.offset or 0 for each in counts) + query.skip, total_rows)
    return Heads(total_rows, offset, _merged_seqs(counts) if query.update_seq else None)


def _merged_seqs(counts: Sequence[Counts]) -> str:
    positions: dict[int, Position] = {}
    for each in counts:
        vector = vector_from_json(each.update_seq or "0-kA")
        positions |= {partition: wanted.position for partition, wanted in vector.items()}
    return vector_to_text(positions)


class _Run:
    """What one node has sent and is not given out: by range, ascending by key."""

    __slots__ = ("has_ended", "part", "stretches")

    def __init__(self) -> None:
        self.stretches: deque[tuple[int, Sequence[bytes], Sequence[Any]]] = deque()
        self.part = -1
        self.has_ended = False


_Keyed = tuple[bytes, Any]
_key_of: Final = itemgetter(0)
_name_of: Final = attrgetter("name")


class _Merge:
    """Items of several nodes by (part, key), in the order of the query."""

    def __init__(self, nodes: Iterable[str], query: Query) -> None:
        self._runs = {node: _Run() for node in nodes}
        self._descending = query.descending
        self._skip, self._left = query.skip, query.limit

    @property
    def is_done(self) -> bool:
        """Whether the answer is complete, whatever may still come."""
        return self._left == 0 or self.has_ended

    def waiting(self) -> list[str]:
        """Return the nodes without whose next message nothing more can be given out."""
        return [
            node for node, run in self._runs.items() if not run.stretches and not run.has_ended
        ]

    def end(self, node: str) -> None:
        """Nothing more comes from a node; what it gave stays good."""
        self._runs[node].has_ended = True

    @property
    def has_ended(self) -> bool:
        """Whether all has been given out."""
        return all(run.has_ended and not run.stretches for run in self._runs.values())

    def _put(self, node: str, part: int, keys: Sequence[bytes], items: Sequence[Any]) -> None:
        """Take what a node sent; `keys` in the order of the query."""
        run = self._runs[node]
        if part < run.part:
            raise _unexpected(node)
        run.part = part
        if self._descending:
            keys, items = keys[::-1], items[::-1]
        run.stretches.append((part, keys, items))

    def _take(self) -> tuple[int, list[_Keyed]]:
        """Return (part, what can be given out of it), in the order of the query."""
        filled = [run.stretches for run in self._runs.values() if run.stretches]
        if not filled or self.waiting():
            return 0, []
        part = min(stretches[0][0] for stretches in filled)
        here = [stretches for stretches in filled if stretches[0][0] == part]
        if self._descending:
            horizon = max(stretches[0][1][0] for stretches in here)
        else:
            horizon = min(stretches[0][1][-1] for stretches in here)
        found: list[_Keyed] = []
        for stretches in here:
            _, keys, items = stretches.popleft()
            cut = (bisect_left if self._descending else bisect_right)(keys, horizon)
            below, above = (slice(cut), slice(cut, None))
            given, left = (above, below) if self._descending else (below, above)
            found += zip(keys[given], items[given], strict=True)
            if keys[left]:
                stretches.appendleft((part, keys[left], items[left]))
        found.sort(key=_key_of, reverse=self._descending)
        return part, found


class RowMerge(_Merge):
    """Merges rows."""

    def receive(self, node: str, message: PartMessage) -> None:
        """Take rows of a node that is waited for.

        Raises:
            RemoteProtocolError: `bad_part`.
        """
        if not isinstance(message, Rows):
            raise _unexpected(node)
        self._put(node, message.part, message.keys, message.values)

    def take(self) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """Return the rows that can be given out now, keys and values; none if more is needed."""
        _, found = self._take()
        keys: Sequence[bytes] = [key for key, _ in found]
        values: Sequence[bytes] = [value for _, value in found]
        here = emits_in(values)
        keys, values = cut_rows(keys, values, self._skip, self._left)
        self._skip = max(0, self._skip - here)
        if self._left is not None:
            self._left -= emits_in(values)
        return keys, values


class GroupMerge(_Merge):
    """Merges groups: equal ones are reduced again, once all nodes have given theirs."""

    def __init__(self, nodes: Iterable[str], query: Query, reducer: GroupReducer) -> None:
        super().__init__(nodes, query)
        self._reducer = reducer

    def receive(self, node: str, message: PartMessage) -> None:
        """Take groups of a node that is waited for.

        Raises:
            RemoteProtocolError: `bad_part`.
        """
        if not isinstance(message, Groups) or not message.groups:
            raise _unexpected(node)
        for part, same in groupby(message.groups, key=attrgetter("part")):
            groups = list(same)
            self._put(node, part, [group.name for group in groups], groups)

    def take(self) -> list[Group]:
        """Return the groups that can be given out now; none if more is needed."""
        part, found = self._take()
        same = [list(groups) for _, groups in groupby((g for _, g in found), key=_name_of)]
        first = max if self._descending else min
        shown = [first(groups, key=attrgetter("first")) for groups in same]
        taken = slice(self._skip, None if self._left is None else self._skip + self._left)
        self._skip = max(0, self._skip - len(same))
        same, shown = same[taken], shown[taken]
        if self._left is not None:
            self._left -= len(same)
        several = [[group.partial for group in groups] for groups in same if len(groups) > 1]
        merged = iter(self._reducer.rereduce(several) if several else ())
        return [
            group._replace(part=part, partial=next(merged) if len(groups) > 1 else group.partial)
            for group, groups in zip(shown, same, strict=True)
        ]


def _unexpected(node: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"node {node} sent an unexpected answer", code="bad_part")
