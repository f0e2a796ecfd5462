"""Where the partitions of a bucket are, and how an operation finds its node.

A partition is at this node (`HERE`), at another node by the newest map, or nowhere known. This
node and the others answer the same requests (`Node`). The router of a bucket without a map knows
this node only.

Invariants:
1. A partition that is active on this node, or whose state is about to change, counts as here,
   whatever the map says. But if it may not serve here (`isolated`), the map is believed.
2. Each call reads the newest map.
3. If a node says that it does not have a partition, the map is read again. The number of attempts
   and the pauses between them are bounded.
4. A node that may not serve a partition counts as one that does not have it. If that is this
   node, nobody else is known to have it, and the request is refused at once.
5. A request that was sent and not answered is sent again once, and only if that is harmless.
   Otherwise the result is `ambiguous`.
6. In a managed cluster readers wait for a fail-over or a move instead of failing (`may_pass`), for
   `FAIL_OVER_S_MAX` without progress. With a map that people write, a failed node is told at once.

Elsewhere: maps (`model.bucket_map`), requests to other nodes (`databases.remote_node`), answers of
this node (`databases.documents.local_node`), documents in order
(`databases.documents.distributed_reads`), changes of documents
(`databases.documents.distributed_updates`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import Final, Literal, NamedTuple, Protocol, TypeVar

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.remote_node import RemoteNode
from millstream.errors import MillstreamError, OutcomeUnknownError, UnavailableError
from millstream.gateway.core.api.stored import Asked, StoredApi
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.copies.active import check_served, place_of
from millstream.model.partitions import PartitionState, partition_of

__all__ = [
    "FAIL_OVER_S_MAX", "HERE", "LOCAL_PREFIX", "PAUSES_S", "PAUSE_S", "TRIES_MAX", "HereNode",
    "KnownPlace", "Node", "Place", "Plan", "Router", "ambiguous", "ask_owners", "at_owner",
    "has_moved", "is_elsewhere", "may_continue", "may_pass", "nowhere", "pauses", "together",
    "tries_max",
]  # fmt: skip

HERE: Final = "here"
KnownPlace = NodeAt | Literal["here"]
Place = KnownPlace | None
"""The place of a partition. None: no node is known to have it."""
LOCAL_PREFIX: Final = "_local/"
"""Prefix of the key that decides the node of a local document."""
PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 1.0, 1.0, 1.0)
"""Pauses before partitions that moved, or whose node is down, are requested again by the map."""
TRIES_MAX: Final = 10
"""How often the owner of a document is looked up in the newest map until a node has it."""
PAUSE_S: Final = 0.2
"""Pause before the next lookup of the owner of a document."""
FAIL_OVER_S_MAX: Final = 10.0
"""How long requests are repeated, without progress, in a bucket of a managed cluster. There a node
that fails is replaced by itself, within some seconds."""
_TRIES_MANAGED_MAX: Final = int(FAIL_OVER_S_MAX / PAUSE_S)
_PASSING: Final = ("majority_unknown", "node_failed", "temporarily_unavailable")
"""Errors of a partition that is moved or promoted: they end by themselves in a managed cluster."""
_A = TypeVar("_A")


class Plan(NamedTuple):
    """Which nodes to ask for which partitions."""

    own: list[int]
    by_node: dict[NodeAt, list[int]]
    nowhere: list[int]


class Node(Protocol):
    """A node that has partitions of a bucket, this one or another; raises as `RemoteNode`."""

    async def ask(self, asked: Asked, kind: type[_A]) -> _A:
        """Return the answer to a request."""

    def open_blob(self, sha256: bytes, begin: int, end: int) -> AsyncGenerator[bytes, None]:
        """Return a range of bytes of an attachment."""


class HereNode:
    """This node, and one bucket: implements `Node` without a connection.

    Args:
        bucket: its name.
        node: answers, as it answers other nodes.
    """

    def __init__(self, bucket: str, node: StoredApi) -> None:
        self._bucket, self._node = bucket, node

    async def ask(self, asked: Asked, kind: type[_A]) -> _A:
        """Return the answer to a request."""
        answer = await self._node.answer(self._bucket, asked)
        assert isinstance(answer, kind), "the request decides the kind of the answer"
        return answer

    def open_blob(self, sha256: bytes, begin: int, end: int) -> AsyncGenerator[bytes, None]:
        """Return a range of bytes of an attachment."""
        return self._node.open_blob(self._bucket, sha256, begin, end)


class Router:
    """The places of one bucket's partitions.

    Args:
        bucket: as it is served here.
        here: this node.
        link_to: connects to another node for this bucket.
    """

    def __init__(
        self, bucket: Bucket, here: HereNode, link_to: Callable[[NodeAt], RemoteNode]
    ) -> None:
        self.bucket = bucket
        self.uuid = bucket.uuid
        self._here = here
        self.link_to = link_to

    def node(self, place: KnownPlace) -> Node:
        """Return the node at a place."""
        return self._here if place == HERE else self.link_to(place)

    def places(self) -> list[KnownPlace]:
        """Return this node, and all other nodes of the map."""
        return [HERE, *self.others()]

    @property
    def is_shared(self) -> bool:
        """Return whether other nodes may have partitions."""
        return self.bucket.map is not None

    @property
    def is_managed(self) -> bool:
        """Return whether a cluster manager gives the partitions of a failed node to others."""
        return self.bucket.is_managed

    @property
    def is_alone(self) -> bool:
        """Return whether no other node has any part of the bucket."""
        return self.bucket.map is None or not self.others()

    @property
    def is_whole(self) -> bool:
        """Return whether all partitions are active here."""
        return all(map(self._is_own, range(self.bucket.partition_count)))

    def others(self) -> list[NodeAt]:
        """Return all other nodes of the map."""
        bucket_map, this = self.bucket.map, self.bucket.node_name
        nodes = () if bucket_map is None else bucket_map.nodes
        return [NodeAt(node.host, node.http) for node in nodes if node.name != this]

    def plan(self, numbers: Iterable[int]) -> Plan:
        """Return where these partitions are."""
        self._look()
        found = Plan([], {}, [])
        for number in numbers:
            if self._is_own(number):
                found.own.append(number)
            elif (node := self._node_of(number)) is None:
                found.nowhere.append(number)
            else:
                found.by_node.setdefault(node, []).append(number)
        return found

    def place(self, key: bytes) -> Place:
        """Return the place of a document by its key; a pending partition counts as here."""
        self._look()
        number = partition_of(key, self.bucket.partition_count)
        if self._is_own(number) or not self.is_shared:
            return HERE
        if self.bucket.partitions[number].state is PartitionState.PENDING:
            return HERE
        return self._node_of(number)

    def no_owner(self, key: bytes) -> UnavailableError:
        """Return the error for a document without a known owner: `not_my_partition`."""
        partition = self.bucket.partition_for(key)
        return UnavailableError(
            f"partition {partition.partition_id}, which has document {key.decode()!r}, is not "
            "active on this node, and no other one said that it has it: "
            f"{place_of(self.bucket, partition)}",
            code="not_my_partition",
            retry="refresh_map",
        )

    def _look(self) -> None:
        if self.bucket.is_managed:
            self.bucket.look_at_rights()

    def _is_own(self, number: int) -> bool:
        partition = self.bucket.partitions[number]
        if partition.unserved == "all" and self._node_of(number) is not None:
            return False
        return partition.state is PartitionState.ACTIVE or partition.is_suspended

    def _node_of(self, number: int) -> NodeAt | None:
        bucket_map = self.bucket.map
        name = None if bucket_map is None else bucket_map.active(number)
        if bucket_map is None or name is None or name == self.bucket.node_name:
            return None
        node = bucket_map.node(name)
        return NodeAt(node.host, node.http)


async def at_owner(
    router: Router, key: bytes, asked: Asked, kind: type[_A], *, is_harmless: bool
) -> _A:
    """Return the answer of the node that owns a document.

    Args:
        router: of the bucket.
        key: of the document.
        asked: the request.
        kind: of the answer.
        is_harmless: whether the request may be done twice.

    Raises:
        UnavailableError: `not_my_partition`; `node_failed`; `isolated`; `ambiguous`, it may have
            been done.
        MillstreamError: why the node refuses.
    """
    may_repeat = is_harmless
    for last in range(tries_max(router.is_managed) - 1, -1, -1):
        place = router.place(key)
        try:
            if place is not None:
                return await router.node(place).ask(asked, kind)
        except OutcomeUnknownError as error:
            if not is_harmless:
                raise ambiguous(key.decode(), error) from error
            if not may_repeat:
                raise
            may_repeat = False
            continue
        except MillstreamError as error:
            if not may_pass(error, router.is_managed, place) or not last:
                raise
        if last:
            await asyncio.sleep(PAUSE_S)
    raise router.no_owner(key)


async def ask_owners(
    router: Router, asked: Callable[[list[int]], Asked], kind: type[_A]
) -> list[_A]:
    """Return the answers of all nodes that have partitions active, each about its own.

    Args:
        router: of the bucket.
        asked: makes the request for some partitions.
        kind: of the answers.

    Raises:
        UnavailableError: `not_my_partition`, after all pauses; `node_failed`; `isolated`;
            `majority_unknown`.
    """
    left, may_repeat = pauses(router.is_managed), router.is_managed
    while True:
        plan = router.plan(range(router.bucket.partition_count))
        check_served(router.bucket, plan.own)
        shares: list[tuple[KnownPlace, list[int]]] = [*plan.by_node.items()]
        if plan.own:
            shares.append((HERE, plan.own))
        try:
            if plan.nowhere:
                raise nowhere(plan.nowhere)
            return await together(
                router.node(place).ask(asked(numbers), kind) for place, numbers in shares
            )
        except MillstreamError as error:
            pause = next(left, None)
            if not may_pass(error, router.is_managed) or pause is None:
                raise
            if isinstance(error, OutcomeUnknownError):
                if not may_repeat:
                    raise
                may_repeat = False
        await asyncio.sleep(pause)


async def together(calls: Iterable[Awaitable[_A]]) -> list[_A]:
    """Return the results of all calls; once all have ended, raise the error of one that failed."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    answers: list[_A] = []
    for one in found:
        if isinstance(one, BaseException):
            raise one
        answers.append(one)
    return answers


