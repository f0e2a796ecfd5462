"""The planner's connection to nodes: positions, histories and leases over kv.

Invariants:
1. Connections and questions are repeated for `reconnectTimeout`, the first one too, so a query
   survives the restart of a node (`patience`). Executors and sinks use the same functions.
2. Partitions that move between nodes are waited for as long, and asked for at their new node. So
   is the durability of a new history, which may be unknown at first.
3. A thread with its own connections renews the leases of the newest offset while the query lives,
   however long a batch takes. An unreachable node does not delay the leases at other nodes.

Elsewhere: the rules (`planner`), the executors' connections (`reading`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from millstream.client.extensions import DURABLE_MARK, LeaseHold, PartitionPosition
from millstream.client.kv import Client, connect
from millstream.client.measuring import Piece, measure_lease
from millstream.errors import (
    AccessError,
    MillstreamError,
    RoutingError,
    StreamError,
    UnavailableError,
    UsageError,
)
from millstream.model.limits import LEASE_SECONDS_DEFAULT
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverLog
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.change_stream.patience import Wait, advised, again, ask_again
from millstream.wire.cluster_map import ClusterMap

__all__ = ["LeaseKeeper", "NodeControl", "open_again", "open_client"]

WAITING_SHOWN_MAX: Final = 5
"""Partitions that an error names."""
STOP_S: Final = 2.0
"""Longest wait for a renewal under way when a query stops."""
RENEW_EVERY_S: Final = LEASE_SECONDS_DEFAULT / 3

Answer = TypeVar("Answer")


def open_client(options: SourceOptions) -> Client:
    """Connect with the options of a source.

    Raises:
        UnavailableError, AccessError: as `millstream.connect`.
    """
    try:
        client = connect(
            options.hosts, bucket=options.bucket, user=options.user, password=options.password,
            tls=options.tls(),
        )  # fmt: skip
    except AccessError as error:
        raise advised(error) from error
    client.reconnect_s = options.reconnect_s
    return client


def open_again(options: SourceOptions) -> Client:
    """Connect, again for `reconnectTimeout` while no node answers.

    Raises:
        UnavailableError, AccessError: as `millstream.connect`.
    """
    return again(lambda: open_client(options), options.reconnect_s)


class NodeControl:
    """What the planner asks of a node; a `planner.PlanningSource`.

    Args:
        options: of the source.
        waits: False: once it is connected, a question is asked once, and the caller waits.
    """

    def __init__(self, options: SourceOptions, *, waits: bool = True) -> None:
        self._options = options
        self._client = open_again(options)
        self._reconnect_s = options.reconnect_s if waits else 0.0
        self._client.reconnect_s = self._reconnect_s
        self._newest = DURABLE_MARK if options.is_durable_only else None
        self.bucket_uuid = self._client.cluster_map.bucket_uuid
        self.partition_ids = self._checked_partitions()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def positions(self) -> Mapping[int, PartitionPosition]:
        """Return the position of every partition to be read (invariant 2).

        Raises:
            UnavailableError: `partition_inactive`: of several nodes none serves one for too long.
        """
        wait = Wait(self._reconnect_s)
        while True:
            found = self._ask(lambda client: client.positions(self.partition_ids))
            active = [at for at in found if at.state == PartitionState.ACTIVE]
            is_spread = len(self._client.cluster_map.nodes) > 1
            if len(active) == len(self.partition_ids) or not is_spread:
                wait.end()
                return {position.partition_id: position for position in found}
            wait.pause(self._inactive(found))
            self.refresh_map()

    def refresh_map(self) -> None:
        """Ask for the newest partition map; whoever is asked next says if no node answers."""
        with suppress(UnavailableError):
            self._client.refresh_map()

    def positions_now(self, partition_ids: Collection[int]) -> Mapping[int, PartitionPosition]:
        """Return the positions of partitions, without those that no node serves or reports now.

        Raises:
            UnavailableError, RoutingError: no partition is reported.
        """
        found: dict[int, PartitionPosition] = {}
        failure: MillstreamError | None = None
        for is_again in (False, True):
            left = [p for p in partition_ids if p not in found]
            if is_again and left:
                self.refresh_map()
            for mine in self._by_owner(left):
                try:
                    for position in self._client.positions(mine):
                        if position.state == PartitionState.ACTIVE:
                            found[position.partition_id] = position
                except (UnavailableError, RoutingError) as error:
                    failure = error
        if failure is not None and not found:
            raise failure
        return found

    def _by_owner(self, partition_ids: Collection[int]) -> list[list[int]]:
        groups: dict[int, list[int]] = {}
        for partition_id in partition_ids:
            owner = self._client.cluster_map.owners[partition_id]
            groups.setdefault(owner, []).append(partition_id)
        return [*groups.values()]

    def positions_known(self) -> Mapping[int, PartitionPosition]:
        """Return `positions` once the durable seqnos, if the option wants them, are known.

        Raises:
            UnavailableError: `durable_unknown` for too long.
        """
        wait = Wait(self._reconnect_s)
        while True:
            found = self.positions()
            unknown = [p for p, at in found.items() if at.high_seqno > 0 == at.durable_seqno]
            if self._newest is None or not unknown or self._is_alone:
                wait.end()
                return found
            wait.pause(self._durable_unknown(unknown))

    def failover_log(self, partition_id: int) -> FailoverLog:
        """Return the histories of a partition, newest first."""
        return self._ask(lambda client: client.branch_log(partition_id))

    def open_lease(self, partition_ids: Sequence[int]) -> Mapping[int, LeaseHold]:
        """Hold partitions as of their present high, or newest durable mark (the option says)."""
        ends = dict.fromkeys(partition_ids, self._newest)
        may_move = not self._is_alone
        try:
            return ask_again(
                self._client, lambda client: client.open_lease(ends), may_move=may_move
            )
        except StreamError as error:
            if not may_move or error.code != "lease_lost":
                raise
            raise UnavailableError(
                f"a partition moves: {error}",
                code="partition_inactive",
                retry="never" if self._reconnect_s else "refresh_map",  # this waited already
            ) from error

    def open_whole_lease(self, partition_ids: Sequence[int]) -> Mapping[int, LeaseHold]:
        """Hold partitions (perhaps none) as `open_lease` does, all that have changes.

        Raises:
            UnavailableError: `durable_unknown` for too long.
        """
        wait = Wait(self._reconnect_s)
        held: dict[int, LeaseHold] = {}
        missing = list(partition_ids)
        while missing:
            held.update(self.open_lease(missing))
            missing = [p for p in partition_ids if p not in held]
            if self._newest is not None and self._is_alone:
                break
            positions = self.positions() if missing else {}
            missing = [p for p in missing if positions[p].high_seqno]
            if missing:
                wait.pause(self._durable_unknown(missing))
        wait.end()
        return held

    def open_lease_at(self, ends: Mapping[int, int]) -> Mapping[int, LeaseHold]:
        """Hold partitions as of the seqnos given where all can be read so, else their highs."""
        try:
            return self._ask(lambda client: client.open_lease(dict(ends)))
        except StreamError:
            return self.open_whole_lease(list(ends))

    def renew_lease(self, lease_id: int, partition_ids: Sequence[int]) -> Mapping[int, LeaseHold]:
        """Extend a lease on partitions; return those still held."""
        return self._ask(lambda client: client.renew_lease(lease_id, partition_ids))

    def release_lease(self, lease_id: int, partition_ids: Sequence[int]) -> None:
        """Give up a lease on partitions."""
        self._ask(lambda client: client.release_lease(lease_id, partition_ids))

    def measure_lease(
        self, lease_id: int, after: Mapping[int, int], rows_max: int, bytes_max: int
    ) -> Mapping[int, Sequence[Piece]]:
        """Return the pieces of what a lease shows above seqnos; see `client.measuring`."""
        return self._ask(
            lambda client: measure_lease(client, lease_id, after, rows_max, bytes_max)
        )

    def let_go(self, lease_id: int, partition_ids: Sequence[int]) -> None:
        """Give up a lease as far as nodes answer; it ends by itself."""
        with suppress(UnavailableError, RoutingError):
            self._client.release_lease(lease_id, partition_ids)

    @property
    def cluster_map(self) -> ClusterMap:
        """The newest map known."""
        return self._client.cluster_map

    @property
    def _is_alone(self) -> bool:
        """Whether the bucket is on one node, which knows what is durable, or that nothing is."""
        return len(self._client.cluster_map.nodes) == 1

    def _ask(self, ask: Callable[[Client], Answer]) -> Answer:
        return ask_again(self._client, ask)

    def _inactive(self, found: Sequence[PartitionPosition]) -> UnavailableError:
        states = {at.partition_id: at.state.name.lower() for at in found}
        waiting = [
            f"{p} ({states.get(p, 'not told')} at {self._owner_of(p)})"
            for p in self.partition_ids
            if states.get(p) != PartitionState.ACTIVE.name.lower()
        ]
        return UnavailableError(
            f"{len(waiting)} partitions of bucket {self._options.bucket!r} are not active where "
            f"the newest map has them: {', '.join(waiting[:WAITING_SHOWN_MAX])}. Start the query "
            "again when the cluster serves them",
            code="partition_inactive",
        )

    def _owner_of(self, partition_id: int) -> str:
        map_ = self.cluster_map
        owner = map_.owners[partition_id]
        return "no node" if owner < 0 else "{}:{}".format(*map_.nodes[owner])

    def _durable_unknown(self, partition_ids: Sequence[int]) -> UnavailableError:
        return UnavailableError(
            f"bucket {self._options.bucket!r} does not know what is durable in the partitions "
            f"{sorted(partition_ids)}: a majority of their copies has not said yet what it has on "
            "disk. Try again when they can be reached, or read without durableOnly",
            code="durable_unknown",
        )

    def _checked_partitions(self) -> tuple[int, ...]:
        count = self._client.partition_count
        wanted = self._options.partition_ids
        if wanted is None:
            return tuple(range(count))
        if wanted[-1] >= count:
            raise UsageError(
                f"option partitions: bucket {self._options.bucket!r} has the partitions 0 to "
                f"{count - 1}, not {wanted[-1]}",
                code="bad_option",
            )
        return wanted


class LeaseKeeper:
    """Renews leases from a thread of its own until stopped.

    Args:
        options: how to connect.
        leases_in_use: returns lease id -> partitions; called from the thread.
        every_s: pause between renewals, in seconds.
    """

    def __init__(
        self,
        options: SourceOptions,
        leases_in_use: Callable[[], Mapping[int, Sequence[int]]],
        every_s: float = RENEW_EVERY_S,
    ) -> None:
        self.options = options
        """May be replaced: nodes come and go."""
        self._leases_in_use = leases_in_use
        self._every_s = every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-leases", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing; a renewal that a dead node holds up ends by itself, in the background."""
        self._stopped.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            leases = self._leases_in_use()
            try:
                if leases:
                    self._renew(leases)
            except MillstreamError as error:
                # Not fatal: the planner finds the lease lost, and reads its snapshot again.
                sys.stderr.write(f"millstream source: leases were not renewed: {error}\n")

    def _renew(self, leases: Mapping[int, Sequence[int]]) -> None:
        """Renew what can be; raise what the first node said that did not answer."""
        failures: dict[int, MillstreamError] = {}
        with open_client(self.options) as client:
            owners = client.cluster_map.owners
            for lease_id, partition_ids in leases.items():
                by_owner: dict[int, list[int]] = {}
                for partition_id in partition_ids:
                    by_owner.setdefault(owners[partition_id], []).append(partition_id)
                for owner in by_owner.keys() - failures.keys():
                    try:
                        client.renew_lease(lease_id, by_owner[owner])
                    except MillstreamError as error:
                        failures[owner] = error
        if failures:
            raise next(iter(failures.values()))
