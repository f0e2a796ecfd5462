"""One scripted life of a bucket, with each effect of the disk failed or cut in turn.

Load, overwrite, delete, by-id, low points, compaction, rollback, clean stop and restart.
Whatever strikes, the bucket is opened again, compared with the model, goes on with the script, and
ends with a clean stop that keeps everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support.kv.simulated_disk import FAULTS, Fault
from support.kv.simulated_engine import DELETE, KEYS, SimulatedEngine

EFFECTS_MAX = 600
"""More than the script has of any kind; a test fails if it is not."""


def script(engine: SimulatedEngine) -> Iterator[Callable[[], object]]:
    """The steps; each is what one request or one task does."""
    for turn in range(3):
        for p in (0, 1):
            yield lambda p=p, turn=turn: engine.burst(p, turn, 12)
            yield engine.flush
    yield lambda: engine.begin_read(0, 0, 0)
    yield engine.take_by_id
    yield lambda: engine.burst(0, 9, 20)
    yield lambda: engine.step_by_id(1)
    yield engine.flush
    yield lambda: engine.step_by_id(100)
    yield lambda: [engine.write(1, key, DELETE, 0, is_odd=False) for key in KEYS]
    yield engine.flush
    yield lambda: engine.move_low_points(0, 2, 1)
    yield lambda: engine.burst(0, 4, 9)
    yield engine.freeze
    yield lambda: engine.append() if engine.commit else None
    yield lambda: engine.burst(1, 5, 9)
    yield lambda: engine.absorb() if engine.commit and engine.commit.is_appended else None
    yield engine.flush
    for seed in (2, 3):
        yield lambda seed=seed: engine.compact(seed, 1000)
    yield lambda: engine.roll_back(0, engine.models[0].high * 3 // 4)
    yield lambda: engine.burst(0, 6, 15)
    yield engine.flush
    yield engine.stop
    yield lambda: engine.burst(1, 7, 15)
    yield engine.flush
    yield lambda: [engine.write(0, key, DELETE, 0, is_odd=False) for key in KEYS[:2]]
    yield lambda: engine.tidy(0, 3)
    yield lambda: engine.compact(4, 20)
    yield lambda: engine.burst(1, 10, 15)
    yield lambda: engine.compact(4, 1000)
    yield lambda: engine.roll_back(1, 0)
    yield lambda: engine.burst(1, 8, 9)
    yield engine.stop


def live(engine: SimulatedEngine) -> None:
    engine.start()
    for step in script(engine):
        engine.attempt(step)
        if not engine.is_alive:
            engine.start()
        engine.follow(5)
        if engine.struck is not None:  # all lives are the same before
            engine.check()
    engine.finish()


@pytest.mark.parametrize("kind", FAULTS)
def test_every_effect_may_fail(kind: str) -> None:
    for left in range(EFFECTS_MAX):
        engine = SimulatedEngine(left)
        engine.fault = Fault(kind, left)
        try:
            live(engine)
        except Exception as error:
            error.add_note(f"effect {left}")
            raise
        if engine.struck is None:
            break
    else:
        pytest.fail("the script is longer than EFFECTS_MAX")
    assert left > 10
