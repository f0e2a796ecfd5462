"""The planner's rules one by one; all of them together: `tests/crash/test_planner_schedules`."""

from __future__ import annotations

import pytest

from millstream.errors import RollbackRequiredError, UnavailableError
from millstream.model.partitions import PartitionState
from millstream.pipelines.change_stream.offsets import OffsetEntry
from millstream.pipelines.change_stream.planner import Planner
from support.pipelines.node_double import ROW_BYTES, FalseNode

START = {0: OffsetEntry()}


@pytest.fixture
def node() -> FalseNode:
    node = FalseNode(1)
    for key in range(10):
        node.write(0, key, key)
    return node


def test_a_snapshot_is_cut_by_the_limit_under_one_lease(node: FalseNode) -> None:
    planner = Planner(node, "b")
    first = planner.plan(START, 3)
    second = planner.plan(first, 3)
    assert (first[0].seqno, first[0].snap_start, first[0].snap_end) == (3, 0, 10)
    assert (second[0].seqno, second[0].lease_id) == (6, first[0].lease_id)
    assert first[0].purge_seqno == 0  # inside the first snapshot


def test_the_end_of_a_snapshot_is_complete_only_while_its_lease_is_held(node: FalseNode) -> None:
    planner = Planner(node, "b")
    end = planner.plan(START, None)
    assert (end[0].seqno, end[0].is_closed) == (10, False)
    confirmed = planner.plan(end, None)
    assert confirmed[0].is_closed
    assert confirmed[0].lease_id is None
    node.partitions[0].leases.clear()
    again = planner.plan(end, None)
    assert (again[0].snap_start, again[0].load, again[0].rollback_to) == (0, 2, 0)
    assert again[0].lease_id != end[0].lease_id


def test_a_lease_is_released_once_the_next_offset_is_logged(node: FalseNode) -> None:
    planner = Planner(node, "b")
    end = planner.plan(START, None)
    confirmed = planner.plan(end, None)
    assert end[0].lease_id in node.partitions[0].leases  # a restart may begin at `end`
    assert planner.plan(confirmed, None) == confirmed
    assert not node.partitions[0].leases


def test_with_nothing_new_the_start_comes_back_and_no_lease_is_taken(node: FalseNode) -> None:
    planner = Planner(node, "b")
    offset = planner.plan(planner.plan(START, None), None)
    for _ in range(3):
        assert planner.plan(offset, 5) == offset
    assert not node.partitions[0].leases


def test_a_lost_tail_is_an_error_that_names_partition_and_seqno(node: FalseNode) -> None:
    planner = Planner(node, "orders")
    offset = planner.plan(planner.plan(START, None), None)
    node.partitions[0].fail_over(7)
    with pytest.raises(RollbackRequiredError, match="partition 0 of bucket 'orders'") as caught:
        planner.plan(offset, None)
    assert (caught.value.partition_id, caught.value.seqno) == (0, 7)
    assert "seqno 7:" in str(caught.value)


def test_a_consumer_that_repairs_is_told_to_roll_back(node: FalseNode) -> None:
    planner = Planner(node, "b", repairs=True)
    offset = planner.plan(planner.plan(START, None), None)
    node.partitions[0].fail_over(7)
    node.write(0, 5, 50)
    end = planner.plan(offset, None)
    assert (end[0].rollback_to, end[0].snap_start, end[0].seqno) == (7, 7, 8)
    assert end[0].branch > offset[0].branch


def test_a_fail_over_that_lost_nothing_only_marks_the_branch(node: FalseNode) -> None:
    planner = Planner(node, "b")
    offset = planner.plan(planner.plan(START, None), None)
    node.partitions[0].fail_over(10)
    closed = planner.plan(offset, None)
    assert closed[0].is_closed
    assert closed[0].rollback_to == 10
    assert closed[0].uuid == offset[0].uuid  # that of the history which wrote seqno 10
    assert planner.plan(closed, None) == closed


def test_a_partition_behind_the_purge_point_is_an_error_at_seqno_0(node: FalseNode) -> None:
    planner = Planner(node, "b")
    offset = planner.plan(planner.plan(START, None), None)
    planner.plan(offset, None)
    node.write(0, 1, None)
    node.write(0, 2, 2)
    node.partitions[0].purge(11)
    with pytest.raises(RollbackRequiredError) as caught:
        planner.plan(offset, None)
    assert caught.value.seqno == 0


