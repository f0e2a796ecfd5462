"""The cycle of the Spark pipelines, without Spark: whatever happens, the view is right."""

import contextlib
import os
import random
from pathlib import Path

import pytest

import millstream
from millstream.client.databases import Database
from millstream.client.http import http_of
from millstream.errors import ConditionError, UnavailableError
from millstream.pipelines.index.offered import OfferedBuilds
from millstream.pipelines.index.setup import index_state_of
from millstream.views.core.index import indexer
from support.budget import budget
from support.node.node_process import NodeProcess
from support.node.waiting import until
from support.views.outside_index import (
    DESIGN,
    Bucket,
    bucket,
    catch_up,
    here,
    index_node,
    own_bucket,
)

__all__ = ["bucket", "index_node", "own_bucket"]


def documents(numbers, kind="a"):
    return {f"k{n}": {"kind": f"{kind}{n % 3}", "n": n} for n in numbers}


def test_a_first_build_and_later_changes(bucket):
    bucket.write(documents(range(300)))
    with bucket.writer() as writer:
        writer.take_over()
        first, *more = catch_up(writer)
        assert (first.is_first, first.changes, first.parts, more) == (True, 301, 4, [])
        bucket.check()
        assert not writer.is_behind()
        bucket.write({**documents(range(20), "b"), "k100": None, "k200": {"bad": 1, "n": 1}})
        assert writer.is_behind()
        (cycle,) = catch_up(writer)
        assert (cycle.is_first, cycle.changes) == (False, 22)
        bucket.check()
        assert bucket.view()[0]["value"] == sum(row[2] for row in bucket.right_rows())


def test_commits_are_bounded_and_go_on_inside_a_snapshot(bucket):
    with bucket.writer(rows_max=40) as writer:
        writer.take_over()
        catch_up(writer)
        bucket.write(documents(range(200)))
        cycles = catch_up(writer)
        assert len(cycles) >= 5
        assert max(cycle.changes for cycle in cycles) <= 44
        bucket.check()


def test_documents_are_written_during_a_build(bucket):
    dice = random.Random(4)
    bucket.write(documents(range(100)))

    def run(spec, tasks):
        done = here(spec, tasks)
        for _ in range(2):  # between the reading and the commit
            n = dice.randrange(150)
            bucket.write({f"k{n}": dice.choice([None, {"kind": "z", "n": dice.randrange(9)}])})
        return done

    with bucket.writer(run, rows_max=7) as writer:
        writer.take_over()
        for _ in range(12):
            writer.cycle()
        writer._run_tasks = here
        catch_up(writer)
    bucket.check()


def test_a_new_process_continues_from_the_header(bucket):
    bucket.write(documents(range(60)))
    for n in range(8):
        with bucket.writer(rows_max=9) as writer:  # each ends inside a snapshot
            writer.take_over()
            writer.cycle()
        bucket.write({f"k{n}": None, f"m{n}": {"kind": "m", "n": n}})
    with bucket.writer() as writer:
        writer.take_over()
        catch_up(writer)
    bucket.check()


def test_a_commit_without_reply_is_not_repeated(bucket):
    bucket.write(documents(range(30)))
    with bucket.writer() as writer:
        writer.take_over()
        load = writer._shard.load

        def lost(fence, said):
            load(fence, said)
            raise UnavailableError("the answer was lost", code="unreachable")

        writer._shard.load = lost
        with pytest.raises(UnavailableError):
            writer.cycle()
        assert catch_up(writer) == []
    bucket.check()


def test_the_later_of_two_writers_commits(bucket):
    bucket.write(documents(range(30)))
    with bucket.writer() as first, bucket.writer() as second:
        first.take_over()

        def overtaken(spec, tasks):
            done = here(spec, tasks)
            second.take_over()
            second.cycle()
            return done

        first._run_tasks = overtaken
        with pytest.raises(ConditionError) as caught:
            first.cycle()
        assert caught.value.code == "index_fenced"
        bucket.check()
        bucket.write({"k1": None})
        with pytest.raises(ConditionError):
            first.cycle()
        catch_up(second)
    bucket.check()


