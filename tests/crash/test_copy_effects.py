"""A copy's life in one script, with the process killed, or power lost, before each effect in turn.

After every crash the copy must be as it was before the step under way, or as after it: state,
failover log, last branch, low points, position and documents, and it must go on from there.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from millstream.kv.aio.reading_back import StoreReader
from millstream.kv.core.copies import moves
from millstream.kv.core.flush import FlushPlan
from millstream.kv.core.partition.partition import Partition
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry, FailoverLog, Position
from millstream.storage.core.segment_log import LogSizes
from millstream.storage.core.store import LogStore
from millstream.wire.frames import deletion, mutation
from support.kv.simulated_disk import Crash, SimulatedById, SimulatedDisk

NOW = 1_700_000_000_000_000_000
SIZES = LogSizes(700, 2800, fill_from_bytes=1400, fill_bytes=300)
SOURCE = (FailoverEntry(0xA, 0, 50),)
PROMOTED = (FailoverEntry(0xB, 6, 60), *SOURCE)
KEYS = (b"a", b"b", b"c")


class Seen(NamedTuple):
    """What is durable of a copy, as it comes back; uuids of its own are left out."""

    state: PartitionState
    entries: tuple[tuple[int, int], ...]
    last_branch: int
    purge_seqno: int
    position: tuple[int, int, int]
    documents: tuple[bytes | None, ...]


class CopyOnDisk:
    """One copy of one partition, as `kv.aio` would drive it."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.uuids = itertools.count(0x1000)
        self.open()

    def new_entry(self, seqno: int, last_branch: int) -> FailoverEntry:
        return FailoverEntry(next(self.uuids), seqno, last_branch + 1)

    def open(self) -> None:
        def damaged(error: Exception) -> None:
            raise AssertionError("nothing is damaged here") from error

        self.store = LogStore.open(
            self.disk, SimulatedById(self.disk), partition_count=1, new_entry=self.new_entry,
            sizes=SIZES, is_alone=False,
        )  # fmt: skip
        self.store.withdraw_receipt()
        found = self.store.partition(0)
        self.partition = Partition(
            0, failover_log=found.failover_log, high_seqno=found.high_seqno,
            purge_seqno=found.purge_seqno, is_resident=not self.store.has_records(0),
            log=StoreReader(self.store, damaged), state=found.state,
            last_branch=found.last_branch, top_seqno=found.top_seqno, range_end=found.range_end,
            owed=found.owed,
        )  # fmt: skip
        self.plan: FlushPlan[None] = FlushPlan([self.partition])

    def seen(self) -> Seen:
        partition = self.partition
        replica, high = partition.replica, partition.high_seqno
        position = Position(0, high, high, high) if replica is None else replica.position
        log = partition.failover_log
        return Seen(
            partition.state, tuple((entry.seqno, entry.branch) for entry in log),
            partition.last_branch, partition.purge_seqno, position[1:4],
            tuple(map(partition.newest, KEYS)),
        )  # fmt: skip

    # -- the steps of the script

    def flush(self) -> None:
        commit = self.plan.freeze()
        if commit is not None:
            encoded = self.store.encode(commit.batches)
            self.store.append(encoded)
            self.store.absorb(encoded)
            self.plan.persisted(commit)

    def set_state(self, state: PartitionState) -> None:
        self.flush()
        self.store.set_state(0, state)
        moves.rename(self.partition, state)

    def activate(self) -> None:
        self.flush()
        moves.activate(self.partition, self.store.activate(0))

    def remove(self) -> None:
        self.store.remove([0])
        moves.restore(self.partition, self.store.partition(0))

    def roll_back(self, seqno: int) -> None:
        moves.restore(self.partition, self.store.roll_back(0, seqno))

    def raise_branch(self, branch: int) -> None:
        self.store.promise({0: branch})
        self.partition.last_branch = self.store.partition(0).last_branch

    def receive(self, log: FailoverLog, purge: int, end: int, *changes: tuple[bytes, int]) -> None:
        """Take a part of a snapshot, and flush it."""
        replica = self.partition.replica
        assert replica is not None
        replica.on_opened(log, purge)
        if end != replica.range_end:
            replica.apply_marker(replica.complete_end + 1, end)
        for key, seqno in changes:
            if key.isupper():
                frame = deletion(0, key.lower(), seqno, 1, seqno, 0)
            else:
                frame = mutation(0, key, b"%d" % seqno + bytes(150), seqno, 1, seqno, 0, 0, 0)
            replica.apply_change(frame, b"\1\1")
        self.flush()

    def write(self, *keys: bytes) -> None:
        for key in keys:
            self.partition.put(key, bytes(100), 0, 0, 0, 0, NOW)
        self.flush()


