from __future__ import annotations

from millstream.client.columns import Columns
from millstream.client.extensions import LeaseHold
from millstream.model.position import FailoverEntry, Position
from millstream.pipelines.lake.increment import PartPlan, Selection, by_lease, plan_part
from millstream.pipelines.lake.manifest import Part

OLD, NEW = FailoverEntry(0xA, 0, 1), FailoverEntry(0xB, 6, 2)


def parent_at(seqno: int, *, purge: int = 0) -> Part:
    return Part(
        partition=3, kind="full", position=Position(0xA, seqno, seqno, seqno), branch=1,
        purge_seqno=purge, failover_log=(OLD,),
    )  # fmt: skip


def held(at: int, *, branch: int = 1, purge: int = 0) -> LeaseHold:
    return LeaseHold(77, 3, at, 0xA if branch == 1 else 0xB, branch, purge)


def planned(plan: PartPlan) -> tuple[str, int, int | None]:
    return plan.kind, plan.begin.seqno, plan.rollback_to


def test_without_a_parent_all_is_read() -> None:
    plan = plan_part(None, held(9, purge=4), (OLD,))
    assert (*planned(plan), plan.purge_seqno) == ("full", 0, None, 4)


def test_new_changes_are_read() -> None:
    plan = plan_part(parent_at(5, purge=2), held(9, purge=4), (OLD,))
    assert (*planned(plan), plan.purge_seqno) == ("changes", 5, None, 2)
    assert not plan.is_unchanged
    assert plan_part(parent_at(9), held(9), (OLD,)).is_unchanged


def test_deletions_that_an_empty_parent_cannot_have_are_remembered_as_missing() -> None:
    plan = plan_part(parent_at(0), held(9, purge=4), (OLD,))
    assert (*planned(plan), plan.purge_seqno) == ("changes", 0, None, 4)


def test_a_new_history_that_has_all_of_the_parent_undoes_nothing() -> None:
    plan = plan_part(parent_at(6), held(9, branch=2), (NEW, OLD))
    assert planned(plan) == ("changes", 6, None)
    assert plan.part([]).position == Position(0xB, 9, 9, 9)


def test_a_lost_tail_is_undone_to_where_histories_part() -> None:
    plan = plan_part(parent_at(8), held(9, branch=2), (NEW, OLD))
    assert planned(plan) == ("branched", 6, 6)
    assert plan.begin == Position(0xB, 6, 6, 6)
    assert plan.part([]).rollback_to == 6


def test_missing_deletions_cause_a_full_read() -> None:
    # of the node: above the parent's position, above R, and of a history it does not know
    assert planned(plan_part(parent_at(5), held(9, purge=7), (OLD,))) == ("full", 0, None)
    lost = held(9, branch=2, purge=7)
    assert planned(plan_part(parent_at(8), lost, (NEW, OLD))) == ("full", 0, None)
    assert planned(plan_part(parent_at(8), held(9, branch=2), (NEW,))) == ("full", 0, None)
    # of the chain: above R
    short = parent_at(8, purge=7)
    assert planned(plan_part(short, held(9, branch=2), (NEW, OLD))) == ("full", 0, None)


def test_partitions_are_told_by_their_lease() -> None:
    other = held(9)._replace(lease_id=5)
    assert by_lease({1: held(9), 2: other, 3: held(4)}) == {77: [1, 3], 5: [2]}


def test_an_empty_partition_is_undone_whole() -> None:
    emptied = (FailoverEntry(0xB, 0, 2),)
    plan = plan_part(parent_at(4), held(0, branch=2), emptied)
    assert planned(plan) == ("full", 0, None)
    assert plan.part([]).position.seqno == 0


def test_a_selection_takes_what_is_new_and_what_is_valid_again() -> None:
    columns = Columns(key=["a", "b", "c", "d"], seqno=[2, 3, 7, 9], op=["put"] * 4)
    selection = Selection(6, ["b", "d", "z"])
    assert selection.rows(columns) == [1, 2, 3]
    assert selection.unknown == ["z"]
