"""What a node's copies follow: one connection to each source node.

Elsewhere: what a copy does with what it is sent (`kv.core.replica`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.upr.core.consumer import (
    ChangesReceived,
    ConsumerCore,
    Event,
    RollbackRequired,
    SnapshotCompleted,
    SnapshotStarted,
    StreamEnded,
    StreamOpened,
    StreamRefused,
)
from millstream.wire.mcbp import Status
from simulation.link import Link

if TYPE_CHECKING:
    from simulation.node import Copy, Node


class Following:
    """One connection from a node to another."""

    def __init__(self, node: Node, source: Node) -> None:
        world = node.world
        self.node, self.source, self.world = node, source, world
        window_bytes = world.rng.choice((1, 300, 100_000))
        self.consumer = ConsumerCore(window_bytes=window_bytes, has_extensions=True)
        self.consumer.start(node.name.encode(), noop_interval_s=1)
        self.link = Link(world.rng, source.bucket, self.consumer, self.handle)
        self.asked: set[int] = set()
        self.opened: dict[int, int] = {}
        """Partition -> epoch of the source when it opened the stream."""
        source.served.add(self.link)
        node.following[source] = self

    def leave(self) -> None:
        self.link.cut()
        self.source.served.discard(self.link)
        self.node.following.pop(self.source, None)
        self.asked.clear()

    def copy(self, partition_id: int) -> Copy:
        return self.node.copies[partition_id]

    def follow(self, partition_id: int) -> None:
        """Ask for a stream, unless there is one."""
        if partition_id not in self.asked:
            self.asked.add(partition_id)
            partition = self.copy(partition_id).partition
            assert partition.replica is not None
            position = partition.replica.position
            self.consumer.follow(partition_id, position, partition.failover_log)

    def handle(self, event: Event) -> None:
        p = event.partition_id
        copy, partition = self.copy(p), self.copy(p).partition
        replica = partition.replica
        assert replica is not None
        match event:
            case StreamOpened(_, position, log):
                if not replica.accepts(log):
                    self.leave()
                    return
                replica.on_opened(log, position.purge_seqno or 0)
                source = self.source.copies[p]
                self.opened[p] = source.partition.epoch
                copy.rejoined_at = source.partition.queue.high_seqno
                if position.seqno == source.end == 0:
                    copy.confirm()
            case SnapshotStarted(_, position):
                replica.apply_marker(position.snap_start + 1, position.snap_end)
            case ChangesReceived(_, position, frames):
                for frame in frames:
                    replica.apply_change(frame, self.world.truth.lineages[frame])
            case SnapshotCompleted(_, position):
                if partition.queue.high_seqno < position.seqno:
                    replica.apply_advance(position.seqno)
                copy.check("completed")
                copy.confirm()
            case RollbackRequired(_, seqno):
                if not replica.accepts(self.source.copies[p].partition.failover_log):
                    self.leave()
                    return
                point = copy.roll_back(seqno)
                self.world.trace(f"{copy.name} told by {self.source.name}: {seqno}, at {point}")
                self.consumer.undone_to(p, point)
            case StreamEnded():
                self.opened.pop(p, None)
                self.asked.discard(p)
            case StreamRefused(_, status):
                assert status in (Status.NOT_MY_VBUCKET, Status.ETMPFAIL), event
                self.asked.discard(p)
            case _:
                raise AssertionError(f"unexpected {event}")
        position = getattr(event, "position", None)
        if position is not None and position.seqno and partition.replica is not None:
            mine = partition.replica.position
            assert mine == position, f"{copy.name} says {mine}, its stream {position}"
