"""Lists of documents: which of them are shown, in which order.

Invariants:
1. Ids are in the order of their bytes, not in that of views.
2. `keys` are answered in their order, duplicates repeated, and missing ones as error rows.

Elsewhere: parameters (`views.core.query.parameters`), pages
(`gateway.aio.databases.design_pages`). Source: CouchDB's `_all_docs`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from millstream.documents.reading import Piece
from millstream.errors import UsageError
from millstream.gateway.core.documents import document_pieces
from millstream.views.core.query.large_bodies import PackedKeys
from millstream.views.core.query.parameters import (
    MISSING,
    Query,
    body_options,
    multi_options,
    parse_query,
)

__all__ = [
    "Listed", "id_bytes", "keys_asked", "list_documents", "parse_listing", "parse_listings",
]  # fmt: skip


Row = tuple[bytes, tuple[Piece, ...]]
"""The beginning of a row, and the pieces that follow."""


class Listed(NamedTuple):
    """One document of a list."""

    id: str
    rev: str
    body: bytes


def list_documents(
    documents: Sequence[Listed], query: Query, *, is_counted: bool = True
) -> Iterator[Piece]:
    """Return the answer to a query, as the pieces of its text.

    Args:
        documents: all that are not deleted, sorted by the bytes of their ids.
        query: parsed and checked without reduce; parameters without meaning for a list are
            ignored.
        is_counted: whether the number of documents is told.

    Raises:
        UsageError: `query_parse_error`: a key that is no string.
    """
    if query.keys is not None:
        total = len(documents) if is_counted else None
        return _text({"total_rows": total, "offset": None}, _by_keys(documents, query))
    ids = [document.id.encode() for document in documents]
    start, end = (
        (query.key, query.key) if query.key is not MISSING else (query.startkey, query.endkey)
    )
    if query.descending:
        low = _edge(ids, end, 0, is_after=not query.inclusive_end)
        high = _edge(ids, start, len(ids), is_after=True)
    else:
        low = _edge(ids, start, 0, is_after=False)
        high = _edge(ids, end, len(ids), is_after=query.inclusive_end)
    found = list(documents[low : max(low, high)])
    offset = len(ids) - high if query.descending else low
    if query.descending:
        found.reverse()
    cut = found[query.skip : None if query.limit is None else query.skip + query.limit]
    head: dict[str, Any] = {"total_rows": None, "offset": None}
    if is_counted:
        head = {"total_rows": len(ids), "offset": min(offset + query.skip, len(ids))}
    return _text(head, (_row(document, query) for document in cut))


def _text(head: dict[str, Any], rows: Iterable[Row]) -> Iterator[Piece]:
    before = msgspec.json.encode(head)[:-1] + b',"rows":['
    for first, more in rows:
        yield before + first
        yield from more
        before = b","
    yield b"]}\n" if before == b"," else before + b"]}\n"


def parse_listing(body: bytes, url: Mapping[str, Any], is_of_all: bool) -> Query:
    """Return a query for a list of documents; many keys are packed.

    Args:
        body: of the request; empty: there is none.
        url: parameters of its address; they win.
        is_of_all: whether the list is `_all_docs`: keys may be anything, a range may be empty.

    Raises:
        UsageError: `query_parse_error`, `bad_request`.
    """
    return _parsed(body_options(body) | dict(url), is_of_all)


def parse_listings(body: bytes, url: Mapping[str, Any]) -> list[Query]:
    """Return the queries in a body with `queries` to `_all_docs`; raises as `parse_listing`."""
    return [_parsed(dict(url) | options, True) for options in multi_options(body)]


def _parsed(options: Mapping[str, Any], is_of_all: bool) -> Query:
    query = parse_query(options)
    if is_of_all:
        query.check(has_reduce=False, encode=id_bytes, may_be_empty=True)
        for key in (query.key, query.startkey, query.endkey):
            if key is not MISSING:
                id_bytes(key)
    else:
        query.check(has_reduce=False)
        for key in query.keys or ():
            _id(key)
    if query.keys is None:
        return query
    return replace(query, keys=PackedKeys(query.keys))


def id_bytes(value: Any) -> bytes:
    """Return the bytes of an id that a query names.

    Raises:
        UsageError: `query_parse_error`: it is no string.
    """
    return _id(value).encode(errors="surrogatepass")


def keys_asked(query: Query) -> Iterator[Any]:
    """Return the keys that a query names in the order of its rows; `skip` is not applied."""
    keys: Sequence[Any] = query.keys or ()
    return reversed(keys) if query.descending else iter(keys)


def _by_keys(documents: Sequence[Listed], query: Query) -> Iterator[Row]:
    by_id = {document.id: document for document in documents}
    end = None if query.limit is None else query.skip + query.limit
    for key in islice(keys_asked(query), query.skip, end):
        document = by_id.get(_id(key))
        if document is None:
            yield msgspec.json.encode({"key": key, "error": "not_found"}), ()
        else:
            yield _row(document, query)


def _edge(ids: Sequence[bytes], key: Any, default: int, *, is_after: bool) -> int:
    if key is MISSING:
        return default
    search = bisect_right if is_after else bisect_left
    return search(ids, id_bytes(key))


def _id(key: Any) -> str:
    if not isinstance(key, str):
        raise UsageError(f"key {key!r}: ids are strings", code="query_parse_error")
    return key


def _row(document: Listed, query: Query) -> Row:
    row = {"id": document.id, "key": document.id, "value": {"rev": document.rev}}
    head = msgspec.json.encode(row)
    if not query.include_docs:
        return head, ()
    pieces = document_pieces(document.id, document.rev, document.body)
    return head[:-1] + b',"doc":' + pieces[0], (pieces[1], b"}")
