"""The walk of `_changes`: readers interrupted anywhere, over engines that anything befalls.

The engine is the real one over a simulated disk: see `simulated_engine`.
"""

import random
from functools import partial

import pytest

from millstream.documents.tokens import Vector
from millstream.kv.core.revisions import changes_feed
from millstream.kv.core.revisions.changes_feed import (
    ChangesFeed,
    PartitionWalk,
    Piece,
    Snapshot,
    in_order_of_time,
)
from millstream.model.position import Position
from support.budget import budget
from support.kv.simulated_copies import ACTIVE
from support.kv.simulated_engine import KEYS, PARTITIONS, SimulatedEngine
from support.streams.changes_reader import ChangesReader
from support.streams.fake_source import FakePartition

STEPS = 160
NOWHERE = Position()


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch):
    monkeypatch.setattr(changes_feed, "PIECE_ITEMS_MAX", 1)


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


@pytest.mark.parametrize("seed", range(budget(40)))
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


@pytest.mark.parametrize("seed", range(budget(40)))
def test_readers_know_every_change_also_where_others_were_lost(seed):
    """Rollbacks and fail-overs take changes away that readers had: see `ChangesReader`."""
    _, readers = _run(seed, loses=True)
    assert all(reader.rows for reader in readers)


def walk_of(source, position=NOWHERE, **options):
    return PartitionWalk(source, position, restarts=False, **options)


def read_one(walk):
    assert walk.begin()
    piece = walk.from_memory()
    assert piece is not None
    return piece


def durable(keys, **options):
    source = FakePartition(0, **options)
    source.fill(keys)
    source.persisted_seqno = source.high_seqno
    source.marks = [source.high_seqno]
    return source


def test_a_position_names_the_history_in_which_its_snapshot_ends():
    source = durable("abc")
    first = source.failover_log[0].uuid
    source.fail_over(3)
    source.marks = [3]
    piece = read_one(walk_of(source))
    assert piece.snapshot.at(1) == Position(first, 1, 0, 3, 0)
    source.fill("d")
    source.persisted_seqno, source.marks = 4, [4]
    piece = read_one(walk_of(source))
    assert piece.snapshot.uuid == source.failover_log[0].uuid


def test_a_reader_stays_inside_the_snapshot_that_it_was_promised():
    """The copy that serves it now is not sure yet of all that lasts."""
    source = durable("abcde")
    uuid = source.failover_log[0].uuid
    source.persisted_seqno, source.marks = 3, [3]
    source.memory_floor = 3
    walk = walk_of(source, Position(uuid, 1, 0, 5, 0))
    assert walk.begin()
    assert walk.from_memory() is None
    piece = walk.from_log(next(walk.chunks))
    assert (piece.snapshot, piece.covered) == (Snapshot(0, uuid, 0, 5, 0), 3)
    assert walk.position == Position(uuid, 3, 0, 5, 0)
    assert not walk.begin()
    source.persisted_seqno, source.marks = 5, [5]
    assert read_one(walk).snapshot == Snapshot(0, uuid, 0, 5, 0)


def test_a_first_load_goes_on_though_deletions_below_were_forgotten_before_it_began():
    source = durable("aBcAde")
    source.purge(4)
    walk = walk_of(source)
    piece = read_one(walk)
    place = piece.snapshot.at(1)
    assert place.purge_seqno == 4
    assert walk_of(source, place).position == place
    source.purge(5)
    assert walk_of(source, place).position == NOWHERE


def test_what_was_read_without_a_hold_is_not_believed():
    source = durable("abcde")
    source.forget_memory(5)
    walk = walk_of(source)
    assert walk.begin()
    chunk = next(walk.chunks)
    source.lose_holds()
    assert walk.from_log(chunk) is None
    assert walk.position == NOWHERE
    assert walk.begin()
    source.lose_holds()
    assert walk.begin()
    assert walk.is_open
    walk.close()
    assert not source.holds
    assert not source.readers


def test_who_is_inside_a_snapshot_is_served_first_then_who_is_furthest_behind():
    sources = [durable("abc"), durable("abcdefg"), durable("abc"), durable("")]
    for number, source in enumerate(sources):
        source.partition_id = number
    uuid = sources[0].failover_log[0].uuid
    inside = Position(uuid, 1, 0, 3, 0)
    start = Vector(0, (NOWHERE, NOWHERE, inside, NOWHERE))
    feed = ChangesFeed(sources, start, restarts=False)
    assert feed.behind() == [2, 1, 0]
    assert feed.lag() == 2 + 7 + 3
    feed.mark_purges()
    assert all(walk.restarts for walk in feed.walks.values())


def test_changes_of_several_partitions_in_the_order_of_time():
    pieces = []
    for number in (1, 0):
        source = durable("abc")
        source.partition_id = number
        walk = walk_of(source)
        while walk.begin():
            pieces.append(walk.from_memory())
    pieces.append(Piece(Snapshot(5, 1, 0, 9, None), [], 7))
    found = [(piece.snapshot.partition_id, piece.covered) for piece in in_order_of_time(pieces)]
    assert found == [(1, 1), (0, 1), (1, 2), (0, 2), (1, 3), (0, 3), (5, 7)]
