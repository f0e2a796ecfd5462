"""The rules of a managed cluster, said again: what nodes do is checked against them at once.

- Orders: a node out of step obeys none, nor one of an older token, session or record.
- Rights: a copy serves by an admitted session whose lease lasts, or by contact with a majority of
  every row.
- Acknowledgements: a majority of every row has, or had when it died, what is acknowledged.
- Rows: what was acknowledged is on a majority of the row that is left.
- Hand-overs: only a copy that may serve is stopped, for the node that the row names first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.cluster.core.orders import Order, Place, Reply
from millstream.model.cluster_maps import DataRecord
from millstream.model.partitions import PartitionState
from millstream.model.rows import Row
from simulators.cluster.truth import WrongError

if TYPE_CHECKING:
    from simulators.whole_cluster.engine import Engine
    from simulators.whole_cluster.node import Node
    from simulators.whole_cluster.world import World

REFUSALS = ("other_cluster", "other_node", "out_of_step", "deposed", "behind", "refused")


class Known:
    """What a node knew when an order came."""

    def __init__(self, node: Node, order: Order) -> None:
        self.node, self.order = node, order
        self.boots, self.token, self.at = node.boots, node.token, node.key(order.place)
        record = node.records.get(order.place)
        self.is_placed = record is not None and node.name in record.placed
        self.was_active = node.is_active(order.place)

    def check(self, reply: Reply) -> None:
        """An order that may not be obeyed is refused; one that is obeyed is carried out."""
        node, order = self.node, self.order
        if reply.code in REFUSALS:
            return
        if not self.boots:
            self._wrong("out of step")
        if order.token < self.token:
            self._wrong(f"a token older than {self.token}")
        if order.record is not None and order.record.at < self.at:
            self._wrong(f"a record older than {self.at}")
        is_active, copy = node.is_active(order.place), node.copies.get(order.place)
        begins = is_active and not self.was_active
        if order.kind == "activate" and begins and order.boots != self.boots:
            self._wrong("another session")
        if order.kind == "fence" and is_active and copy.branch < order.branch:
            self._wrong("and serves an older branch after it")
        if order.kind == "remove" and copy is None and self.is_placed:
            placed = order.record is not None and node.name in order.record.placed
            if placed or (order.record is not None and order.record.at <= self.at):
                self._wrong("though its record places the copy")

    def _wrong(self, why: str) -> None:
        raise WrongError(f"{self.node.name} obeys {self.order.kind}: {why}")


def check_right(node: Node, place: Place) -> None:
    """Who serves has a lease, or contact; see `model.serving_rights`."""
    right = node.right(place)
    if not right.is_given:
        return
    engine, taker = node.engines[place.bucket], node.taker
    now_ms, p = node.now_ms(), place.partition
    lease_ms = taker._lease_ms
    has_lease = lease_ms is not None and now_ms < lease_ms
    if right.by_lease and not (taker.boots and node.was_admitted(taker.boots) and has_lease):
        raise WrongError(f"{node.name} serves {place} by a lease that it has not")
    record = engine.bucket.record(p)
    if not right.by_contact or record is None:
        return
    streams = engine.bucket.serving._streams[p]
    near = {
        name for name, (_, peer) in streams.items()
        if peer.sent_ms is not None and now_ms < peer.sent_ms + node.world.window_ms
    } | {node.name}  # fmt: skip
    for row in record.rows:
        if not _is_majority(row, near):
            raise WrongError(f"{node.name} serves {place} by contact with {sorted(near)}: {row}")


def check_acknowledged(node: Node, place: Place, number: int) -> None:
    for row in node.records[place].rows:
        having = holders(node.world, place, number, row)
        if not _is_majority(row, having):
            raise WrongError(f"{number} of {place} is acknowledged, only {sorted(having)} have it")


def check_left(world: World, place: Place, before: DataRecord, now: DataRecord) -> None:
    """Rows were left: what was acknowledged is in the one that stays."""
    is_left = len(before.rows) > 1 and now.rows == before.rows[-1:]
    gone = any(world.nodes[name].is_gone for name in before.voters)
    if not is_left or gone or place in world.truth.struck or place in world.truth.excused:
        return
    named = {name for name in now.row if name is not None}
    for number, level in world.truth.acked[place]:
        having = holders(world, place, number, now.row)
        if not _is_majority(now.row, having) and having != named:
            raise WrongError(
                f"the rows of {place} were left, {number} ({level}) is on {sorted(having)} only"
            )


def check_stop(engine: Engine, p: int, reader: str) -> None:
    """A copy is stopped to be handed over."""
    record = engine.bucket.record(p)
    is_wanted = record is not None and record.row[0] == reader
    is_active = engine.partitions[p].state is PartitionState.ACTIVE
    if is_active and not (is_wanted and engine.bucket.right_now(p).is_given):
        raise WrongError(f"{engine.name} hands {p} over to {reader}, by {record}")


def holders(world: World, place: Place, number: int, row: Row) -> set[str]:
    """Return the nodes of a row that have a change, or had it at their death or the drop."""
    found = set()
    for name in row:
        if name is not None:
            node = world.nodes[name]
            view = node.copies.get(place)
            kept = (node.left.get(place, ()), node.dropped.get(place, ()))
            logs = (view.log if view is not None else (), *kept)
            if any(number == one for log in logs for _, one in log):
                found.add(name)
    return found


def _is_majority(row: Row, names: set[str]) -> bool:
    return 2 * sum(name in names for name in row) > len(row)
