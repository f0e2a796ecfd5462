"""Runs, beyond what scenarios and schedules show."""

import itertools

import pytest

from millstream.errors import AccessError, RemoteProtocolError, UnavailableError
from millstream.replication.core.logs import EXCEPTIONS_MAX, parse_log
from millstream.replication.core.reading import UNREADABLE
from millstream.replication.core.reports import answer_of, figures_of
from millstream.replication.core.running import (
    GOING_BACK_MAX,
    MISSING_MAX,
    RETRIED_AT_ONCE,
    RETRY_REFUSED_MAX_MS,
    UNRECORDED_MAX,
)
from millstream.replication.core.tasks import ATTEMPTS_MAX
from simulators.sites.database import number_of
from simulators.sites.world import World

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


def test_all_refused_documents_are_tried_again_page_by_page(world, monkeypatch):
    for number in range(250):
        world.sites[A].extend(f"refused{number}")
    refused = {f"refused{number}" for number in range(250)}
    world.sites[B].refused = set(refused)
    run = world.replicate(A, B)
    assert set(run.entries[0].exceptions) == refused
    assert run.dropped == 0
    right, asked = world.sites[A].on_Changes, []

    def changes(request):
        asked.append(request.feed.doc_ids)
        return right(request)

    monkeypatch.setattr(world.sites[A], "on_Changes", changes, raising=False)
    world.sites[B].refused = {"refused7"}
    world.sites[A].extend("later")
    run = world.replicate(A, B)
    assert run.entries[0].exceptions == ("refused7",)
    assert run.statistics.docs_written == 250
    pages = [ids for ids in asked if ids is not None]
    assert max(map(len, pages)) == RETRIED_AT_ONCE
    assert {name for ids in pages for name in ids} == refused


def test_a_continuous_run_tries_refused_documents_again_at_growing_distances(world):
    world.sites[B].refused = {"n3"}
    running = world.begin(A, B, continuous=True)
    times = []
    for minute in range(100):
        world.now_ms = 60_000 * minute
        tried = running[0].statistics.doc_write_failures
        for _ in range(60):
            world.step(running)
        if running[0].statistics.doc_write_failures > tried:
            times.append(minute)
    assert times[1] - times[0] <= 2
    assert [b - a for a, b in itertools.pairwise(times)] == sorted(
        b - a for a, b in itertools.pairwise(times)
    )
    assert len(times) < 9
    world.sites[B].refused = set()
    world.now_ms += RETRY_REFUSED_MAX_MS
    for _ in range(60):
        world.step(running)
    assert running[0].outcome is None
    assert world.sites[B].tree("n3")
    world.sites[A].extend("later")
    world.now_ms += running[0].job.checkpoint_interval_ms
    for _ in range(60):
        world.step(running)
    assert running[0].entries[-1].exceptions == ()


def test_what_a_filter_let_pass_and_was_refused_is_read_again_by_its_id(world, monkeypatch):
    for number in range(200):
        world.sites[A].extend(f"more{number}")
    names = sorted(world.sites[A].names())
    passing = [n for n in names if number_of(next(iter(world.sites[A].tree(n)))) % 2 == 0]
    world.sites[B].refused = {*passing[:3]}
    options = {"selector": {"even": True}}
    assert set(world.replicate(A, B, **options).entries[0].exceptions) == {*passing[:3]}
    right, read = world.sites[A].on_Changes, []

    def changes(request):
        page = right(request)
        read.extend(row.name for row in page.rows)
        return page

    monkeypatch.setattr(world.sites[A], "on_Changes", changes, raising=False)
    world.sites[B].refused = {passing[0]}
    world.sites[A].extend("later", 10_000)
    run = world.replicate(A, B, **options)
    assert sorted(read) == sorted([*passing[:3], "later"])
    assert run.entries[0].exceptions == (passing[0],)
    assert world.sites[B].names() == {*passing[1:], "later"}


def test_documents_that_a_filter_let_pass_are_tried_again_too(world):
    names = [f"n{number}" for number in range(8)]
    passing = {n for n in names if number_of(next(iter(world.sites[A].tree(n)))) % 2 == 0}
    world.sites[B].refused = set(names)
    options = {"selector": {"even": True}, "worker_batch_size": 3}
    run = world.replicate(A, B, **options)
    assert set(run.entries[0].exceptions) == passing
    world.sites[B].refused = set()
    run = world.replicate(A, B, **options)
    assert world.sites[B].names() == passing
    assert run.statistics.docs_written == len(passing)


def test_older_entries_of_a_log_say_what_they_no_longer_list(world):
    world.sites[B].refused = {f"refused{number}" for number in range(150)}
    for name in sorted(world.sites[B].refused):
        world.sites[A].extend(name)
    for number in range(3):
        world.sites[A].extend(f"more{number}")
        world.replicate(A, B)
    (log,) = world.sites[A].locals.values()
    entries = parse_log(log).entries
    assert [len(each.exceptions) for each in entries] == [150, 150, EXCEPTIONS_MAX]
    assert [each.dropped for each in entries] == [0, 0, 50]
    assert not entries[2].is_complete


