"""What the index map says of queries: who is asked, who answers, and since when."""

from __future__ import annotations

import msgspec
import pytest

from millstream.errors import RoutingError
from millstream.model.cluster_maps import NO_FLOOR, Floor, IndexRecord, MapKey
from millstream.views.aio.serving import owned_parts
from millstream.views.aio.serving.bucket_order import BucketOrder, Member, NodeShare, OwnedParts
from millstream.views.aio.serving.owned_parts import (
    check_asked,
    index_nodes,
    is_kept_fresh,
    refused,
    shares_of,
    until_settled,
    updated,
)
from millstream.views.core.design.design_documents import parse_design
from support.views.hosted_views import MAP, PARTITIONS, hosted_views

OLD, KEY, NEW = MapKey(2, 1), MapKey(2, 2), MapKey(2, 3)
RECORDS = {0: IndexRecord(KEY, "a"), 1: IndexRecord(KEY, "b", "a"), 2: IndexRecord(KEY, None)}
OWNED = OwnedParts("a", RECORDS, {"a": Member("one", "h", 1), "b": Member("two", "i", 2)}, [])
ORDER = BucketOrder("u", "b", 4, [0], [1], [], {}, owned=OWNED)


def test_each_partition_is_in_one_share() -> None:
    assert shares_of(OWNED, 4) == [
        NodeShare("no owner", "", 0, [2, 3], False),
        NodeShare("one", "h", 1, [0], True),
        NodeShare("two", "i", 2, [1], False),
    ]
    unknown = msgspec.structs.replace(OWNED, members={})
    assert shares_of(unknown, 2)[1] == NodeShare("b", "", 0, [1], False)


@pytest.mark.parametrize(
    ("partitions", "keys", "answers"),
    [
        ([0], {0: KEY}, True),
        ([0], {0: OLD}, True),
        ([0], {0: NEW}, False),
        ([1], {1: KEY}, False),
        ([2], {2: KEY}, False),
        ([3], {3: KEY}, False),
        ([0, 1], {0: KEY, 1: KEY}, False),
        ([0], None, False),
    ],
)
def test_only_an_owner_with_a_record_at_least_as_new_answers(
    partitions: list[int], keys: dict[int, MapKey] | None, answers: bool
) -> None:
    if answers:
        check_asked(ORDER, partitions, keys)
        return
    with pytest.raises(RoutingError) as raised:
        check_asked(ORDER, partitions, keys)
    assert raised.value.code == "not_my_partition"


def test_without_an_index_map_no_record_is_sent() -> None:
    alone = msgspec.structs.replace(ORDER, owned=None)
    check_asked(alone, [0, 1, 2], None)
    with pytest.raises(RoutingError):
        check_asked(alone, [0], {0: KEY})


def test_an_index_built_for_a_hand_over_is_kept_up_to_date() -> None:
    design = parse_design({"views": {"v": {"map": MAP}}, "autoupdate": False}, "d")
    assert not design.autoupdate
    assert is_kept_fresh(ORDER, design)
    assert not is_kept_fresh(msgspec.structs.replace(ORDER, passive=[]), design)
    assert not is_kept_fresh(msgspec.structs.replace(ORDER, owned=None), design)


def test_a_refusal_names_some_partitions() -> None:
    assert "1, 2: why" in str(refused([2, 1], "why"))
    assert "0, 1, 2, 3, 4 and 3 more" in str(refused(range(8), "why"))


def owned(records: dict[int, IndexRecord], frozen: tuple[int, ...] = ()) -> OwnedParts:
    return OwnedParts("a", records, {}, list(range(PARTITIONS)), list(frozen))


def test_nodes_with_parts_are_those_that_a_record_places() -> None:
    members = {"a": Member("n1", "h", 1), "b": Member("n2", "::1", 2), "c": Member("n3", "h", 3)}
    records = {0: IndexRecord(KEY, "a", "b"), 1: IndexRecord(KEY, "gone")}
    assert index_nodes(OwnedParts("a", records, members, [])) == ["h:1", "[::1]:2"]
    assert index_nodes(None) == []


