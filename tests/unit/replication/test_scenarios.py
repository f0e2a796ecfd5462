"""What must come of sites that replicate with each other, scenario by scenario."""

import itertools

import pytest

from millstream.replication.core.asking import Changes, ReadRecords, StoreRecords, WriteLocal
from millstream.replication.core.coverage import HOPS_MAX
from millstream.replication.core.logs import parse_log
from simulators.sites.database import Database, leaves
from simulators.sites.world import World

A, B, C, D = range(4)
EVEN = {"selector": {"even": True}}


@pytest.fixture
def world():
    return World(1, sizes=[2, 2, 2, 2])


def fill(world, site=A, count=8, first=0):
    for number in range(first, first + count):
        world.sites[site].extend(f"n{number}")


def hops(world, *sites, **options):
    for source, target in itertools.pairwise(sites):
        world.replicate(source, target, **options)


def rows_of(world, source, target, **options):
    """Rows that a replication reads from its source."""
    before = world.sites[source].rows_sent
    run = world.replicate(source, target, **options)
    assert run.outcome.error is None
    return world.sites[source].rows_sent - before


def has_all(world, source, target, but=()):
    for name, found in world.sites[source].state().items():
        known = world.sites[target].tree(name)
        assert name in but or found <= known.keys(), name
    return True


def about(world, holder, origin):
    """Records that a site has of another one, as it would use them."""
    database = world.sites[holder]
    return database.serve(ReadRecords((world.sites[origin].uuid,)))


def until(world, running, happens):
    """Step a run until a request of a kind was carried out."""
    for _ in range(2000):
        pending = running[3]
        found = [e for e in pending if hasattr(e.step, "request") and happens(e.step)]
        world.step(running)
        if found and found[0] not in running[3]:
            return
        assert running[0].outcome is None
    raise AssertionError("it does not happen")


def test_01_nothing_is_read_again_after_two_hops(world):
    fill(world)
    hops(world, A, B, C)
    assert about(world, C, A)
    assert rows_of(world, A, C) == 0
    assert about(world, C, A) == []
    assert world.sites[A].locals.keys() & world.sites[C].locals.keys()
    assert rows_of(world, A, C) == 0


def test_02_only_what_is_new_is_read(world):
    fill(world)
    hops(world, A, B, C)
    fill(world, count=10, first=100)
    assert rows_of(world, A, C) == 10
    assert has_all(world, A, C)


def test_03_a_document_edited_on_the_way_arrives_with_its_ancestor(world):
    fill(world)
    world.replicate(A, B)
    first = next(iter(world.sites[A].state()["n3"]))
    world.sites[B].extend("n3")
    world.sites[B].order, world.sites[B].limit = [0, 1], 3
    running = world.begin(B, C)
    until(world, running, lambda step: isinstance(step.request, Changes))
    assert world.sites[C].records == []
    world.finish(running)
    assert about(world, C, A)
    assert first in world.sites[C].tree("n3")
    assert rows_of(world, A, C) == 0


def test_04_a_writer_that_never_stops_loses_nothing(world):
    fill(world)
    world.replicate(A, B)
    world.sites[B].limit = 2
    running = world.begin(B, C)
    for _ in range(40):
        if running[0].outcome is None:
            world.sites[B].extend("n1")
            world.step(running)
    world.finish(running)
    assert about(world, C, A)
    assert has_all(world, A, C)
    assert rows_of(world, A, C) == 0


def test_05_a_hop_killed_in_the_middle_tells_nothing(world):
    fill(world)
    world.replicate(A, B)
    world.sites[B].limit = 3
    running = world.begin(B, C)
    until(world, running, lambda step: isinstance(step.request, Changes))
    world.running.remove(running)
    assert world.sites[C].records == []
    world.sites[B].limit = 1000
    world.replicate(B, C)
    assert rows_of(world, A, C) == 0


def spread(world, count=12):
    """Documents of A on B, whose second partition lags behind at C; how many each has."""
    fill(world, count=count)
    world.replicate(A, B)
    world.sites[B].order = [0, 1]
    found = [len(p.newest()) for p in world.sites[B].partitions]
    assert all(number > 1 for number in found)
    return found


def in_the_middle(world, source, target, first, **options):
    """Kill a hop once it has one partition and a part of the next, and has recorded that."""
    job = {"worker_batch_size": 1, "worker_processes": 1, "checkpoint_interval_ms": 0} | options
    running = world.begin(source, target, **job)
    for _ in range(5000):
        if running[0].statistics.rows_read > first and about(world, target, A):
            break
        world.step(running)
    else:
        raise AssertionError("nothing is told")
    assert running[0].outcome is None
    world.running.remove(running)


def test_05_a_partition_that_lags_does_not_hold_back_the_others(world):
    first, second = spread(world)
    in_the_middle(world, B, C, first)
    world.sites[A].rows_sent = 0
    assert rows_of(world, A, C) == second
    assert has_all(world, A, C)