def test_a_partition_that_goes_back_is_read_up_to_where_it_was(node: FalseNode) -> None:
    planner = Planner(node, "b")
    offset = planner.plan(START, 4)
    offset = planner.plan(offset, 4)
    node.partitions[0].leases.clear()
    assert planner.plan(offset, 1)[0].seqno == offset[0].seqno


def test_available_now_ends_at_the_goal_though_writers_go_on(node: FalseNode) -> None:
    planner = Planner(node, "b")
    planner.begin_available_now()
    offset, batches = dict(START), 0
    while True:
        node.write(0, 3, batches)
        end = planner.plan(offset, 4)
        if end == offset:
            break
        offset, batches = end, batches + 1
    assert offset[0].is_closed
    assert offset[0].seqno == 10
    assert not node.partitions[0].leases
    assert planner.leases_in_use() == {}


def test_a_held_snapshot_is_finished_before_the_goal(node: FalseNode) -> None:
    offset = Planner(node, "b").plan(START, 4)
    node.write(0, 3, 1)
    planner = Planner(node, "b")
    planner.begin_available_now()
    seen = []
    while (end := planner.plan(offset, None)) != offset:
        seen.append(end[0].snap_end)
        offset = end
    assert seen == [10, 11, 11]
    assert offset[0].is_closed


def test_a_lost_goal_is_replaced_by_the_present_high(node: FalseNode) -> None:
    planner = Planner(node, "b")
    planner.begin_available_now()
    node.partitions[0].leases.clear()
    node.write(0, 3, 1)
    assert planner.plan(START, None)[0].seqno == 11


def test_leases_in_use_are_those_of_the_newest_offset_and_the_goals(node: FalseNode) -> None:
    planner = Planner(node, "b")
    assert planner.leases_in_use() == {}
    end = planner.plan(START, 4)
    assert planner.leases_in_use() == {end[0].lease_id: [0]}


