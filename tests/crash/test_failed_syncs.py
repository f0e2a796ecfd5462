"""A sync fails, the process begins anew on the same machine, and later that loses power.

What a failed sync should have written counts as written, for the system: a later sync that
returns says nothing about it. So what the second process builds on must be written again, or read
from the disk.
"""

from __future__ import annotations

import random

from support.kv.simulated_disk import Fault
from support.kv.simulated_engine import DELETE, KEYS, PUT, SimulatedEngine

SEEDS = 150


def with_sealed_segments(seed: int) -> SimulatedEngine:
    """Some turns of writes, each in a segment of its own; much of it may go."""
    engine, rng = SimulatedEngine(seed), random.Random(seed)
    engine.start()
    for _ in range(6):
        for key in KEYS:
            engine.write(0, key, rng.choice((PUT, PUT, DELETE)), rng.randrange(6), is_odd=False)
        engine.flush()
        engine.store._log.roll()
    return engine


def test_marks_that_a_failed_sync_left_are_written_again() -> None:
    died = 0
    for seed in range(SEEDS):
        rng = random.Random(seed)
        engine = with_sealed_segments(seed)
        engine.move_low_points(0, rng.randint(2, 4), rng.choice((0, 2, 4)))
        engine.fault = Fault("sync", rng.randint(0, 5))
        engine.attempt(lambda e=engine, s=seed: e.compact(s, 1000))
        engine.fault = None
        if not engine.is_alive:
            died += 1
            engine.start()
        for turn in range(3):
            engine.compact(seed + turn, 1000)
        engine.die(is_power_lost=True)
        engine.start()
        engine.check()
    assert died > SEEDS // 4


def test_records_that_a_failed_sync_left_are_not_believed() -> None:
    for seed in range(SEEDS):
        rng = random.Random(seed)
        engine = SimulatedEngine(seed)
        engine.start()
        engine.burst(0, seed, 8)
        engine.fault = Fault("sync", rng.randint(0, 2))
        engine.attempt(engine.flush)
        engine.attempt(engine.flush)
        if engine.is_alive:
            engine.fault = None
        else:
            engine.start()
        engine.burst(0, seed + 1, 8)
        engine.flush()
        engine.die(is_power_lost=True)
        engine.start()
        engine.check()
