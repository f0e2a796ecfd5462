"""A whole bucket as its nodes said it is."""

from __future__ import annotations

import asyncio

import pytest

from millstream.databases import routing
from millstream.databases.routing import together
from millstream.databases.scans.bucket_view import OwnerState
from millstream.documents.tokens import SPREAD_EPOCH, may_hide
from millstream.errors import MillstreamError, UnavailableError
from millstream.gateway.core.api.stored import Done, encode
from millstream.gateway.core.bucket_parts import Histories, PartHistory
from millstream.model.position import FailoverEntry, FailoverLog
from millstream.runtime.tasks import Tasks
from support.views.distributed_nodes import BUCKET, DistributedNodes


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "PAUSES_S", (0.0, 0.0))


async def epoch_of(nodes: DistributedNodes, at: str = "a") -> int:
    return (await nodes[at].changes.whole(BUCKET)).purge_epoch()


async def test_each_partition_is_said_by_its_owner() -> None:
    nodes = DistributedNodes.false("aba")
    for number in range(3):
        nodes.write(number, "abc"[: number + 1])
    one, other = [await nodes[name].changes.whole(BUCKET) for name in "ab"]
    assert list(one.histories()) == list(other.histories())
    assert [history.high_seqno for history in one.histories()] == [1, 2, 3]
    assert one.latest() == other.latest()
    assert one.latest().total == 6
    assert one.purge_epoch() == other.purge_epoch()


async def test_a_node_that_is_away_or_has_not_what_the_map_says() -> None:
    nodes = DistributedNodes.false("ab")
    nodes["b"].is_dead = True
    with pytest.raises(MillstreamError) as caught:
        await epoch_of(nodes)
    assert caught.value.code == "node_failed"
    assert nodes["b"].asked == []
    nodes["b"].is_dead = False
    nodes.move(1, "a", is_told=False)
    assert await epoch_of(nodes)
    with pytest.raises(MillstreamError) as caught:
        await epoch_of(nodes, "b")
    assert caught.value.code == "not_my_partition"


async def test_a_cluster_manager_has_time_to_replace_an_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routing.Router, "is_managed", True)
    nodes = DistributedNodes.false("ab")
    nodes["b"].is_dead = True
    asking = Tasks().start(epoch_of(nodes), name="test")
    await asyncio.wait([asking], timeout=0.01)
    assert not asking.done()
    nodes.move(1, "a")
    assert await asking
    nodes.move(1, "b")
    monkeypatch.setattr(routing, "FAIL_OVER_S_MAX", 0.0)
    with pytest.raises(MillstreamError) as caught:
        await epoch_of(nodes)
    assert caught.value.code == "node_failed"


LOG = (FailoverEntry(1, 0, 0),)


def histories(*numbers: int, log: FailoverLog = LOG) -> bytes:
    return encode(Histories("0.1", [PartHistory(number, log, 0, 0, 0) for number in numbers]))


@pytest.mark.parametrize(
    "answer",
    [
        b"", encode(Done()), histories(), histories(0), histories(2), histories(1, 1),
        histories(1, 2), histories(1, log=()),
    ],
)  # fmt: skip
async def test_an_answer_about_other_partitions_is_no_answer(answer: bytes) -> None:
    nodes = DistributedNodes.false("ab")
    nodes["b"].on_chunk = lambda page, data: answer
    with pytest.raises(MillstreamError) as caught:
        await epoch_of(nodes)
    assert caught.value.code == "node_failed"


async def test_the_purge_epoch_never_becomes_what_it_was() -> None:
    nodes = DistributedNodes.false("abb")
    seen = [await epoch_of(nodes)]
    assert seen[0] & SPREAD_EPOCH
    assert not may_hide(seen[0])
    assert await epoch_of(nodes, "b") == seen[0]
    nodes.write(1, "abc")
    assert await epoch_of(nodes) == seen[0], "changes do not matter"
    async with nodes["a"].changes.purging(BUCKET):
        seen += [await epoch_of(nodes), await epoch_of(nodes)]
    seen.append(await epoch_of(nodes))
    assert may_hide(seen[-1])
    nodes.move(1, "a")
    seen.append(await epoch_of(nodes))
    nodes.move(1, "b")
    seen.append(await epoch_of(nodes))
    nodes["b"].bucket.partitions[1].fail_over(1)
    seen.append(await epoch_of(nodes))
    assert len(set(seen)) == len(seen)


async def test_a_purge_needs_all_owners_and_no_other_node() -> None:
    nodes = DistributedNodes.false("abc")
    nodes.move(2, "b")
    nodes["c"].is_dead = True
    async with nodes["a"].changes.purging(BUCKET):
        pass
    counts = {name: node.running.purge_epoch for name, node in nodes.nodes.items()}
    assert counts == {"a": 2, "b": 2, "c": 0}
    nodes["b"].is_dead = True
    with pytest.raises(MillstreamError, match="cannot be reached"):
        async with nodes["a"].changes.purging(BUCKET):
            raise AssertionError("it must not be made")


def test_an_epoch_is_of_all_that_owners_say() -> None:
    state = OwnerState([1, 2], ["0.1", "0.1"])
    seen = {state.epoch}
    state.take(0, 1, "0.1")
    assert state.epoch in seen
    for taken in ((0, 3, "0.1"), (1, 2, "1.1"), (1, 2, "1.2")):
        state.take(*taken)
        seen.add(state.epoch)
    assert len(seen) == 4


async def test_together_waits_for_all() -> None:
    ended = []

    async def call(number: int) -> int:
        if number == 1:
            raise UnavailableError("one fails")
        ended.append(number)
        return number

    assert await together(map(call, (0, 2))) == [0, 2]
    with pytest.raises(UnavailableError):
        await together(map(call, (1, 3)))
    assert ended == [0, 2, 3]
