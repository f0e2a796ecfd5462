"""Reading the rows of views: from the bucket `BUCKET-views` to the answer of a query.

Needs no Spark: the documents of the store are few and are read whole, in one pass over its change
stream.

Invariants:
1. Rows of another signature than the header's are left out: they belong to an older version of
   the design document, or to a newer one that is being built.

Elsewhere: the layout of the store (`view_store`), the rules of queries (`views.core.query`).
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from millstream.client.bulk import BulkReader, Range
from millstream.client.columns import Columns, cut_columns
from millstream.client.connection import Connection
from millstream.client.kv import Client, connect
from millstream.errors import AccessError, ConditionError, UsageError
from millstream.model.partitions import key_from_text
from millstream.model.position import Position
from millstream.pipelines.view_store import STORE_SUFFIX, header_key
from millstream.views.aio.mapping import Mapper, open_mapper, reduce_groups
from millstream.views.core.collation import encode_key
from millstream.views.core.design import DesignDocument, parse_design
from millstream.views.core.query import MapRow, Query, ReducedRow, query_map, query_reduced
from millstream.views.core.reduce import merge

__all__ = [
    "BucketChanges",
    "Changed",
    "Endpoint",
    "ViewRows",
    "read_header",
    "read_view",
    "scan",
]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a node is, and who asks."""

    address: str
    user: str | None = None
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    def client(self, bucket: str) -> Client:
        """Connect to a bucket; raises as `millstream.connect`."""
        return connect(
            self.address, bucket=bucket, user=self.user, password=self.password, tls=self.tls
        )


class Changed(NamedTuple):
    """Newest value by key, None where deleted; `is_all`: whatever else was known is void."""

    is_all: bool
    documents: dict[bytes, bytes | None]


class BucketChanges:
    """What has changed in a bucket since it was last asked, from its change stream.

    Args:
        endpoint: of a node.
        client: of the bucket.
        prefix: keys that begin otherwise are left out.
        with_values: False leaves values empty.
    """

    def __init__(
        self, endpoint: Endpoint, client: Client, *, prefix: bytes = b"", with_values: bool = True
    ) -> None:
        self._endpoint = endpoint
        self._client = client
        self._prefix = prefix
        self._with_values = with_values
        self._read_to: dict[int, Position] = {}

    def read(self) -> Changed:
        """Return what has changed up to now; all there is at the first call.

        All there is, too, where the node has begun a new history, or has forgotten deletions that
        were not read yet.

        Raises:
            StreamError: the node began a new history meanwhile.
            UnavailableError: it does not answer.
        """
        standing = {found.partition_id: found for found in self._client.positions()}
        is_all = not self._read_to or any(
            standing[partition_id].uuid != position.uuid
            or standing[partition_id].purge_seqno > position.seqno
            for partition_id, position in self._read_to.items()
        )
        if is_all:
            self._read_to = {}
        read_to = {
            partition_id: Position(found.uuid, *[found.high_seqno] * 3)
            for partition_id, found in standing.items()
            if found.high_seqno
        }
        documents: dict[bytes, bytes | None] = {}
        for owner in range(len(self._client.cluster_map.nodes)):
            self._read_from(owner, read_to, documents)
        self._read_to = read_to
        return Changed(is_all, documents)

    def _read_from(
        self, owner: int, read_to: dict[int, Position], documents: dict[bytes, bytes | None]
    ) -> None:
        map_ = self._client.cluster_map
        start = Position(0, 0, 0, 0)
        ranges = [
            Range(partition_id, self._read_to.get(partition_id, start), end.seqno)
            for partition_id, end in read_to.items()
            if map_.owners[partition_id] == owner and self._read_to.get(partition_id) != end
        ]
        if not ranges:
            return
        node = map_.nodes[owner]
        with Connection(
            node.host, node.port, user=self._endpoint.user, password=self._endpoint.password,
            bucket=self._client.bucket, tls=self._endpoint.tls,
        ) as connection:  # fmt: skip
            for chunk in BulkReader(connection, with_values=self._with_values).read(ranges):
                _apply(chunk, self._prefix, documents)


def scan(
    endpoint: Endpoint, client: Client, *, prefix: bytes = b"", with_values: bool = True
) -> dict[bytes, bytes]:
    """Return the documents of the client's bucket whose key begins with `prefix`."""
    changes = BucketChanges(endpoint, client, prefix=prefix, with_values=with_values)
    found = changes.read().documents
    return {key: value for key, value in found.items() if value is not None}


def _apply(chunk: bytes, prefix: bytes, documents: dict[bytes, bytes | None]) -> None:
    columns = Columns()
    cut_columns(chunk, columns)
    for op, text, value in zip(columns.op, columns.key, columns.value, strict=True):
        key = key_from_text(text)
        if key.startswith(prefix):
            documents[key] = (value or b"") if op == "put" else None


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
        if row.signature != rows.design.signature:
            continue
        ekey = encode_key(row.key)
        if row.id is None:
            rows.reduced.append(ReducedRow(ekey, row.key, row.value))
        else:
            doc_id = row.id.encode(errors="surrogatepass")
            rows.mapped += [MapRow(ekey, doc_id, row.key, value) for value in row.rows]
    rows.mapped.sort(key=lambda row: (row.ekey, row.id))
    rows.reduced.sort(key=lambda row: row.ekey)
