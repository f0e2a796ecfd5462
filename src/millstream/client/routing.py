"""Connections of one client and the map that says which of them serves a partition.

Invariants:
1. At most one connection per node, opened when first needed, reopened when found closed
   (a node that was restarted in between is not noticed).
2. A map is replaced only by a newer one; a node with an older one does not hide it.
3. A request answered "not mine" or "not now" is repeated with growing pauses until the client's
   timeout has passed; so is one whose node cannot be connected to, where there are others: one of
   them may take its place. Pauses are at most `REROUTE_S_MAX` while another node is looked for,
   and at most `PAUSE_S_MAX` where a node asks to be left alone. One of a partition for which the
   map names nobody waits for `NOBODY_S_MAX` at most. Anything else is the caller's to judge.

Elsewhere: the map's form (`wire.cluster_map`), many requests at once (`client.pipeline`).
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from millstream.client.connection import Connection
from millstream.errors import RoutingError, UnavailableError
from millstream.model.pauses import Pauses
from millstream.wire.cluster_map import ClusterMap, NodeAddress, cluster_map_from
from millstream.wire.mcbp import Opcode, Packet, Status

__all__ = ["Backoff", "Router", "is_transient"]

PAUSE_S_MIN: Final = 0.005
PAUSE_S_MAX: Final = 0.5
REROUTE_S_MAX: Final = 0.1
"""Longest pause until the map is asked for again, while a node is looked for that serves."""
NOBODY_S_MAX: Final = 5.0
"""How long a request waits until a map names a node for its partition: one may be promoted."""
_TRANSIENT: Final = frozenset((Status.NOT_MY_VBUCKET, Status.ETMPFAIL, Status.EBUSY))


def is_transient(status: int) -> bool:
    """Whether the same request may succeed soon, perhaps at another node."""
    return status in _TRANSIENT


class Backoff:
    """Growing pauses up to a deadline."""

    def __init__(self, timeout_s: float) -> None:
        self._deadline_s = time.monotonic() + timeout_s
        self._pauses = Pauses(PAUSE_S_MIN, PAUSE_S_MAX)

    def wait(self, most_s: float = PAUSE_S_MAX) -> bool:
        """Pause, for `most_s` at most; False, at once, when the deadline has passed."""
        pause_s = min(self._pauses.next(), most_s)
        if time.monotonic() + pause_s > self._deadline_s:
            return False
        time.sleep(pause_s)
        return True

    def restart(self) -> None:
        """Begin with short pauses again, up to the same deadline."""
        self._pauses.restart()


class Router:
    """Finds the connection for a partition.

    Args:
        seeds: nodes to ask for the map; the first that answers is taken.
        bucket: bucket that every connection selects.
        user: user name, or None.
        password: that user's.
        timeout_s: longest wait for an answer and longest repetition, in seconds.
        tls: context of encrypted connections, or None.
    """

    def __init__(
        self,
        seeds: Sequence[tuple[str, int]],
        *,
        bucket: str,
        user: str | None,
        password: str | None,
        timeout_s: float,
        tls: ssl.SSLContext | None,
    ) -> None:
        assert seeds, "a client needs the address of a node"
        self.bucket = bucket
        self.timeout_s = timeout_s
        self._seeds = [NodeAddress(*seed) for seed in seeds]
        self._user, self._password, self._tls = user, password, tls
        self._connections: dict[NodeAddress, Connection] = {}
        self.features: frozenset[int] = frozenset()
        """Granted by the node that was asked for the map last; all grant the same."""
        self.map: ClusterMap = self._first_map()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def refresh_map(self) -> None:
        """Ask for the map again, one node after the other, until one has a newer one.

        Raises:
            UnavailableError: no node answers.
        """
        failure: UnavailableError | None = None
        has_answer = False
        open_ones = [node for node, one in self._connections.items() if not one.has_ended]
        for node in dict.fromkeys([*open_ones, *self.map.nodes, *self._seeds]):
            try:
                found = self._map_of(node)
            except UnavailableError as error:
                failure = error
                continue
            has_answer = True
            if found.version > self.map.version:
                self.map = found
                return
        if not has_answer and failure is not None:
            raise failure

    def connection_of(self, partition_id: int) -> Connection:
        """Return the connection of the node that serves a partition.

        Raises:
            RoutingError: `not_my_partition`: nobody serves it at present.
        """
        return self.connection_to(self.node_of(partition_id))

    def node_of(self, partition_id: int) -> NodeAddress:
        """Return the node that serves a partition.

        Raises:
            RoutingError: `not_my_partition`: nobody serves it at present.
        """
        self._check_served([partition_id])
        return self.map.nodes[self.map.owners[partition_id]]

    def connection_to(self, node: NodeAddress) -> Connection:
        """Return the connection to a node, opened if needed."""
        connection = self._connections.get(node)
        if connection is not None and connection.has_ended:
            connection.close()
            connection = None
        if connection is None:
            connection = self._connections[node] = self._open(node)
        return connection

    def take(self, node: NodeAddress) -> Connection:
        """Return a connection to a node that is the caller's from now on."""
        connection = self.connection_to(node)
        del self._connections[node]
        return connection

    def _open(self, node: NodeAddress) -> Connection:
        return Connection(
            node.host,
            node.port,
            user=self._user,
            password=self._password,
            bucket=self.bucket,
            timeout_s=self.timeout_s,
            tls=self._tls,
        )

    def groups(
        self, partition_ids: Sequence[int], *, is_whole: bool = False
    ) -> dict[NodeAddress, list[int]]:
        """Return the partitions by the node that serves them.

        Args:
            partition_ids: which; those that nobody serves are left out, unless `is_whole`.
            is_whole: they are looked for in a newer map, and are an error if they are not in it.

        Raises:
            RoutingError: `not_my_partition`: `is_whole`, and nobody serves one at present.
        """
        if is_whole:
            self._check_served(partition_ids)
        found: dict[NodeAddress, list[int]] = {}
        for partition_id in partition_ids:
            owner = self.map.owners[partition_id]
            if owner >= 0:
                found.setdefault(self.map.nodes[owner], []).append(partition_id)
        return found

    def call(self, partition_id: int, ask: Callable[[Connection], Packet]) -> Packet:
        """Ask the node that serves a partition, again while the answer is transient.

        Raises:
            RoutingError: `not_my_partition`: nobody has served it for `NOBODY_S_MAX`.
            UnavailableError: its node cannot be reached.
        """
        backoff, nobody = Backoff(self.timeout_s), Backoff(min(self.timeout_s, NOBODY_S_MAX))
        while True:
            try:
                connection = self.connection_of(partition_id)
            except RoutingError:
                if not nobody.wait(REROUTE_S_MAX):
                    raise
                continue
            except UnavailableError:
                if len(self.map.nodes) == 1 or not backoff.wait(REROUTE_S_MAX):
                    raise
                with suppress(UnavailableError):
                    self.refresh_map()
                continue
            packet = ask(connection)
            is_elsewhere = packet.status == Status.NOT_MY_VBUCKET
            most_s = REROUTE_S_MAX if is_elsewhere else PAUSE_S_MAX
            if not is_transient(packet.status) or not backoff.wait(most_s):
                return packet
            if is_elsewhere:
                known = self.map.version
                self.refresh_map()
                if self.map.version > known:
                    backoff.restart()  # another node serves it now, or in a moment

    def _check_served(self, partition_ids: Sequence[int]) -> None:
        if any(self.map.owners[partition_id] < 0 for partition_id in partition_ids):
            self.refresh_map()
        for partition_id in partition_ids:
            if self.map.owners[partition_id] < 0:
                raise RoutingError(
                    f"no node serves partition {partition_id} of bucket {self.bucket!r} now; try "
                    f"again later"
                )

    def _first_map(self) -> ClusterMap:
        failure: UnavailableError | None = None
        for node in self._seeds:
            try:
                return self._map_of(node)
            except UnavailableError as error:
                failure = error
        assert failure is not None
        raise failure

    def _map_of(self, node: NodeAddress) -> ClusterMap:
        connection = self.connection_to(node)
        packet = connection.ask(Opcode.GET_CLUSTER_CONFIG, "the partition map")
        self.features = connection.features
        return cluster_map_from(packet.value, host=node.host, port=node.port)
