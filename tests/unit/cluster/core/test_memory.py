"""What an orchestrator remembers: reports, and promises of the branch that was asked for."""

from __future__ import annotations

from millstream.cluster.core.memory import Chosen, Memory, Promotion, Stopped
from millstream.cluster.core.orders import Order, Place, Reply
from millstream.cluster.core.reports import NodeReport, PartReport, no_copy
from millstream.model.cluster_maps import Floor
from millstream.vsr.core.versions import Version
from support.cluster.scene import HERE, KEY, TOKEN, Scene, copy_report

RECORD = Scene().record
PROMISE = Order("promise", "c1", "b", TOKEN, HERE, RECORD, branch=9)


def promised(branch: int = 9, end: int = 10) -> Reply:
    return Reply("promised", copy_report(end=end, last_branch=branch, quiet_ms=30), branch)


def started() -> Memory:
    memory = Memory()
    memory.promotions[HERE] = Promotion(9, KEY, 2000, 0)
    return memory


def test_a_report_replaces_the_one_before_and_silence_forgets_it() -> None:
    memory = Memory()
    part = PartReport("active", Floor(1, 2), KEY)
    memory.hear(NodeReport("b", 1, True, {"u1": {0: copy_report()}}, {"u1": {0: part}}))
    assert memory.copy("b", HERE) == copy_report()
    assert memory.parts["b"][HERE] == part
    memory.hear(NodeReport("b", 1, True, {"u1": {0: no_copy(0, KEY), 1: copy_report()}}))
    assert [name for name, _ in memory.told(HERE)] == ["b"]
    assert memory.answers(HERE, ["b", "z"]) == {}
    assert set(memory.answers(Place("u1", 1), ["b", "z"])) == {"b"}
    memory.miss("b")
    memory.miss("z")
    assert memory.copy("b", HERE) is None


def test_a_promise_counts_for_the_branch_that_was_asked_for() -> None:
    memory = started()
    assert not memory.take(PROMISE, promised(branch=8), 50)
    assert memory.promotions[HERE].promised == {}
    memory.take(PROMISE, promised(), 60)
    memory.take(PROMISE, promised(end=99), 70)
    kept = memory.promotions[HERE].promised["b"]
    assert (kept.standing.complete_end, kept.quiet_ms, kept.heard_ms) == (10, 30, 60)
    assert memory.promotions[HERE].moved_ms == 60


def test_no_promise_counts_once_the_branch_was_given_to_a_copy() -> None:
    memory = started()
    memory.promotions[HERE].chosen = Chosen("c", 10, ())
    memory.take(PROMISE, promised(end=99), 60)
    assert memory.promotions[HERE].promised == {}
    copy = memory.copy("b", HERE)
    assert copy is not None
    assert copy.standing.complete_end == 99, "but how the copy stands is known"


def test_a_promise_without_a_promotion_is_only_a_report() -> None:
    memory = Memory()
    memory.take(PROMISE, promised(), 60)
    assert memory.promotions == {}
    assert memory.copy("b", HERE) is not None


def test_a_newer_orchestrator_is_noticed_and_nothing_else_is_taken() -> None:
    memory = started()
    reply = Reply("deposed", copy_report(), token=Version(1, 1, 99))
    assert memory.take(PROMISE, reply, 60)
    assert memory.copies == {}


def test_all_is_forgotten_at_once() -> None:
    memory = Memory()
    memory.begun[HERE], memory.asked[HERE] = 1, 9
    memory.forget()
    assert memory == Memory()


def test_where_an_index_part_stopped_is_kept_with_its_key() -> None:
    memory = Memory()
    order = Order("stop", "c1", "b", TOKEN, HERE, key=KEY)
    memory.take(order, Reply("stopped", floor=Floor(3, 7)), 60)
    assert memory.stopped == {HERE: Stopped(KEY, Floor(3, 7), 60)}
    memory.take(order, Reply("stopped", floor=Floor(3, 7)), 90)
    assert memory.stopped[HERE].since_ms == 60, "since the first time"
