"""What the commands for documents share where they speak of design documents, over HTTP.

Invariants:
1. The HTTP port is that of the node with the active copy of the document's partition, which the
   node whose kv port was named knows.

Elsewhere: the commands (`cli.put`, `cli.get`, `cli.delete`), what they ask (`client.databases`).
"""

from __future__ import annotations

import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from millstream.cli.connect import Who, client_of, tls_of, who_of
from millstream.client.databases import DESIGN, Database
from millstream.client.http import http_of
from millstream.client.kv import Client
from millstream.errors import UsageError
from millstream.model.partitions import partition_of
from millstream.wire.cluster_map import ClusterMap, NodeAddress

__all__ = ["database_of", "is_design", "refuse_options"]

REQUEST_S: Final = 60.0
"""Longest wait for one answer: functions are compiled, documents made durable."""


def is_design(key: str) -> bool:
    """Return whether a key is that of a design document."""
    return key.startswith(DESIGN)


def database_of(
    bucket: str,
    key: str,
    *,
    address: str,
    user: str | None,
    password_file: Path | None,
    tls_ca: Path | None,
) -> Database:
    """Return a bucket over HTTP, on the node where a design document can be changed.

    Raises:
        MillstreamError: as `client_of`; `no_http`.
    """
    who: Who = who_of(user, password_file)
    tls: ssl.SSLContext | None = tls_of(tls_ca)

    def connected(to: str) -> Client:
        return client_of(bucket, address=to, user=user, password_file=password_file, tls_ca=tls_ca)

    with ExitStack() as stack:
        client = stack.enter_context(connected(address))
        owner = _owner_of(client.cluster_map, key)
        if owner != client.cluster_map.here:
            client = stack.enter_context(connected(f"{owner.host}:{owner.port}"))
        http = http_of(client, user=who.user, password=who.password, tls=tls, timeout_s=REQUEST_S)
    return Database(http, bucket)


def _owner_of(cluster_map: ClusterMap, key: str) -> NodeAddress:
    """Return the node with the active copy of a key; the asked node if there is none."""
    at = cluster_map.owners[partition_of(key.encode(), cluster_map.partition_count)]
    return cluster_map.here if at < 0 else cluster_map.nodes[at]


def refuse_options(given: dict[str, bool]) -> None:
    """Refuse options that design documents do not have.

    Raises:
        UsageError: `bad_arguments`.
    """
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong:
        raise UsageError(
            f"{', '.join(wrong)}: not for design documents, which have a revision and are "
            "always durable",
            code="bad_arguments",
        )