async def test_a_query_waits_briefly_for_a_newer_record() -> None:
    stopped = msgspec.structs.replace(ORDER, active=[])
    orders = [stopped, stopped, ORDER]

    def order() -> BucketOrder:
        return orders.pop(0) if len(orders) > 1 else orders[0]

    await until_settled(order, [0], {0: KEY})
    assert orders == [ORDER], "a part that has stopped gets another record"
    newer = OwnedParts("a", {0: IndexRecord(NEW, "a")}, {}, [])
    orders[:] = [ORDER] * 4 + [msgspec.structs.replace(ORDER, owned=newer)]
    await until_settled(order, [0], {0: NEW})
    assert len(orders) == 1, "the asker has a newer record"
    orders[:] = [ORDER] * 4
    await until_settled(order, [0, 1, 2], {0: KEY, 1: KEY})
    await until_settled(lambda: msgspec.structs.replace(ORDER, owned=None), [0], None)
    assert len(orders) >= 2, "another owner is refused at once"


async def test_a_query_does_not_wait_long_for_a_missing_record(monkeypatch) -> None:
    monkeypatch.setattr(owned_parts, "RECORD_S_MAX", 0.01)
    stopped = msgspec.structs.replace(ORDER, active=[])
    await until_settled(lambda: stopped, [0], {0: KEY})
    check_asked(stopped, [0], {0: KEY})  # the commit of the index refuses it then


class Moving:
    """Has the shape of an indexer whose source is elsewhere for a while."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals

    async def updated(self, signature, partitions, timeout_s) -> None:
        if self.refusals:
            self.refusals -= 1
            raise RoutingError("not served from here now")


async def test_an_update_waits_while_its_data_or_its_index_moves(monkeypatch) -> None:
    moving = Moving(3)
    await updated(lambda: ORDER, moving, "s", [0], {0: KEY}, 60)
    assert moving.refusals == 0
    withdrawn = OwnedParts("a", {0: IndexRecord(NEW, "b")}, {}, [])
    with pytest.raises(RoutingError) as raised:
        await updated(
            lambda: msgspec.structs.replace(ORDER, owned=withdrawn), Moving(1), "s", [0],
            {0: KEY}, 60,
        )  # fmt: skip
    assert raised.value.records == withdrawn.records
    alone = Moving(2)
    with pytest.raises(RoutingError):
        await updated(
            lambda: msgspec.structs.replace(ORDER, owned=None), alone, "s", [0], None, 60
        )
    assert alone.refusals == 1, "without an index map it is asked elsewhere"
    monkeypatch.setattr(owned_parts, "MOVE_S_MAX", 0.0)
    with pytest.raises(RoutingError, match="not served"):
        await updated(lambda: ORDER, Moving(9), "s", [0], {0: KEY}, 60)


async def test_a_hosted_index_answers_from_its_floor_on(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(owned_parts, "MOVE_S_MAX", 0.05)
    async with hosted_views(tmp_path) as hosted:
        for n in range(20):
            hosted.put(f"k{n}", kind="a", n=n)
        assert await hosted.sums() == {"a": 190}
        bucket = hosted.running.bucket
        branch = bucket.partitions[0].failover_log[0].branch
        high = bucket.partitions[0].high_seqno

        async def place(floor, frozen=()):
            records = {p: IndexRecord(KEY, "a", None, NO_FLOOR) for p in range(PARTITIONS)}
            records[0] = IndexRecord(KEY, "a", None, floor)
            order = msgspec.structs.replace(hosted.order(), owned=owned(records, frozen))
            await hosted.bucket.apply(order)

        async def ask(**options):
            keys = dict.fromkeys(range(PARTITIONS), KEY)
            asked = {"timeout": 20_000, "group": True, **options}
            return await hosted.bucket.query("d", "v", asked, range(PARTITIONS), "json", keys)

        await place(Floor(branch, high))
        await ask(update="false")
        for beyond in (Floor(branch, high + 1), Floor(branch + 1, 0)):
            await place(beyond)
            for update in ("false", "true"):
                with pytest.raises(RoutingError):
                    await ask(update=update)
        await place(Floor(branch, high), frozen=range(PARTITIONS))
        before = (await hosted.bucket.parts(0))["parts"]
        for n in range(20):
            hosted.put(f"k{n}", kind="b", n=n)
        await ask(update="false")
        with pytest.raises(RoutingError):
            await ask(update="true")
        assert (await hosted.bucket.parts(0))["parts"] == before
        await place(Floor(branch, high))
        await ask(update="true")
        after = (await hosted.bucket.parts(0))["parts"]
        assert all(after[p][1] > before[p][1] for p in before if before[p][1].seqno)
