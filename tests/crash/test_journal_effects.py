"""A group's journal with each effect of the disk failed or cut in turn, and random lives of it.

Whatever strikes, the journal is opened again and is as before the step or as after it; of an
append any number of entries may be there. A step that returned is never undone.
"""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.coordination.simulated_journal import JournalWorld
from support.kv.simulated_disk import FAULTS, Fault

EFFECTS_MAX = 400
"""More than the script has of any kind; a test fails if it is not."""


def live(world: JournalWorld) -> None:
    world.attempt(world.start)
    world.attempt(world.start)  # a fault strikes once
    for size in (40, 900, 900):
        world.append(4, size)
    world.promise()
    world.install(2, 3)
    world.append(2)
    world.install(1, 0)
    world.take_over(2)
    world.take_over(0)
    world.restart_cleanly()
    world.append(3, 900)
    world.snapshot()
    world.append(1)
    world.restart_cleanly()
    world.append(5)
    world.begin_anew(7, 2)
    world.append(2)
    world.install(1, 1)


def test_power_may_be_lost_when_a_step_is_repeated_that_had_no_space() -> None:
    struck = set()
    for left, again, chance in product(range(9), range(20), range(6)):
        world = JournalWorld(10_000 * chance + 100 * left + again)
        world.start()
        world.append(3)
        world.fault, world.again = Fault("full", left), Fault("power", again)
        world.install(1, 2)
        struck.add(world.struck and world.struck.kind)
        world.fault = None
        world.restart(has_power=False)
    assert struck == {"full", "power"}


@pytest.mark.parametrize("kind", FAULTS)
def test_every_effect_may_fail(kind: str) -> None:
    for left in range(EFFECTS_MAX):
        world = JournalWorld(left)
        world.fault = Fault(kind, left)
        try:
            live(world)
            world.fault = None
            world.restart(has_power=False)
        except Exception as error:
            error.add_note(f"effect {left}")
            raise
        if world.struck is None:
            break
    else:
        pytest.fail("the script is longer than EFFECTS_MAX")
    assert left > 40


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(FAULTS), min_size=1, max_size=6))
def test_random_lives_with_several_faults(seed: int, faults: list[str]) -> None:
    world = JournalWorld(seed)
    world.start()
    for kind in faults:
        world.fault = Fault(kind, world.rng.randint(0, 25))
        for _ in range(6):
            world.random_step()
    world.fault = None
    world.restart(has_power=False)
