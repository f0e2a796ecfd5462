"""A false node for the planner and the range reader: partitions in memory, true to every rule.

A partition has a list of changes (key, value or None for a deletion), leases, a purge point, a
failover log, and copies of itself that may be promoted, so that histories can be lost. `write`
gives each change a number of its own: what a reader was given can be compared with what is true.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Self

from millstream.client.bulk import Range
from millstream.client.extensions import DURABLE_MARK, LeaseHold, PartitionPosition
from millstream.client.measuring import Piece
from millstream.errors import RollbackRequiredError, StreamError
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry, FailoverLog, rollback_seqno, with_new_entry
from millstream.wire.frames import change_of, deletion, mutation, snapshot_marker
from millstream.wire.mcbp import Packet, cut_packets, response

ROW_BYTES = 100


class Made(NamedTuple):
    """A change as it was accepted; `number` is its identity across histories."""

    key: int
    value: int | None
    number: int


class FalsePartition:
    def __init__(self, partition_id: int, branches: Iterator[int]) -> None:
        self.partition_id = partition_id
        self.branches = branches
        self.changes: list[Made] = []
        branch = next(branches)
        self.failover_log: FailoverLog = (FailoverEntry(branch + 0xABC000, 0, branch),)
        self.purge_seqno = 0
        self.leases: dict[int, list[int]] = {}  # id -> [as of, start of the last request]
        self.copy: tuple[list[Made], FailoverLog, int] | None = None
        self.durable_seqno: int | None = None  # None: everything is; a mark of the log

    @property
    def high_seqno(self) -> int:
        return len(self.changes)

    @property
    def branch(self) -> int:
        return self.failover_log[0].branch

    def keep_copy(self) -> None:
        self.copy = list(self.changes), self.failover_log, self.purge_seqno

    def promote_copy(self, seqno: int) -> None:
        """Fail over to the copy, cut at `seqno`, which may lack whole histories."""
        assert self.copy is not None
        self.changes, self.failover_log, self.purge_seqno = self.copy
        self.copy = None
        self.fail_over(max(seqno, self.purge_seqno))

    def fail_over(self, seqno: int) -> None:
        self.changes = self.changes[:seqno]
        branch = next(self.branches)
        entry = FailoverEntry(branch + 0xABC000, len(self.changes), branch)
        self.failover_log = with_new_entry(self.failover_log, entry)
        self.leases.clear()

    def purge(self, seqno: int) -> None:
        seqno = min([seqno, *(start for _, start in self.leases.values())])
        self.purge_seqno = max(self.purge_seqno, seqno)

    def newest(self, at: int | None = None) -> dict[int, tuple[int, int | None]]:
        """Key -> (seqno, value) as of `at`; purged tombstones are gone."""
        found = {made.key: (n, made.value) for n, made in enumerate(self.changes[:at], 1)}
        return {k: (n, v) for k, (n, v) in found.items() if v is not None or n > self.purge_seqno}

    def live(self) -> dict[int, int]:
        return {key: value for key, (_, value) in self.newest().items() if value is not None}

    def frames(self, begin: int, end: int, at: int | None) -> list[bytes]:
        found = sorted((seqno, key, value) for key, (seqno, value) in self.newest(at).items())
        return [
            frame_of(self.partition_id, key, value, seqno)
            for seqno, key, value in found
            if begin < seqno <= end
        ]


def frame_of(partition_id: int, key: int, value: int | None, seqno: int) -> bytes:
    text = b"%d" % key
    if value is None:
        return deletion(partition_id, text, seqno, 1, seqno, 0)
    return mutation(partition_id, text, b"%d" % value, seqno, 1, seqno, 0, 0, 0)


class FalseNode:
    """A `planner.PlanningSource` and a `ranges.RangeSource`.

    With `is_durable_only` new leases end at the durable mark of a partition.
    """

    def __init__(self, partition_count: int, *, is_durable_only: bool = False) -> None:
        self.is_durable_only = is_durable_only
        self._numbers = itertools.count(1)
        self.measured = 0
        branches = itertools.count(1)
        self.partitions = {p: FalsePartition(p, branches) for p in range(partition_count)}

    def write(self, partition_id: int, key: int, value: int | None) -> None:
        made = Made(key, value, next(self._numbers))
        self.partitions[partition_id].changes.append(made)

    # -- what the planner asks

    def positions(self) -> Mapping[int, PartitionPosition]:
        return {p: self._position(part) for p, part in self.partitions.items()}

    def failover_log(self, partition_id: int) -> FailoverLog:
        return self.partitions[partition_id].failover_log

    def open_lease(self, partition_ids: Sequence[int]) -> Mapping[int, LeaseHold]:
        assert partition_ids
        lease_id = next(self._numbers)
        for p in partition_ids:
            part = self.partitions[p]
            at = part.durable_seqno if self.is_durable_only else part.high_seqno
            if not self.is_durable_only or at:
                part.leases[lease_id] = [at or 0, 0]
        return self._holds(lease_id, partition_ids)

    def renew_lease(self, lease_id: int, partition_ids: Sequence[int]) -> Mapping[int, LeaseHold]:
        assert partition_ids
        return self._holds(lease_id, partition_ids)

    def release_lease(self, lease_id: int, partition_ids: Sequence[int]) -> None:
        assert partition_ids
        for p in partition_ids:
            self.partitions[p].leases.pop(lease_id, None)

    def measure_lease(
        self, lease_id: int, after: Mapping[int, int], rows_max: int, bytes_max: int
    ) -> dict[int, list[Piece]]:
        """The rows a reader gets, `ROW_BYTES` each; a lost lease is left out."""
        assert after
        self.measured += 1
        found: dict[int, list[Piece]] = {}
        for p, begin in after.items():
            part = self.partitions[p]
            if lease_id in part.leases:
                at = part.leases[lease_id][0]
                rows = sorted(n for n, _ in part.newest(at).values() if begin < n)
                count = max(1, min(rows_max, bytes_max // ROW_BYTES))
                cut = [rows[i : i + count] for i in range(0, len(rows), count)]
                found[p] = [Piece(c[-1], len(c), ROW_BYTES * len(c)) for c in cut]
                last = found[p].pop() if found[p] else Piece(at, 0, 0)
                found[p].append(last._replace(end=at))
        return found

    def _position(self, part: FalsePartition) -> PartitionPosition:
        newest, high = part.failover_log[0], part.high_seqno
        return PartitionPosition(
            part.partition_id, PartitionState.ACTIVE, newest.uuid, newest.branch,
            high, high, high, high, high if part.durable_seqno is None else part.durable_seqno,
            part.purge_seqno,
        )  # fmt: skip

    def _holds(self, lease_id: int, partition_ids: Sequence[int]) -> dict[int, LeaseHold]:
        found = {}
        for p in partition_ids:
            part = self.partitions[p]
            if lease_id in part.leases:
                newest = part.failover_log[0]
                found[p] = LeaseHold(
                    lease_id, p, part.leases[lease_id][0], newest.uuid, newest.branch,
                    part.purge_seqno,
                )  # fmt: skip
        return found


class FalseRanges:
    """The node as an executor sees it."""

    def __init__(self, node: FalseNode) -> None:
        self._node = node

    def stream(self, ranges: Sequence[Range]) -> Iterator[bytes]:
        for wanted in ranges:
            part = self._node.partitions[wanted.partition_id]
            at = None
            if wanted.lease_id is not None:
                lease = part.leases.get(wanted.lease_id)
                if lease is None:
                    raise StreamError("lease lost", code="lease_lost")
                at = lease[0]
            _, begin, snap_start, snap_end, _ = wanted.position
            assert snap_start <= begin <= snap_end
            seqno = rollback_seqno(
                wanted.position, log=part.failover_log, high_seqno=part.high_seqno,
                purge_seqno=part.purge_seqno,
            )  # fmt: skip
            if seqno is not None:
                raise RollbackRequiredError("", partition_id=part.partition_id, seqno=seqno)
            if wanted.lease_id is not None:
                part.leases[wanted.lease_id][1] = begin
            # Without a lease the snapshot that holds the end is sent to its end.
            end = part.high_seqno if at is None else wanted.end_seqno
            yield snapshot_marker(part.partition_id, 0, begin, end, 1)
            yield from part.frames(begin, end, at)

    def failover_log(self, partition_id: int) -> tuple[FailoverLog, int]:
        part = self._node.partitions[partition_id]
        return part.failover_log, part.high_seqno

    def release_lease(self, lease_id: int, partition_id: int) -> None:
        self._node.release_lease(lease_id, [partition_id])


def key_and_value(frame: bytes) -> tuple[int, int, int | None]:
    """Return seqno, key and value of a change's frame."""
    change = change_of(frame)
    return change.seqno, int(change.key), None if change.is_deleted else int(change.value)