def test_05_where_partitions_differ_nothing_is_told_in_the_middle():
    world = World(1, sizes=[3, 2, 3, 3])
    first, _ = spread(world)
    with pytest.raises(AssertionError):
        in_the_middle(world, B, C, first)
    assert rows_of(world, A, C) == 0  # the hop went on to its end


def test_05_what_a_lagging_partition_lacks_is_told_later(world):
    first, _ = spread(world)
    in_the_middle(world, B, C, first)
    (part,) = about(world, C, A)
    world.replicate(B, C)
    (whole,) = about(world, C, A)
    assert whole.name == part.name
    assert whole.place.number > part.place.number
    assert rows_of(world, A, C) == 0


def test_06_in_small_batches_the_record_comes_with_the_last(world):
    fill(world, count=20)
    world.replicate(A, B)
    running = world.begin(B, C, worker_batch_size=7, worker_processes=1)
    pages = 0
    while running[0].outcome is None:
        pages += sum(1 for e in running[3] if isinstance(getattr(e.step, "request", 0), Changes))
        if pages < 3:
            assert world.sites[C].records == []
        world.step(running)
    assert pages >= 3
    assert about(world, C, A)


def test_07_a_restored_origin_does_not_know_the_checkpoint(world):
    fill(world, count=3)
    backup = world.sites[A].image()
    fill(world, count=5, first=10)
    hops(world, A, B, C)
    world.sites[A] = backup.restored()
    fill(world, count=5, first=50)
    assert rows_of(world, A, C) == 8
    assert has_all(world, A, C)


def test_08_an_origin_restored_between_two_checkpoints_starts_at_the_older_one(world):
    fill(world, count=6)
    world.replicate(A, B)
    backup = world.sites[A].image()
    fill(world, count=6, first=10)
    hops(world, A, B, C)
    world.sites[A] = backup.restored()
    fill(world, count=2, first=50)
    assert rows_of(world, A, C) == 2
    assert has_all(world, A, C)


def test_09_only_the_partition_that_failed_over_goes_back(world):
    fill(world, count=20)
    hops(world, A, B, C)
    high = world.sites[A].partitions[0].high
    world.sites[A].lose(0, 3)
    lost = world.sites[A].partitions[0]
    for number in range(100, 120):
        if world.sites[A].partition(f"n{number}") is lost and lost.high < high + 1:
            world.sites[A].extend(f"n{number}")
    assert rows_of(world, A, C) == lost.high - (high - 3)
    assert has_all(world, A, C)


def test_10_a_middle_that_rolled_back_tells_nothing_and_repeats_its_part(world):
    fill(world)
    world.replicate(A, B)
    world.sites[B].lose(0, 1)
    world.replicate(B, C)
    assert about(world, C, A) == []
    assert rows_of(world, A, B) == 8
    assert has_all(world, A, B)


def test_11_a_target_that_lost_its_tail_drops_what_it_knew(world):
    fill(world)
    hops(world, A, B, C)
    world.sites[C].lose(0, 1)
    assert about(world, C, A) == []
    assert rows_of(world, B, C) == 8
    assert rows_of(world, A, C) == 0
    assert has_all(world, A, C)


@pytest.mark.parametrize("is_after", [True, False])
@pytest.mark.parametrize("is_told", [True, False])
def test_12_a_copy_of_the_origin_is_asked_like_it(world, is_after, is_told):
    fill(world)
    before = world.sites[A].image()
    hops(world, A, B, C)
    copied = (world.sites[A].image() if is_after else before).restored(is_copy=is_told)
    world.sites[A].extend("only-a")
    world.sites[D] = copied
    copied.extend("only-copy")
    assert rows_of(world, D, C) == (1 if is_after else 9)
    assert has_all(world, D, C)


def test_13_a_database_made_again_is_another_one(world):
    fill(world)
    hops(world, A, B, C)
    world.sites[A] = Database(world.numbers, 2)
    fill(world, count=3, first=50)
    assert rows_of(world, A, C) == 3


def test_14_under_steady_load_the_start_is_recent(world):
    fill(world)
    options = {"continuous": True, "checkpoint_interval_ms": 0}
    running = [world.begin(A, B, **options), world.begin(B, C, **options)]
    for turn in range(1500):
        world.step(running[turn % 2])
        if turn % 40 == 0:
            world.sites[A].extend(f"load{turn}")
    total = sum(p.high for p in world.sites[A].partitions)
    assert rows_of(world, A, C) < total // 2
    assert has_all(world, A, C)


def test_15_a_chain_is_verified_with_the_origins(world):
    fill(world)
    hops(world, A, B, C, D)
    asked = world.sites[C].asked
    assert rows_of(world, A, D) == 0
    assert rows_of(world, B, D) == 0
    assert world.sites[C].asked == asked


