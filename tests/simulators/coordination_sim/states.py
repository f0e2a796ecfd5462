"""The states that members make of the entries: whether they are equal, and what a wrong one does.

Invariants:
1. After each entry a state is the one that all entries so far make, worked out a second time; a
   number for it is kept up to date, so that looking costs as little as the entry did.
2. Snapshots of one entry are equal, byte for byte.
3. A state that went wrong by itself is noticed once a quorum's snapshot shows it: its member gives
   the alarm and stops serving, once a hard state that is on its way to its disk is there; nobody
   gives it for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from millstream.coordination.core.registers import Registers
from millstream.vsr.core.entries import Entry, Kind
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.snapshots import Pieces, SnapshotId
from millstream.vsr.core.versions import NEVER, Version

if TYPE_CHECKING:
    from simulators.coordination_sim.machine import Machine

ASTRAY = b"astray"
"""A register that no client knows: that it is wrong must be noticed without one that asks."""


class WrongStateError(AssertionError):
    """A state is not what it has to be."""


def weight(key: bytes, value: bytes, version: Version) -> int:
    """Return what one register adds to the number of a state."""
    text = b"%d %d %b%b %d %d %d" % (len(key), len(value), key, value, *version)
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


class RecordedRegisters(Registers):
    """Registers that say what they were told to execute, and a number for their state."""

    def __init__(self) -> None:
        super().__init__()
        self.executed: dict[int, tuple[bytes, int]] = {}
        """LSN -> reply, and the number of the state after it."""
        self.is_restored = False
        self.number = 0
        self.is_astray = self.was_astray = False

    def apply(self, entry: Entry) -> bytes:
        key = entry.content.argv[1]
        before = self.values.get(key)
        reply = super().apply(entry)
        after = self.values.get(key)
        if after is not before and after is not None:
            self.number += weight(key, *after) - (weight(key, *before) if before else 0)
        self.executed[entry.lsn] = reply, self.number
        return reply

    def restore(self, pieces: Pieces) -> Iterator[None]:
        self.executed.clear()
        self.is_restored = True
        return self._restored(pieces)

    def _restored(self, pieces: Pieces) -> Iterator[None]:
        yield from super().restore(pieces)
        self.number = sum(weight(key, *held) for key, held in self.values.items())
        self.is_astray = self.values.get(ASTRAY) is not None

    def go_astray(self) -> None:
        """Be wrong from now on."""
        self.values.put(ASTRAY, (b"!", NEVER))
        self.number += weight(ASTRAY, b"!", NEVER)
        self.is_astray = self.was_astray = True


class States:
    """What snapshots there are of which state."""

    def __init__(self) -> None:
        self.hashes: dict[int, bytes] = {}
        self.stable: dict[int, tuple[int, bytes]] = {}
        """Number -> the entry that says that it is stable, and its hash."""

    def commit(self, entry: Entry) -> None:
        """Note which snapshot a quorum agreed on."""
        if entry.header.kind is Kind.SNAPSHOT_STABLE:
            number, digest = entry.content.argv
            self.stable[int(number)] = entry.lsn, digest

    def fork(self, kept: int) -> None:
        """Forget what was behind this entry: other entries are now."""
        self.hashes = {lsn: known for lsn, known in self.hashes.items() if lsn <= kept}
        self.stable = {n: known for n, known in self.stable.items() if known[0] <= kept}

    def made(self, machine: Machine, made: SnapshotId) -> None:
        """Look at a snapshot that a member has made."""
        if machine.replica.machine.is_astray or machine.world.truth.is_old(machine):
            return
        if self.hashes.setdefault(made.lsn, made.hash) != made.hash:
            raise WrongStateError(f"two states at snapshot {made.number}")

    def check(self, machine: Machine) -> None:
        """Look at whether a member whose state is wrong knows it."""
        replica = machine.replica
        registers = replica.machine
        if replica.state.is_diverged and not registers.was_astray:
            raise WrongStateError(f"node {machine.number} begins anew, and its state was right")
        if not registers.is_astray:
            return
        if replica.has_state and not replica.is_persisting and self._has_seen(machine, replica):
            raise WrongStateError(f"node {machine.number} goes on with another state")
        if replica.status is Status.LOST and not replica.report().is_diverged:
            raise WrongStateError(f"node {machine.number} gives no alarm")

    def _has_seen(self, machine: Machine, replica: Any) -> bool:
        """Whether its newest snapshot is on its disk, and it knows another one to be right."""
        written = machine.written_snapshot
        if written is None or written.lsn != replica.parts.execution.asked_lsn:
            return False
        named, digest = self.stable.get(written.number, (0, b""))
        return 0 < named <= replica.commit_lsn and digest != written.hash
