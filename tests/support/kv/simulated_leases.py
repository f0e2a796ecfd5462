"""Leases of a simulated bucket: several readers, several requests, a time, and both partitions.

Invariants, each an assertion:
1. A lease names states that can be read exactly, as often as somebody asks, until it is lost; and
   that is an answer.
2. It is not lost before its time, but by a rollback or for lack of memory.
3. A deletion above the lowest start that was asked for, and above what was purged when the lease
   began, is sent, and before the first request every one.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.kv.core.partition.states import STREAMED
from support.kv.engine_checks import EngineChecks
from support.kv.engine_model import SECOND

LEASE_S = 60


@dataclass(eq=False)
class Held:
    lease_id: int
    until: int
    ats: dict[int, int]
    purged: dict[int, int]
    """What was purged of each partition when the lease began."""
    starts: dict[int, int]
    """The lowest that was asked for."""


class EngineLeases(EngineChecks):
    """The part of a simulated engine that is about leases."""

    monotonic: int
    leases: list[Held]
    is_memory_bound: bool
    """Holds may have been lost for lack of memory."""

    def bound_memory(self, p: int, bytes_max: int) -> None:
        self.bucket.partitions[p].queue.bytes_max = bytes_max
        self.is_memory_bound = True

    def open_lease(self, p: int, *, is_whole: bool) -> None:
        """Of the present state of all partitions, or of one at its newest mark."""
        wanted: list[tuple[int, int | None]] = [(q, None) for q in range(len(self.models))]
        if not is_whole:
            wanted = [(p, self.bucket.partitions[p].persisted_seqno or None)]
        opened = self.bucket.leases.open(wanted, LEASE_S)
        if opened is None:
            refused = [q for q, _ in wanted if not self._must_be_held(q)]
            assert refused, f"no lease of {wanted}"
            return
        lease_id, seconds, holds = opened
        until = self.monotonic + seconds * SECOND
        purged = {q: self.models[q].purge_seqno for q in holds}
        ats = {q: hold.at for q, hold in holds.items()}
        self.leases.append(Held(lease_id, until, ats, purged, {}))

    def _must_be_held(self, p: int) -> bool:
        model = self.models[p]
        return model.state in STREAMED and model.shown == model.high

    def read_lease(self, n: int, share: float) -> None:
        """One request: of one partition, from some start on."""
        held = self.leases[n % len(self.leases)]
        p = list(held.ats)[n % len(held.ats)]
        at = held.ats[p]
        after = int(at * share)
        hold = self.bucket.lease_hold(held.lease_id, p, after)
        if hold is None:
            assert held.until <= self.monotonic or self.is_memory_bound
            del held.ats[p]
        else:
            assert held.until > self.monotonic
            assert hold.at == at
            if after < held.starts.get(p, 0):  # more than it has promised to need
                held.purged[p] = self.models[p].purge_seqno
            held.starts[p] = min(after, held.starts.get(p, after))
            self.check_frames(p, self._read_all(p, after, hold), after, at, held.purged[p])
        if not held.ats:
            self.leases.remove(held)

    def check_leases(self) -> None:
        """Nothing is purged that a reader may ask for."""
        for held in self.leases:
            if held.until > self.monotonic and not self.is_memory_bound:
                for p in held.ats:
                    least = max(held.purged[p], held.starts.get(p, 0))
                    assert self.models[p].purge_seqno <= least, f"p{p}: purged above {least}"

    def check_purge(self, p: int, purge: int) -> None:
        """No stream has still to be told of what is going to go."""
        partition, before = self.bucket.partitions[p], self.models[p].purge_seqno
        sent = [reader.sent for reader in partition.queue.readers]
        assert purge <= max(before, min(sent, default=partition.high_seqno)), f"p{p}: {purge}"

    def lose_leases(self, p: int) -> None:
        """The partition went back: nobody reads what it was."""
        for held in [held for held in self.leases if p in held.ats]:
            assert self.bucket.lease_hold(held.lease_id, p) is None
            del held.ats[p]
        self.leases = [held for held in self.leases if held.ats]

    def release_lease(self, n: int) -> None:
        self.bucket.leases.release(self.leases.pop(n % len(self.leases)).lease_id)

    def renew_lease(self, n: int) -> None:
        held = self.leases[n % len(self.leases)]
        renewed = self.bucket.leases.renew(held.lease_id, LEASE_S)
        if renewed is None:
            self.leases.remove(held)
        else:
            seconds, holds = renewed
            held.until = self.monotonic + seconds * SECOND
            assert set(holds) <= set(held.ats)
