"""What really happened: the invariants of the cluster, over what real copies have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.cluster.core.orders import Place
from simulators.cluster import truth as modelled
from simulators.simulation import truth as of_changes

if TYPE_CHECKING:
    from simulators.whole_cluster.world import World


class Truth(modelled.Truth, of_changes.Truth):
    def __init__(self, world: World, places: list[Place]) -> None:
        modelled.Truth.__init__(self, world, places)
        of_changes.Truth.__init__(self, world.numbers)
        self.histories = {place: {} for place in places}
        self.born: dict[int, int] = {}
        """The branch in which a change was written, by its number."""
