"""An index killed and failing at every effect of its store, and by kill -9 on a real disk."""

import os
import random
import signal
import sys
import threading
from pathlib import Path

import pytest

from millstream.errors import UnavailableError
from millstream.views.aio.indexing import index_store
from millstream.views.aio.indexing.index_store import LmdbIndexStore
from millstream.views.core.index.index_check import IndexCheck, check_index
from millstream.views.core.rows import pairs_of
from simulators.index_world import World, Wrong
from support.budget import budget
from support.views.filled_index import SHAPE
from support.views.index_life import STEPS, contents, expected, is_complete, opened, publish
from support.views.memory_index_store import Crash, MemoryIndexStore

KILLS = budget(24)
KILLS_AT_RANDOM = budget(6)
SCHEDULES = budget(60)
MAP_BYTES = 64 * 1024 * 1024


@pytest.fixture(scope="module")
def life():
    store = MemoryIndexStore()
    found = expected(store)
    assert len(found[0]) > 15
    return found


class Strike:
    """Raises before the effect after so many others."""

    def __init__(self, left, error):
        self.left, self.error = left, error

    def __call__(self, effect):
        self.left -= 1
        if self.left == -1:
            raise self.error


def effects_of_a_life():
    strike = Strike(1 << 30, None)
    expected(MemoryIndexStore(strike))
    return (1 << 30) - strike.left


def test_a_kill_at_every_effect_of_a_life(life):
    shown, following = life
    for at in range(effects_of_a_life()):
        store = MemoryIndexStore(Strike(at, Crash()))
        with pytest.raises(Crash):
            expected(store)
        after = store.durable()
        index = opened(after)
        goes_on(after, index, shown, following)
        assert not check_index(after, SHAPE.signature).damage


def test_a_store_that_fails_once_at_every_effect_of_a_life(life):
    """The same process goes on, with what it has in memory."""
    shown, following = life
    for at in range(1, effects_of_a_life()):  # the first one is the store's beginning
        store = MemoryIndexStore(Strike(at, UnavailableError("full", code="disk_full")))
        index = opened(store)
        step = 0
        while step < len(STEPS):
            try:
                STEPS[step](index)
            except UnavailableError:
                assert same_but_numbers(contents(store, index.newest), index, shown)
                step = following[index.newest.commit]
                continue
            step += 1
        assert is_complete(store, index)
        assert not check_index(store, SHAPE.signature).damage


def same_but_numbers(found, index, shown):
    """Rows are those of the commit; node numbers were passed over by the failed one."""
    rows = found.partition(b", [(")[2].partition(b"]), ")[0]
    return rows in shown[index.newest.commit]


def goes_on(store, index, shown, following):
    """The index opens at a complete commit of the life, and ends where the life ends."""
    commit = index.newest.commit
    assert contents(store, index.newest) == shown[commit]
    assert is_complete(store, index)
    for step in STEPS[following[commit] :]:
        step(index)
        assert contents(store, index.newest) == shown[index.newest.commit]
    assert index.newest.commit == max(shown)
    assert is_complete(store, index)


@pytest.mark.parametrize("first", range(0, SCHEDULES, 30))
def test_schedules_with_kills_and_failures(first):
    for seed in range(first, first + 30):
        rng = random.Random(f"faults {seed}")

        class Faulty(World):
            def run_step(self, step, rng=rng):
                self.store.before = Strike(rng.randrange(3), rng.choice((Crash(), FULL)))
                try:
                    step()
                except (Crash, UnavailableError) as error:
                    self.note(f"{type(error).__name__} in {step.__name__}")
                    if isinstance(error, Crash):
                        self.store.before = lambda _: None
                        self.open_again()
                finally:
                    self.store.before = lambda _: None

        world = Faulty(seed)
        try:
            world.run()
        except Wrong as wrong:
            pytest.fail(f"schedule {seed}: {wrong}\n" + "\n".join(world.trace[-30:]))


FULL = UnavailableError("full", code="disk_full")


# -- a real disk