def test_16_a_cycle_does_not_grow(world):
    fill(world)
    sizes = []
    for _ in range(4):
        hops(world, A, B, C, A)
        assert about(world, A, A) == []
        sizes.append(sum(len(site.records) for site in world.sites))
    assert sizes[3] == sizes[2]
    for site in world.sites:
        assert all(record.hops <= HOPS_MAX for record in site.records)
        assert all(len(set(record.via)) == len(record.via) for record in site.records)


def test_17_two_ways_are_joined_partition_by_partition(world):
    fill(world)
    world.replicate(A, B)
    name = next(f"x{n}" for n in range(50) if _partition(world, f"x{n}") == 0)
    world.sites[A].extend(name)
    world.replicate(A, C)
    world.replicate(B, D)
    world.replicate(C, D)
    assert len(about(world, D, A)) >= 1
    assert rows_of(world, A, D) == 0


def _partition(world, name):
    return world.sites[A].partitions.index(world.sites[A].partition(name))


def test_18_a_filtered_first_hop_serves_the_same_filter_only(world):
    fill(world)
    world.replicate(A, B, **EVEN)
    world.replicate(B, C)
    assert rows_of(world, A, C) == 8
    world.sites[D] = Database(world.numbers, 2)
    world.replicate(B, D)
    assert rows_of(world, A, D, **EVEN) == 0


def test_19_a_content_filter_on_a_later_hop_tells_nothing(world):
    world.sites[A].edit("n", None, 100)
    world.replicate(A, B, **EVEN)
    world.sites[B].edit("n", "1-100", 101)
    world.replicate(B, C, **EVEN)
    assert about(world, C, A) == []
    world.replicate(A, C, **EVEN)
    assert "1-100" in world.sites[C].tree("n")


def test_20_lists_of_ids_serve_equal_lists_and_parts_of_them(world):
    fill(world)
    hops(world, A, B, C, doc_ids=("n1", "n2"))
    record = about(world, C, A)
    assert record
    assert rows_of(world, A, C, doc_ids=("n1", "n2", "n3")) == 3
    assert rows_of(world, A, C, doc_ids=("n1",)) == 0
    assert rows_of(world, A, C, doc_ids=("n1", "n2")) == 0


def test_20_a_hop_by_ids_does_not_serve_a_job_without_filter(world):
    fill(world)
    world.replicate(A, B)
    world.replicate(B, C, doc_ids=("n1",))
    assert rows_of(world, A, C) == 8
    assert has_all(world, A, C)


def test_21_what_was_refused_is_fetched_first(world):
    fill(world)
    world.replicate(A, B)
    world.sites[C].refused = {"n1", "n2"}
    world.replicate(B, C)
    world.sites[C].refused = set()
    assert rows_of(world, A, C) == 2
    assert has_all(world, A, C)


def test_22_too_many_refusals_end_completeness(world):
    fill(world, count=101)
    world.replicate(A, B)
    world.sites[C].refused = set(world.sites[A].state())
    world.replicate(B, C)
    assert world.sites[C].records == []
    world.sites[C].refused = set()
    assert rows_of(world, A, C) == 101


def test_23_a_purge_in_the_middle_ends_what_it_may_tell(world):
    fill(world)
    world.replicate(A, B)
    world.sites[B].purge("n1")
    world.replicate(B, C)
    assert about(world, C, A) == []
    assert rows_of(world, A, C) == 8


def test_23_a_purge_behind_the_reader_changes_nothing(world):
    fill(world)
    hops(world, A, B, C)
    world.sites[B].purge("n1")
    assert about(world, C, A)
    assert rows_of(world, A, C) == 0
    assert has_all(world, A, C)


def test_24_who_may_have_missed_deletions_is_told_nothing(world):
    fill(world)
    world.replicate(A, C)
    world.sites[A].extend("n1", is_deletion=True)
    world.replicate(A, B)
    for partition in (0, 1):
        world.sites[B].drop_tombstones(partition)
    world.replicate(B, C)
    assert about(world, C, A) == []
    world.replicate(A, C)
    assert any(rev.endswith("d") for rev in leaves(world.sites[C].tree("n1")))


@pytest.mark.parametrize("how", ["since_seq", "winning_revs_only"])
def test_25_a_run_that_skips_is_not_complete(world, how):
    fill(world)
    value = world.sites[A].present().end.text() if how == "since_seq" else True
    world.replicate(A, B, **{how: value})
    world.replicate(B, C)
    assert about(world, C, A) == []


def test_26_an_origin_that_tells_no_vectors_is_asked_for_its_log(world):
    world.sites[A] = Database(world.numbers, 2, is_foreign=True)
    fill(world)
    hops(world, A, B, C)
    assert about(world, C, A)
    assert rows_of(world, A, C) == 0
    fill(world, count=2, first=50)
    assert rows_of(world, A, C) == 2


