"""Copies and readers of a bucket in the form in which the pages show them.

Elsewhere: the forms (`gateway.core.api.node`), the pages (`gateway.aio.databases`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from millstream.gateway.core.api.node import FollowStatus, PartitionStatus
from millstream.gateway.core.api.readers import ReaderStatus, StreamAt
from millstream.kv.aio.connection import KvConnection
from millstream.kv.aio.engine import BucketEngine
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.streams import BucketStreams
from millstream.runtime.pace import Turns

__all__ = ["partition_statuses", "past_rollbacks", "reader_statuses"]


async def partition_statuses(running: BucketEngine) -> list[PartitionStatus]:
    """Return how the copies of a bucket are; others have turns between them."""
    found, turns = list[PartitionStatus](), Turns()
    for partition in running.bucket.partitions:
        await turns.give()
        found.append(_partition_status(running, partition))
    return found


def _partition_status(running: BucketEngine, partition: Partition) -> PartitionStatus:
    """Return how a copy is."""
    bucket_map, followed = running.bucket.map, running.replicator.status(partition.partition_id)
    places = bucket_map.rows[partition.partition_id] if bucket_map is not None else ()
    return PartitionStatus(
        partition.partition_id, partition.state.name.lower(), partition.high_seqno,
        partition.persisted_seqno, partition.purge_seqno, partition.queue.high_seqno,
        partition.failover_log, places, FollowStatus(*followed) if followed else None,
    )  # fmt: skip


def _address(peer: str) -> str:
    """Return HOST:PORT of the text of a socket's address."""
    parts = peer.strip("()").replace("'", "").split(", ")
    return ":".join(parts[:2]) if peer.startswith("(") else peer


async def reader_statuses(streaming: Iterable[tuple[str, KvConnection]]) -> list[ReaderStatus]:
    """Return where the connections are that stream; others have turns between streams."""
    found, turns = list[ReaderStatus](), Turns()
    for name, connection in streaming:
        await turns.give()
        streamer, user = connection.streamer, connection.session.user
        if streamer is None:
            continue
        figures, streams, now_ns = streamer.figures(), list[StreamAt](), time.time_ns()
        for partition, state, sent, uuid, lag, unsent_ns in streamer.positions():
            await turns.give()
            lag_s = None if lag else 0.0
            if unsent_ns is not None:
                lag_s = max(0, now_ns - unsent_ns) / 1e9
            streams.append(StreamAt(partition, state, sent, f"{uuid:012x}", lag, lag_s))
        rolled_back = streamer.last_rollback
        found.append(
            ReaderStatus(
                name, _address(connection.session.peer), "" if user is None else user.name,
                figures.unacked_bytes, figures.sent_bytes, streamer.since_ms,
                rolled_back._asdict() if rolled_back else None, streams,
            )
        )  # fmt: skip
    return found


def past_rollbacks(streams: BucketStreams) -> list[tuple[str, Mapping[str, int]]]:
    """Return names and last rollbacks of readers that have gone, newest first."""
    return [(name, one._asdict()) for name, one in reversed(streams.past_rollbacks)]
