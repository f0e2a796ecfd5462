"""Readers of the cluster's streams: they follow the newest record that they heard of.

Each reads one partition and keeps documents and place as a Spark-like reader does (`Keeping`,
`Durable`), or exactly every state (`Exact`). What must hold is said there
(`simulators.simulation.readers`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.cluster.core.orders import Place
from millstream.model.cluster_maps import DataRecord
from millstream.model.rows import majority
from simulators.simulation.readers import Durable, Exact, Keeping, Reader
from simulators.simulation.truth import replay

if TYPE_CHECKING:
    from simulators.whole_cluster.world import World

EVENTS = (1, 4, 9, 30)


class Follower:
    """A reader and the map that it knows; it takes a partition only from whom that names."""

    def __init__(self, world: World, number: int, place: Place) -> None:
        kind = world.rng.choice((Keeping, Exact, Durable))
        self.world, self.place, self.side, self.is_up = world, place, 0, True
        self.record: DataRecord | None = None
        self.name = f"r{number}"
        self.reader: Reader = kind(world, number, place.partition)  # type: ignore[arg-type]

    def learn(self) -> None:
        """Ask some node for its map; an older one is passed over."""
        nodes = [node for node in self.world.all_nodes() if self.world.connected(self, node)]
        if nodes:
            told = self.world.rng.choice(nodes).records.get(self.place)
            if told is not None and (self.record is None or told.at > self.record.at):
                self.record = told

    def step(self, events: int | None = None) -> None:
        world, reader = self.world, self.reader
        if self.place in world.truth.excused and isinstance(reader, Durable):
            reader.is_excused = True
        if self.record is None or world.rng.random() < 0.3 or not self._is_read():
            self.learn()
        name = None if self.record is None else self.record.active
        node = None if name is None else world.nodes[name]
        if reader.link is not None and (reader.link.is_cut or reader.source.owner is not node):
            reader.disconnect()
        engine = None if node is None else node.engines.get(self.place.bucket)
        if node is not None and engine is not None and world.connected(self, node):
            reader.follow(engine, events or world.rng.choice(EVENTS))
            node.acknowledge()
        elif world.rng.random() < 0.2:
            reader.disconnect()
        if world.rng.random() < 0.02:
            reader.disconnect()

    def _is_read(self) -> bool:
        link = self.reader.link
        return link is not None and not link.is_cut

    def waits_for_copies(self) -> bool:
        """Whether too few copies are left for anything to be durable: it is told nothing."""
        row = self.world.record(self.place).row
        is_short = len(row) - row.count(None) < majority(row)
        return is_short and isinstance(self.reader, Durable)

    def is_through(self) -> bool:
        """Whether it has all that the active copy has, and knows in which history."""
        active = self.world.record(self.place).active
        assert active is not None
        copy = self.world.nodes[active].copy(self.place)
        position, log = self.reader.stands()
        is_at_end = position.seqno == position.snap_end == copy.end
        same = log[:1] == copy.partition.failover_log[:1]
        is_through = is_at_end and same and self.reader.is_settled
        return is_through or self.waits_for_copies()

    def check_end(self) -> None:
        active = self.world.record(self.place).active
        assert active is not None
        history = self.world.nodes[active].copy(self.place).history()
        found, right = self.reader.values(), replay(history)
        is_short = self.waits_for_copies()
        assert is_short or found == right, f"{self.reader.name} has {found}, right is {right}"
        if isinstance(self.reader, Durable) and not self.reader.is_excused:
            alive = {change.number for change in history}
            gone = [one for one in self.reader.held.values() if one.number not in alive]
            assert not gone, f"{self.reader.name} held {gone}, which vanished"
