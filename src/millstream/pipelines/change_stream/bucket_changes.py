"""What is in a bucket, and what changed in it, read in bulk without Spark.

Invariants:
1. Every read ends at the high seqnos asked for before it: it comes to its end under any load.
2. Positions are kept between reads; where a history is not the one that was read, all there is is
   read again, and said to be so.

Elsewhere: the stream itself (`client.bulk`), who uses it (`index.setup`).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.client.bulk import BulkReader, Range
from millstream.client.columns import Columns, cut_columns
from millstream.client.connection import Connection
from millstream.client.kv import Client, connect
from millstream.model.partitions import key_from_text
from millstream.model.position import Position

__all__ = ["BucketChanges", "Changed", "Endpoint", "scan"]


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