def test_a_lost_lease_affects_only_its_part(bucket):
    bucket.write(documents(range(80)))
    with bucket.writer() as writer:
        writer.take_over()

        def losing(spec, tasks):
            done = here(spec, tasks)
            writer._run_tasks = here
            plan = tasks[0][0]
            writer._control.release_lease(plan.lease_id, [plan.partition])
            return done

        writer._run_tasks = losing
        first, second = catch_up(writer)
        assert (first.parts, list(first.state.left_out.values())) == (3, ["lease_lost"])
        assert (second.is_first, second.parts) == (False, 1)
    bucket.check()


def test_a_lease_lost_before_reading_is_replaced(bucket):
    bucket.write(documents(range(80)))
    with bucket.writer() as writer:
        writer.take_over()

        def losing(spec, tasks):
            for plan in tasks[0]:
                writer._control.release_lease(plan.lease_id, [plan.partition])
            bucket.write({"k1": None, "k2": {"kind": "b", "n": 3}})
            writer._run_tasks = here
            return here(spec, tasks)

        writer._run_tasks = losing
        catch_up(writer)
    bucket.check()


def test_a_changed_design_document_ends_the_pipeline(bucket):
    with bucket.writer() as writer:
        changed = {"_id": "_design/d", "views": {"v": {"map": "function (d) { emit(1); }"}}}
        bucket.spec(changed)
        with pytest.raises(ConditionError) as caught:
            writer.take_over()
        assert caught.value.code == "other_index"


def test_a_view_rolls_back_with_its_node(own_bucket):
    """Writes that are not flushed are lost: the index was ahead of them, and goes back."""
    bucket, dice = own_bucket, random.Random(7)
    bucket.write(documents(range(50)))
    bucket.persist()
    with bucket.writer() as writer:
        writer.take_over()
        for _ in range(2):
            catch_up(writer)
            before = dict(bucket.documents)
            bucket.write({f"k{dice.randrange(60)}": {"kind": "lost", "n": 1} for _ in range(9)})
            catch_up(writer)
            ahead = writer.state.where
            bucket.node.kill()
            bucket.node.start()
            bucket.documents = stored(bucket, before.keys() | bucket.documents.keys())
            _until(lambda: catch_up(writer))
            where = writer.state.where
            assert any(where[p].seqno < ahead[p].seqno for p in where), "nothing was lost"
            bucket.check()
            bucket.write(documents(range(10), "again"))
            catch_up(writer)
            bucket.check()
            bucket.persist()


def stored(bucket, keys):
    with bucket.client() as client:
        found = client.get_many(sorted(keys))
    return {key: document.value for key, document in found.items()}


def _until(work):
    """Try until node and index process are there again."""

    def tried():
        with contextlib.suppress(UnavailableError):
            work()
            return True
        return False

    until(tried, lambda: "the node does not come back")


def test_an_index_that_lacks_far_more_than_it_has_is_built_anew(bucket, monkeypatch):
    monkeypatch.setattr(indexer, "BUILD_CHANGES_MIN", 50)
    bucket.write(documents(range(20)))
    with bucket.writer(rows_max=5) as writer:
        writer.take_over()
        catch_up(writer)
        bucket.write({**documents(range(10, 100), "b"), "k1": None})
        (cycle,) = catch_up(writer)
        assert (cycle.is_first, cycle.state.rows) == (True, [99])
        bucket.check()
        bucket.write(documents(range(100, 110)))
        assert not any(cycle.is_first for cycle in catch_up(writer))
    bucket.check()


def test_a_build_that_is_not_taken_is_not_tried_for_ever(bucket, monkeypatch):
    monkeypatch.setattr(indexer, "BUILD_CHANGES_MIN", 50)
    bucket.write(documents(range(10)))
    with bucket.writer() as writer:
        writer.take_over()
        catch_up(writer)
        bucket.write(documents(range(10, 90)))

        def losing(spec, tasks):
            done = here(spec, tasks)
            writer._run_tasks = here
            plan = tasks[0][0]
            writer._control.release_lease(plan.lease_id, [plan.partition])
            return done

        writer._run_tasks = losing
        built, *later = catch_up(writer)
        assert (built.is_first, built.parts) == (True, 0)
        assert not any(cycle.is_first for cycle in later)
    bucket.check()


