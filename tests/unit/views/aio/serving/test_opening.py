"""Opening: beside what is open, once each, and nothing is left open that nobody wants."""

import asyncio
from typing import Any

import pytest

from millstream.runtime.tasks import Tasks
from millstream.views.aio.serving import opening
from millstream.views.aio.serving.opening import OpeningIndexes, made


class Hosted:
    def __init__(self, design: Any) -> None:
        self.design = design
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class World:
    """Designs are their own signatures; those named in `doors` wait for them."""

    def __init__(self) -> None:
        self.tasks = Tasks()
        self.doors: dict[str, asyncio.Event] = {}
        self.begun: list[str] = []
        self.wanted: dict[str, Any] = {}
        self.opened: dict[str, Any] = {}
        self.unwanted: list[Any] = []
        self.opening = OpeningIndexes(self.open_one, self.apply, self.tasks)  # type: ignore[arg-type]

    async def open_one(self, design: str) -> Hosted | None:
        self.begun.append(design)
        if design in self.doors:
            await self.doors[design].wait()
        return None if design == "bad" else Hosted(design)

    async def apply(self) -> None:
        new, unwanted = await self.opening.open(self.wanted, self.opened)
        self.opened |= {str(hosted.design): hosted for hosted in new}
        self.unwanted += unwanted
        self.opening.taken_in()

    def want(self, *designs: str) -> None:
        self.wanted = dict(zip(designs, designs, strict=True))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(opening, "OPEN_WAIT_S", 0.01)
    return World()


async def test_a_slow_opening_delays_no_other_and_happens_once(world: World) -> None:
    world.doors["slow"] = asyncio.Event()
    world.want("slow", "quick", "bad")
    await world.apply()
    await world.apply()
    assert set(world.opened) == {"quick"}
    assert world.begun.count("slow") == 1
    waiting = asyncio.ensure_future(world.opening.until_open("slow"))
    await asyncio.wait_for(world.opening.until_open("quick"), 10)
    assert not waiting.done()
    world.doors["slow"].set()
    await asyncio.wait_for(waiting, 10)
    assert set(world.opened) == {"quick", "slow"}
    await world.tasks.finish()


async def test_an_index_no_longer_wanted_is_closed_after_opening(world: World) -> None:
    world.doors["slow"] = asyncio.Event()
    world.want("slow")
    await world.apply()
    world.want()
    world.doors["slow"].set()
    await world.tasks.finish()
    assert [hosted.design for hosted in world.unwanted] == ["slow"]
    assert not world.opened


async def test_a_wait_has_an_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "OPEN_S_MAX", 0.01)
    world.doors["slow"] = asyncio.Event()
    world.want("slow")
    await world.apply()
    await world.opening.until_open("slow")
    assert list(world.opening.signatures) == ["slow"]
    await world.tasks.stop()
    assert world.opening.left_over() == []


async def test_opened_indexes_not_taken_are_left_over(world: World) -> None:
    world.doors["slow"] = asyncio.Event()
    world.want("slow")
    await world.apply()
    (task,) = world.opening._opening.values()
    world.doors["slow"].set()
    await asyncio.wait([task])
    assert [hosted.design for hosted in world.opening.left_over()] == ["slow"]
    await world.tasks.stop()


async def test_an_opening_without_waiters_is_closed() -> None:
    import threading

    door, found = threading.Event(), list[Hosted]()

    def make() -> Hosted:
        door.wait(30)
        found.append(Hosted("d"))
        return found[-1]

    waiting = asyncio.ensure_future(made(make))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    door.set()
    async with asyncio.timeout(30):
        while not (found and found[0].is_closed):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
