"""Runs, beyond what scenarios and schedules show."""

import pytest

from millstream.errors import AccessError, UnavailableError
from millstream.replication.core.running import GOING_BACK_MAX, MISSING_MAX
from sites.world import World

A, B = 0, 1


@pytest.fixture
def world():
    world = World(1, sizes=[2, 2])
    for number in range(8):
        world.sites[A].extend(f"n{number}")
    return world


def test_a_run_says_what_it_did(world):
    run = world.replicate(A, B)
    assert run.statistics == (8, 8, 8, 8, 0, 8)
    assert run.entries[0].told["docs_written"] == 8
    assert run.entries[0].told["start_last_seq"] == 0
    assert not run.has_changed_nothing
    assert world.replicate(A, B).has_changed_nothing


def test_no_more_batches_than_there_are_workers(world):
    running = world.begin(A, B, worker_batch_size=1, worker_processes=2)
    most = 0
    while running[0].outcome is None:
        most = max(most, running[0]._tracker.pending)
        world.step(running)
    assert most == 2


def test_an_error_ends_a_run(world, monkeypatch):
    def refuse(_):
        raise AccessError("no", code="unauthorized")

    monkeypatch.setattr(world.sites[B], "on_Diff", refuse, raising=False)
    assert world.replicate(A, B).outcome.error.code == "unauthorized"


def test_without_checkpoints_no_log_is_written(world):
    world.replicate(A, B, use_checkpoints=False)
    assert world.sites[A].locals == world.sites[B].locals == {}
    assert world.sites[B].state() == world.sites[A].state()


def test_a_document_that_is_named_and_never_there_is_listed_in_the_end(world, monkeypatch):
    right = world.sites[A].on_Fetch
    asked = []

    def fetch(request):
        asked.append(request)
        found = right(request)
        kept = tuple(each for each in found.documents if each.name != "n3")
        return found._replace(documents=kept, missing=(("n3", "1-x"),))

    monkeypatch.setattr(world.sites[A], "on_Fetch", fetch, raising=False)
    run = world.replicate(A, B)
    assert run.outcome.error is None
    assert len(asked) == MISSING_MAX + 1
    assert run.entries[0].exceptions == ("n3",)


def test_a_target_that_never_stays_the_same_ends_a_run(world, monkeypatch):
    site = world.sites[B]

    def flush(_):
        site.lose(0, 0)
        return site.info()

    monkeypatch.setattr(site, "on_Flush", flush, raising=False)
    error = world.replicate(A, B).outcome.error
    assert isinstance(error, UnavailableError)
    assert "again and again" in str(error)
    assert len(site.partitions[0].log) > GOING_BACK_MAX
    assert site.locals == {}


def test_a_continuous_run_waits_and_goes_on(world):
    running = world.begin(A, B, continuous=True, checkpoint_interval_ms=0)
    for _ in range(200):
        world.step(running)
    world.sites[A].extend("later")
    for _ in range(200):
        world.step(running)
    assert running[0].outcome is None
    assert world.sites[B].tree("later")
    assert running[0].place.number == 9
