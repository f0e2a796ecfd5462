"""Indexes of several nodes, each kept by a thread; writers are false."""

import threading
from collections import Counter
from contextlib import contextmanager

import pytest

from millstream.errors import AccessError, ConditionError, UnavailableError
from millstream.pipelines.index import shards as module
from millstream.pipelines.index.shard import IndexAddress
from millstream.pipelines.index.shards import Shards
from millstream.pipelines.index.writer import Cycle, IndexWriter
from simulators.index_pipeline_world import Node, placed
from simulators.index_world import Wrong
from support.budget import budget
from support.node.waiting import until

SEEDS = budget(60)


class FalseWriter:
    """An index that has `left` commits to make; `error` is raised instead of anything."""

    def __init__(self):
        self.left = 0
        self.error = None
        self.is_waiting = False
        self.is_anew = False
        self.taken = 0
        self.commits = 0
        self.opened = self.closed = 0
        self.parts = 1

    def _fail(self):
        if self.error is not None:
            raise self.error

    def take_over(self):
        self._fail()
        self.taken += 1

    def was_made_anew(self):
        return self.is_anew

    def is_behind(self):
        self._fail()
        return self.left > 0

    def cycle(self):
        self._fail()
        if not self.left:
            return None
        self.left -= 1
        self.commits += 1
        return Cycle(None, 1, self.parts, False)


class World:
    """Nodes by name."""

    def __init__(self):
        self.writers = {name: FalseWriter() for name in "ab"}
        self.told = []
        self.lost = False

    def find(self):
        if self.lost:
            raise UnavailableError("no map")
        return [IndexAddress(host=name, port=1, bucket="b", design="d") for name in self.writers]

    @contextmanager
    def opened(self, address):
        writer = self.writers[address.host]
        writer.opened += 1
        yield writer
        writer.closed += 1

    def shards(self, **options):
        def told(address, writer, cycle, seconds):
            self.told.append(address.host)

        return Shards(self.find, self.opened, told, **options)


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "WAKE_S", 60.0)
    return World()


def looked(shards, is_done):
    def look():
        shards.look()
        return is_done()

    until(look, lambda: "it does not come")


def test_all_changes_are_committed_once(world):
    world.writers["a"].left, world.writers["b"].left = 3, 2
    with world.shards(once=True) as shards:
        looked(shards, lambda: shards.is_over)
    assert sorted(world.told) == ["a", "a", "a", "b", "b"]
    assert [(each.taken, each.closed) for each in world.writers.values()] == [(1, 1), (1, 1)]


@pytest.mark.parametrize("is_loop", [False, True])
def test_changes_are_committed_at_the_node_that_owns_them(world, is_loop):
    with world.shards(is_loop=is_loop) as shards:
        shards.wake()
        for n in range(1, 4):
            for writer in world.writers.values():
                writer.left = 1
            shards.wake()
            assert [each.commits for each in world.writers.values()] == [n, n]
        world.writers["b"].left = 1  # nothing wakes it: a partition came, say
        looked(shards, lambda: world.writers["b"].commits == n + 1)


def test_a_node_that_is_away_stops_its_own_index_alone(world):
    away, there = world.writers["a"], world.writers["b"]
    with world.shards() as shards:
        shards.wake()
        away.error = UnavailableError("away")
        away.left = there.left = 1
        shards.wake()
        assert (away.commits, there.commits) == (0, 1)
        looked(shards, lambda: shards.is_any_away)
        away.error = None
        looked(shards, lambda: away.commits == 1 and not shards.is_any_away)


def test_a_long_loss_of_all_nodes_ends_the_pipeline(world, monkeypatch):
    monkeypatch.setattr(module, "AWAY_S", 0.0)
    with world.shards() as shards:
        shards.wake()
        world.writers["a"].error = UnavailableError("a is away")
        looked(shards, lambda: shards.is_any_away)
        shards.look()
        world.writers["b"].error = UnavailableError("b is away")
        with pytest.raises(UnavailableError, match="is away"):
            looked(shards, lambda: False)


