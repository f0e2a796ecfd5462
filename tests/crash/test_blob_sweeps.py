"""Attachments are swept while everything goes on: seeded schedules, and mistakes to be found."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from simulators.blob_plants import PLANTS
from simulators.blob_world import World
from support.budget import budget

SECONDS_MAX = budget(30)
PLANTED_SEEDS_MAX = 200


def run(seed: int, path: Path, plant: Callable[[pytest.MonkeyPatch], None] | None = None) -> World:
    with pytest.MonkeyPatch.context() as patch:
        if plant is not None:
            plant(patch)
        world = World(seed, path / "bucket", patch)
        try:
            world.run()
        finally:
            shutil.rmtree(path / "bucket")
    return world


def test_nothing_that_is_needed_goes_and_nothing_else_stays(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    began, seeds, removed, refused = time.monotonic(), 0, 0, 0
    while time.monotonic() - began < SECONDS_MAX:
        world = run(seeds, tmp_path)
        seeds, removed, refused = seeds + 1, removed + world.removed, refused + world.refused
    record_property("said", f"attachments: {seeds} schedules, {removed} removed, {refused} late")
    assert removed > seeds


@pytest.mark.parametrize("name", PLANTS)
def test_mistakes_are_found(tmp_path: Path, name: str) -> None:
    for seed in range(PLANTED_SEEDS_MAX):
        try:
            run(seed, tmp_path, PLANTS[name])
        except AssertionError:
            return
    raise AssertionError(f"{PLANTED_SEEDS_MAX} schedules found nothing")
