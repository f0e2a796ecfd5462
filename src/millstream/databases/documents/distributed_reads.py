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
from typing import Generic, Protocol, TypeVar

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.remote_node import RemoteNode
from millstream.databases.routing import HERE, PAUSE_S, TRIES_MAX, Place, has_moved
from millstream.documents.stored import StoredDocument, load
from millstream.errors import MillstreamError, OutcomeUnknownError, UnavailableError
from millstream.gateway.core.api.stored import (
    IDS_MAX,
    PORTION_BYTES,
    ReadStored,
    Refused,
    Stored,
    error_of,
)
from millstream.wire.frames import head_of

__all__ = ["DistributedReads", "Places", "checked", "loaded"]

_T = TypeVar("_T")


class Places(Protocol):
    """What is needed of `databases.routing.Router`."""

    @property
    def uuid(self) -> str:
        """Return the uuid of the bucket."""

    @property
    def link_to(self) -> Callable[[NodeAt], RemoteNode]:
        """Return what connects to another node."""

    def place(self, key: bytes) -> Place:
        """Return the place of a document."""

    def no_owner(self, key: bytes) -> UnavailableError:
        """Return the error for a document without a known owner."""


class DistributedReads(Generic[_T]):
    """One read of many documents of one bucket.

    Args:
        places: where the documents are.
        here: reads one of this node by its number in the read.
        made: makes the result of a document of another node, given its number in the read.
        is_durable: wait until the returned versions can no longer be lost.
        bytes_max: bound of an answer that is buffered here, without its last document.
    """

    def __init__(
        self,
        places: Places,
        here: Callable[[int], Awaitable[_T]],
        made: Callable[[int, RemoteNode, Stored | None], Awaitable[_T]],
        *,
        is_durable: bool = False,
        bytes_max: int = PORTION_BYTES,
    ) -> None:
        self._places, self._here, self._made = places, here, made
        self._is_durable, self._bytes_max = is_durable, bytes_max
        self._lost = set[NodeAt]()
        """Nodes whose connection was lost once."""
        self._fetched: dict[int, tuple[RemoteNode, Stored | None] | MillstreamError] = {}
        """Answers of other nodes, by number."""

    async def read_all(
        self, doc_ids: Sequence[str]
    ) -> AsyncGenerator[_T | MillstreamError, None]:  # fmt: skip
        """Yield documents in order; an unreadable one is yielded as its error."""
        for begin in range(0, len(doc_ids), IDS_MAX):
            keys = [doc_id.encode() for doc_id in doc_ids[begin : begin + IDS_MAX]]
            for at in range(len(keys)):
                try:
                    yield await self._read(keys, begin, at)
                except MillstreamError as error:
                    yield error

    async def _read(self, keys: Sequence[bytes], begin: int, at: int) -> _T:
        """Return a document; some later ones of other nodes are fetched with it."""
        for last in range(TRIES_MAX - 1, -1, -1):
            if begin + at not in self._fetched:
                place = self._places.place(keys[at])
                if place == HERE:
                    try:
                        return await self._here(begin + at)
                    except MillstreamError as error:
                        if not has_moved(error) or not last:
                            raise
                elif place is not None:
                    await self._ask_all(keys, begin, at)
            if begin + at in self._fetched:
                found = self._fetched.pop(begin + at)
                if isinstance(found, MillstreamError):
                    raise found
                return await self._made(begin + at, *found)
            if last:
                await asyncio.sleep(PAUSE_S)
        raise self._places.no_owner(keys[at])

    async def _ask_all(self, keys: Sequence[bytes], begin: int, at: int) -> None:
        """Ask all nodes from which no answer is buffered."""
        by_node: dict[NodeAt, list[int]] = {}
        waiting = set[NodeAt]()
        for number in range(at, len(keys)):
            place = self._places.place(keys[number])
            if place is None or place == HERE:
                continue
            if begin + number in self._fetched:
                waiting.add(place)
            else:
                by_node.setdefault(place, []).append(number)
        asking = [
            self._ask(self._places.link_to(node), keys, begin, numbers)
            for node, numbers in by_node.items()
            if node not in waiting or at in numbers
        ]
        await asyncio.gather(*asking)

    async def _ask(
        self, node: RemoteNode, keys: Sequence[bytes], begin: int, numbers: list[int]
    ) -> None:
        ids = [keys[number].decode() for number in numbers]
        asked = ReadStored(self._places.uuid, ids, self._is_durable, self._bytes_max)
        try:
            found = await node.read(asked)
        except MillstreamError as error:
            if has_moved(error):
                return
            if isinstance(error, OutcomeUnknownError) and node.at not in self._lost:
                self._lost.add(node.at)
                return
            self._fetched.update((begin + number, error) for number in numbers)
            return
        for number, one in zip(numbers, found, strict=False):
            try:
                self._fetched[begin + number] = node, checked(keys[number], one, node)
            except MillstreamError as error:
                if not has_moved(error):
                    self._fetched[begin + number] = error


def checked(key: bytes, found: Stored | Refused | None, node: RemoteNode) -> Stored | None:
    """Return a document of a node's answer.

    Raises:
        UnavailableError: `node_failed`, it is another one.
        MillstreamError: why the node cannot read it.
    """
    if found is None:
        return None
    if isinstance(found, Refused):
        raise error_of(found)
    try:
        is_right = head_of(found.frame).key == key
    except (ValueError, IndexError, struct.error):
        is_right = False
    if not is_right:
        raise node.nonsense()
    return found


def loaded(
    uuid: str, key: bytes, found: Stored | None, revs_limit: int, node: RemoteNode
) -> StoredDocument | None:
    """Return a parsed document; raises as `checked`, and CorruptionError: `bad_sidecar`."""
    if found is None:
        return None
    try:
        return load(uuid, key, found.frame, found.side, revs_limit)
    except (ValueError, IndexError, struct.error) as error:
        raise node.nonsense() from error
