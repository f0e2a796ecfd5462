"""What really happened in a simulated cluster, and the invariants that every step must keep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from millstream.cluster.core.orders import Place
from millstream.model import serving_rights
from millstream.model.cluster_maps import DataRecord, IndexRecord, MapKey
from millstream.model.rows import majority
from simulators.cluster.node import ACTIVE, Copy, Log, Node, common

if TYPE_CHECKING:
    from simulators.cluster.index_parts import Query, Shown
    from simulators.cluster.world import World

Row = tuple[str | None, ...]
LEVELS = ("memory", "majority", "persisted")


class WrongError(AssertionError):
    """An invariant does not hold."""


class Truth:
    def __init__(self, world: World, places: list[Place]) -> None:
        self.world, self._number = world, 100
        self.acked: dict[Place, list[tuple[int, str]]] = {place: [] for place in places}
        self.plain: dict[Place, list[int]] = {place: [] for place in places}
        self.reported: dict[Place, set[int]] = {place: set() for place in places}
        self.crashed: dict[Place, set[int]] = {place: set() for place in places}
        self.histories: dict[Place, dict[int, Log]] = {place: {1: ()} for place in places}
        self._published: dict[tuple[Place, MapKey], DataRecord] = {}
        self._published_index: dict[tuple[Place, MapKey], IndexRecord] = {}
        self.shown: dict[Place, Shown] = {}
        """The furthest that any query has shown."""
        self.struck: set[Place] = set()
        """All of these that counts may be lost with a disk."""

    def number(self) -> int:
        self._number += 1
        return self._number

    # ---- what nodes tell

    def publish(self, place: Place, record: DataRecord) -> None:
        known = self._published.setdefault((place, record.at), record)
        if known != record:
            raise WrongError(f"two records of key {tuple(record.at)}: {known} {record}")

    def publish_index(self, place: Place, record: IndexRecord) -> None:
        known = self._published_index.setdefault((place, record.at), record)
        if known != record:
            raise WrongError(f"two index records of key {tuple(record.at)}: {known} {record}")

    def grow(self, place: Place, branch: int, log: Log, name: str) -> None:
        line = self.histories[place].get(branch, ())
        if common(line, log) != line:
            raise WrongError(f"two histories of branch {branch} of {place}, one at {name}")
        self.histories[place][branch] = log

    def rolled_back(self, place: Place, lost: Log) -> None:
        self.reported[place] |= {number for _, number in lost}

    def excuse(self, place: Place, kept: frozenset[str]) -> None:
        """Levels that a promotion named as at risk are not required of it."""
        if len(kept) < 2:
            self.acked[place] = [pair for pair in self.acked[place] if pair[1] in kept]

    def activated(self, node: Node, place: Place) -> None:
        for other in self.world.nodes.values():
            if other is not node and self.world.clocks_good and other.right(place).is_given:
                raise WrongError(f"{node.name} is promoted while {other.name} may serve {place}")

    def removed(self, node: Node, place: Place) -> None:
        """It also says what it had that the others have not."""
        world = self.world
        if node.name in world.record(place).voters:
            raise WrongError(f"{node.name} removes its copy of {place}, which counts")
        others = [one.copies[place] for one in world.all_nodes() if one is not node
                  and place in one.copies]  # fmt: skip
        levels = LEVELS if all(copy.is_intact for copy in others) else ("persisted",)
        wanted = {number for number, level in self.acked[place] if level in levels}
        if (
            wanted
            and place not in self.struck
            and not any(wanted <= {number for _, number in copy.log} for copy in others)
        ):
            raise WrongError(f"{node.name} removes the last copy of {place}")
        self.reported[place] |= {number for _, number in node.copies[place].log}

    # ---- queries

    def answered(self, query: Query) -> None:
        """Each partition once, rows of one history up to one position, never back."""
        places = [place for found in query.found.values() for place in found]
        if sorted(places) != sorted(query.places):
            raise WrongError(f"a result has rows of {sorted(places)}: missing or repeated")
        for found in query.found.values():
            for place, shown in found.items():
                self._check_rows(query, place, shown)
                if place not in self.shown or self._covers(place, shown, self.shown[place]):
                    self.shown[place] = shown
        self.world.count("queries answered")

    def _check_rows(self, query: Query, place: Place, shown: Shown) -> None:
        branch, log = shown
        line = self.histories[place].get(branch, ())
        if common(line, log) != log:
            raise WrongError(f"rows of {place} are not what branch {branch} has up to {len(log)}")
        if not self.world.clocks_good:
            return
        old = query.before.get(place)
        if old is not None and not self._covers(place, shown, old):
            had, has = (old[0], len(old[1])), (branch, len(log))
            raise WrongError(f"rows of {place} were shown before and are missing: {has}, {had}")
        alive = {number for number, _ in self.acked[place]}
        lacking = set(query.acked[place]) & alive - numbers(log)
        if query.is_update and lacking:
            raise WrongError(f"update=true lacks {min(lacking)} of {place}")

    def _covers(self, place: Place, new: Shown, old: Shown) -> bool:
        """Whether a result shows all of an earlier one, up to where a newer branch parted."""
        if new[0] < old[0]:
            return False
        line = self.histories[place].get(new[0], ())
        return len(common(new[1], old[1])) >= len(common(old[1], line))

    # ---- checks

    def read(self, place: Place) -> None:
        """Whoever may serve a plain read has everything that a majority acknowledged."""
        for node in self.world.all_nodes():
            if self.world.clocks_good and node.right(place).is_given:
                had = {number for _, number in node.copies[place].log}
                lacking = {number for number, _ in self.acked[place]} - had
                if lacking:
                    raise WrongError(f"a read of {place} at {node.name} lacks {min(lacking)}")

    def check(self) -> None:
        """At most one copy of a partition can acknowledge to a majority."""
        nodes = self.world.all_nodes()
        for place in self.world.places:
            active = [node for node in nodes if node.is_up and node.is_active(place)]
            if len(active) > 1:
                self._check_actives(place, active)
            record = self.world.record(place)
            for node in nodes:
                if node.key(place) > record.at:
                    raise WrongError(f"{node.name} has a newer record of {place} than there is")

    def _check_actives(self, place: Place, active: list[Node]) -> None:
        able = [node.name for node in active if self._can(node, place)]
        if len(able) > 1:
            raise WrongError(f"copies of {place} on {able} can acknowledge to a majority")
        serving = [node.name for node in active if node.right(place).is_given]
        if len(serving) > 1 and self.world.clocks_good:
            raise WrongError(f"{serving} may serve {place}")

    def _can(self, node: Node, place: Place) -> bool:
        copy = node.copies[place]
        return all(
            sum(self._acknowledges(name, node, copy, place) for name in row) >= majority(row)
            for row in node.records[place].rows
        )

    def _acknowledges(self, name: str | None, node: Node, copy: Copy, place: Place) -> bool:
        other = self.world.nodes.get(name) if name else None
        mine = other.copies.get(place) if other and not other.is_gone else None
        if other is None or mine is None:
            return False
        return mine is copy or (
            mine.state is not ACTIVE
            and mine.last_branch <= copy.branch
            and serving_rights.may_acknowledge(other.records.get(place), node.records.get(place))
        )

    # ---- the end

    def check_end(self) -> None:
        """Everything acknowledged is there, the layout is whole, losses were reported."""
        world, state = self.world, self.world.space.state()
        data = set(state.members("data"))
        loads: dict[str, dict[str, int]] = {}
        for place in world.places:
            record = world.record(place)
            named = [name for name in record.row if name is not None]
            replicas = state.buckets[place.bucket].replicas
            if len(named) != min(replicas + 1, len(data)) or not set(named) <= data:
                raise WrongError(f"row {record.row} of {place}, wanted over {sorted(data)}")
            mine = loads.setdefault(place.bucket, dict.fromkeys(data, 0))
            for name in named:
                mine[name] += 1
            assert record.active is not None
            alive = numbers(world.nodes[record.active].copies[place].log)
            for number, level in self.acked[place]:
                if number not in alive:
                    raise WrongError(f"lost {number} of {place}, acknowledged at {level}")
            self._check_plain(place, alive)
        zones = {world.nodes[name].zone for name in data}
        for bucket, mine in loads.items():
            if max(mine.values()) - min(mine.values()) > 1 + len(zones):
                raise WrongError(f"copies of {bucket} are not balanced: {mine}")

    def _check_plain(self, place: Place, alive: set[int]) -> None:
        if any(node.is_gone for node in self.world.nodes.values()):
            return
        kept = (numbers(node.copies[place].log) for node in self.world.all_nodes()
                if place in node.copies)  # fmt: skip
        told = alive.union(*kept, self.reported[place], self.crashed[place])
        for number in self.plain[place]:
            if number not in told:
                raise WrongError(f"plain write {number} of {place} vanished and nobody said so")


def numbers(log: Iterable[tuple[int, int]]) -> set[int]:
    return {number for _, number in log}
