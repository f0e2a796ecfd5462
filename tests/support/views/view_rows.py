"""Rows of views for tests: a list instead of a tree, reduces of numbers, and answers worked out
the slow way."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import msgspec

from millstream.trees.core.nodes import NodeCache
from millstream.trees.core.reader import TreeReader
from millstream.trees.core.writer import TreeWriter
from millstream.views.core.collation import encode_key
from millstream.views.core.query.executor import View
from millstream.views.core.reduce.reductions import ViewReducer
from millstream.views.core.rows import pairs_of, row_key, row_value
from support.views.query_reference import MapRow, query_map

__all__ = [
    "TREE_REDUCER",
    "Emit",
    "ListReader",
    "SumAndCount",
    "answer_of",
    "groups_of",
    "kept_rows",
    "map_rows",
    "view_of",
]


class Emit(NamedTuple):
    """One emit of a document; `key` and `value` are decoded JSON."""

    doc_id: str
    partition: int
    key: object
    value: object


def kept_rows(emits, padding=b""):
    """Return the rows of a tree: sorted (row key, partition, row value)."""
    rows = {}
    for emit in emits:
        key = row_key(encode_key(emit.key), emit.doc_id.encode())
        pair = (msgspec.json.encode(emit.key), msgspec.json.encode(emit.value) + padding)
        rows.setdefault(key, (emit.partition, []))[1].append(pair)
    return [(key, partition, row_value(pairs)) for key, (partition, pairs) in sorted(rows.items())]


class ListLeaf(NamedTuple):
    keys: list[bytes]
    values: list[bytes]


class SumAndCount:
    """Two reduces: 0 the sum of the values, 1 their number; the partial is both as JSON."""

    def reduce(self, values):
        numbers = [msgspec.json.decode(text) for value in values for _, text in pairs_of(value)]
        return msgspec.json.encode([sum(numbers), len(numbers)])

    def rereduce(self, groups):
        columns = [zip(*map(msgspec.json.decode, partials), strict=True) for partials in groups]
        return [msgspec.json.encode([sum(column) for column in each]) for each in columns]

    def finalize(self, number, partial):
        return msgspec.json.decode(partial)[number]


class ListReader:
    """A `RowReader` over a sorted list, in leaves of `leaf_size` rows."""

    def __init__(self, rows, leaf_size=3, reducer=None):
        self.rows = rows
        self.keys = [key for key, _, _ in rows]
        self.leaf_size = leaf_size
        self.reducer = reducer or SumAndCount()
        self.leaves_read = 0

    def _within(self, low, high, wanted):
        start, end = 0, len(self.rows)
        if low is not None:
            start = (bisect_left if low[1] else bisect_right)(self.keys, low[0])
        if high is not None:
            end = (bisect_right if high[1] else bisect_left)(self.keys, high[0])
        return [row for row in self.rows[start:end] if wanted is None or wanted >> row[1] & 1]

    def count(self, low, high, wanted):
        return len(self._within(low, high, wanted))

    def reduce(self, low, high, wanted):
        values = [value for _, _, value in self._within(low, high, wanted)]
        return self.reducer.reduce(values) if values else None

    def scan(self, low, high, *, descending, wanted, skip):
        rows = self._within(low, high, wanted)
        rows = (rows[::-1] if descending else rows)[skip:]
        for at in range(0, len(rows), self.leaf_size):
            self.leaves_read += 1
            part = rows[at : at + self.leaf_size]
            yield ListLeaf([key for key, _, _ in part], [value for _, _, value in part])

    def groups(self, group_of, low, high, *, wanted, descending):
        rows = self._within(low, high, wanted)
        found = [list(same) for _, same in groupby(rows, key=lambda row: group_of(row[0]))]
        for same in found[::-1] if descending else found:
            partial = self.reducer.reduce([value for _, _, value in same])
            first = same[-1 if descending else 0]
            yield first[0], first[2], partial


def view_of(emits, **options):
    """A view of these emits."""
    reader = ListReader(kept_rows(emits), **options)
    return View(reader, encode_key, lambda partial: msgspec.json.decode(partial)[1])


class _Nodes(dict):
    def read(self, number):
        return self[number]


TREE_REDUCER = ViewReducer(("_count", "_sum"))


def tree_view_of(emits):
    """The same over a real tree; space in the values leaves room for few in a leaf."""
    nodes, reducer = _Nodes(), TREE_REDUCER
    writer = TreeWriter(nodes, 1, sink=nodes.update)
    root = writer.load(iter(kept_rows(emits, b" " * 1000)), reducer)
    nodes.update(writer.written)
    reader = TreeReader(nodes, root, NodeCache(), reducer)
    return View(reader, encode_key, lambda partial: int(reducer.finalize(0, partial)))


def map_rows(emits, wanted=None):
    """The same rows as `views.core.query.parameters` takes them."""
    return sorted(
        (
            MapRow(encode_key(emit.key), emit.doc_id.encode(), emit.key, emit.value)
            for emit in emits
            if wanted is None or wanted >> emit.partition & 1
        ),
        key=lambda row: (row.ekey, row.id),
    )


def answer_of(emits, query, wanted=None):
    """What a map query answers."""
    return query_map(map_rows(emits, wanted), query)


def groups_of(emits, query, wanted=None):
    """What a reduce query answers: [(key, [sum, count])]."""
    singles = [query] if query.keys is None else [
        replace(query, keys=None, key=key) for key in query.keys
    ]  # fmt: skip
    groups = []
    for single in singles:
        rows = answer_of(emits, replace(single, skip=0, limit=None), wanted)["rows"]
        if query.descending:
            rows.reverse()
        found = []
        for _, same in groupby(rows, key=lambda row: encode_key(cut(row["key"], query.level))):
            values = [(row["key"], row["value"]) for row in same]
            total = [sum(value for _, value in values), len(values)]
            found.append((cut(values[-1 if query.descending else 0][0], query.level), total))
        groups += found[::-1] if query.descending else found
    return groups[query.skip :][: query.limit]


def cut(key, level):
    """The key of a group."""
    if level == 0:
        return None
    return key[:level] if level is not None and isinstance(key, list) else key