def test_27_a_middle_that_knows_nothing_of_records_does_no_harm(world):
    world.sites[B] = Database(world.numbers, 2, is_foreign=True)
    fill(world)
    hops(world, A, B, C)
    assert world.sites[C].records == []
    assert rows_of(world, A, C) == 8
    assert has_all(world, A, C)


def test_28_who_does_not_ask_is_not_told(world):
    fill(world)
    world.replicate(A, B)
    page = world.sites[B].serve(Changes(0, 100, world.begin(B, C)[0]._feed))
    assert page.records == ()


@pytest.mark.parametrize("deaf", ["Verify", "ReadRecords"])
def test_29_what_cannot_be_asked_makes_an_earlier_start(world, deaf):
    fill(world)
    hops(world, A, B, C)
    world.sites[A if deaf == "Verify" else C].deaf = {deaf}
    assert rows_of(world, A, C) == 8
    world.sites[C].deaf = set()
    assert about(world, C, A)


@pytest.mark.parametrize("sizes", [[1, 4, 2, 8], [8, 1, 4, 2]])
def test_30_partitions_may_differ(sizes):
    world = World(1, sizes=sizes)
    fill(world, count=20)
    hops(world, A, B, C, D)
    assert rows_of(world, A, D) == 0
    assert rows_of(world, B, D) == 0


def test_32_a_fail_over_inside_the_snapshot_that_was_read(world):
    world = World(1, sizes=[1, 1, 1])
    fill(world, count=6)
    running = world.begin(A, B, worker_batch_size=4, worker_processes=1)
    world.sites[A].extend("n0")  # moves behind what the reader has
    until(world, running, lambda step: isinstance(step.request, Changes))
    world.sites[A].lose(0, 3)  # n0 is back at its first revision, below the reader
    world.finish(running)
    assert has_all(world, A, B)


def test_33_a_filtered_record_restarts_a_partition_that_rolled_back(world):
    world = World(1, sizes=[1, 1, 1])
    world.sites[A].edit("n", None, 100)
    world.sites[A].edit("m", None, 102)
    world.sites[A].edit("n", "1-100", 101)  # does not pass, and hides what does
    world.replicate(A, B, **EVEN)
    world.replicate(B, C)
    world.sites[A].lose(0, 1)
    world.replicate(A, C, **EVEN)
    assert "1-100" in world.sites[C].tree("n")


def test_34_a_target_that_fails_over_before_its_checkpoint_is_sent_everything_again(world):
    fill(world)
    running = world.begin(A, B)
    until(world, running, lambda step: type(step.request).__name__ == "Write")
    world.sites[B].lose(0, 9)
    before = len(world.sites[B].locals)
    until(world, running, lambda step: type(step.request).__name__ == "Flush")
    assert before == len(world.sites[B].locals) == 0
    world.finish(running)
    assert has_all(world, A, B)


def test_35_a_refusal_is_remembered_over_runs_and_hops(world):
    fill(world)
    world.replicate(A, B)
    world.sites[C].refused = {"n1"}
    world.replicate(B, C)
    fill(world, B, count=3, first=50)
    world.replicate(B, C)
    hops(world, C, D)
    assert all(record.exceptions == ("n1",) for record in about(world, D, A))
    world.sites[C].refused = set()
    world.replicate(A, C)
    assert world.sites[C].tree("n1")
    world.replicate(A, D)
    assert world.sites[D].tree("n1")


def test_a_checkpoint_written_after_its_target_went_back_is_not_shown(world):
    fill(world)
    running = world.begin(A, B)
    until(world, running, lambda step: isinstance(step.request, WriteLocal))
    world.sites[B].lose(0, 9)
    world.sites[B].lose(1, 9)
    world.finish(running)
    assert rows_of(world, A, B) == 8
    assert has_all(world, A, B)


def test_records_stored_after_their_holder_went_back_are_passed_over(world):
    fill(world)
    world.replicate(A, B)
    running = world.begin(B, C)
    until(world, running, lambda s: isinstance(s.request, WriteLocal) and s.side == "target")
    assert any(isinstance(e.step.request, StoreRecords) for e in running[3])
    world.sites[C].lose(0, 9)
    world.finish(running)
    assert about(world, C, A) == []


def test_logs_carry_what_coverage_needs(world):
    fill(world)
    world.replicate(A, B)
    (body,) = world.sites[B].locals.values()
    entry = parse_log(body).entries[0]
    assert entry.is_complete
    assert entry.is_closed
    assert (body["source_uuid"], body["target_uuid"]) == (
        world.sites[A].uuid,
        world.sites[B].uuid,
    )
    assert entry.target_vec == world.sites[B].present().end
