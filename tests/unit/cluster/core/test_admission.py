"""What a node makes of an order: the checks in their order, and what each kind does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from millstream.cluster.core.admission import (
    Activate,
    Admit,
    Adopt,
    AdoptIndex,
    Follow,
    Freeze,
    Known,
    Promise,
    RaiseToken,
    Remove,
    Ruling,
    StopPart,
    TakeOver,
    is_news,
    judge_order,
    stopped_at,
)
from millstream.cluster.core.orders import Order, OrderKind
from millstream.cluster.core.reports import PartReport
from millstream.errors import CorruptionError
from millstream.model.cluster_maps import DataRecord, Floor, IndexRecord, MapKey
from millstream.model.partitions import PartitionState
from millstream.vsr.core.versions import Version
from support.cluster.records import data_records
from support.cluster.scene import ACTIVE, DEAD, HERE, KEY, TOKEN, copy_report

RECORD = DataRecord(KEY, "a", 4, (("a", "b"),))
OLDER = replace(RECORD, at=MapKey(1, 4))
NEWER = replace(RECORD, at=MapKey(1, 6))
INDEX = IndexRecord(KEY, "a", "b", Floor(2, 9))
PART = PartReport("active", Floor(2, 12), KEY)
KNOWN = Known("c1", "b", 3, TOKEN, RECORD, copy_report(branch=4), INDEX, PART)


def order(kind: OrderKind, **others: Any) -> Order:
    return replace(Order(kind, "c1", "b", TOKEN, HERE, RECORD, index=INDEX, key=KEY), **others)


def steps(ruling: Ruling) -> list[str]:
    return [type(step).__name__ for step in ruling.steps]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"cluster": "c2", "to": "z"}, "other_cluster"),
        ({"to": "z"}, "other_node"),
        ({"token": Version(1, 1, 8), "record": OLDER}, "deposed"),
        ({"record": OLDER}, "behind"),
    ],
)
@pytest.mark.parametrize("kind", ["adopt", "promise", "activate", "fence", "take_over", "remove"])
def test_an_order_that_fails_a_check_does_nothing(
    kind: OrderKind, changes: dict[str, Any], code: str
) -> None:
    ruling = judge_order(order(kind, branch=9, **changes), KNOWN)
    assert (ruling.steps, ruling.refusal and ruling.refusal.code) == ((), code)


def test_a_node_that_is_out_of_step_obeys_nothing_not_even_a_newer_token() -> None:
    newer = Version(2, 1, 1)
    for kind in ("report", "adopt", "promise", "admit", "index"):
        ruling = judge_order(order(kind, token=newer), KNOWN._replace(boots=0))  # type: ignore[arg-type]
        assert (ruling.steps, ruling.refusal and ruling.refusal.code) == ((), "out_of_step")


def test_a_refusal_says_what_is_newer() -> None:
    deposed = judge_order(order("report", token=Version(1, 1, 1)), KNOWN).refusal
    behind = judge_order(order("promise", record=OLDER), KNOWN).refusal
    assert deposed is not None
    assert behind is not None
    assert (deposed.token, behind.record) == (TOKEN, RECORD)


def test_token_and_record_come_before_the_order_itself() -> None:
    newer = Version(1, 1, 10)
    ruling = judge_order(order("promise", token=newer, record=NEWER, branch=5), KNOWN)
    assert ruling.steps == (
        RaiseToken(newer),
        Adopt(HERE, NEWER),
        Promise(HERE, 5, stands_down=False, ends_streams=True),
    )
    assert ruling.code == "promised"


def test_a_node_without_a_copy_adopts_and_does_nothing_more() -> None:
    bare = KNOWN._replace(node="z", record=None, copy=None)
    for kind in ("adopt", "promise", "activate", "fence", "take_over", "remove"):
        ruling = judge_order(order(kind, to="z", branch=9), bare)  # type: ignore[arg-type]
        assert (steps(ruling), ruling.code) == (["Adopt"], "is")


def test_a_node_promises_with_the_copy_that_the_record_makes() -> None:
    bare = KNOWN._replace(record=None, copy=None)
    ruling = judge_order(order("promise", branch=9), bare)
    assert (steps(ruling), ruling.code) == (["Adopt", "Promise"], "promised")
    ruling = judge_order(order("promise", branch=4), bare)
    assert (steps(ruling), ruling.code) == (["Adopt"], "is"), "the record names that branch"


def test_a_promise_is_given_once_and_an_active_copy_stands_down() -> None:
    active = KNOWN._replace(copy=copy_report(ACTIVE, branch=4))
    assert judge_order(order("promise", branch=5), active).steps == (Promise(HERE, 5, True, True),)
    for branch in (3, 4):
        ruling = judge_order(order("promise", branch=branch), active)
        assert (ruling.steps, ruling.code) == ((), "is")


def test_a_copy_is_activated_in_the_branch_that_it_promised_if_it_has_everything() -> None:
    promised = KNOWN._replace(copy=copy_report(end=10, branch=4, last_branch=5))
    wanted = order("activate", branch=5, end=10, kept=("majority",), boots=3)
    assert judge_order(wanted, promised).steps == (Activate(HERE, 5, ("majority",)),)
    assert judge_order(replace(wanted, end=11), promised).steps == ()
    assert judge_order(replace(wanted, branch=6), promised).steps == ()
    assert judge_order(replace(wanted, boots=2), promised).steps == (), "of an earlier session"
    done = KNOWN._replace(copy=copy_report(ACTIVE, end=10, branch=5))
    assert judge_order(wanted, done).steps == (), "it was carried out before"
    later = KNOWN._replace(copy=copy_report(end=10, branch=4, last_branch=6))
    assert judge_order(wanted, later).steps == ()


def test_a_fence_stops_an_active_copy_of_a_lower_branch_only() -> None:
    lower = KNOWN._replace(copy=copy_report(ACTIVE, branch=4))
    assert judge_order(order("fence", branch=5), lower).steps == (Promise(HERE, 5, True, True),)
    assert judge_order(order("fence", branch=4), lower).steps == ()
    follower = judge_order(order("fence", branch=5), KNOWN)
    assert follower.steps == (Promise(HERE, 5, False, False),), "its streams go on"
    dead = KNOWN._replace(copy=copy_report(DEAD, branch=4))
    assert judge_order(order("fence", branch=4), dead).steps == (Follow(HERE),)


def test_only_a_copy_that_follows_takes_over() -> None:
    assert judge_order(order("take_over"), KNOWN).steps == (TakeOver(HERE),)
    pending = KNOWN._replace(copy=copy_report(PartitionState.PENDING, branch=4))
    assert judge_order(order("take_over"), pending).steps == (TakeOver(HERE),), "once more"
    active = KNOWN._replace(copy=copy_report(ACTIVE, branch=4))
    assert judge_order(order("take_over"), active).steps == ()


def test_a_copy_is_removed_only_if_the_newest_record_does_not_place_it() -> None:
    assert judge_order(order("remove"), KNOWN).steps == ()
    building = replace(NEWER, rows=(("a", "c"),), building=("b",))
    assert steps(judge_order(order("remove", record=building), KNOWN)) == ["Adopt"]
    left = replace(NEWER, rows=(("a", "c"),))
    ruling = judge_order(order("remove", record=left), KNOWN)
    assert ruling.steps == (Adopt(HERE, left), Remove(HERE))
    assert judge_order(order("remove", record=left), KNOWN._replace(record=replace(
        left, at=MapKey(1, 7), rows=(("b", "c"),)))).refusal is not None  # fmt: skip


def test_a_node_is_admitted_in_the_session_that_was_judged() -> None:
    assert judge_order(order("admit", boots=3), KNOWN).steps == (Admit(),)
    assert judge_order(order("admit", boots=2), KNOWN).steps == ()


def test_index_orders_follow_the_index_record_alone() -> None:
    newer = replace(INDEX, at=MapKey(1, 9))
    assert judge_order(order("index", index=newer), KNOWN).steps == (AdoptIndex(HERE, newer),)
    assert judge_order(order("index"), KNOWN).steps == ()
    older = judge_order(order("index", index=replace(INDEX, at=MapKey(1, 1))), KNOWN)
    assert older.refusal is not None
    assert judge_order(order("freeze"), KNOWN).steps == (Freeze(HERE),)
    stop = judge_order(order("stop"), KNOWN)
    assert (stop.steps, stop.code) == ((StopPart(HERE),), "stopped")
    for other in (order("stop", key=MapKey(1, 6)), order("freeze", key=MapKey(1, 4))):
        ruling = judge_order(other, KNOWN)
        assert (ruling.steps, ruling.refusal and ruling.refusal.code) == ((), "refused")


def test_a_part_that_never_reached_its_floor_passes_the_floor_on() -> None:
    assert stopped_at(PART, INDEX) == Floor(2, 12)
    assert stopped_at(replace(PART, has_floor=False, reached=Floor(2, 3)), INDEX) == INDEX.floor


def test_one_key_has_one_content() -> None:
    with pytest.raises(CorruptionError, match="differ") as caught:
        is_news(replace(RECORD, active="b"), RECORD)
    assert caught.value.code == "other_map"


@given(data_records(), data_records())
def test_only_newer_records_are_news(one: DataRecord, other: DataRecord) -> None:
    assert is_news(one, None)
    if one.at != other.at:
        assert is_news(one, other) == (one.at > other.at)


@given(
    st.sampled_from(["adopt", "promise", "activate", "fence", "take_over", "remove", "admit"]),
    st.integers(0, 6),
)
def test_an_order_that_is_repeated_changes_nothing(kind: OrderKind, branch: int) -> None:
    """What it promised, began or became is so; the second order finds it so."""
    copy = copy_report(ACTIVE, branch=4)
    first = judge_order(order(kind, branch=branch), KNOWN._replace(copy=copy))
    standing = copy.standing
    for step in first.steps:
        if isinstance(step, Promise):
            state = DEAD if standing.state is DEAD else copy_report().standing.state
            standing = standing._replace(last_branch=step.branch, state=state)
    again = judge_order(
        order(kind, branch=branch), KNOWN._replace(copy=replace(copy, standing=standing))
    )
    assert not [step for step in again.steps if isinstance(step, Promise | Activate | Remove)]
