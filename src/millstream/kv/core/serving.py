"""Which active copies of a bucket may serve plain requests now, and until when.

A bucket without a manager serves always. In a managed cluster an active copy needs a lease of its
node, or contact with a majority of every row in force (`model.serving_rights`). A follower is in
contact while its stream is open: it closes the stream before it answers anything after a promise
of a larger branch.

    rights.manage("n1", record_of, now_ms)       # by records from now on
    rights.set_lease(until_ms, is_admitted=True, now_ms=now_ms)
    rights.confirm(peer, 17, stream, now_ms)     # a follower has accepted this copy's history
    rights.heard(peer, now_ms)                   # it has answered; `peer.sent_ms` says what
    rights.look(now_ms)                          # what has lapsed by now is closed

Invariants:
1. `Partition.unserved` is what `serves` returns, as of the last event or `look`. Whoever serves
   requests calls `look` before, if `next_change_ms` has passed.
2. A copy never serves by a lease or by contact at or after the end of both.
3. While the lease holds no partition is looked at: to extend it costs nothing.

Times are milliseconds of the monotonic clock of the node.

Elsewhere: the rules (`model.serving_rights`), what is refused (`kv.core.write_gate`), timer and
log (`kv.aio.serving`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from millstream.kv.core.partition.states import Unserved
from millstream.model.cluster_maps import DataRecord
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverLog
from millstream.model.serving_rights import (
    CONTACT_WINDOW_MS,
    Contact,
    Isolation,
    Right,
    contact_until_ms,
    may_serve,
    what_is_served,
)
from millstream.upr.core.source import Peer

__all__ = ["HEARD_MS", "NEVER_MS", "RecordOf", "Served", "ServingRights"]

NEVER_MS: Final = 2**63 - 1
HEARD_MS: Final = 1000
"""A stream between copies counts as broken if nothing was heard on it for so long: its node may
stand still, and the connection stays open."""
RecordOf = Callable[[int], DataRecord | None]
"""Returns the record of a partition that this node has adopted."""


class Served(Protocol):
    """The part of a partition that is used here."""

    @property
    def partition_id(self) -> int:
        """Return its number."""

    @property
    def state(self) -> PartitionState:
        """Return the role of the copy."""

    @property
    def failover_log(self) -> FailoverLog:
        """Return its histories, newest first."""

    unserved: Unserved


_UNSERVED: Final[dict[tuple[bool, bool], Unserved]] = {
    (True, True): "",
    (True, False): "writes",
    (False, False): "all",
}


def _nobody_listens(_: int) -> None: ...


class ServingRights:
    """The rights of the active copies of one bucket.

    Args:
        partitions: of the bucket.
        on_changed: called for each partition of which `unserved` has changed.
    """

    def __init__(
        self, partitions: Sequence[Served], on_changed: Callable[[int], None] = _nobody_listens
    ) -> None:
        self._partitions = partitions
        self._on_changed = on_changed
        self.record_of: RecordOf | None = None
        """Returns the adopted record of a partition; None: the bucket is not managed."""
        self.on_news: Callable[[], None] = lambda: None
        """Called after changes of `isolated`, and when `next_change_ms` is earlier than before."""
        self.isolated: set[int] = set()
        """Active copies without a right."""
        self.next_change_ms = NEVER_MS
        """When a right may lapse; before that only events change anything."""
        self.told_ms: list[int | None] = [None] * len(partitions)
        """When a following copy here last answered its source; None: not since the start."""
        self._node = ""
        self._window_ms = CONTACT_WINDOW_MS
        self._isolation: Isolation = "stop"
        self._lease_ms: int | None = None
        self._is_admitted = False
        self._streams: list[dict[str, tuple[object, Peer]]] = [{} for _ in partitions]
        """By partition and follower: streams that followers have accepted."""

    # -- what the node says

    def manage(self, node: str, record_of: RecordOf, now_ms: int) -> None:
        """Serve by rights from now on; `node` is the name of this node in the records."""
        self._node, self.record_of = node, record_of
        self._judge_all(now_ms)

    def records_changed(self, partition_ids: Iterable[int], now_ms: int) -> None:
        """Other records of these partitions were adopted."""
        self._judge(partition_ids, now_ms)

    def set_rules(self, window_ms: int, isolation: Isolation, now_ms: int) -> None:
        """Use another contact window, and another answer to isolation."""
        if (window_ms, isolation) != (self._window_ms, self._isolation):
            self._window_ms, self._isolation = window_ms, isolation
            self._judge_all(now_ms)

    def set_lease(self, until_ms: int | None, *, is_admitted: bool, now_ms: int) -> None:
        """Set until when the node has the lease; None: it is out of step."""
        was_held = self._is_lease_held(now_ms)
        self._lease_ms, self._is_admitted = until_ms, is_admitted
        if not (was_held and self._is_lease_held(now_ms)):
            self._judge_all(now_ms)
        elif until_ms is not None and self.record_of is not None:
            before_ms, self.next_change_ms = self.next_change_ms, until_ms
            if until_ms < before_ms:
                self.on_news()

    # -- what followers say

    def confirm(self, peer: Peer, partition_id: int, stream: object, now_ms: int) -> None:
        """A follower has accepted the history of the stream: its answers are contact."""
        self._streams[partition_id][peer.name] = (stream, peer)
        if partition_id in self.isolated:
            self._judge((partition_id,), now_ms)

    def left(self, follower: str, partition_id: int, stream: object, now_ms: int) -> None:
        """The stream has ended; does nothing if another one has replaced it."""
        known = self._streams[partition_id].get(follower)
        if known is not None and known[0] is stream:
            del self._streams[partition_id][follower]
            self._judge((partition_id,), now_ms)

    def heard(self, peer: Peer, now_ms: int) -> None:
        """A follower has answered: copies may serve again that had no contact."""
        if self.isolated:
            self._judge([p for p in self.isolated if peer.name in self._streams[p]], now_ms)

    def answered(self, partition_ids: Iterable[int], now_ms: int) -> None:
        """Copies here that follow have answered their source."""
        for partition_id in partition_ids:
            self.told_ms[partition_id] = now_ms

    # -- what is asked

    @property
    def isolated_serve(self) -> str:
        """Return what isolated copies serve, in words."""
        return {"stop": "nothing", "read_only": "reads only", "serve": "all"}[self._isolation]

    def right(self, partition_id: int, now_ms: int) -> Right:
        """Return why the copy may serve now."""
        partition = self._partitions[partition_id]
        is_active = partition.state is PartitionState.ACTIVE
        if self.record_of is None:
            return Right(is_active, is_active)
        record = self.record_of(partition_id)
        if record is None:
            return Right(False, False)
        return may_serve(
            now_ms=now_ms,
            is_active=is_active,
            lease_ms=self._lease_ms,
            is_admitted=self._is_admitted,
            contact_ms=self._contact_ms(partition, record),
        )

    def serves(self, partition_id: int, now_ms: int) -> tuple[bool, bool]:
        """Return whether plain reads and plain writes are served now; of active copies only."""
        is_active = self._partitions[partition_id].state is PartitionState.ACTIVE
        right = self.right(partition_id, now_ms)
        return what_is_served(right, self._isolation, is_active=is_active)

    def quiet_ms(self, partition_id: int, now_ms: int) -> int | None:
        """Return how long ago a following copy answered its source; None: not since the start."""
        told_ms = self.told_ms[partition_id]
        return None if told_ms is None else max(0, now_ms - told_ms)

    def hears(self, follower: str, partition_id: int, now_ms: int) -> bool:
        """Return whether a follower has answered within `HEARD_MS` on its stream from here."""
        known = self._streams[partition_id].get(follower)
        sent_ms = None if known is None else known[1].sent_ms
        return sent_ms is not None and now_ms - sent_ms <= HEARD_MS

    def look(self, now_ms: int) -> None:
        """Close what has lapsed."""
        if now_ms >= self.next_change_ms:
            self._judge_all(now_ms)

    def refresh(self, partition_id: int, now_ms: int) -> None:
        """The state of a copy may have changed; `on_changed` is not called."""
        self._judge((partition_id,), now_ms, is_told=False)

    # -- inside

    def _is_lease_held(self, now_ms: int) -> bool:
        return self._is_admitted and self._lease_ms is not None and now_ms < self._lease_ms

    def _contact_ms(self, partition: Served, record: DataRecord) -> int | None:
        branch = partition.failover_log[0].branch
        contacts = {
            name: Contact(peer.sent_ms, branch)
            for name, (_, peer) in self._streams[partition.partition_id].items()
            if peer.sent_ms is not None
        }
        return contact_until_ms(self._node, branch, record.rows, contacts, self._window_ms)

    def _judge_all(self, now_ms: int) -> None:
        before_ms, self.next_change_ms = self.next_change_ms, NEVER_MS
        self._judge(range(len(self._partitions)), now_ms, before_ms=before_ms)

    def _judge(
        self,
        partition_ids: Iterable[int],
        now_ms: int,
        *,
        before_ms: int | None = None,
        is_told: bool = True,
    ) -> None:
        """Set `unserved` and `isolated` of some partitions, and when that may change."""
        if self.record_of is None:
            return
        before_ms = self.next_change_ms if before_ms is None else before_ms
        next_ms, is_news = self.next_change_ms, False
        for partition_id in partition_ids:
            partition = self._partitions[partition_id]
            is_isolated = False
            unserved: Unserved = ""
            if partition.state is PartitionState.ACTIVE:
                until_ms = self._until_ms(partition, now_ms)
                is_isolated = until_ms <= now_ms
                if is_isolated:
                    unserved = _UNSERVED[
                        what_is_served(Right(False, False), self._isolation, is_active=True)
                    ]
                else:
                    next_ms = min(next_ms, until_ms)
            if is_isolated != (partition_id in self.isolated):
                is_news = True
                (self.isolated.add if is_isolated else self.isolated.discard)(partition_id)
            if partition.unserved != unserved:
                partition.unserved = unserved
                if is_told:
                    self._on_changed(partition_id)
        self.next_change_ms = next_ms
        if is_news or next_ms < before_ms:
            self.on_news()

    def _until_ms(self, partition: Served, now_ms: int) -> int:
        """Return the end of a right of an active copy, at or before now if there is none."""
        assert self.record_of is not None, "the bucket is not managed"
        record = self.record_of(partition.partition_id)
        if record is None:
            return now_ms
        if self._is_lease_held(now_ms):
            assert self._lease_ms is not None
            return self._lease_ms
        contact_ms = self._contact_ms(partition, record)
        return now_ms if contact_ms is None else contact_ms
