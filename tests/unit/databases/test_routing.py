"""Where the partitions of a bucket are, and operations at the owner of a document."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.cluster.cluster_state import NodeAt
from millstream.databases import routing
from millstream.databases.remote_node import RemoteNode
from millstream.databases.routing import (
    FAIL_OVER_S_MAX,
    HERE,
    PAUSES_S,
    TRIES_MAX,
    HereNode,
    KnownPlace,
    Router,
    ambiguous,
    at_owner,
    has_moved,
    is_elsewhere,
    nowhere,
)
from millstream.errors import (
    ConditionError,
    OutcomeUnknownError,
    RoutingError,
    UnavailableError,
)
from millstream.gateway.core.api.stored import Asked, Commit
from millstream.kv.core.bucket import Bucket
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.partitions import PartitionState
from support.http.sharing_nodes import BUCKET, UUID, SharingNodes, sharing_nodes
from support.kv.running_bucket import opened
from support.views.distributed_nodes import BUCKET as PARTS
from support.views.distributed_nodes import DistributedNodes as FalseNodes

B, C = NodeAt("b", 2), NodeAt("c", 2)


def parts_of(nodes: FalseNodes) -> Router:
    return nodes["a"].changes.router(PARTS)


def test_what_is_active_here_is_here_and_the_map_says_the_rest() -> None:
    nodes = FalseNodes.false("abcab")
    router = parts_of(nodes)
    assert router.plan(range(5)) == ([0, 3], {B: [1, 4], C: [2]}, [])
    assert router.plan([2, 0]) == ([0], {C: [2]}, [])
    assert router.others() == [B, C]
    assert router.is_shared
    assert not router.is_whole
    nodes.tell_map("bbaab")
    assert router.plan(range(5)) == ([0, 3], {B: [1, 4]}, [2])


def test_what_moves_is_here_until_it_has_moved() -> None:
    nodes = FalseNodes.false("ab")
    partition = nodes["a"].bucket.partitions[0]
    partition.state, partition.is_suspended = PartitionState.DEAD, True
    assert parts_of(nodes).plan([0]).own == [0]


def test_without_a_map_there_is_no_other_node() -> None:
    nodes = FalseNodes.false("ab")
    nodes["a"].bucket.map = None
    router = parts_of(nodes)
    assert router.plan([0, 1]) == ([0], {}, [1])
    assert not router.is_shared
    assert router.others() == []


def test_which_errors_may_be_another_nodes_answer() -> None:
    assert is_elsewhere(nowhere([3, 2]))
    assert "partition 2" in str(nowhere([3, 2]))
    assert is_elsewhere(RoutingError("", code="not_my_partition"))
    assert is_elsewhere(UnavailableError("", code="node_failed"))
    assert not is_elsewhere(UnavailableError("", code="bucket_failed"))


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SharingNodes]:
    monkeypatch.setattr(routing, "PAUSE_S", 0)
    async with sharing_nodes(tmp_path) as found:
        yield found


def router_of(bucket: Bucket) -> Router:
    def nobody(node: NodeAt) -> RemoteNode:
        raise AssertionError(f"{node} is asked")

    return Router(bucket, HereNode(BUCKET, None), nobody)  # type: ignore[arg-type]


async def test_a_bucket_without_a_map_is_here(tmp_path: Path) -> None:
    running = await opened(tmp_path)
    bucket = running.bucket
    router = router_of(bucket)
    assert router.is_alone
    assert router.others() == []
    assert router.place(b"x") == HERE
    bucket.set_map(BucketMap(1, (NodeAddress("a", "h", 1, 2),), (("a",),) * 4), "a")
    assert router.is_alone
    assert router.others() == []
    await running.stop()


async def test_what_is_active_here_is_here_whatever_the_map_says(nodes: SharingNodes) -> None:
    bucket = nodes["a"].running.bucket
    router = router_of(bucket)
    here, there = nodes.id_at("a"), nodes.id_at("b")
    assert not router.is_alone
    assert (router.place(here.encode()), router.place(there.encode())) == (HERE, NodeAt("b", 1))
    assert router.others() == [NodeAt("b", 1)]
    nodes.give_map("bbbb")
    assert router.place(here.encode()) == HERE
    await nodes.set_state(
        "a", bucket.partition_for(here.encode()).partition_id, PartitionState.DEAD
    )
    assert router.place(here.encode()) == NodeAt("b", 1)


async def test_nobody_has_what_is_to_be_here_and_is_not(nodes: SharingNodes) -> None:
    bucket, doc_id = nodes["a"].running.bucket, nodes.id_at("a")
    router = router_of(bucket)
    number = bucket.partition_for(doc_id.encode()).partition_id
    await nodes.set_state("a", number, PartitionState.DEAD)
    assert router.place(doc_id.encode()) is None
    error = router.no_owner(doc_id.encode())
    assert (error.code, error.retry) == ("not_my_partition", "refresh_map")
    assert "this node is to have it" in str(error)


class Doing:
    """Nodes that fail with what is left in `failures`; remembers which were asked."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.done: list[str] = []

    def node(self, place: KnownPlace) -> Any:
        return SimpleNamespace(ask=partial(self.ask, place if place == HERE else place.host))

    async def ask(self, name: str, asked: Asked, kind: type[str]) -> str:
        self.done.append(name)
        if self.failures:
            raise self.failures.pop(0)
        return name


async def do(nodes: SharingNodes, owner: str, doing: Doing, *, is_harmless: bool = True) -> str:
    router, key = nodes["a"].route(BUCKET), nodes.id_at(owner).encode()
    router.node = doing.node  # type: ignore[method-assign]
    return await at_owner(router, key, Commit(UUID), str, is_harmless=is_harmless)


