"""What is in a bucket, read in bulk without Spark.

Invariants:
1. Every read ends at the high seqnos asked for before it: it comes to its end under any load.

Elsewhere: the stream itself (`client.bulk`), who uses it (`index.setup`).
"""

from __future__ import annotations

import ssl
from contextlib import closing
from dataclasses import dataclass, field

from millstream.client.bulk import BucketRanges, Range
from millstream.client.columns import Columns, cut_columns
from millstream.client.kv import Client, connect
from millstream.model.partitions import key_from_text
from millstream.model.position import Position

__all__ = ["Endpoint", "scan"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a node, and the login."""

    address: str
    user: str | None = None
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    def client(self, bucket: str) -> Client:
        """Connect to a bucket; raises as `millstream.connect`."""
        return connect(
            self.address, bucket=bucket, user=self.user, password=self.password, tls=self.tls
        )


def scan(client: Client, *, prefix: bytes = b"", with_values: bool = True) -> dict[bytes, bytes]:
    """Return the documents of the client's bucket whose key begins with `prefix`.

    Args:
        client: of the bucket.
        prefix: keys that begin otherwise are left out.
        with_values: False leaves values empty.

    Raises:
        StreamError: a node began a new history meanwhile.
        UnavailableError: one does not answer.
    """
    wanted = [
        Range(found.partition_id, Position(), found.high_seqno)
        for found in client.positions()
        if found.high_seqno
    ]
    documents: dict[bytes, bytes | None] = {}
    with closing(BucketRanges(client.router, with_values=with_values)) as ranges:
        for chunk in ranges.read(wanted):
            _apply(chunk, prefix, documents)
    return {key: value for key, value in documents.items() if value is not None}


def _apply(chunk: bytes, prefix: bytes, documents: dict[bytes, bytes | None]) -> None:
    columns = Columns()
    cut_columns(chunk, columns)
    for op, text, value in zip(columns.op, columns.key, columns.value, strict=True):
        key = key_from_text(text)
        if key.startswith(prefix):
            documents[key] = (value or b"") if op == "put" else None