def test_a_run_says_that_refusals_are_not_remembered(world, monkeypatch):
    monkeypatch.setattr("millstream.replication.core.tracking.REFUSED_MAX", 3)
    world.sites[B].refused = {f"n{number}" for number in range(8)}
    run = world.replicate(A, B)
    assert (len(run.entries[0].exceptions), run.dropped) == (3, 5)
    assert answer_of(run, None)["refusals_not_remembered"] == 5
    world.sites[B].refused = set()
    world.sites[A].extend("later")
    run = world.replicate(A, B)
    assert (run.entries[0].exceptions, run.dropped) == ((), 5), "nobody knows which they were"
    assert figures_of(run)["refusals_not_remembered"] == 5


def test_the_figures_of_a_run_are_its_own(world):
    world.sites[B].refused = {"n1"}
    first = world.replicate(A, B)
    (log,) = world.sites[B].locals.values()
    assert answer_of(first, log)["history"][0]["docs_written"] == 7
    again = world.replicate(A, B)
    (log,) = world.sites[B].locals.values()
    assert again.entries == [], "there was nothing to record"
    newest, *others = answer_of(again, log)["history"]
    assert (newest["docs_read"], newest["docs_written"]) == (1, 0)
    assert newest["doc_write_failures"] == 1
    assert [each["docs_written"] for each in others] == [7]
    world.sites[A].extend("later")
    third = world.replicate(A, B)
    (log,) = world.sites[B].locals.values()
    history = answer_of(third, log)["history"]
    assert [each["docs_written"] for each in history] == [1, 7]
    assert history[0]["session_id"] == third.entries[0].ckpt_id
    world.sites[B].refused = set()
    assert world.replicate(A, B).told["docs_written"] == 1


def broken(world, monkeypatch, name, *, by_winner):
    """Have a source fail for a page with this document, unless only winners are asked for."""
    right = world.sites[A].on_Changes

    def changes(request):
        page = right(request)
        is_plain = by_winner and request.feed.style == "main_only"
        if name in {row.name for row in page.rows} and not is_plain:
            raise RemoteProtocolError("cut")
        return page

    monkeypatch.setattr(world.sites[A], "on_Changes", changes, raising=False)


def test_a_change_that_cannot_be_read_whole_is_counted_and_named_and_the_rest_arrives(
    world, monkeypatch
):
    with monkeypatch.context() as patch:
        broken(world, patch, "n5", by_winner=True)
        run = world.replicate(A, B)
        assert run.outcome.error is None
        assert (run.statistics.doc_write_failures, *run.entries[0].exceptions) == (1, "n5")
        [failure] = figures_of(run)["refused"]
        assert failure["id"] == "n5"
        assert failure["error"] == UNREADABLE
        assert "cut" in failure["reason"]
        assert world.sites[B].names() == world.sites[A].names(), "with the winning revision of n5"
        run = world.replicate(A, B)
        assert run.outcome.error is None
        assert "n5" in run.failures
    world.sites[A].extend("later")
    assert world.replicate(A, B).entries[0].exceptions == ()


def test_a_change_that_cannot_be_named_stops_a_run_at_a_checkpoint_before_it(world, monkeypatch):
    broken(world, monkeypatch, "n5", by_winner=False)
    run = world.replicate(A, B)
    assert run.outcome.error.code == UNREADABLE
    assert "behind sequence" in str(run.outcome.error)
    assert figures_of(run)["source_error"] == "cut"
    missing = world.sites[A].names() - world.sites[B].names()
    assert "n5" in missing
    for database in world.sites:
        for log in database.locals.values():
            assert parse_log(log).entries[0].place.number <= 8 - len(missing)


def test_a_checkpoint_that_fails_is_tried_again_and_ends_no_run(world, monkeypatch):
    right, failures = world.sites[B].on_Flush, [UnavailableError("502")] * (2 * ATTEMPTS_MAX)

    def flush(request):
        if failures:
            raise failures.pop()
        return right(request)

    monkeypatch.setattr(world.sites[B], "on_Flush", flush, raising=False)
    assert world.replicate(A, B).outcome.error is None
    assert not failures
    failures += [UnavailableError("502")] * 99
    world.sites[A].extend("later")
    run = world.replicate(A, B)
    assert run.outcome.error is not None
    assert len(failures) == 99 - UNRECORDED_MAX * ATTEMPTS_MAX
    assert run.entries == []


@pytest.mark.parametrize(("site", "kind"), [
    (A, "ReadInfo"), (A, "ReadLocal"), (B, "ReadLocal"), (A, "WriteLocal"), (B, "WriteLocal"),
    (B, "Diff"), (A, "Fetch"), (B, "Write"), (B, "Flush"), (A, "Changes"), (B, "StoreRecords"),
])  # fmt: skip
def test_one_answer_that_is_none_ends_no_run(world, monkeypatch, site, kind):
    right, cut = world.sites[site].serve, [kind]

    def serve(request):
        if cut and type(request).__name__ == kind:
            cut.clear()
            raise RemoteProtocolError("cut")
        return right(request)

    monkeypatch.setattr(world.sites[site], "serve", serve, raising=False)
    world.replicate(A, B)
    world.sites[A].extend("later")
    assert world.replicate(A, B).outcome.error is None
    assert world.sites[B].state() == world.sites[A].state()