class Killed(Exception):
    """A writer ends in the middle of a cycle."""


class Schedule:
    """Two writers that stop anywhere in a cycle, lost leases, writes in between, rebuilds."""

    def __init__(self, bucket, seed):
        self.bucket, self.dice = bucket, random.Random(seed)
        bucket.write(documents(range(self.dice.randrange(40))))
        self.writers = [self.writer(), self.writer()]

    def writer(self):
        def run(spec, tasks):
            self.disturb(made, tasks)
            done = here(spec, tasks)
            self.disturb(made, tasks)
            return done

        rows_max = self.dice.choice([3, 12, 500])
        made = self.bucket.writer(run, rows_max=rows_max, task_count=self.dice.randrange(1, 4))
        made.take_over()
        return made

    def disturb(self, writer, tasks):
        event = self.dice.randrange(6)
        if event == 0:
            plan = self.dice.choice(self.dice.choice(tasks))
            writer._control.release_lease(plan.lease_id, [plan.partition])
        elif event == 1:
            n = self.dice.randrange(100)
            self.bucket.write({f"k{n}": self.dice.choice([None, {"kind": "x", "n": n}])})
        elif event == 2:
            raise Killed

    def write(self):
        numbers = range(self.dice.randrange(100), 100, self.dice.randrange(1, 9))
        self.bucket.write(documents(numbers, self.dice.choice("abc")))

    def cycle(self):
        at = self.dice.randrange(2)
        try:
            self.writers[at].cycle()
        except Killed:
            self.writers[at].close()
            self.writers[at] = self.writer()
        except ConditionError as error:
            if error.code != "index_fenced":
                raise
            if self.dice.random() < 0.4:
                self.writers[at].take_over()

    def close(self):
        for writer in self.writers:
            writer.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(budget(4)))
def test_random_schedules_end_with_the_right_rows(bucket, monkeypatch, seed):
    monkeypatch.setattr(indexer, "BUILD_CHANGES_MIN", 60)
    schedule = Schedule(bucket, seed)
    try:
        for _ in range(25):
            if schedule.dice.random() < 0.5:
                schedule.write()
            schedule.cycle()
    finally:
        schedule.close()
    with bucket.writer() as writer:
        writer.take_over()
        catch_up(writer)
    bucket.check()


SMALL_OFFERS = """
import millstream.views.core.index.offers as offers
offers.OFFER_CHANGES_MIN = 50
"""


def test_a_large_build_is_offered_to_a_pipeline_and_the_node_goes_on(tmp_path):
    """The bound of the node is lowered for this test, in its processes alone."""
    (tmp_path / "sitecustomize.py").write_text(SMALL_OFFERS)
    source = Path(millstream.__file__).parents[1]
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{source}"}
    built, failed = [], []
    with NodeProcess(tmp_path / "node", "--bucket=own:4", env=env) as node:
        bucket = Bucket(node, "own", tmp_path)
        builds = OfferedBuilds(
            bucket.source(),
            lambda address, cycle, seconds: built.append((address.design, cycle.state.rows)),
            lambda address, error: failed.append(error),
        )
        builds.ask(here)  # it is attached
        bucket.write(documents(range(200)))
        with bucket.client() as client:
            http = http_of(client, user=None, password="", tls=None, timeout_s=30.0)
        Database(http, "own").put("d", {**DESIGN, "engine": "node"})
        until(lambda: (builds.ask(here), built)[1], lambda: repr(failed))
        builds.close()
        assert built == [("d", [200])]
        bucket.write({**documents(range(20), "b"), "k100": None})
        assert len(bucket.view(reduce=False)) == 199
        bucket.check()
        assert index_state_of(bucket.source(), "d").writer == "node indexer"
    assert failed == []