class FalseClient:
    """A `client.kv.Client` of a false node, as far as the Spark source uses one.

    `failures`: errors that the next calls raise, one each.
    """

    bucket = "b"

    def __init__(self, node: FalseNode) -> None:
        self._node = node
        self.failures: list[Exception] = []
        self.calls: list[str] = []
        self.is_closed = False
        self.bucket_uuid = "b0b0"
        self.owners: Sequence[int] = (0,) * len(node.partitions)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def cluster_map(self) -> FalseClient:
        return self

    @property
    def partition_count(self) -> int:
        return len(self._node.partitions)

    nodes: tuple[str, ...] = ("here",)
    reconnect_s = 600.0

    def refresh_map(self) -> None:
        self.calls.append("refresh_map")

    def close(self) -> None:
        self.is_closed = True

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.failures:
            raise self.failures.pop(0)

    def positions(self, partition_ids: Sequence[int] | None = None) -> list[PartitionPosition]:
        self._called("positions")
        found = self._node.positions()
        return [found[p] for p in (found if partition_ids is None else partition_ids)]

    @property
    def router(self) -> FalseClient:
        return self

    def groups(self, partition_ids: Sequence[int]) -> dict[str, list[int]]:
        return {"here": list(partition_ids)}

    def connection_to(self, node: str) -> FalseClient:
        return self

    address = "here"

    def request(self, opcode: int, *, extras: bytes, value: bytes) -> Packet:
        """Measure a lease: all that a client asks for without a method of its own."""
        self._called("measure_lease")
        _, lease_id, _ = struct.unpack(">BQH", extras)
        rows_max, bytes_max = struct.unpack_from(">QQ", value)
        after = dict(struct.iter_unpack(">HQ", value[16:]))
        found = self._node.measure_lease(lease_id, after, rows_max, bytes_max)
        items = (struct.pack(">HQQQ", p, *piece) for p, cut in found.items() for piece in cut)
        (packet,), _ = cut_packets(response(opcode, 0, 0, value=b"".join(items)), 2**20)
        return packet

    def branch_log(self, partition_id: int) -> FailoverLog:
        self._called("branch_log")
        return self._node.failover_log(partition_id)

    def open_lease(self, wanted: Mapping[int, int | None] | Sequence[int]) -> dict[int, LeaseHold]:
        self._called("open_lease")
        ends = wanted if isinstance(wanted, Mapping) else dict.fromkeys(wanted)
        asked = {p: None if at == DURABLE_MARK else at for p, at in ends.items()}
        highs = {p: self._node.partitions[p].high_seqno for p in asked}
        if any(at is not None and at > highs[p] for p, at in asked.items()):
            raise StreamError("cannot be read", code="lease_lost")
        held = self._node.open_lease(list(asked))
        for p, hold in held.items():
            at = asked[p]
            if at is not None:
                self._node.partitions[p].leases[hold.lease_id][0] = at
        return {p: hold._replace(at=highs[p] if asked[p] is None else asked[p] or 0)
                for p, hold in held.items()}  # fmt: skip

    def renew_lease(self, lease_id: int, partition_ids: Sequence[int]) -> dict[int, LeaseHold]:
        self._called("renew_lease")
        return dict(self._node.renew_lease(lease_id, partition_ids))

    def release_lease(self, lease_id: int, partition_ids: Sequence[int]) -> None:
        self._called("release_lease")
        self._node.release_lease(lease_id, partition_ids)
