"""`millstream bench BUCKET`: what one client measures against a running node.

Invariants:
1. Only documents whose keys begin with `KEY_PREFIX` are written; they are deleted at the end.

Elsewhere: the project's benchmarks with compiled load generators (`bench/`). A Python client is
itself the slower side: the figures tell what such a client gets, not what the node can do.
"""

from __future__ import annotations

import json as json_module
import os
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, NamedTuple

import typer

from millstream.cli.connect import (
    BucketArgument,
    JsonOption,
    NodeOptions,
    at_node,
    client_of,
    tls_of,
    who_of,
)
from millstream.client.bulk import BulkReader, Range
from millstream.client.connection import PORT_DEFAULT, Connection
from millstream.client.kv import Client
from millstream.model.addresses import parse_address
from millstream.model.position import Position

__all__ = ["KEY_PREFIX", "command"]

KEY_PREFIX: Final = "millstream-bench::"
_ONE_BY_ONE: Final = 2000
_CHUNK: Final = 10_000


class _Measured(NamedTuple):
    what: str
    done: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.done / self.seconds if self.seconds else 0.0


@at_node
def command(
    bucket: BucketArgument,
    documents: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="Documents written and read.")
    ] = 100_000,
    size: Annotated[int, typer.Option(min=1, max=1_000_000, help="Bytes of each value.")] = 256,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Measure a running node with one client: writes, reads, change stream.

    Documents of its own are written into the bucket and deleted at the end.
    """
    who, tls = who_of(at.user, at.password_file), tls_of(at.tls_ca)
    host, port = parse_address(at.address, default_port=PORT_DEFAULT)
    with client_of(bucket, **at.options) as client:
        try:
            found = _measure(client, documents, size)
            with Connection(
                host, port, user=who.user, password=who.password, tls=tls, bucket=bucket
            ) as connection:
                found.append(_stream(client, connection))
        finally:
            client.apply_many((key, None) for key in _keys(documents))
    if json:
        print(
            json_module.dumps([{**one._asdict(), "per_second": one.per_second} for one in found])
        )
        return
    for one in found:
        print(f"{one.what:<34}{one.done:>12,}{one.seconds:>10.2f} s{one.per_second:>14,.0f} /s")


def _keys(count: int) -> Iterator[str]:
    return (f"{KEY_PREFIX}{number}" for number in range(count))


def _measure(client: Client, documents: int, size: int) -> list[_Measured]:
    value = os.urandom((size + 1) // 2).hex()[:size].encode()
    few = list(_keys(min(documents, _ONE_BY_ONE)))

    def write() -> None:
        client.apply_many((key, value) for key in _keys(documents)).raise_first()

    def read() -> None:
        keys = list(_keys(documents))
        for at in range(0, documents, _CHUNK):
            client.get_many(keys[at : at + _CHUNK])

    def write_durably() -> None:
        for key in few:
            client.upsert(key, value, durability="persisted")

    return [
        _timed("write, pipelined", documents, write),
        _timed("read, pipelined", documents, read),
        _timed("write, one by one", len(few), lambda: [client.upsert(k, value) for k in few]),
        _timed("write, one by one, persisted", len(few), write_durably),
        _timed("read, one by one", len(few), lambda: [client.get(k) for k in few]),
    ]


def _stream(client: Client, connection: Connection) -> _Measured:
    ranges = [
        Range(at.partition_id, Position(0, 0, 0, 0), at.high_seqno)
        for at in client.positions()
        if at.high_seqno
    ]
    reader = BulkReader(connection)
    count = 0
    began = time.perf_counter()
    for chunk in reader.read(ranges):
        count += len(chunk)
    return _Measured("change stream from the start, bytes", count, time.perf_counter() - began)


def _timed(what: str, count: int, work: Callable[[], Any]) -> _Measured:
    began = time.perf_counter()
    work()
    return _Measured(what, count, time.perf_counter() - began)
