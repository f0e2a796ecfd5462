"""Schedules of the whole cluster: those of the decisions, with real engines underneath."""

from __future__ import annotations

from millstream.errors import MillstreamError
from simulators.cluster import schedules as modelled
from simulators.cluster.schedules import TOTAL
from simulators.simulation.schedules import quietly
from simulators.whole_cluster.world import World

WRONG = (AssertionError, MillstreamError, KeyError, IndexError, ValueError, RuntimeError)
"""What a schedule may raise that finds something."""
BEGINNING_TURNS_MAX = 400


class Schedule(modelled.Schedule):
    world: World

    def new_world(self, seed: int) -> World:
        return World(seed)

    def run(self, steps: int) -> None:
        self.begin()
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

    def heal(self) -> None:
        self.world.crashes = 0.0
        super().heal()


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
