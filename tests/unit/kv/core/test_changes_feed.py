"""The walk of `_changes`: readers that are interrupted anywhere, over engines that anything befalls.

The engine is the real one over a simulated disk: see `simulated_engine`.
"""

import random
from functools import partial

import pytest

from changes_reader import ChangesReader
from millstream.kv.core import changes_feed
from simulated_copies import ACTIVE
from simulated_engine import KEYS, PARTITIONS, SimulatedEngine

STEPS = 160


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch):
    monkeypatch.setattr(changes_feed, "STREAM_STEP_ITEMS_MAX", 1)


def _befalls(engine, rng, *, loses):
    """One thing that may happen to a bucket. `loses`: also what takes durable changes away."""
    p, seed = rng.randrange(PARTITIONS), rng.getrandbits(32)
    things = [
        *[partial(engine.burst, p, seed, rng.randint(1, 9))] * 3,
        *[partial(_commit, engine, rng)] * 4,
        engine.flush,
        partial(engine.keep_hold, p, 0),
        partial(engine.bound_memory, p, rng.choice((0, 300, 1 << 20))),
        partial(engine.evict, rng.randrange(4), 5),
        partial(engine.move_low_points, p, rng.randrange(5), rng.randrange(5)),
        partial(engine.compact, seed, 20),
        partial(engine.tidy, p, seed),
        partial(engine.step_by_id, 5),
        partial(_end, engine, rng),
        partial(_fail_over, engine, p, rng, loses=loses),
    ]
    if loses:
        things.append(partial(engine.roll_back, p, int(engine.models[p].high * rng.random())))
    rng.choice(things)()


def _commit(engine, rng):
    """Some steps of the flusher."""
    for _ in range(rng.randint(1, 3)):
        if engine.commit is None:
            engine.freeze()
        elif not engine.commit.is_appended:
            engine.append()
        else:
            engine.absorb()


def _end(engine, rng):
    """A kill, power lost, a clean stop."""
    if rng.random() < 0.5:
        engine.stop()
    else:
        engine.die(is_power_lost=rng.random() < 0.5)


def _fail_over(engine, p, rng, *, loses):
    """The copy follows another one for a while and is promoted.

    Without a loss it has all that its source had when that fails.
    """
    engine.settle()
    engine.set_state(p, engine.models[p].state.REPLICA)
    for _ in range(rng.randrange(4)):
        engine.receive(p, rng.getrandbits(32), rng.randint(1, 5))
    if not loses:
        model = engine.models[p]
        while model.high != model.shown:
            engine.receive(p, rng.getrandbits(32), 1)
    engine.set_state(p, ACTIVE)


def _run(seed, *, loses):
    rng = random.Random(seed)
    make = SimulatedEngine if rng.random() < 0.7 else SimulatedEngine.beside_the_end_of_a_block
    engine = make(seed)
    engine.start()
    readers = [ChangesReader(engine, rng, restarts=restarts) for restarts in (False, True)]
    for _ in range(STEPS):
        if rng.random() < 0.6:
            _befalls(engine, rng, loses=loses)
        if not engine.is_alive:
            for reader in readers:
                reader.lose()
            engine.start()
        for reader in readers:
            for _ in range(rng.randrange(3)):
                reader.step()
            if rng.random() < 0.1:
                reader.interrupt()
    engine.flush()
    for reader in readers:
        reader.finish()
    return engine, readers


@pytest.mark.parametrize("seed", range(40))
def test_what_readers_hold_in_the_end_is_what_there_is(seed):
    """However they were interrupted, and whatever befell the bucket but a loss of what lasts."""
    engine, readers = _run(seed, loses=False)
    for p, model in enumerate(engine.models):
        right = {made.key: made for made in model.as_of(model.high)}
        for reader in readers:
            last = reader.last[p]
            for key in KEYS:
                made = right.get(key)
                if made is not None and not model.may_be_gone(made):
                    assert last[key] == made.frame, f"p{p} {key!r}"


@pytest.mark.parametrize("seed", range(40))
def test_readers_know_every_change_also_where_others_were_lost(seed):
    """Rollbacks and fail-overs take changes away that readers had: see `ChangesReader`."""
    _, readers = _run(seed, loses=True)
    assert all(reader.rows for reader in readers)
