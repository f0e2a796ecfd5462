"""The leases that readers hold on a bucket's partitions.

Invariants:
1. A lease id is never used twice. A lease's hold on a partition is lost at once when the lease
   expires or the partition loses the hold. A read with a lost lease gets an error, never wrong
   data.
2. There are at most `LEASES_MAX`.

Elsewhere: what a hold keeps (`kv.core.queue.mutation_queue`), the wire forms
(`kv.core.session.introspection`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from millstream.errors import UnavailableError
from millstream.kv.core.partition.partition import Partition
from millstream.model.limits import LEASE_SECONDS_DEFAULT, LEASE_SECONDS_MAX, LEASES_MAX
from millstream.upr.core.source import Hold

__all__ = ["BucketLeases", "Lease", "LeaseStatus"]

_SECOND_NS = 1_000_000_000


class Lease(NamedTuple):
    """Holds by partition id; `expires_ns` is a time of the monotonic clock."""

    expires_ns: int
    holds: dict[int, Hold]


class LeaseStatus(NamedTuple):
    """A lease as shown to people."""

    lease_id: int
    seconds_left: float
    holds: dict[int, int]
    """Partition -> the seqno as of which it is held."""


class BucketLeases:
    """The leases of one bucket; `monotonic_ns` is the clock of their times."""

    def __init__(
        self,
        name: str,
        partitions: Sequence[Partition],
        *,
        new_id: Callable[[], int],
        monotonic_ns: Callable[[], int],
    ) -> None:
        self._name = name
        self._partitions = partitions
        self._new_lease_id = new_id
        self._monotonic_ns = monotonic_ns
        self._leases: dict[int, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def open(
        self, wanted: Iterable[tuple[int, int | None]], seconds: int
    ) -> tuple[int, int, dict[int, Hold]] | None:
        """Hold partitions as of seqnos (None: the present high); (id, seconds granted, holds).

        None if one of them cannot be read as requested; then nothing is held.

        Raises:
            UnavailableError: `too_many_leases`, retry later.
        """
        self.drop_expired()
        if len(self._leases) >= LEASES_MAX:
            raise UnavailableError(
                f"bucket {self._name} holds {LEASES_MAX} leases; release some or wait",
                code="too_many_leases",
            )
        holds: dict[int, Hold] = {}
        for partition_id, at in wanted:
            is_there = partition_id < len(self._partitions) and partition_id not in holds
            hold = self._partitions[partition_id].open_hold(at) if is_there else None
            if hold is None:
                self._drop(holds)
                return None
            holds[partition_id] = hold
        lease_id = self._new_lease_id()
        while lease_id in self._leases or lease_id == 0:
            lease_id = self._new_lease_id()
        granted = self._granted(seconds)
        self._leases[lease_id] = Lease(self._monotonic_ns() + granted * _SECOND_NS, holds)
        return lease_id, granted, holds

    def renew(
        self, lease_id: int, seconds: int, named: Iterable[int] = ()
    ) -> tuple[int, dict[int, Hold]] | None:
        """Extend a lease; return (seconds granted, what it still holds of the named partitions).

        Without names, of all partitions.
        """
        lease = self._held(lease_id)
        if lease is None:
            return None
        granted = self._granted(seconds)
        self._leases[lease_id] = lease._replace(
            expires_ns=self._monotonic_ns() + granted * _SECOND_NS
        )
        wanted = list(named) or list(lease.holds)
        return granted, {p: lease.holds[p] for p in wanted if p in lease.holds}

    def release(self, lease_id: int, named: Iterable[int] = ()) -> None:
        """Release the holds of a lease on the named partitions, or all of them."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return
        for partition_id in list(named) or list(lease.holds):
            hold = lease.holds.pop(partition_id, None)
            if hold is not None:
                self._partitions[partition_id].release_hold(hold)
        if not lease.holds:
            del self._leases[lease_id]

    def hold(self, lease_id: int, partition_id: int, start: int | None = None) -> Hold | None:
        """Return the hold of a lease on a partition; None if it is not (or no longer) held.

        `start`: a stream is going to read changes above it.
        """
        lease = self._held(lease_id)
        hold = lease.holds.get(partition_id) if lease else None
        if hold is not None and start is not None:
            self._partitions[partition_id].queue.holds.asked(hold.hold_id, start)
        return hold

    def holds(self, lease_id: int) -> Mapping[int, Hold]:
        """Return what a lease still holds, by partition."""
        lease = self._held(lease_id)
        return {} if lease is None else lease.holds

    def statuses(self) -> list[LeaseStatus]:
        """Return all leases and what each still holds."""
        self.drop_expired()
        now_ns = self._monotonic_ns()
        return [
            LeaseStatus(
                lease_id,
                (lease.expires_ns - now_ns) / _SECOND_NS,
                {p: hold.at for p, hold in lease.holds.items()},
            )
            for lease_id in list(self._leases)
            if (lease := self._held(lease_id)) is not None
        ]

    def drop_expired(self) -> None:
        """Release the expired leases."""
        now_ns = self._monotonic_ns()
        for lease_id in [i for i, lease in self._leases.items() if lease.expires_ns <= now_ns]:
            self.release(lease_id)

    def _held(self, lease_id: int) -> Lease | None:
        lease = self._leases.get(lease_id)
        if lease is None:
            return None
        lost = [p for p, hold in lease.holds.items() if not self._partitions[p].is_held(hold)]
        if lease.expires_ns <= self._monotonic_ns():
            lost = list(lease.holds)
        if lost:
            self.release(lease_id, lost)
        return self._leases.get(lease_id)

    def _drop(self, holds: dict[int, Hold]) -> None:
        for partition_id, hold in holds.items():
            self._partitions[partition_id].release_hold(hold)

    @staticmethod
    def _granted(seconds: int) -> int:
        return min(seconds or LEASE_SECONDS_DEFAULT, LEASE_SECONDS_MAX)