def store_in(path: Path) -> LmdbIndexStore:
    return LmdbIndexStore(path, SHAPE.signature, SHAPE.collation, map_bytes=MAP_BYTES)


def in_a_child(work) -> int:
    """Run it in a process of its own; return how that ended."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def live(path: Path, told: int, kill_at: int = -1) -> None:
    """Live a life, telling every commit that returned; kill -9 at some event in the store."""
    left = kill_at

    def event(frame, kind, _):
        nonlocal left
        if frame.f_code.co_filename == index_store.__file__:
            left -= 1
            if left == -1:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(event)
    index = opened(store_in(path))
    for step in STEPS:
        step(index)
        os.write(told, b"%d\n" % index.newest.commit)
    sys.setprofile(None)
    os.write(told, b"events %d\n" % (kill_at - left))


def lived(path: Path, kill_at: int = -1) -> tuple[int, list[bytes]]:
    reading, writing = os.pipe()
    status = in_a_child(lambda: live(path, writing, kill_at))
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        return status, told.read().split(b"\n")[:-1]


def test_kill_9_anywhere_in_the_store(tmp_path, life):
    shown, following = life
    _, told = lived(tmp_path / "whole" / SHAPE.signature)
    events = int(told[-1].split()[1])
    assert events > 500
    rng = random.Random(1)
    points = [*range(1, 40, 5), *sorted(rng.sample(range(40, events), KILLS))]
    for at in points:
        path = tmp_path / str(at) / SHAPE.signature
        status, told = lived(path, at)
        assert os.WTERMSIG(status) == signal.SIGKILL, at
        survives(path, int(told[-1]) if told else 0, shown, following)


def survives(path: Path, told: int, shown, following) -> None:
    found = checked(path)
    assert found is None or not found.damage
    store = store_in(path)
    assert not store.rebuilt_because
    index = opened(store)
    assert index.newest.commit >= told
    goes_on(store, index, shown, following)
    store.close()
    found = checked(path)
    assert (found.damage, found.unused_nodes) == ("", 0)


def checked(path: Path) -> IndexCheck | None:
    store = LmdbIndexStore.unchanged(path) if path.is_dir() else None
    if store is None:
        return None
    try:
        return check_index(store, SHAPE.signature)
    finally:
        store.close()


def test_kill_9_at_any_moment(tmp_path, life):
    """From outside: also in the middle of what the library does."""
    shown, following = life
    rng = random.Random(2)
    for turn in range(KILLS_AT_RANDOM):
        path = tmp_path / str(turn) / SHAPE.signature
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                live(path, writing)
            finally:
                os._exit(0)
        os.close(writing)
        told = b""
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            for _ in range(rng.randrange(len(STEPS))):
                told += pipe.read(4)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            told += pipe.read()
        commits = [int(line) for line in told.split(b"\n")[:-1] if line.isdigit()]
        survives(path, max(commits, default=0), shown, following)


def test_snapshots_are_read_by_threads_while_commits_and_compactions_go_on(tmp_path):
    """Every document has the number of its commit as value: a reader sees one, in all rows."""
    store = store_in(tmp_path / SHAPE.signature)
    index = opened(store)
    for step in STEPS[:3]:
        step(index)
    is_over = threading.Event()
    seen, wrong = set(), []

    def read():
        while not is_over.is_set() and not wrong:
            with index.snapshot(0) as snapshot:
                values = {
                    pairs_of(value)[0][1]
                    for leaf in snapshot.tree(0).scan()
                    for value in leaf.values
                }
            if len(values) != 1:
                wrong.append(values)
            seen.update(values)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        turn = 1
        while turn < 12 or (len(seen) < 3 and turn < 300 and not wrong):
            turn += 1
            publish(index, 100 * (turn - 1), 100 * turn)
            index.compact_step(60)
            if turn % 4 == 0:
                index._commits.cache.clear()
    finally:
        is_over.set()
        for reader in readers:
            reader.join()
    assert not wrong
    assert len(seen) >= 3
    assert is_complete(store, index)
    assert int(next(each.name for each in (tmp_path / SHAPE.signature).iterdir())) > 1
    store.close()