def test_an_inactive_partition_is_an_error(
    node: FalseNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = {p: at._replace(state=PartitionState.DEAD) for p, at in node.positions().items()}
    monkeypatch.setattr(node, "positions", lambda: dead)
    with pytest.raises(UnavailableError, match="partition 0 is dead"):
        Planner(node, "b").plan(START, None)


def test_partitions_that_move_while_planning_are_judged_next_time(
    node: FalseNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = node.positions()
    node.partitions[0].fail_over(10)
    with monkeypatch.context() as patch:
        patch.setattr(node, "positions", lambda: before)
        assert Planner(node, "b").plan(START, None) == START
    planner, opened = Planner(node, "b"), node.open_lease
    with monkeypatch.context() as patch:
        patch.setattr(
            node, "open_lease", lambda ids: (node.partitions[0].fail_over(10), opened(ids))[1]
        )
        assert planner.plan(START, None) == START
    assert not node.partitions[0].leases
    assert planner.plan(START, None)[0].seqno == 10


def test_superseded_changes_do_not_count(node: FalseNode) -> None:
    for key in range(10):
        node.write(0, key, -key)
    offset, seen = START, []
    while (end := Planner(node, "b").plan(offset, 4))[0].seqno > offset[0].seqno:
        seen.append(end[0].seqno)
        offset = end
    assert seen == [14, 18, 20]


def test_a_batch_keeps_to_bytes(node: FalseNode) -> None:
    planner = Planner(node, "b")
    first = planner.plan(START, None, 3 * ROW_BYTES)
    assert (first[0].seqno, planner.plan(first, 2, 3 * ROW_BYTES)[0].seqno) == (3, 5)


def test_a_partition_without_a_part_in_a_batch_is_read_later() -> None:
    node = FalseNode(2)
    for key in range(3):
        node.write(0, key, key)
    node.write(1, 1, 1)
    planner, seen = Planner(node, "b"), []
    offset = {0: OffsetEntry(), 1: OffsetEntry()}
    while (end := planner.plan(offset, 1)) != offset:
        seen.append([end[p].seqno for p in end])
        offset = end
    assert seen == [[1, 0], [2, 0], [3, 0], [3, 1], [3, 1]]
    assert all(entry.is_closed for entry in offset.values())


def test_a_lease_that_is_lost_before_it_is_measured_goes_by_seqnos(
    node: FalseNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = node.measure_lease
    with monkeypatch.context() as patch:
        patch.setattr(
            node, "measure_lease",
            lambda *asked: (node.partitions[0].leases.clear(), measure(*asked))[1],
        )  # fmt: skip
        end = Planner(node, "b").plan(START, 4)
    assert end[0].seqno == 4
    again = Planner(node, "b").plan(end, 4)
    assert (again[0].snap_start, again[0].load) == (0, 2)


def durable_node(durable_seqno: int) -> FalseNode:
    node = FalseNode(1, is_durable_only=True)
    for key in range(80):
        node.write(0, key, key)
    node.partitions[0].durable_seqno = durable_seqno
    return node


def durable_planner(node: FalseNode, *, repairs: bool = False) -> Planner:
    return Planner(node, "b", repairs=repairs, is_durable_only=True)


def half_read(node: FalseNode) -> dict[int, OffsetEntry]:
    """Return an offset at 50 of (10, 80], whose lease a promotion that lost nothing has taken."""
    node.partitions[0].durable_seqno = 10
    planner = durable_planner(node)
    offset = planner.plan(planner.plan(START, None), None)
    node.partitions[0].durable_seqno = 80
    offset = planner.plan(offset, 30)
    offset = {0: offset[0]._replace(seqno=50)}
    node.partitions[0].fail_over(80)
    return offset


@pytest.mark.parametrize("repairs", [False, True])
@pytest.mark.parametrize("durable_seqno", [0, 8, 10, 40])
def test_unknown_durability_is_waited_for(durable_seqno: int, repairs: bool) -> None:
    node = durable_node(0)
    offset = half_read(node)
    node.partitions[0].durable_seqno = durable_seqno
    planner = durable_planner(node, repairs=repairs)
    assert planner.plan(offset, None) == offset
    assert not node.partitions[0].leases
    node.partitions[0].durable_seqno = 60
    end = planner.plan(offset, None)
    assert (end[0].snap_start, end[0].seqno, end[0].snap_end) == (10, 60, 60)


def test_a_first_snapshot_is_not_swept_while_nothing_is_known_to_be_durable() -> None:
    node = durable_node(80)
    offset = durable_planner(node).plan(START, 30)
    node.partitions[0].fail_over(80)
    node.partitions[0].durable_seqno = 0
    planner = durable_planner(node, repairs=True)
    assert planner.plan(offset, None) == offset
    node.partitions[0].durable_seqno = 80
    end = planner.plan(offset, None)
    assert (end[0].rollback_to, end[0].load, end[0].seqno) == (0, 2, 80)


def test_available_now_is_not_done_where_durability_is_not_known() -> None:
    for goal in (0, 40):
        node = durable_node(0)
        offset = half_read(node)
        node.partitions[0].durable_seqno = goal
        planner = durable_planner(node)
        planner.begin_available_now()
        assert planner.plan(offset, None) == offset
        assert not node.partitions[0].leases
        node.partitions[0].durable_seqno = 80
        assert planner.plan(offset, None)[0].seqno == 80


def test_lost_changes_are_not_waited_for() -> None:
    node = durable_node(0)
    offset = half_read(node)
    part = node.partitions[0]
    part.fail_over(30)
    part.durable_seqno = 20
    planner = durable_planner(node, repairs=True)
    assert planner.plan(offset, None) == offset
    part.durable_seqno = 30
    end = planner.plan(offset, None)
    assert (end[0].rollback_to, end[0].seqno) == (10, 30)
    part.fail_over(10)
    part.durable_seqno = 0
    end = planner.plan(offset, None)
    assert (end[0].rollback_to, end[0].seqno, end[0].is_closed) == (10, 10, True)


def test_few_changes_wait_and_what_was_read_is_closed(node: FalseNode) -> None:
    planner = Planner(node, "b", repairs=True)
    assert planner.plan(START, None, rows_min=11)[0].seqno == 0
    end = planner.plan(START, None, rows_min=10)
    assert (end[0].seqno, end[0].is_closed) == (10, False)
    node.write(0, 1, 2)
    closed = planner.plan(end, None, rows_min=2)
    assert (closed[0].seqno, closed[0].is_closed) == (10, True)
    assert planner.plan(closed, None, rows_min=2) == closed
    assert not node.partitions[0].leases
    assert planner.plan(closed, None)[0].seqno == 11
    node.write(0, 1, 3)
    assert planner.plan(closed, None, rows_min=2)[0].seqno == 12


def test_what_goes_back_does_not_wait_for_more_changes(node: FalseNode) -> None:
    planner = Planner(node, "b", repairs=True)
    offset = planner.plan(planner.plan(START, None), None)
    node.partitions[0].fail_over(7)
    back = planner.plan(offset, None, rows_min=100)
    assert back[0].rollback_to == 7
