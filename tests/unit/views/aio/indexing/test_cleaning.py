"""Cleaning: step by step, by one task for each index, in spite of failures."""

import asyncio
from types import SimpleNamespace

import pytest

from millstream.errors import CorruptionError, MillstreamError, UnavailableError
from millstream.runtime.tasks import Tasks
from millstream.views.aio.indexing import cleaning
from millstream.views.aio.indexing.cleaning import Cleaning


class Dirty:
    """An index with as many steps to go as there are outcomes."""

    def __init__(self, *outcomes: bool | MillstreamError) -> None:
        self.signature = "one"
        self.index = SimpleNamespace(newest=SimpleNamespace(dirty=True))
        self.outcomes = list(outcomes)
        self.at_once = 0

    async def clean_step(self) -> bool:
        self.at_once += 1
        assert self.at_once == 1
        await asyncio.sleep(0)
        self.at_once -= 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, MillstreamError):
            raise outcome
        return outcome


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "CLEAN_PAUSE_S", 0.0)
    monkeypatch.setattr(cleaning, "CLEAN_PAUSE_S_MAX", 0.0)


async def test_steps_are_done_to_the_end_by_one_task_in_spite_of_failures() -> None:
    tasks, damage = Tasks(), list[str]()
    clean = Cleaning(tasks, lambda signature, error: damage.append(signature))
    dirty = Dirty(False, UnavailableError("disk full"), False, True, True)
    clean.begin(dirty)  # type: ignore[arg-type]
    clean.begin(dirty)  # type: ignore[arg-type]
    await tasks.finish()
    assert dirty.outcomes == [True]
    assert not damage
    dirty.index.newest.dirty = False
    clean.begin(dirty)  # type: ignore[arg-type]
    assert not len(tasks)


async def test_damage_ends_cleaning_and_is_reported() -> None:
    tasks, damage = Tasks(), list[str]()
    clean = Cleaning(tasks, lambda signature, error: damage.append(signature))
    dirty = Dirty(CorruptionError("a page is bad"), True)
    clean.begin(dirty)  # type: ignore[arg-type]
    await tasks.finish()
    assert (damage, dirty.outcomes) == (["one"], [True])


async def test_a_forgotten_index_is_no_longer_cleaned() -> None:
    tasks = Tasks()
    clean = Cleaning(tasks, lambda signature, error: None)
    dirty = Dirty(*[False] * 1000)
    clean.begin(dirty)  # type: ignore[arg-type]
    clean.forget("one")
    clean.forget("another")
    await tasks.finish()
    assert len(dirty.outcomes) >= 999