def test_with_once_a_long_lost_node_ends_the_pipeline(world, monkeypatch):
    monkeypatch.setattr(module, "AWAY_S", 0.0)
    world.writers["a"].error = UnavailableError("a is away")
    with world.shards(once=True) as shards, pytest.raises(UnavailableError, match="a is away"):
        looked(shards, lambda: shards.is_over)


def test_with_once_unserved_partitions_are_waited_for(world, monkeypatch):
    world.writers["a"].is_waiting = True
    with world.shards(once=True) as shards:
        looked(shards, lambda: world.writers["b"].closed)
        assert not shards.is_over
        world.writers["a"].is_waiting = False
        looked(shards, lambda: shards.is_over)
    monkeypatch.setattr(module, "AWAY_S", 0.0)
    world.writers["a"].is_waiting = True
    with world.shards(once=True) as shards, pytest.raises(UnavailableError) as caught:
        looked(shards, lambda: shards.is_over)
    assert caught.value.code == "partitions_away"


@pytest.mark.parametrize(
    "error", [ConditionError("taken over", code="index_fenced"), AccessError("no"), ValueError()]
)
def test_a_permanent_error_ends_the_pipeline(world, error):
    with world.shards() as shards:
        shards.wake()
        world.writers["a"].error = error
        with pytest.raises(type(error)):
            looked(shards, lambda: False)
        shards.wake()
    assert world.writers["b"].closed == 1


@pytest.fixture
def busy(world):
    """A commit of node a, which lasts until this is set."""
    may_end, cycle = threading.Event(), world.writers["a"].cycle

    def long():
        assert may_end.wait(120)
        return cycle()

    world.writers["a"].cycle = long
    yield may_end
    may_end.set()


def woken(shards):
    waiter = threading.Thread(target=shards.wake)
    waiter.start()
    until(lambda: all(run._asked for run in shards._runs.values()))
    return waiter


def test_a_failure_does_not_wait_for_the_index_of_another_node(world, busy):
    with world.shards() as shards:
        waiter = woken(shards)
        world.writers["b"].error = ConditionError("taken over", code="index_fenced")
        with pytest.raises(ConditionError):
            looked(shards, lambda: False)
        until(lambda: not waiter.is_alive(), lambda: "it waits for node a")
        busy.set()


def test_a_stop_does_not_wait_for_an_index_to_be_told(world, busy):
    with world.shards() as shards:
        waiter = woken(shards)
        shards.end()
        until(lambda: not waiter.is_alive(), lambda: "it waits for node a")
        busy.set()


def test_an_index_at_work_holds_the_others_up_for_a_while_only(world, busy, monkeypatch):
    monkeypatch.setattr(module, "WAKE_S", 0.01)
    with world.shards() as shards:
        world.writers["b"].left = 1
        shards.wake()
        looked(shards, lambda: world.writers["b"].commits == 1)
        assert not world.writers["a"].commits
        busy.set()


def test_an_index_that_was_begun_anew_is_taken_over_again(world):
    writer = world.writers["a"]
    writer.is_anew = True
    cycle = writer.cycle

    def fenced():
        if writer.taken < 2:
            raise ConditionError("fenced", code="index_fenced")
        return cycle()

    writer.cycle, writer.left = fenced, 1
    with world.shards() as shards:
        looked(shards, lambda: writer.commits == 1)
    assert writer.taken == 2


def test_nodes_come_and_go_and_a_map_may_be_missing_for_a_while(world):
    with world.shards() as shards:
        shards.wake()
        gone = world.writers.pop("a")
        new = world.writers["c"] = FalseWriter()
        new.left = 1
        looked(shards, lambda: gone.closed and new.commits)
        world.lost = True
        world.writers["b"].left = 1
        looked(shards, lambda: world.writers["b"].commits)
        world.lost = False


