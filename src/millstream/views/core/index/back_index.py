"""The back-index: the rows of each document in each tree, so that a change can remove them.

    key    partition (u16), document id
    value  msgpack [[tree, [encoded key, ...]], ...], trees and encoded keys ascending

Invariants:
1. A document has an entry if and only if it has a row, and the entry names exactly its rows.
2. Keys start with the partition, so cleaning a partition finds whole subtrees.
3. An unchanged entry causes no operation on the back-index. An unchanged row causes one on its
   tree, which writes nothing.

Elsewhere: bytes of rows (`views.core.rows`), the tree pass (`trees.core`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import Final

import msgspec

from millstream.trees.core.shapes import Operation
from millstream.views.core.index.header import DocumentRows, Row
from millstream.views.core.rows import in_order_of_values, row_key, row_value

__all__ = [
    "Entry",
    "LookUp",
    "back_key",
    "back_value",
    "entry_of",
    "first_rows_of",
    "operations_of",
    "split_back_key",
    "split_back_value",
]

Entry = Mapping[int, Iterable[bytes]]
"""Tree -> encoded keys of one document."""
LookUp = Callable[[Sequence[bytes]], Mapping[bytes, bytes]]
"""Returns the values of those of the sorted back-index keys that are there."""
FirstRow = tuple[bytes, int, bytes]
"""(key, partition, value)"""

_PARTITION: Final = Struct(">H")
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[tuple[int, list[bytes]]]).decode


def back_key(partition: int, doc_id: bytes) -> bytes:
    """Return the key of a document's entry."""
    return _PARTITION.pack(partition) + doc_id


def split_back_key(key: bytes) -> tuple[int, bytes]:
    """Reverse `back_key`."""
    return key[0] << 8 | key[1], key[2:]


def back_value(entry: Entry) -> bytes:
    """Return the value of an entry that has at least one row."""
    return _encode([(tree, sorted(entry[tree])) for tree in sorted(entry)])


def split_back_value(value: bytes) -> list[tuple[int, list[bytes]]]:
    """Reverse `back_value`: (tree, encoded keys)."""
    return _decode(value)


def entry_of(rows: Iterable[Row]) -> dict[int, dict[bytes, list[tuple[bytes, bytes]]]]:
    """Return tree -> encoded key -> (JSON key, JSON value), in the order of the values."""
    entry: dict[int, dict[bytes, list[tuple[bytes, bytes]]]] = {}
    for tree, ekey, json_key, json_value in rows:
        pairs = entry.setdefault(tree, {}).setdefault(ekey, [])
        pairs.append((json_key, json_value))
    for of_tree in entry.values():
        for ekey, pairs in of_tree.items():
            if len(pairs) > 1:
                of_tree[ekey] = in_order_of_values(pairs)
    return entry


def operations_of(
    documents: Iterable[DocumentRows],
    tree_count: int,
    look_up: LookUp,
) -> tuple[list[Operation], list[list[Operation]]]:
    """Return what the back-index and each tree must do for these documents, sorted by key.

    Args:
        documents: changed ones; of one that occurs twice the last counts.
        tree_count: how many trees there are.
        look_up: of what they had.
    """
    by_key = {_PARTITION.pack(each.partition) + each.doc_id: each for each in documents}
    keys = sorted(by_key)
    back: list[Operation] = []
    trees: list[list[Operation]] = [[] for _ in range(tree_count)]
    found = look_up(keys)
    for key in keys:
        document, before = by_key[key], found.get(key)
        if not document.rows and before is None:
            continue
        entry = entry_of(document.rows)
        after = back_value(entry) if entry else None
        if after != before:
            back.append((key, document.partition, after))
            if before is not None:
                _take_out(document, split_back_value(before), entry, trees)
        _put_in(document, entry, trees)
    for operations in trees:
        operations.sort()
    return back, trees


def first_rows_of(
    documents: Iterable[DocumentRows], tree_count: int
) -> tuple[list[FirstRow], list[list[FirstRow]]]:
    """Return what the back-index and each tree have of documents that come once, in any order.

    For who builds an index from nothing; what `operations_of` returns there, without look-ups and
    unsorted. Hot path.
    """
    back: list[FirstRow] = []
    trees: list[list[FirstRow]] = [[] for _ in range(tree_count)]
    pack, encode = _PARTITION.pack, _encode
    for partition, doc_id, rows in documents:
        if len(rows) == 1:
            ((tree, ekey, json_key, json_value),) = rows
            value = encode((json_key, json_value))
            trees[tree].append((row_key(ekey, doc_id), partition, value))
            back.append((pack(partition) + doc_id, partition, encode(((tree, (ekey,)),))))
        elif rows:
            entry = entry_of(rows)
            back.append((pack(partition) + doc_id, partition, back_value(entry)))
            for tree, pairs_of_keys in entry.items():
                trees[tree] += [
                    (row_key(ekey, doc_id), partition, row_value(pairs))
                    for ekey, pairs in pairs_of_keys.items()
                ]
    return back, trees


def _take_out(
    document: DocumentRows,
    before: Iterable[tuple[int, Iterable[bytes]]],
    entry: Mapping[int, Mapping[bytes, object]],
    trees: Sequence[list[Operation]],
) -> None:
    for tree, ekeys in before:
        stays = entry.get(tree, ())
        trees[tree].extend(
            (row_key(ekey, document.doc_id), document.partition, None)
            for ekey in ekeys
            if ekey not in stays
        )


def _put_in(
    document: DocumentRows,
    entry: Mapping[int, Mapping[bytes, Iterable[tuple[bytes, bytes]]]],
    trees: Sequence[list[Operation]],
) -> None:
    for tree, pairs_of_keys in entry.items():
        trees[tree].extend(
            (row_key(ekey, document.doc_id), document.partition, row_value(pairs))
            for ekey, pairs in pairs_of_keys.items()
        )