MOVED = UnavailableError("it moved", code="not_my_partition")
LOST = OutcomeUnknownError("lost", code="node_failed")


async def test_it_is_done_once_where_the_document_is(nodes: SharingNodes) -> None:
    assert await do(nodes, "a", Doing()) == "here"
    assert await do(nodes, "b", Doing()) == "b"


async def test_who_has_it_no_more_is_asked_again(nodes: SharingNodes) -> None:
    for owner in "ab":
        doing = Doing(MOVED, MOVED)
        await do(nodes, owner, doing, is_harmless=False)
        assert len(doing.done) == 3
        doing = Doing(*[MOVED] * TRIES_MAX)
        with pytest.raises(UnavailableError, match="it moved"):
            await do(nodes, owner, doing)
        assert len(doing.done) == TRIES_MAX


ISOLATED = UnavailableError("it is isolated", code="isolated")


async def test_a_node_that_may_not_serve_is_asked_again_unless_it_is_this_one(
    nodes: SharingNodes,
) -> None:
    doing = Doing(ISOLATED, ISOLATED)
    assert await do(nodes, "b", doing, is_harmless=False) == "b"
    doing = Doing(*[ISOLATED] * TRIES_MAX)
    with pytest.raises(UnavailableError, match="it is isolated"):
        await do(nodes, "b", doing)
    assert len(doing.done) == TRIES_MAX
    doing = Doing(ISOLATED)
    with pytest.raises(UnavailableError, match="it is isolated"):
        await do(nodes, "a", doing)
    assert doing.done == ["here"]


@pytest.fixture
def managed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Router, "is_managed", True)


@pytest.mark.parametrize("code", ["node_failed", "majority_unknown", "temporarily_unavailable"])
async def test_with_a_map_that_people_write_a_failure_is_told_at_once(
    nodes: SharingNodes, code: str
) -> None:
    doing = Doing(UnavailableError("it fails", code=code))
    with pytest.raises(UnavailableError, match="it fails"):
        await do(nodes, "b", doing)
    assert doing.done == ["b"]


@pytest.mark.usefixtures("managed")
@pytest.mark.parametrize("code", ["node_failed", "majority_unknown", "temporarily_unavailable"])
async def test_a_cluster_manager_has_time_to_replace_a_node(
    nodes: SharingNodes, code: str
) -> None:
    error = UnavailableError("it fails", code=code)
    doing = Doing(*[error] * 2 * TRIES_MAX)
    assert await do(nodes, "b", doing, is_harmless=False) == "b"
    with pytest.raises(UnavailableError, match="it fails"):
        await do(nodes, "b", Doing(*[error] * 1000))


@pytest.mark.usefixtures("managed")
async def test_what_was_lost_is_repeated_once_in_a_managed_cluster_too(
    nodes: SharingNodes,
) -> None:
    assert await do(nodes, "b", Doing(LOST)) == "b"
    with pytest.raises(OutcomeUnknownError):
        await do(nodes, "b", Doing(LOST, LOST))
    with pytest.raises(UnavailableError) as caught:
        await do(nodes, "b", Doing(LOST), is_harmless=False)
    assert caught.value.code == "ambiguous"


def test_pauses_end_with_the_time_of_a_fail_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(routing.time, "monotonic", lambda: now_s)
    assert tuple(routing.pauses(is_managed=False)) == PAUSES_S
    taken = []
    for pause_s in routing.pauses(is_managed=True):
        taken.append(pause_s)
        now_s += pause_s
    assert tuple(taken[: len(PAUSES_S)]) == PAUSES_S
    assert FAIL_OVER_S_MAX <= sum(taken) < FAIL_OVER_S_MAX + PAUSES_S[-1]


async def test_the_map_is_believed_where_this_node_may_not_serve(nodes: SharingNodes) -> None:
    key, router = nodes.id_at("a").encode(), nodes["a"].route(BUCKET)
    nodes.isolate("a")
    assert router.place(key) == HERE, "the map says so, too: it is refused here"
    nodes.give_map("bbbb")
    assert router.place(key) == NodeAt("b", 1)
    nodes["a"].running.bucket.set_right(2**62, is_admitted=True)
    assert router.place(key) == HERE


async def test_what_was_lost_is_repeated_once_if_that_is_harmless(nodes: SharingNodes) -> None:
    doing = Doing(LOST)
    assert await do(nodes, "b", doing) == "b"
    with pytest.raises(OutcomeUnknownError):
        await do(nodes, "b", Doing(LOST, LOST))
    doing = Doing(LOST)
    with pytest.raises(UnavailableError) as caught:
        await do(nodes, "b", doing, is_harmless=False)
    assert caught.value.code == "ambiguous"
    assert doing.done == ["b"]


async def test_other_refusals_are_told(nodes: SharingNodes) -> None:
    with pytest.raises(ConditionError):
        await do(nodes, "b", Doing(ConditionError("no", code="conflict")))


async def test_no_node_has_it(nodes: SharingNodes) -> None:
    partition = nodes["a"].running.bucket.partition_for(nodes.id_at("a").encode())
    await nodes.set_state("a", partition.partition_id, PartitionState.DEAD)
    with pytest.raises(UnavailableError) as caught:
        await do(nodes, "a", Doing())
    assert has_moved(caught.value)


def test_what_is_not_known_says_what_happened() -> None:
    error = ambiguous("x", LOST)
    assert (error.code, "'x'" in str(error), "lost" in str(error)) == ("ambiguous", True, True)
