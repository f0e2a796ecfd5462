"""What really happened: the invariants of the cluster, over what real copies have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.cluster.core.orders import Place
from millstream.model.cluster_maps import DataRecord
from simulators.cluster import truth as modelled
from simulators.cluster.truth import WrongError
from simulators.simulation import truth as of_changes
from simulators.simulation.truth import replay
from simulators.whole_cluster.rules import check_left, check_right

if TYPE_CHECKING:
    from simulators.whole_cluster.node import Node
    from simulators.whole_cluster.world import World


class Truth(modelled.Truth, of_changes.Truth):
    world: World  # type: ignore[assignment]

    def __init__(self, world: World, places: list[Place]) -> None:
        modelled.Truth.__init__(self, world, places)
        of_changes.Truth.__init__(self, world.numbers)
        self.histories = {place: {} for place in places}
        self.born: dict[int, int] = {}
        """The branch in which a change was written, by its number."""
        self.known: dict[Place, DataRecord] = {}
        """The records in the map at the last look."""
        self.excused: set[Place] = set()
        """Changes that were persisted may be lost of these: a promotion said so, or a disk was."""

    def take(self, place: Place) -> None:
        """A bucket is made."""
        for known in (self.acked, self.plain, self.reported, self.crashed, self.histories):
            empty: Any = known[next(iter(known))]
            known[place] = type(empty)()  # type: ignore[assignment]

    def dropped(self, node: Node, bucket: str) -> None:
        """A node deletes a bucket: only one that was dropped."""
        if any(place.bucket == bucket for place in self.world.places):
            raise WrongError(f"{node.name} deletes {bucket}, which nobody has dropped")

    def excuse(self, place: Place, kept: frozenset[str]) -> None:
        super().excuse(place, kept)
        if "persisted" not in kept:
            self.excused.add(place)

    def check(self) -> None:
        """Also: each right is one, and no row is left too early."""
        super().check()
        world = self.world
        for place in world.places:
            record = world.record(place)
            before = self.known.setdefault(place, record)
            if before is not record:
                check_left(world, place, before, record)
                self.known[place] = record
            for node in world.all_nodes():
                check_right(node, place)

    def check_end(self) -> None:
        """Also: what copies can be read as is what their histories say; so are readers."""
        super().check_end()
        world = self.world
        for node in world.all_nodes():
            for copy in node.every_copy():
                copy.check("at the end")
        for place in world.places:
            active = world.record(place).active
            assert active is not None
            right = replay(world.nodes[active].copy(place).history())
            for name in world.record(place).row:
                if name is not None:
                    copy = world.nodes[name].copy(place)
                    assert copy.values() == right, f"{copy.name}: {copy.values()}, {right}"
        for follower in world.followers:
            follower.check_end()
