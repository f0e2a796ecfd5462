"""Statistics for operators: values by name, and a description of each.

The parts of a bucket publish their values as groups. Each group is a named tuple that is created
on request. A value is called `<group>_<field>`, in STAT, in metrics and in documents alike.

Invariants:
1. Every published value is described in `BUCKET_FIGURES` or `NODE_FIGURES`, and every description
   belongs to a published value.
2. A name that ends in `_total` only grows while the node runs; so does a histogram. Other values
   go both ways. Nothing is reset: rates are computed from differences.
3. A request costs no more than one look at every partition.

Elsewhere: the node's values (`node.engine`), the page (`gateway`), STAT
(`kv.core.session.introspection`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import Final, NamedTuple

__all__ = [
    "BUCKET_FIGURES",
    "BYTES",
    "COUNTS",
    "NODE_FIGURES",
    "SECONDS",
    "Figure",
    "Figures",
    "Histogram",
    "Published",
    "as_text",
]

COUNTS: Final = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0)
BYTES: Final = tuple(1024.0 * 4**power for power in range(9))
SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
)  # fmt: skip


class Histogram:
    """Number of values per size class; `bounds` are the largest value of each class."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Return the number of values."""
        return sum(self.counts)

    def cumulated(self) -> list[tuple[str, int]]:
        """Return (bound, number of values up to it), the last bound being "+Inf"."""
        names = [f"{bound:g}" for bound in self.bounds]
        return list(zip([*names, "+Inf"], accumulate(self.counts), strict=True))


Figure = float | Histogram | Mapping[str, int]
"""A number, a distribution, or numbers by status."""
Figures = dict[str, Figure]


class Published:
    """The groups of one bucket."""

    def __init__(self) -> None:
        self._groups: dict[str, Callable[[], NamedTuple]] = {}

    def add(self, group: str, read: Callable[[], NamedTuple]) -> None:
        """Publish a group; `read` returns its current values."""
        assert group not in self._groups
        self._groups[group] = read

    def read(self, group: str | None = None) -> Figures:
        """Return the values of one group, or all."""
        chosen = self._groups if group is None else {group: self._groups[group]}
        return {
            f"{name}_{field}": value
            for name, read in chosen.items()
            for field, value in read()._asdict().items()
        }

    def __contains__(self, group: object) -> bool:
        return group in self._groups


class Changes(NamedTuple):
    """Group `changes`."""

    high: int
    persisted: int
    unflushed: int


class Documents(NamedTuple):
    """Group `documents`."""

    in_memory: int


class Queue(NamedTuple):
    """Group `queue`."""

    bytes: int
    retained_bytes: int
    seqnos: int


class Readers(NamedTuple):
    """Group `readers`."""

    connections: int
    streams: int
    backfilling: int
    lag: int
    unacked_bytes: int
    sent_bytes_total: int
    stuck_total: int
    dead_total: int


class Leases(NamedTuple):
    """Group `leases`."""

    held: int


class HeldLocks(NamedTuple):
    """Group `locks`."""

    held: int
    taken_total: int


class Majority(NamedTuple):
    """Group `majority`."""

    following: int
    impossible: int
    lag: int


class Clients(NamedTuple):
    """Group `clients`."""

    received_bytes_total: int
    sent_bytes_total: int
    reads_total: int


class Refused(NamedTuple):
    """Group `refused`."""

    total: Mapping[str, int]


