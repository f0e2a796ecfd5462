"""Reads documents of a bucket in order, on whatever nodes they are.

Invariants:
1. Nodes are asked concurrently. Each is asked for as many of the next documents as fit into one
   answer. At most one answer of each node is buffered here.
2. An unreadable document is returned as an error in its place.
3. If a node says that it does not have a document, the map is read again.

Elsewhere: where documents are (`databases.routing`), the answering side
(`databases.documents.local_node`), changes (`databases.documents.distributed_updates`).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from millstream.databases.routing import (
    HERE,
    PAUSE_S,
    KnownPlace,
    Node,
    Place,
    may_pass,
    tries_max,
)
from millstream.documents.stored import StoredDocument, load
from millstream.errors import MillstreamError, OutcomeUnknownError, UnavailableError
from millstream.gateway.core.api.stored import (
    IDS_MAX,
    PORTION_BYTES,
    ReadStored,
    Refused,
    Stored,
    StoredList,
    error_of,
)
from millstream.kv.aio.documents.revision_store import QUICK_SIDE_BYTES_MAX
from millstream.wire.frames import head_of

__all__ = ["DistributedReads", "Places", "checked", "loaded", "nonsense", "read_stored"]

_T = TypeVar("_T")


class Places(Protocol):
    """What is needed of `databases.routing.Router`."""

    @property
    def uuid(self) -> str:
        """Return the uuid of the bucket."""

    @property
    def is_shared(self) -> bool:
        """Return whether other nodes may have partitions."""

    @property
    def is_managed(self) -> bool:
        """Return whether a cluster manager gives the partitions of a failed node to others."""

    def node(self, place: KnownPlace) -> Node:
        """Return the node at a place."""

    def place(self, key: bytes) -> Place:
        """Return the place of a document."""

    def no_owner(self, key: bytes) -> UnavailableError:
        """Return the error for a document without a known owner."""


class DistributedReads(Generic[_T]):
    """One read of many documents of one bucket.

    Args:
        places: where the documents are.
        made: makes the result of a document, given its number in the read and the node that has
            it.
        is_durable: wait until the returned versions can no longer be lost.
        bytes_max: bound of an answer that is buffered here, without its last document.
    """

    def __init__(
        self,
        places: Places,
        made: Callable[[int, Node, Stored | None], Awaitable[_T]],
        *,
        is_durable: bool = False,
        bytes_max: int = PORTION_BYTES,
    ) -> None:
        self._places, self._made = places, made
        self._is_durable, self._bytes_max = is_durable, bytes_max
        self._lost = set[KnownPlace]()
        """Nodes whose connection was lost once."""
        self._fetched: dict[int, tuple[Node, Stored | None] | MillstreamError] = {}
        """Answers, by the number of the document."""
        self._why: dict[int, MillstreamError] = {}
        """Why a node did not answer for a document, last."""
        self._vain = 0
        """Tries since the last answer. Once there are no more, each document has one."""

    async def read_all(
        self, doc_ids: Sequence[str]
    ) -> AsyncGenerator[_T | MillstreamError, None]:  # fmt: skip
        """Yield documents in order; an unreadable one is yielded as its error."""
        for begin in range(0, len(doc_ids), IDS_MAX):
            numbers = range(begin, min(begin + IDS_MAX, len(doc_ids)))
            keys = {number: doc_ids[number].encode() for number in numbers}
            for number in numbers:
                try:
                    if number not in self._fetched:
                        await self._fetch(keys, number)
                    found = self._fetched.pop(number)
                    if isinstance(found, MillstreamError):
                        raise found
                    yield await self._made(number, *found)
                except MillstreamError as error:
                    yield error
                del keys[number]

    async def _fetch(self, keys: dict[int, bytes], number: int) -> None:
        """Fetch a document, and some later ones; raises if no node has it."""
        while True:
            if self._places.place(keys[number]) is not None:
                await self._ask_all(keys, number)
            if number in self._fetched:
                self._vain = 0
                return
            self._vain += 1
            if not self._places.is_shared or self._vain >= tries_max(self._places.is_managed):
                break
            await asyncio.sleep(PAUSE_S)
        why = self._why.get(number)
        if why is not None and why.code != "not_my_partition":
            raise why
        raise self._places.no_owner(keys[number])

    async def _ask_all(self, keys: dict[int, bytes], wanted: int) -> None:
        """Ask all nodes from which no answer is buffered."""
        by_place: dict[KnownPlace, list[int]] = {}
        waiting = set[KnownPlace]()
        for number, key in keys.items():
            place = self._places.place(key)
            if place is None:
                continue
            if number in self._fetched:
                waiting.add(place)
            else:
                by_place.setdefault(place, []).append(number)
        asking = [
            self._ask(place, {number: keys[number] for number in numbers})
            for place, numbers in by_place.items()
            if place not in waiting or wanted in numbers
        ]
        await asyncio.gather(*asking)

    async def _ask(self, place: KnownPlace, keys: dict[int, bytes]) -> None:
        node = self._places.node(place)
        ids = [key.decode() for key in keys.values()]
        asked = ReadStored(self._places.uuid, ids, self._is_durable, self._bytes_max)
        is_managed = self._places.is_managed
        try:
            found = await read_stored(node, asked)
        except OutcomeUnknownError as error:
            if place in self._lost:
                self._fetched.update(dict.fromkeys(keys, error))
            self._lost.add(place)
            return
        except MillstreamError as error:
            if may_pass(error, is_managed, place):
                self._why |= dict.fromkeys(keys, error)
                return
            self._fetched.update(dict.fromkeys(keys, error))
            return
        for (number, key), one in zip(keys.items(), found, strict=False):
            try:
                self._fetched[number] = node, checked(key, one, is_own=place == HERE)
            except MillstreamError as error:
                if may_pass(error, is_managed, place):
                    self._why[number] = error
                else:
                    self._fetched[number] = error


async def read_stored(node: Node, asked: ReadStored) -> list[Stored | Refused | None]:
    """Return a node's version of the first documents, at least one; raises as `Node.ask`."""
    found = (await node.ask(asked, StoredList)).documents
    if not 1 <= len(found) <= len(asked.ids):
        raise nonsense()
    return found


