"""What goes wrong: each begins something, lasts some seconds, and is healed.

Elsewhere: doing it (`nodes`, `network`), in which order (`run`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from simulators.coordination_faults.network import Network
from simulators.coordination_faults.nodes import MEMBERS, Nodes

__all__ = ["CHANGES", "FAULTS", "Scene", "heal"]

CHANGES = ("move", "members")
"""What administrators do, which something else mostly goes wrong with."""
ADD_SHARE = 0.4
"""Of changes of members that make the group larger, where they can."""


class Scene(NamedTuple):
    """What faults are done to; `node` is the one that this is about, the primary more often."""

    rng: random.Random
    nodes: Nodes
    network: Network
    node: int

    @property
    def others(self) -> list[int]:
        """All but the node."""
        return [other for other in self.nodes.numbers if other != self.node]


def _kill(scene: Scene) -> None:
    scene.nodes.kill(scene.node)


def _kill_all(scene: Scene) -> None:
    for node in scene.nodes.numbers:
        scene.nodes.kill(node)


def _kill_one(scene: Scene) -> None:
    """Only one process of the family."""
    scene.nodes.kill_one(scene.node, scene.rng)


def _pause(scene: Scene) -> None:
    scene.nodes.pause(scene.node)


def _isolate(scene: Scene) -> None:
    for other in scene.others:
        scene.network.cut(scene.node, other)
        scene.network.cut(other, scene.node)


def _deaf(scene: Scene) -> None:
    for other in scene.others:
        scene.network.cut(other, scene.node)


def _mute(scene: Scene) -> None:
    for other in scene.others:
        scene.network.cut(scene.node, other)


def _bridge(scene: Scene) -> None:
    """Only the node sees both of the others."""
    one, other = scene.others[:2]
    scene.network.cut(one, other)
    scene.network.cut(other, one)


def _slow(scene: Scene) -> None:
    scene.network.slow(scene.node)


def _full(scene: Scene) -> None:
    scene.nodes.fill(scene.node)


def _clock(scene: Scene) -> None:
    scene.nodes.set_clock(
        scene.node, scene.rng.choice((-1, 1)) * scene.rng.choice((5, 900, 86_400))
    )


def _lose(scene: Scene) -> None:
    scene.network.lose(scene.node)


def _move(scene: Scene) -> None:
    """Have an administrator give the lead to another, perhaps in the wrong moment."""
    chosen = scene.rng.random()

    def words(members: list[str], _: list[str]) -> list[str]:
        return ["MOVE-PRIMARY", "1", members[int(chosen * len(members))]]

    scene.nodes.administer(words)


def _members(scene: Scene) -> None:
    """Have an administrator change the members of the group, whoever of them lives."""
    rng = scene.rng

    def words(members: list[str], others: list[str]) -> list[str]:
        if len(members) > MEMBERS:
            return ["REMOVE", "1", *rng.sample(members, 2)]
        if len(others) > 1 and rng.random() < ADD_SHARE:
            return ["ADD", "1", *rng.sample(others, 2)]
        return ["REPLACE", "1", rng.choice(members), rng.choice(others)]

    scene.nodes.administer(words)


FAULTS: dict[str, Callable[[Scene], None]] = {
    "kill": _kill,
    "kill all": _kill_all,
    "kill one process": _kill_one,
    "pause": _pause,
    "isolate": _isolate,
    "deaf": _deaf,
    "mute": _mute,
    "bridge": _bridge,
    "slow": _slow,
    "full": _full,
    "clock": _clock,
    "lose": _lose,
    "move": _move,
    "members": _members,
}


def heal(nodes: Nodes, network: Network) -> None:
    """End all faults; clocks stay as they are."""
    network.heal()
    nodes.go_on()
    nodes.make_room()
    nodes.revive()