def as_text(
    figures: Mapping[str, Figure], *, with_classes: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield names and values as STAT shows them; of a histogram count, sum and classes."""
    for name, value in figures.items():
        if isinstance(value, Histogram):
            yield f"{name}_count", str(value.count)
            yield f"{name}_sum", f"{value.sum:.6g}"
            if with_classes:
                for bound, count in value.cumulated():
                    yield f"{name}_le_{bound}", str(count)
        elif isinstance(value, Mapping):
            for status, count in value.items():
                yield f"{name}_{status}", str(count)
        else:
            yield name, f"{value:.6g}" if isinstance(value, float) else str(int(value))


NODE_FIGURES: Final[Mapping[str, str]] = {
    "uptime_seconds": "Time since the engine was started",
    "loop_lag_ms": "By how much the event loop was late, latest measurement",
    "loop_lag_worst_ms": "Worst lag of the event loop in the last ten seconds",
    "processor_seconds_total": "Processor time used by the engine",
    "resident_bytes": "Resident memory of the engine",
    "kv_connections": "Open connections of the kv and memcached ports",
    "kv_connections_accepted_total": "Connections ever accepted on these ports",
    "kv_connections_cut_total": "Connections cut off: too many, or too much held for them",
    "kv_held_bytes": "Bytes held for clients: requests and replies that wait",
    "index_process_up": "1 while the index process accepts requests",
    "index_process_restarts_total": "How often the index process died and was restarted",
    "index_process_resident_bytes": "Resident memory of the index process",
    "index_process_processor_seconds_total": "Its processor time, user and system",
    "index_process_loop_lag_worst_ms": "Worst lag of its event loop in the last ten seconds",
    "replicator_jobs_pending": "Replications that wait to be scheduled",
    "replicator_jobs_running": "Replications that run",
    "replicator_jobs_crashing": "Replications that failed and wait for a retry",
    "replicator_jobs_completed": "Documents of `_replicator` whose replication is finished",
    "replicator_jobs_failed": "Documents of `_replicator` whose replication is impossible",
    "replicator_changes_read_total": "Changes read from sources of replications that run here",
    "replicator_changes_skipped_total": "Changes not read: they came through other databases",
    "replicator_revisions_checked_total": "Revisions that targets were asked for",
    "replicator_missing_revisions_found_total": "Revisions that targets lacked",
    "replicator_docs_read_total": "Revisions read from sources",
    "replicator_docs_written_total": "Revisions that targets accepted",
    "replicator_doc_write_failures_total": "Revisions that targets rejected",
    "replicator_crashes_total": "Runs of replications that ended with an error",
    "coord_process_up": "1 while the coordination process serves",
    "coord_process_restarts_total": "How often the coordination process died and was restarted",
    "coord_process_resident_bytes": "Resident memory of the coordination process",
    "coord_process_processor_seconds_total": "Its processor time, user and system",
    "coord_process_loop_lag_worst_ms": "Worst lag of its event loop in the last ten seconds",
    "coord_groups": "Coordination groups of which this node is a member or a non-voting member",
    "coord_groups_leading": "Groups of which this node is the primary",
    "coord_groups_impaired": "Groups without a quorum, a reachable primary, or a state here",
    "coord_groups_stuck": "Groups that have not worked on this node for 10 seconds: an alarm",
    "coord_nodes_refused": "Nodes, with this one, that are refused: an older or another copy",
    "coord_groups_diverged": "Groups whose state here once differed from the others: a fault",
    "coord_fault_tolerance": "Further members that may fail, in the weakest of its groups",
    "coord_committed_total": "Entries committed in all groups, as this node knows",
    "coord_lag": "Entries by which the slowest member is behind, where this node is primary",
    "coord_repaired_total": "Damaged entries fetched from other members since the start",
    "coord_sessions": "Sessions of clients",
    "coord_waiting": "Requests and reads without an answer yet",
    "coord_disk_full": "Groups that wait for disk space, plus the node's own file if it waits",
    "coord_connections": "Connections of clients",
    "coord_connections_accepted_total": "Client connections ever accepted",
    "coord_connections_cut_total": "Client connections cut off since unread replies filled memory",
    "coord_replies_waiting_bytes": "Replies that clients have not read yet, in bytes",
    "coord_nodes_connected": "Other nodes with an open connection",
    "coord_messages_sent_total": "Messages sent to other nodes",
    "coord_messages_received_total": "Messages received from other nodes",
    "coord_messages_dropped_total": "Messages without room or connection; normal if few",
    "buckets_ready": "Buckets that are served",
    "buckets_failed": "Buckets that are not served, see `millstream status`",
}
"""Name -> meaning of the node's values."""
BUCKET_FIGURES: Final[Mapping[str, str]] = {
    "changes_high": "Changes ever made: sum of the high seqnos of all partitions",
    "changes_persisted": "Changes that are durable on disk",
    "changes_unflushed": "Changes that no group commit has taken yet",
    "documents_in_memory": "Documents and tombstones in the hash tables",
    "queue_bytes": "Memory of the mutation queues",
    "queue_retained_bytes": "Superseded changes kept for snapshots and leases, in bytes",
    "queue_seqnos": "Seqnos covered by the mutation queues, superseded ones included",
    "copies_active": "Partitions whose copy here serves reads and writes",
    "copies_replica": "Partitions whose copy here follows a copy on another node",
    "copies_pending": "Partitions whose copy here is about to take over",
    "copies_dead": "Partitions whose copy here serves nothing",
    "map_revision": "Revision of the bucket's map; 0 if the bucket is on this node only",
    "map_nodes": "Nodes that the map lists",
    "map_not_active": "Partitions whose row begins with this node and which are not active here",
    "map_not_first": "Partitions active here whose row begins with another node",
    "map_missing": "Places that the map gives to this node without a copy here",
    "map_left_over": "Copies here of partitions whose row does not name this node",
    "copies_moves_total": "Changes of the states of copies",
    "copies_rollbacks_total": "Partitions rolled back while the node ran",
    "copies_rolled_back_total": "Seqnos lost by these rollbacks",
    "replication_sources": "Nodes that copies here should follow",
    "replication_connected": "Source nodes that are connected",
    "replication_following": "Copies that should follow a source",
    "replication_streams": "Copies that follow a source now",
    "replication_behind": "Copies that lack changes, by the last report of the source",
    "replication_lag": "Changes that all copies lack, by the same report",
    "replication_unflushed_bytes": "Changes from sources that are not in the log yet, in bytes",
    "replication_changes_total": "Changes received from sources",
    "replication_rollbacks_total": "Copies rolled back because a source has another history",
    "replication_reconnects_total": "Connections to sources that were lost or failed",
    "serving_isolated_partitions": "Active copies that may not serve: no lease and no contact",
    "serving_isolated_total": "How often an active copy lost its right to serve",
    "flusher_commits_total": "Group commits written",
    "flusher_changes_total": "Changes in group commits",
    "flusher_bytes_total": "Bytes of group commits",
    "flusher_commit_changes": "Distribution of the changes in one group commit",
    "flusher_commit_seconds": "Distribution of the time from freezing a commit to its durability",
    "flusher_disk_full_total": "Group commits that had to wait a second because the disk was full",
    "flusher_by_id_pending": "Changes of the log that are not in the by-id map yet",
    "compaction_passes_total": "Passes that searched the log for data that is no longer needed",
    "compaction_runs_total": "Runs of segments that were rewritten as one",
    "compaction_segments_total": "Segments in these runs",
    "compaction_rewritten_bytes_total": "Bytes written by compaction",
    "compaction_reclaimed_bytes_total": "Bytes by which compaction made the log smaller",
    "compaction_segments": "Segments of the log",
    "compaction_live_bytes": "Bytes of sealed segments that readers may still need, about",
    "compaction_dead_bytes": "Bytes of sealed segments known to be superseded or rolled back",
    "compaction_tombstones": "Deletions in sealed segments that are not forgotten yet",
    "attachments_files": "Files with attachment bytes; equal bytes are stored once",
    "attachments_bytes": "Bytes in these files",
    "attachments_sweeps_total": "Sweeps for unused attachments",
    "attachments_removed_total": "Unused attachments removed",
    "attachments_removed_bytes_total": "Bytes freed by that",
    "memory_quota_bytes": "Limit of the memory of the bucket's documents",
    "memory_used_bytes": "Memory counted against it, with queues and keys waiting for by-id",
    "memory_table_bytes": "The part of it in hash tables",
    "memory_resident_share": "Share of the documents that are in memory, about",
    "memory_evicted_total": "Documents evicted because the quota was nearly used up",
    "memory_evicted_bytes_total": "Bytes freed by that",
    "memory_delayed_total": "How often the quota was used up and writes waited for room",
    "memory_delayed_seconds_total": "Total duration of these delays",
    "memory_exhausted_total": "How often no room could be made and writes were refused",
    "memory_is_refusing": "1 while writes are refused for lack of memory",
    "memory_longest_step_seconds": "Longest time that eviction blocked the event loop",
    "reading_back_in_loop_total": "Evicted documents read back from the page cache",
    "reading_back_by_threads_total": "Evicted documents read back from the disk",
    "reading_back_waiting": "Requests that wait for a document to be read back",
    "disk_free_bytes": "Free space in the file system of the data directory",
    "readers_connections": "Connections that stream",
    "readers_streams": "Open streams, one for each partition that a connection reads",
    "readers_backfilling": "Streams that read the log now",
    "readers_lag": "Changes not yet sent to the stream that is furthest behind",
    "readers_unacked_bytes": "Bytes sent and not yet acknowledged",
    "readers_sent_bytes_total": "Bytes of stream messages sent",
    "readers_stuck_total": "Connections cut off because they acknowledged nothing",
    "readers_dead_total": "Connections cut off because they sent no sign of life",
    "leases_held": "Leases held now",
    "locks_held": "Documents locked now",
    "locks_taken_total": "Locks taken",
    "expiry_expired_total": "Documents turned into expirations",
    "expiry_index_keys": "Documents in the indexes of upcoming expirations",
    "expiry_unscanned_partitions": "Partitions whose expirations are not all known yet",
    "expiry_scans_total": "Partitions scanned for upcoming expirations",
    "expiry_scanned_changes_total": "Changes read by these scans",
    "majority_following": "Copies on other nodes that follow partitions active here",
    "majority_impossible": "Active partitions with less than a majority of copies following",
    "majority_lag": "Most changes of one active partition that a majority does not have yet",
    "index_indexes": "Indexes of views; design documents with equal views share one",
    "index_building": "Indexes that have not caught up for the first time",
    "index_rows": "Rows of all views",
    "index_pending": "Changes that all indexes still lack, together",
    "index_file_bytes": "Bytes of the indexes on disk",
    "index_commits_total": "Commits of indexes",
    "index_commit_seconds_total": "Time of these commits, including maps",
    "index_rollbacks_total": "Indexes rolled back because a partition has another history",
    "index_broken": "Design documents that do not compile, and indexes that cannot be used",
    "index_map_errors": "Documents on which a map function failed, in the present indexes",
    "clients_received_bytes_total": "Bytes received on the kv ports with this bucket selected",
    "clients_sent_bytes_total": "Bytes of replies on these ports; streams are not counted here",
    "clients_reads_total": "Documents that clients asked for by id, on these ports and over HTTP",
    "refused_total": "Requests refused, by status; misses and unmet conditions are not counted",
}
"""Name -> meaning, for people; units are in the name or the meaning. A value described as a
distribution is a histogram."""