SCRIPT: list[Callable[[CopyOnDisk], None]] = [
    lambda copy: copy.set_state(PartitionState.REPLICA),
    lambda copy: copy.receive(SOURCE, 3, 5, (b"a", 2), (b"b", 4)),
    lambda copy: copy.receive(SOURCE, 3, 5, (b"c", 5)),
    lambda copy: copy.receive(SOURCE, 3, 9, (b"a", 6), (b"B", 7)),
    lambda copy: copy.store.commit_by_id(),
    lambda copy: copy.roll_back(8),
    lambda copy: copy.receive(PROMOTED, 3, 8, (b"a", 6), (b"b", 7), (b"c", 8)),
    lambda copy: copy.receive(PROMOTED, 3, 12, (b"A", 11)),
    lambda copy: copy.raise_branch(70),
    lambda copy: copy.set_state(PartitionState.PENDING),
    lambda copy: copy.activate(),
    lambda copy: copy.write(b"a", b"b", b"a"),
    lambda copy: copy.store._log.roll(),
    lambda copy: copy.write(b"c"),
    lambda copy: copy.roll_back(14),
    lambda copy: copy.set_state(PartitionState.DEAD),
    lambda copy: copy.remove(),
    lambda copy: copy.set_state(PartitionState.REPLICA),
    lambda copy: copy.receive((FailoverEntry(0xC, 0, 90),), 0, 2, (b"a", 2)),
]


def run(copy: CopyOnDisk, steps: list[Callable[[CopyOnDisk], None]]) -> None:
    for step in steps:
        step(copy)


def came_back(seen: Seen, before: Seen, after: Seen) -> bool:
    """Whether that is the one or the other, or between them.

    An active copy comes back as a replica. Of a batch a first part may be there, as the position
    says; of what belongs together all or nothing that one would have to believe.
    """
    if before.state is PartitionState.ACTIVE:
        before = before._replace(state=PartitionState.REPLICA)
    if after.state is PartitionState.ACTIVE:
        after = after._replace(state=PartitionState.REPLICA)
    if seen in (before, after):
        return True
    return (
        seen.state in (before.state, after.state)
        and seen.entries in (before.entries, after.entries)
        and seen.last_branch in (before.last_branch, after.last_branch)
        and seen.purge_seqno in (before.purge_seqno, after.purge_seqno)
        and seen.position[1] in (before.position[1], after.position[1])
        and seen.position[1] <= seen.position[0] <= seen.position[2]
        and seen.position[2] in (seen.position[0], before.position[2], after.position[2])
        and all(
            found in pair
            for found, *pair in zip(seen.documents, before.documents, after.documents, strict=True)
        )
    )


@pytest.mark.parametrize("is_power_lost", [False, True])
def test_each_effect_of_a_copys_life_may_be_the_last(is_power_lost: bool) -> None:
    crashes = 0
    for number, step in enumerate(SCRIPT):
        for effect in itertools.count():
            disk = SimulatedDisk(random.Random(f"{number} {effect}"), itertools.count(100))
            copy = CopyOnDisk(disk)
            run(copy, SCRIPT[:number])
            before, left = copy.seen(), [effect]

            def strike(kind: str, name: str, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise Crash

            disk.before = strike
            has_crashed = False
            try:
                step(copy)
            except Crash:
                has_crashed = True
            disk.before = lambda kind, name: None
            after = copy.seen() if not has_crashed else undisturbed(number)
            if is_power_lost:
                disk.lose_power()
            copy.open()
            seen = copy.seen()
            assert came_back(seen, before, after), (number, effect, before, after, seen)
            copy.open()
            assert copy.seen() == seen, "a second start changes nothing more"
            if not has_crashed:
                break
            crashes += 1
    assert crashes > 2 * len(SCRIPT)


def undisturbed(number: int) -> Seen:
    """What the copy is after a step, if nothing happens."""
    copy = CopyOnDisk(SimulatedDisk(random.Random(0), itertools.count(100)))
    run(copy, SCRIPT[: number + 1])
    return copy.seen()
