"""Who reads a bucket's change stream at this node: `/_millstream/buckets/NAME/readers`.

Invariants:
1. Only administrators are answered.
2. The name that a reader gave itself tells its kind; a name that tells nothing is "other".

Elsewhere: the streams (`upr.core.producer`), leases (`kv.core.leases`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, TypedDict

import msgspec
from aiohttp import web

from millstream.gateway.aio.answers import NODE_API, require
from millstream.gateway.aio.describing import gives
from millstream.gateway.aio.streaming import stream
from millstream.gateway.core.api.readers import ReaderStatus, StreamAt
from millstream.runtime.pace import Turns

__all__ = ["KINDS", "kind_of", "routes"]

KINDS: Final = (
    ("millstream:replication:", "copy"),
    ("millstream:index:", "index"),
    ("millstream-consumer-", "consumer"),
    ("millstream-bulk-", "bulk"),
)
"""How the names of our own readers begin, and what these are; Spark reads in bulk."""


class ReaderTold(TypedDict):
    """Who streams a bucket; `lag` in changes, `since_ms` is Unix time."""

    name: str
    kind: str
    address: str
    user: str
    since_ms: int
    lag: int
    lag_s: float | None
    last_rollback: Mapping[str, int] | None
    bytes_waiting: int
    sent_bytes: int
    streams: Sequence[StreamAt]


class HeldTold(TypedDict):
    """A partition of a lease, and the seqno as of which it is held."""

    partition: int
    seqno: int


class LeaseTold(TypedDict):
    """A lease: which old versions are kept, and for how long."""

    lease: str
    seconds_left: float
    holds: list[HeldTold]


class ReadersTold(TypedDict):
    """`past_rollbacks`: of readers that have gone."""

    readers: list[ReaderTold]
    leases: list[LeaseTold]
    past_rollbacks: list[dict[str, str | int]]


def kind_of(name: str) -> str:
    """Return what a reader is."""
    return next((kind for begin, kind in KINDS if name.startswith(begin)), "other")


def _shown(reader: ReaderStatus) -> ReaderTold:
    return {
        "name": reader.name,
        "kind": kind_of(reader.name),
        "address": reader.address,
        "user": reader.user,
        "since_ms": reader.since_ms,
        "lag": max((stream.lag for stream in reader.streams), default=0),
        "lag_s": _lag_s(reader),
        "last_rollback": reader.last_rollback,
        "bytes_waiting": reader.bytes_waiting,
        "sent_bytes": reader.sent_bytes,
        "streams": reader.streams,
    }


def _lag_s(reader: ReaderStatus) -> float | None:
    """Return the largest of all partitions; None if one is not known."""
    lags_s = [stream.lag_s for stream in reader.streams]
    return None if None in lags_s else max(filter(None, lags_s), default=0.0)


async def _pieces(
    readers: list[ReaderStatus], leases: list[LeaseTold], rollbacks: list[Any]
) -> AsyncIterator[bytes]:
    """Yield the answer; others have turns between readers."""
    turns, encode = Turns(), msgspec.json.encode
    yield b'{"readers":['
    for number, reader in enumerate(readers):
        await turns.give()
        yield (b"," if number else b"") + encode(_shown(reader))
    yield b'],"leases":%b,"past_rollbacks":%b}\n' % (encode(leases), encode(rollbacks))


@gives(ReadersTold)
async def _readers(request: web.Request) -> web.StreamResponse:
    """Tell who reads a bucket, how far each is, and which leases there are.

    Right: admin.
    """
    require(request, "admin")
    api, name = request.app[NODE_API], request.match_info["name"]
    readers = await api.readers(name)
    leases: list[LeaseTold] = [
        {
            "lease": f"{lease.lease_id:016x}",
            "seconds_left": lease.seconds_left,
            "holds": [{"partition": p, "seqno": at} for p, at in lease.holds.items()],
        }
        for lease in api.leases(name)
    ]
    rollbacks = [{"name": reader, **one} for reader, one in api.past_rollbacks(name)]
    return await stream(request, _pieces(readers, leases, rollbacks), {})


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [web.get("/_millstream/buckets/{name}/readers", _readers)]
