"""Replicas of a group under faults, each with its own journal on a disk that loses power.

The world of `coordination_world` with its false disks replaced: a crash comes between any two
effects of the disk, damage is done to bytes, and a restarted replica has what its journal found.
"""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import count

import pytest

from millstream.vsr.core.disk.durable_steps import header_file_name, segment_name, snapshot_name
from millstream.vsr.core.disk.journal import Journal, format_group
from millstream.vsr.core.effects import DiskEffect
from millstream.vsr.core.entries import HEADER_BYTES
from simulators.coordination_world import Node, World
from support.kv.simulated_disk import Crash, SimulatedDisk

SEEDS = 12
SEGMENT_BYTES = 3000


class JournalledWorld(World):
    """A world whose nodes keep what they are told to keep in files."""

    def __init__(self, seed: int) -> None:
        self.disks: dict[int, SimulatedDisk] = {}
        self.journals: dict[int, Journal] = {}
        self.found_faulty = 0
        super().__init__(seed)

    def start(self, node: Node) -> None:
        if node.number not in self.disks:
            seed = self.rng.random()
            self.disks[node.number] = SimulatedDisk(random.Random(seed), count(1))
            format_group(self.disks[node.number], node.standing)
            self.open(node)
        super().start(node)

    def open(self, node: Node) -> None:
        """Let the node have what its files say."""
        journal = Journal(self.disks[node.number], SEGMENT_BYTES)
        assert journal.image.standing is not None
        node.lost = journal.image.is_journal_lost
        self.journals[node.number] = journal
        self.found_faulty += sum(1 for _ in journal.image.faulty())
        node.standing, node.entries = journal.image.standing, list(journal.image.log)
        node.base, node.stable = journal.image.base, journal.image.snapshot_id
        node.bad_snapshot = journal.image.snapshot is None
        if journal.image.snapshot is not None:
            node.snapshots[journal.image.snapshot.id.number] = journal.image.snapshot

    def to_disk(self, node: Node, op: DiskEffect) -> None:
        super().to_disk(node, op)
        self.journals[node.number].carry_out(op)

    def torn(self, node: Node, op: DiskEffect) -> None:
        """End in the middle of a step."""
        left = self.rng.randint(0, 12)

        def before(kind: str, name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                self.disks[node.number].before = lambda kind, name: None
                raise Crash

        self.disks[node.number].before = before
        with suppress(Crash):
            self.journals[node.number].carry_out(op)
        self.disks[node.number].before = lambda kind, name: None

    def crash(self, node: Node) -> None:
        if node.replica is None:
            return
        super().crash(node)
        if self.rng.random() < 0.7:
            self.disks[node.number].lose_power()
        self.open(node)

    def lose_log(self, node: Node) -> None:
        """Take the header file away and damage the log's end: nobody can tell what it was."""
        super().lose_log(node)
        if node.lost:
            disk, layout = self.disks[node.number], self.journals[node.number].root.layout
            if layout.segments and header_file_name(layout.headers) in disk.names():
                disk.remove(header_file_name(layout.headers))
                disk.sync_directory()
                content = disk.files[segment_name(layout.segments[-1].segment)]
                content.data += b"rubbish"
                content.synced = content.data[:]

    def damage_one(self, node: Node) -> None:
        before = list(node.entries)
        super().damage_one(node)
        for old, new in zip(before, node.entries, strict=True):
            if old is not new:
                self.damage_body(node, old.header.encoded)

    def damage_snapshot(self, node: Node) -> None:
        super().damage_snapshot(node)
        if node.bad_snapshot and node.stable is not None:
            content = self.disks[node.number].files[snapshot_name(node.stable.number)]
            content.data[self.rng.randrange(len(content.data))] ^= 1
            content.synced = content.data[:]

    def damage_body(self, node: Node, header: bytes) -> None:
        """Change the bytes behind a header, wherever a segment has it."""
        for name, content in self.disks[node.number].files.items():
            at = content.data.find(header) + HEADER_BYTES
            if name.startswith("journal") and at >= HEADER_BYTES:
                content.data[at] ^= 1
                content.synced = content.data[:]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_replicas_on_journals(seed: int) -> None:
    world = JournalledWorld(seed)
    world.run()
    assert world.counts["commits"] > 0