def test_a_node_that_left_and_dropped_the_bucket_does_not_end_the_pipeline(world, monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 60.0)
    monkeypatch.setattr(module, "TOLD_S", 0.1)
    with world.shards() as shards:
        shards.wake()
        left = world.writers.pop("a")
        left.error = ConditionError("dropped there", code="bucket_not_found")
        shards.wake()
        until(lambda: any(run.is_over for run in shards._runs.values()))
        world.writers["b"].left = 1
        shards.look()
        shards.wake()
        shards.look()
        assert world.writers["b"].commits == 1


def test_a_node_may_take_a_while_to_hear_of_the_design_document(world, monkeypatch):
    late = world.writers["b"]
    take_over, times = late.take_over, []

    def told_late():
        times.append(1)
        if len(times) < 5:
            raise ConditionError("missing", code="missing")
        take_over()

    late.take_over, late.left = told_late, 1
    with world.shards() as shards:
        looked(shards, lambda: late.commits)
    times.clear()
    monkeypatch.setattr(module, "TOLD_S", 0.0)
    with world.shards() as shards, pytest.raises(ConditionError):
        looked(shards, lambda: False)


@pytest.mark.parametrize("is_loop", [False, True])
def test_a_node_that_was_started_again_may_take_a_while_to_hear_of_it_too(world, is_loop):
    writer, tries = world.writers["a"], []
    take_over = writer.take_over

    def counted():
        tries.append(1)
        take_over()

    with world.shards(is_loop=is_loop) as shards:
        shards.wake()
        writer.take_over = counted
        writer.error = ConditionError("not yet", code="missing")
        looked(shards, lambda: len(tries) > 3)
        writer.error, writer.left = None, 1
        looked(shards, lambda: writer.commits == 1)
        assert writer.taken == 2
        for run in shards._runs.values():
            run._told_s = 0.001
        writer.error = ConditionError("gone", code="missing")
        with pytest.raises(ConditionError, match="gone"):
            looked(shards, lambda: False)


def test_a_node_without_views_is_left_alone_unless_it_is_the_only_one(world):
    error = UnavailableError("no views", code="no_index_role")
    world.writers["a"].error = error
    world.writers["b"].left = 1
    with world.shards(once=True) as shards:
        looked(shards, lambda: shards.is_over)
    assert world.writers["b"].commits == 1
    world.writers["b"].error = error
    with world.shards() as shards, pytest.raises(UnavailableError) as caught:
        looked(shards, lambda: False)
    assert caught.value.code == "no_index_role"


def test_left_out_partitions_are_not_retried_at_once(world, monkeypatch):
    waits = []
    wait = threading.Event.wait

    def counted(self, timeout=None):
        waits.append(timeout)
        return wait(self, timeout)

    monkeypatch.setattr(module, "PAUSE_S", 0.00123)
    monkeypatch.setattr(threading.Event, "wait", counted)
    world.writers["a"].parts, world.writers["a"].left = 0, 5
    with world.shards(once=True) as shards:
        looked(shards, lambda: shards.is_over)
    assert waits.count(0.00123) == 5


def test_schedules_over_nodes_whose_partitions_move_end_right(monkeypatch):
    world = placed(monkeypatch)
    seen = Counter()
    for seed in range(SEEDS):
        schedule = world(seed)
        try:
            schedule.run(40)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        seen += schedule.seen
    wanted = {
        "moved",
        "failed over",
        "switched",
        "killed",
        "away",
        "built",
        "committed",
        "index_fenced",
    }
    assert wanted <= seen.keys(), seen


def as_if_held(self, plans):
    return {plan.partition for plan in plans}


def from_the_first_header(self, fence):
    return self.__dict__.setdefault("first", self._state())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "mistake"),
    [(IndexWriter, "_still_held", as_if_held), (Node, "judge", from_the_first_header)],
)
def test_schedules_find_mistakes(monkeypatch, owner, name, mistake):
    world = placed(monkeypatch)
    monkeypatch.setattr(owner, name, mistake)

    def is_wrong(seed):
        try:
            world(seed).run(40)
        except (Wrong, AssertionError):
            return True
        return False

    assert any(is_wrong(seed) for seed in range(200))