def has_moved(error: MillstreamError, place: Place = None) -> bool:
    """Return whether a node says that another node has, or will have, the requested data.

    `place` is that of the node. If this node may not serve what it has, no other one is known.
    """
    is_isolated = error.code == "isolated" and place != HERE
    return is_isolated or error.code == "not_my_partition"


def is_elsewhere(error: MillstreamError, place: Place = None) -> bool:
    """Return whether the error means that another node may have the partition: to be retried."""
    return has_moved(error, place) or error.code == "node_failed"


def may_pass(error: MillstreamError, is_managed: bool, place: Place = None) -> bool:
    """Return whether a request that was not carried out may soon succeed, here or elsewhere."""
    return has_moved(error, place) or (is_managed and error.code in _PASSING)


def may_continue(error: MillstreamError, router: Router, place: Place = None) -> bool:
    """Return whether a reader of many partitions goes on, and asks for the missing ones again."""
    return is_elsewhere(error, place) or may_pass(error, router.is_managed, place)


def pauses(is_managed: bool) -> Iterator[float]:
    """Yield the pauses before partitions are requested again; the time runs from the first on."""
    if not is_managed:
        yield from PAUSES_S
        return
    end_s = time.monotonic() + FAIL_OVER_S_MAX
    for pause_s in chain(PAUSES_S, repeat(PAUSES_S[-1])):
        if time.monotonic() >= end_s:
            return
        yield pause_s


def tries_max(is_managed: bool) -> int:
    """Return how often the owner of a document is looked up, `PAUSE_S` apart."""
    return _TRIES_MANAGED_MAX if is_managed else TRIES_MAX


def ambiguous(doc_id: str, error: MillstreamError) -> UnavailableError:
    """Return the error of a change that may or may not have been made."""
    return UnavailableError(
        f"it is not known whether {doc_id!r} was changed; check it: {error}",
        code="ambiguous",
    )


def nowhere(numbers: Iterable[int]) -> UnavailableError:
    """Return the error for partitions without a known node."""
    return UnavailableError(
        f"no node is known to have partition {min(numbers)} now: ask again",
        code="not_my_partition",
        retry="refresh_map",
    )
