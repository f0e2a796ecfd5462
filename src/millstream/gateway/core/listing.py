"""Lists of documents: which of them are shown, in which order.

Invariants:
1. Ids are in the order of their bytes, not in that of views.
2. `keys` are answered in their order, duplicates repeated, and missing ones as error rows.

Elsewhere: parameters (`views.core.query.parameters`), pages
(`gateway.aio.databases.design_pages`). Source: CouchDB's `_all_docs`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from millstream.errors import UsageError
from millstream.gateway.core.documents import document_text
from millstream.views.core.query.parameters import MISSING, Query

__all__ = ["Listed", "list_documents"]


class Listed(NamedTuple):
    """One document of a list."""

    id: str
    rev: str
    body: bytes


def list_documents(documents: Sequence[Listed], query: Query) -> dict[str, Any]:
    """Return the answer to a query.

    Args:
        documents: all that are not deleted, sorted by the bytes of their ids.
        query: parsed and checked without reduce; parameters without meaning for a list are
            ignored.

    Raises:
        UsageError: `query_parse_error`: a key that is no string.
    """
    shown = _row_with_document if query.include_docs else _row
    if query.keys is not None:
        return _by_keys(documents, query, shown)
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
    return {
        "total_rows": len(ids),
        "offset": min(offset + query.skip, len(ids)),
        "rows": [shown(document) for document in cut],
    }


def _by_keys(
    documents: Sequence[Listed], query: Query, shown: Callable[[Listed], Mapping[str, Any]]
) -> dict[str, Any]:
    by_id = {document.id: document for document in documents}
    keys = list(query.keys or ())
    if query.descending:
        keys.reverse()
    rows: list[Mapping[str, Any]] = []
    for key in keys[query.skip : None if query.limit is None else query.skip + query.limit]:
        document = by_id.get(_text(key))
        rows.append({"key": key, "error": "not_found"} if document is None else shown(document))
    return {"total_rows": len(documents), "offset": None, "rows": rows}


def _edge(ids: Sequence[bytes], key: Any, default: int, *, is_after: bool) -> int:
    if key is MISSING:
        return default
    search = bisect_right if is_after else bisect_left
    return search(ids, _text(key).encode(errors="surrogatepass"))


def _text(key: Any) -> str:
    if not isinstance(key, str):
        raise UsageError(f"key {key!r}: ids are strings", code="query_parse_error")
    return key


def _row(document: Listed) -> dict[str, Any]:
    return {"id": document.id, "key": document.id, "value": {"rev": document.rev}}


def _row_with_document(document: Listed) -> dict[str, Any]:
    text = document_text(document.id, document.rev, document.body)
    return _row(document) | {"doc": msgspec.Raw(text)}
