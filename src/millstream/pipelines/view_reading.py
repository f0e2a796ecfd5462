"""Reading the rows of views: from the bucket `BUCKET-views` to the answer of a query.

Needs no Spark: the documents of the store are few and are read whole, in one pass over its change
stream.

Invariants:
1. Rows of another signature than the header's are left out: they belong to an older version of
   the design document, or to a newer one that is being built.

Elsewhere: the layout of the store (`view_store`), the rules of queries (`views.core.query`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec

from millstream.client.kv import Client
from millstream.errors import AccessError, ConditionError, UsageError
from millstream.pipelines.bucket_changes import Endpoint, scan
from millstream.pipelines.view_store import STORE_SUFFIX, header_key
from millstream.views.aio.mapping import Mapper, open_mapper, reduce_groups
from millstream.views.core.collation import encode_key
from millstream.views.core.design import DesignDocument, parse_design
from millstream.views.core.query import MapRow, Query, ReducedRow, query_map, query_reduced
from millstream.views.core.reduce import merge

__all__ = [
    "ViewRows",
    "read_header",
    "read_view",
]


class _StoredRow(msgspec.Struct):
    ddoc: str
    view: str
    signature: str
    key: Any
    value: Any = None
    id: str | None = None
    rows: list[Any] = []


_STORED: Final = msgspec.json.Decoder(_StoredRow)


@dataclass(slots=True)
class ViewRows:
    """All rows of one view, sorted; one of `mapped` and `reduced` is filled."""

    header: dict[str, Any]
    design: DesignDocument
    number: int
    mapped: list[MapRow] = field(default_factory=list)
    reduced: list[ReducedRow] = field(default_factory=list)

    @property
    def has_reduce(self) -> bool:
        """Whether the view has a reduce function."""
        return bool(self.design.views[self.number].reduce)

    def answer(self, query: Query) -> dict[str, Any]:
        """Answer a query: `{"rows"}`, for rows of a map also `total_rows` and `offset`.

        Raises:
            UsageError: `query_parse_error`.
        """
        query.check(self.has_reduce)
        if query.include_docs or query.update_seq or query.at is not None:
            raise UsageError(
                "rows that a pipeline keeps have neither documents nor positions: put the design "
                "document into the bucket to have include_docs, update_seq and at",
                code="query_parse_error",
            )
        if query.is_reduced(self.has_reduce):
            view = self.design.views[self.number]
            if not view.has_own_reduce:
                return {"rows": query_reduced(self.reduced, query, partial(merge, view.reduce))}
            with closing(open_mapper(self.design)) as mapper:
                return {"rows": query_reduced(self.reduced, query, partial(self._merge, mapper))}
        if self.has_reduce:
            raise UsageError(
                "reduce=false: only the reduced rows of this view are kept; put the same map "
                "without a reduce into the design document to have its rows",
                code="query_parse_error",
            )
        return query_map(self.mapped, query)

    def _merge(self, mapper: Mapper, partials: list[Any]) -> Any:
        return reduce_groups(mapper, self.number, [(None, partials)])[0]


def read_header(client: Client, ddoc: str) -> dict[str, Any]:
    """Return the header that the pipeline of a design document keeps.

    Raises:
        ConditionError: `missing`: no pipeline has run for it.
    """
    found = client.get(header_key(ddoc))
    if found is None or not isinstance(found.value, dict):
        raise _missing(client.bucket.removesuffix(STORE_SUFFIX), ddoc)
    return found.value


def _missing(bucket: str, ddoc: str) -> ConditionError:
    return ConditionError(
        f"bucket {bucket!r} has no rows of design document {ddoc!r}: run "
        f"`millstream pipeline run views {bucket} --ddoc {ddoc}`",
        code="missing",
    )


def read_view(endpoint: Endpoint, bucket: str, ddoc: str, view: str) -> ViewRows:
    """Read all rows of a view. O(rows of all views of the bucket).

    Args:
        endpoint: of a node.
        bucket: the bucket whose view it is.
        ddoc: name of the design document.
        view: name of the view.

    Raises:
        ConditionError: `missing`: no pipeline has run for the design document.
        UsageError: `missing_named_view`.
        AccessError: no right to read, or no such bucket.
    """
    try:
        client = endpoint.client(bucket + STORE_SUFFIX)
    except AccessError as error:
        if error.code == "unknown_bucket":
            raise _missing(bucket, ddoc) from error
        raise
    with client:
        header = read_header(client, ddoc)
        design = parse_design(header["design"], ddoc)
        rows = ViewRows(header, design, design.number_of(view))
        # Both members are written by the store in this order and form.
        named = b'{"ddoc":' + msgspec.json.encode(ddoc) + b',"view":' + msgspec.json.encode(view)
        named += b","
        documents = scan(endpoint, client).values()
        _sort(rows, [_STORED.decode(value) for value in documents if value.startswith(named)])
    return rows


def _sort(rows: ViewRows, stored: Sequence[_StoredRow]) -> None:
    for row in stored:
        if row.signature != rows.design.named_signature:
            continue
        ekey = encode_key(row.key)
        if row.id is None:
            rows.reduced.append(ReducedRow(ekey, row.key, row.value))
        else:
            doc_id = row.id.encode(errors="surrogatepass")
            rows.mapped += [MapRow(ekey, doc_id, row.key, value) for value in row.rows]
    rows.mapped.sort(key=lambda row: (row.ekey, row.id))
    rows.reduced.sort(key=lambda row: row.ekey)