def checked(key: bytes, found: Stored | Refused | None, *, is_own: bool = False) -> Stored | None:
    """Return a document of a node's answer; one of this node is not compared with its key.

    Raises:
        UnavailableError: `node_failed`, it is another one.
        MillstreamError: why the node cannot read it.
    """
    if found is None:
        return None
    if isinstance(found, Refused):
        raise error_of(found)
    if is_own:
        return found
    try:
        is_right = head_of(found.frame).key == key
    except (ValueError, IndexError, struct.error):
        is_right = False
    if not is_right:
        raise nonsense()
    return found


async def loaded(
    uuid: str, key: bytes, found: Stored | None, revs_limit: int
) -> StoredDocument | None:
    """Return a parsed document; raises as `checked`, and CorruptionError: `bad_sidecar`."""
    if found is None:
        return None
    parse = partial(load, uuid, key, found.frame, found.side, revs_limit)
    try:
        if len(found.side) <= QUICK_SIDE_BYTES_MAX:
            return parse()
        return await asyncio.to_thread(_whole, parse)
    except (ValueError, IndexError, struct.error) as error:
        raise nonsense() from error


def _whole(parse: Callable[[], StoredDocument]) -> StoredDocument:
    """Return a document whose leaves are computed."""
    document = parse()
    if document.exists:
        _ = document.winner, document.contents
    return document


def nonsense() -> UnavailableError:
    """Return the error for an unexpected response of a node."""
    return UnavailableError(
        "another node answered with documents that were not requested: ask again",
        code="node_failed",
    )
