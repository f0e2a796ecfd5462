"""Decisions of the cycle that need no node; with one: tests/e2e/test_outside_index.py."""

from millstream.model.position import Position
from millstream.pipelines.index.planning import PartPlan
from millstream.pipelines.index.writer import divided


def plans(*sizes):
    return [
        PartPlan(p, Position(), Position(1, size, size, size), 1) for p, size in enumerate(sizes)
    ]


def test_tasks_are_of_about_equal_size():
    tasks = divided(plans(10, 1, 5, 4, 6, 2), 3)
    assert sorted(sum(plan.rows_max for plan in task) for task in tasks) == [9, 9, 10]
    assert sorted(plan.partition for task in tasks for plan in task) == [0, 1, 2, 3, 4, 5]


def test_there_is_no_task_without_work():
    assert divided([], 3) == []
    assert len(divided(plans(5), 3)) == 1
