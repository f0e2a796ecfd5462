"""What is read next, from a header's positions and what is held."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.client.extensions import LeaseHold
from millstream.model.position import FailoverEntry, Position
from millstream.pipelines.index.planning import (
    AGAIN_CHANGES_MAX,
    Held,
    complete_of,
    is_past_pieces,
    plan_parts,
    wants_lease,
)
from millstream.pipelines.index.writer import ROWS_PER_COMMIT
from millstream.views.aio.serving.outside_writer import DOCUMENTS_MAX

LOG = (FailoverEntry(7, 50, 2), FailoverEntry(5, 0, 1))
ZERO = Position()


def held(at, partition=0, read_to=None, purge=0):
    return Held(LeaseHold(9, partition, at, 7, 2, purge), LOG, read_to)


def closed(seqno, uuid=7):
    return Position(uuid, seqno, seqno, seqno)


def test_everything_is_read_up_to_the_lease():
    (plan,) = plan_parts({0: ZERO}, {0: held(100)}, None)
    assert (plan.start, plan.end) == (ZERO, closed(100))
    assert (plan.range.end_seqno, plan.range.lease_id, plan.rows_max) == (100, 9, 100)


def test_the_end_names_the_history_in_which_it_lies():
    (plan,) = plan_parts({0: closed(10, 5)}, {0: held(50)}, None)
    assert plan.end == closed(50, 5), "the history that begins at 50 has nothing below"


def test_a_piece_is_inside_its_snapshot_and_goes_on_under_its_lease():
    here = closed(60)
    (plan,) = plan_parts({0: here}, {0: held(100)}, 10)
    assert plan.end == Position(7, 70, 60, 100)
    (more,) = plan_parts({0: plan.end}, {0: held(100, read_to=plan.end)}, 10)
    assert (more.start, more.end) == (plan.end, Position(7, 80, 60, 100))


def test_a_piece_of_the_first_snapshot_keeps_its_purge_point():
    (plan,) = plan_parts({0: ZERO}, {0: held(100, purge=30)}, 10)
    assert plan.end == Position(7, 10, 0, 100, 30)
    (more,) = plan_parts({0: plan.end}, {0: held(100, read_to=plan.end, purge=30)}, 10)
    assert more.end == Position(7, 20, 0, 100, 30)


def test_without_its_lease_a_snapshot_is_begun_anew_and_read_beyond_the_header():
    here = Position(7, 90, 60, 100)
    (plan,) = plan_parts({0: here}, {0: held(120)}, 10)
    assert plan.start == closed(60)
    assert plan.end == Position(7, 91, 60, 120)
    (plan,) = plan_parts({0: Position(7, 90, 0, 100, 3)}, {0: held(120)}, None)
    assert (plan.start, plan.end) == (ZERO, closed(120))


def test_a_lease_that_ends_below_the_header_is_not_read():
    assert plan_parts({0: closed(90)}, {0: held(80)}, None) == []
    assert plan_parts({0: Position(7, 90, 60, 100)}, {0: held(80)}, None) == []


def test_partitions_without_a_lease_are_not_read():
    assert plan_parts({0: ZERO, 1: ZERO}, {1: held(5, 1)}, None)[0].partition == 1


def test_leases_are_requested_for_partitions_with_news():
    assert wants_lease(ZERO, None, 1)
    assert not wants_lease(ZERO, None, 0)
    assert not wants_lease(closed(60), None, 60)
    assert wants_lease(Position(7, 90, 60, 100), None, 100)
    assert not wants_lease(closed(60), held(100), 200)
    assert wants_lease(closed(100), held(100), 200), "what it held was read"
    other = Position(7, 70, 60, 100)
    assert wants_lease(closed(65), held(100, read_to=other), 200), "the header went elsewhere"


def test_what_is_read_again_fits_one_commit_and_other_partitions_wait():
    half = AGAIN_CHANGES_MAX // 2 + 1
    positions = {p: Position(7, 1000 + half, 1000, 9_000_000) for p in range(3)}
    holds = {p: held(9_000_000, p) for p in range(3)}
    (plan,) = plan_parts(positions, holds, ROWS_PER_COMMIT)
    assert (plan.partition, plan.start) == (0, closed(1000))
    assert plan.rows_max <= DOCUMENTS_MAX
    holds[0] = held(9_000_000, 0, read_to=positions[0])
    assert [plan.partition for plan in plan_parts(positions, holds, ROWS_PER_COMMIT)] == [0, 1]
    assert not is_past_pieces(positions, holds, range(3))
    assert AGAIN_CHANGES_MAX + ROWS_PER_COMMIT + 1024 <= DOCUMENTS_MAX


def test_a_lease_lost_far_inside_a_snapshot_is_past_pieces():
    positions = {0: Position(7, 1_520_000, 1_000_000, 2_000_000), 1: closed(50)}
    going_on = held(2_000_000, read_to=positions[0])
    assert not is_past_pieces(positions, {0: going_on}, {0, 1})
    for holds in ({}, {0: held(2_000_000)}):
        assert is_past_pieces(positions, holds, {0, 1})
        assert not is_past_pieces(positions, holds, {0}), "rows of another would be lost"
    assert plan_parts(positions, {0: held(2_000_000)}, ROWS_PER_COMMIT) == []


@given(
    st.lists(
        st.tuples(st.integers(0, 80), st.integers(0, 80), st.integers(1, 300)),
        min_size=1, max_size=6,
    ),
    st.integers(1, 100),
)  # fmt: skip
def test_a_commit_is_bounded_and_every_part_can_be_published(places, rows_max):
    positions, holds = {}, {}
    for partition, (snap_start, more, at) in enumerate(places):
        seqno = snap_start + more
        positions[partition] = Position(7, seqno, snap_start, seqno + 1) if more else (
            closed(snap_start) if snap_start else ZERO
        )  # fmt: skip
        holds[partition] = held(at, partition)
    plans = plan_parts(positions, holds, rows_max)
    redone = sum(positions[p].seqno - complete_of(positions[p]) for p in positions)
    assert sum(plan.rows_max for plan in plans) <= rows_max + len(plans) + redone
    for plan in plans:
        here = positions[plan.partition]
        assert plan.start == here or plan.start.seqno <= here.snap_start
        assert here.seqno < plan.end.seqno <= holds[plan.partition].lease.at
        assert plan.end.snap_start <= plan.end.seqno <= plan.end.snap_end
