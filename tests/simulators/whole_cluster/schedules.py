"""Schedules of the whole cluster: those of the decisions, with real engines underneath."""

from __future__ import annotations

from typing import Any

from millstream.errors import MillstreamError
from simulators.cluster import schedules as modelled
from simulators.cluster.schedules import TOTAL
from simulators.simulation.schedules import quietly
from simulators.whole_cluster.node import Node
from simulators.whole_cluster.world import World

FAULTS = modelled.FAULTS | {"fill": 5, "slow": 5, "lose_way": 6}
WRONG = (AssertionError, MillstreamError, KeyError, IndexError, ValueError, RuntimeError)
"""What a schedule may raise that finds something."""
BEGINNING_TURNS_MAX = 400
BUCKETS_MAX = 3


class Schedule(modelled.Schedule):
    world: World

    def new_world(self, seed: int) -> World:
        return World(seed)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.weights |= {
            "read_on": 8.0, "tend": 1.5, "write": 9.0, "turn": self.rng.choice((0.5, 2.0, 6.0)),
        }  # fmt: skip

    def run(self, steps: int) -> None:
        self.begin()
        if self.world.is_wide:
            self.world.found_group()
            self.world.make_bucket()
            self.weights |= {"make_bucket": 0.7, "drop_bucket": 0.5, "regroup": 3.0}
        self.world.go_wrong()
        super().run(steps)

    def begin(self) -> None:
        """All goes well until each partition is served."""
        world = self.world
        for _ in range(BEGINNING_TURNS_MAX):
            self.boss().step(is_careful=True)
            while world.flying:
                world.deliver()
            for node in world.all_nodes():
                self.sync(node)
                self.tidy(node)
            world.advance(100)
            if all(any(node.right(place).is_given for node in world.all_nodes())
                   for place in world.places):  # fmt: skip
                return
        raise AssertionError("nobody serves at the beginning")

    # ---- what goes on, and faults

    def fault(self, _: Node) -> None:
        self.call(FAULTS)

    def repair(self, node: Node) -> None:
        super().repair(node)
        for one in self.world.all_nodes():
            if one.is_full and self.rng.random() < 0.5:
                one.free()
            if self.rng.random() < 0.3:
                one.pace = 1.0
        if self.rng.random() < 0.5:
            self.world.lost_ways.clear()

    def fill(self, node: Node) -> None:
        if node.is_up:
            node.fill()

    def slow(self, node: Node) -> None:
        node.pace = self.rng.choice((0.1, 0.3))

    def lose_way(self, node: Node) -> None:
        """What one sends to another is lost, and not what comes back."""
        other = self.rng.choice(self.everybody())
        pair = (node.name, other.name) if self.rng.random() < 0.5 else (other.name, node.name)
        self.world.trace(f"nothing arrives from {pair[0]} at {pair[1]}")
        self.world.lost_ways.add(pair)

    def tend(self, node: Node) -> None:
        if node.is_up:
            node.tend()

    def make_bucket(self, _: Node) -> None:
        if len({place.bucket for place in self.world.places}) < BUCKETS_MAX:
            self.world.make_bucket()

    def drop_bucket(self, _: Node) -> None:
        self.world.drop_bucket()

    def regroup(self, _: Node) -> None:
        self.world.regroup()

    def heal_step(self, turn: int) -> None:
        if turn % 20 == 0:
            self.world.regroup()
        super().heal_step(turn)

    def read_on(self, _: Node) -> None:
        self.rng.choice(self.world.followers).step()

    def everybody(self) -> list[Any]:
        return [*super().everybody(), *self.world.followers]

    def lose_disk(self, node: Node) -> None:
        group = self.world.group - {node.name}
        if self.world.group and not self.world.is_majority_there(group):
            return  # coordination would be lost; `make manager ARGS=--restored` plays that
        if len(group) < len(self.world.group) and 2 * len(group) <= len(self.world.group):
            return
        super().lose_disk(node)
        self.world.truth.excused |= self.world.truth.struck

    # ---- the end

    def heal(self) -> None:
        self.world.crashes = 0.0
        self.world.lost_ways.clear()
        for node in self.world.all_nodes():
            node.pace = 1.0
            node.free()
        super().heal()

    def tidy(self, node: Node) -> None:
        super().tidy(node)
        for follower in self.world.followers:
            if self.rng.random() < 0.5:
                follower.step(30)

    def is_settled(self) -> bool:
        world, state = self.world, self.world.state()
        return (
            super().is_settled()
            and all(world.nodes[name].engines.keys() <= state.buckets.keys()
                    for name in state.members("data"))
            and all(one.is_through() for one in world.followers)
        )  # fmt: skip


def run(seed: int, steps: int | None = None, lines: list[str] | None = None) -> str | None:
    """One schedule; None, or what is wrong."""
    with quietly():
        schedule = Schedule(seed)
        schedule.world.lines = lines
        try:
            schedule.run(steps or schedule.rng.choice((100, 200, 400)))
        except WRONG as error:
            return f"{type(error).__name__}: {error}"
        finally:
            TOTAL.update(schedule.world.counts)
    return None
