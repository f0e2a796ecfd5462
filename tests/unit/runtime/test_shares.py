from __future__ import annotations

from collections.abc import Callable

from millstream.runtime.shares import SHARED_S, TURN_S, TURN_S_MAX, LoopShares


class World:
    """A loop whose rounds and time are those of the test."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.soon: list[Callable[[], None]] = []
        self.went: list[str] = []
        self.shares = LoopShares(self, lambda: self.now_s)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def round(self) -> list[str]:
        self.went = []
        soon, self.soon = self.soon, []
        for callback in soon:
            callback()
        return self.went

    def wait(self, name: str, takes_s: float = 0.7 * TURN_S) -> None:
        assert self.shares.is_over()
        self.shares.wait(Connection(self, name, takes_s))


class Connection:
    def __init__(self, world: World, name: str, takes_s: float) -> None:
        self.world, self.name, self.takes_s = world, name, takes_s

    def take_turn(self) -> None:
        self.world.went.append(self.name)
        self.world.now_s += self.takes_s


def begun(world: World) -> None:
    """Share the loop and spend its first turn."""
    world.shares.share()
    assert not world.shares.is_over()
    world.now_s += TURN_S_MAX + TURN_S


def test_who_comes_when_a_turn_is_over_waits_for_the_next_one_in_order() -> None:
    world = World()
    assert not world.shares.is_shared
    begun(world)
    assert world.shares.is_shared
    for name in "abc":
        world.wait(name)
    world.shares._stopped_s = world.now_s  # nobody else took time
    assert world.round() == ["a", "b"], "the second ends the turn"
    world.wait("d", 0.0)
    assert world.round() == ["c", "d"]
    world.round()
    assert not world.shares.is_over()


def test_a_turn_is_as_long_as_others_took_up_to_a_bound() -> None:
    for others_s, count in ((0.0, 2), (3 * TURN_S, 5), (1.0, 15)):
        world = World()
        begun(world)
        for number in range(30):
            world.wait(str(number))
        world.shares._stopped_s = world.now_s - min(others_s, SHARED_S / 2)
        assert len(world.round()) == count


def test_once_nobody_else_has_asked_for_a_while_nobody_waits() -> None:
    world = World()
    begun(world)
    for name in "abcde":
        world.wait(name)
    world.now_s += SHARED_S
    assert world.round() == ["a", "b", "c", "d", "e"]
    world.round()
    assert not world.shares.is_over()
    assert not world.shares.is_shared
    assert world.soon == [], "the loop is left alone"


def test_who_has_gone_waits_no_more() -> None:
    world = World()
    begun(world)
    world.wait("a")
    gone = Connection(world, "b", 0.0)
    world.shares.wait(gone)
    world.shares.forget(gone)
    assert world.round() == ["a"]
