"""Asks all nodes that have a part of a view, and merges their answers while they arrive.

Invariants:
1. Each partition is answered by exactly one node, by one map: the data map, or in a managed
   cluster the index map. If a node no longer answers for a partition, the map is read again and
   the whole query is repeated: at most `QUERY_TRIES_MAX` times, in a managed cluster for
   `MOVE_WAIT_S_MAX`. Nothing is sent before all nodes have agreed, so an answer never has rows of
   several tries.
2. If one node has all partitions, its answer is passed on unchanged.
3. At most one chunk of each node is held here, whatever the size of the answer.
4. A node that does not answer in time, or breaks off, fails the query. With on_error=continue it
   is listed in `errors` after the rows of the others. In a managed cluster that is also so for a
   node that does not answer for its partitions in the last try.
5. Every opened stream is closed, also after errors and cancellation.

Elsewhere: merging (`views.core.query.merging`), the part of one node
(`views.aio.serving.answering`).
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from millstream.errors import MillstreamError, RoutingError, UnavailableError
from millstream.views.aio.serving.answering import Answered, AskedView
from millstream.views.core.query.merging import GroupMerge, RowMerge, merge_counts, part_query
from millstream.views.core.query.parameters import query_options
from millstream.views.core.query.partial_answers import Counts, End, Failure, PartCutter
from millstream.views.core.query.rendering import (
    SEPARATOR,
    groups_json,
    head_text,
    rows_json,
    tail_text,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import (
        AsyncGenerator,
        AsyncIterator,
        Awaitable,
        Callable,
        Iterator,
        Mapping,
        Sequence,
    )

    from millstream.model.cluster_maps import MapKey
    from millstream.views.core.query.merging import Heads
    from millstream.views.core.query.parameters import Query
    from millstream.views.core.query.partial_answers import PartMessage

__all__ = [
    "MOVE_WAIT_S_MAX",
    "NOBODY",
    "NODE_ANSWER_S_MAX",
    "NODE_CHUNK_S_MAX",
    "QUERY_PAUSES_S",
    "QUERY_TRIES_MAX",
    "Gatherer",
    "NodeAccess",
    "NodeLink",
    "NodePart",
    "NodeStream",
]

QUERY_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.2, 0.2)
"""Pauses before a query is repeated because the bucket's map has changed meanwhile."""
QUERY_TRIES_MAX: Final = len(QUERY_PAUSES_S) + 1
MOVE_WAIT_S_MAX: Final = 10.0
"""How long a query is repeated in a managed cluster, at most for its own timeout, until each part
of the index has an owner that answers: moves and fail-overs end by themselves."""
NODE_ANSWER_S_MAX: Final = 10.0
"""How long a node may take to begin its answer, beyond the query's own timeout."""
NODE_CHUNK_S_MAX: Final = 30.0
"""How long a node may take for each further chunk."""


class NodeStream(Protocol):
    """What a node answers, as it arrives."""

    @property
    def head(self) -> Mapping[str, Any]:
        """What is known before the first byte."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return the bytes."""

    async def close(self) -> None:
        """Want no more; harmless when called again."""


class NodeLink(Protocol):
    """A way to ask the indexes of one node."""

    async def query(self, request: Mapping[str, Any]) -> NodeStream:
        """Ask.

        Args:
            request: `bucket`, `design`, `view`, `options` (as `parse_query` takes them),
                `partitions` to answer for, and `form`: json, or part.

        Raises:
            RoutingError: `not_my_partition`.
            MillstreamError: what the node answers; `UnavailableError` if it cannot be reached.
        """


class NodeAccess(NamedTuple):
    """How this node asks others: its user, and its encryption."""

    user: str
    password: str
    tls: ssl.SSLContext | None


NOBODY: Final = NodeAccess("", "", None)
"""Access to nodes without users."""


class NodePart(NamedTuple):
    """The partitions that one node is asked for."""

    name: str
    link: NodeLink
    partitions: Sequence[int]
    keys: Mapping[int, MapKey] | None = None
    """In a managed cluster, of the index records that name the node as the owner."""


class Gatherer:
    """Asks the views of one bucket.

    Args:
        bucket: its name.
        parts_of: by the bucket's map: who has which partitions, each of them once; called anew
            when the map should have changed, with the refusal that says so.
        waits: a cluster manager gives parts to other owners, so it helps to wait.
    """

    def __init__(
        self,
        bucket: str,
        parts_of: Callable[[RoutingError | None], Awaitable[Sequence[NodePart]]],
        *,
        waits: bool = False,
    ) -> None:
        self._bucket = bucket
        self._parts_of = parts_of
        self._waits = waits

    async def query(self, design: str, name: str, query: Query, view: AskedView) -> Answered:
        """Answer a query over all partitions of the bucket.

        Args:
            design: name of the design document.
            name: of the view.
            query: checked against it.
            view: as it is here.

        Raises:
            RoutingError: `not_my_partition`, `design_differs`: not even after all tries.
            UnavailableError: `index_moving`: the same in a managed cluster; a node cannot be
                reached, or did not answer in time.
            MillstreamError: what a node answered.
        """
        refusal: RoutingError | None = None
        waits = self._waits and query.on_error == "stop"
        wait_s = min(MOVE_WAIT_S_MAX, query.timeout / 1000) if waits else 0.0
        end_s = time.monotonic() + wait_s
        for pause in chain(_pauses(end_s), (None,)):
            asked = _Asked(self._bucket, design, name, query, view, is_last=pause is None)
            parts: Sequence[NodePart] = ()
            try:
                parts = await self._parts_of(refusal)
                if len(parts) == 1:
                    return await asked.pass_through(parts[0])
                return await asked.merge(parts)
            except RoutingError as error:
                if pause is None:
                    raise _given_up(error, parts) from error
                refusal = error
            except UnavailableError as error:
                if pause is None or error.code != "node_failed" or time.monotonic() >= end_s:
                    raise
            if pause is not None:
                await asyncio.sleep(pause)
        raise AssertionError("the last try answers or fails")


def _pauses(end_s: float) -> Iterator[float]:
    """Yield the pauses between tries, at least `QUERY_PAUSES_S`."""
    yield from QUERY_PAUSES_S
    while time.monotonic() < end_s:
        yield QUERY_PAUSES_S[-1]


class _Asked(NamedTuple):
    """One query on its way."""

    bucket: str
    design: str
    name: str
    query: Query
    view: AskedView
    is_last: bool
    """No try follows."""

    def request(self, part: NodePart, query: Query, form: str) -> dict[str, Any]:
        if query.at is not None:
            at = {p: wanted for p, wanted in query.at.items() if p in set(part.partitions)}
            query = replace(query, at=at or None)
        keys = {} if part.keys is None else {"keys": part.keys}
        return {
            "bucket": self.bucket,
            "design": self.design,
            "view": self.name,
            "options": query_options(query),
            "partitions": list(part.partitions),
            "form": form,
            **keys,
        }

    async def pass_through(self, part: NodePart) -> Answered:
        stream = await _opened(part, self.request(part, self.query, "json"), self.query)
        return Answered(dict(stream.head), _chunks_of(part.name, stream))

    async def merge(self, parts: Sequence[NodePart]) -> Answered:
        """Open all streams and hear what each counts, before anything is answered."""
        open_streams = AsyncExitStack()
        try:
            readers: list[_PartReader] = []
            async with asyncio.TaskGroup() as group:
                for part in parts:
                    request = self.request(part, part_query(self.query), "part")
                    reader = _PartReader(part, request, self.query)
                    open_streams.push_async_callback(reader.close)
                    readers.append(reader)
                    group.create_task(reader.begin())
            self._check_begun(readers)
            heads = merge_counts([r.counts for r in readers if r.counts is not None], self.query)
        except BaseException:  # also when cancelled: nodes are not read on
            await open_streams.aclose()
            raise
        return Answered(_joined_head(readers), self._merged(readers, heads, open_streams))

    def _check_begun(self, readers: Sequence[_PartReader]) -> None:
        """Raise what a node failed with, unless the others are to answer without it."""
        failed = [reader.failure for reader in readers if reader.failure is not None]
        moved = [reader for reader in readers if isinstance(reader.failure, RoutingError)]
        is_kept = self.is_last and all(reader.part.keys is not None for reader in moved)
        if moved and not (is_kept and self.query.on_error == "continue"):
            error = moved[0].failure
            assert isinstance(error, RoutingError)
            refusals = [one.failure for one in moved if isinstance(one.failure, RoutingError)]
            error.records = {p: record for one in refusals for p, record in one.records.items()}
            raise error
        if failed and (self.query.on_error == "stop" or len(failed) == len(readers)):
            raise failed[0]

    async def _merged(
        self, readers: Sequence[_PartReader], heads: Heads, open_streams: AsyncExitStack
    ) -> AsyncGenerator[bytes, None]:
        async with open_streams:
            yield head_text(heads.total_rows, heads.offset, heads.update_seq)
            is_first = True
            async for text in self._texts({reader.name: reader for reader in readers}):
                yield text if is_first else SEPARATOR + text
                is_first = False
            yield tail_text(
                [
                    _error_row(reader.part, reader.failure)
                    for reader in readers
                    if reader.failure is not None
                ]
            )

    async def _texts(self, readers: Mapping[str, _PartReader]) -> AsyncIterator[bytes]:
        """Yield rows or groups as JSON, as soon as their place in the order is certain."""
        is_reduced = self.query.is_reduced(self.view.reduce >= 0)
        merge: GroupMerge | RowMerge
        if is_reduced:
            reducer = self.view.reducer.only(self.view.reduce)
            merge = GroupMerge(readers, self.query, reducer)
        else:
            merge = RowMerge(readers, self.query)
        for name, reader in readers.items():
            if reader.failure is not None:
                merge.end(name)
        while not merge.is_done:
            waiting = [readers[name] for name in merge.waiting()]
            async with asyncio.TaskGroup() as group:
                for reader in waiting:
                    if not reader.messages:
                        group.create_task(reader.more())
            for reader in waiting:
                self._hand_over(reader, merge)
            await asyncio.sleep(0)  # streams may have been read ahead
            if isinstance(merge, GroupMerge):
                is_long = self.view.is_own_reduce
                groups = await asyncio.to_thread(merge.take) if is_long else merge.take()
                if groups:
                    yield groups_json(groups, reducer, self.view.reduce)
            else:
                keys, values = merge.take()
                if keys:
                    yield rows_json(keys, values)

    def _hand_over(self, reader: _PartReader, merge: GroupMerge | RowMerge) -> None:
        """Give the merge a node's next message, or its end."""
        message = reader.take()
        if message is not None:
            try:
                merge.receive(reader.name, message)
            except MillstreamError as error:
                reader.failure, message = error, None
        if reader.failure is not None and self.query.on_error == "stop":
            raise reader.failure
        if message is None:
            merge.end(reader.name)


async def _opened(part: NodePart, request: Mapping[str, Any], query: Query) -> NodeStream:
    """Ask a node; its index may have to wait for as long as the query says."""
    try:
        async with asyncio.timeout(query.timeout / 1000 + NODE_ANSWER_S_MAX):
            return await part.link.query(request)
    except TimeoutError as error:
        raise _failed(part.name, "did not answer in time") from error


async def _next_chunk(name: str, chunks: AsyncIterator[bytes]) -> bytes | None:
    try:
        async with asyncio.timeout(NODE_CHUNK_S_MAX):
            return await anext(chunks, None)
    except TimeoutError as error:
        raise _failed(name, f"sent nothing for {NODE_CHUNK_S_MAX:.0f} s") from error


async def _chunks_of(name: str, stream: NodeStream) -> AsyncGenerator[bytes, None]:
    try:
        chunks = aiter(stream)
        while (chunk := await _next_chunk(name, chunks)) is not None:
            yield chunk
    finally:
        await stream.close()


def _joined_head(readers: Sequence[_PartReader]) -> dict[str, Any]:
    """Return an ETag that changes when one of the nodes' does; none where one is missing."""
    if any(not reader.etag for reader in readers):
        return {}
    joined = b"".join(reader.etag.encode() for reader in readers)
    return {"etag": blake2b(joined, digest_size=16).hexdigest()}


def _error_row(part: NodePart, error: MillstreamError) -> dict[str, Any]:
    row: dict[str, Any] = {"from": part.name, "error": error.code, "reason": str(error)}
    if part.keys is not None:
        is_moving = isinstance(error, RoutingError) and error.code == "not_my_partition"
        row["error"] = "index_moving" if is_moving else error.code
        row["partitions"] = list(part.partitions)
    return row


def _given_up(error: RoutingError, parts: Sequence[NodePart]) -> MillstreamError:
    """Return the error of a query that was refused in all tries."""
    is_managed = any(part.keys is not None for part in parts)
    if not is_managed or error.code != "not_my_partition":
        return error
    return UnavailableError(
        f"the index of some partitions is being moved or is not ready: {error}; ask again",
        code="index_moving",
    )


def _failed(name: str, what: str) -> UnavailableError:
    return UnavailableError(f"node {name} {what}: ask again", code="node_failed")


class _PartReader:
    """Messages of one node; what it fails with is kept, and then it has ended."""

    def __init__(self, part: NodePart, request: Mapping[str, Any], query: Query) -> None:
        self.name = part.name
        self.etag = ""
        self.counts: Counts | None = None
        self.failure: MillstreamError | None = None
        self.messages: list[PartMessage] = []
        self.part, self._request, self._query = part, request, query
        self._stream: NodeStream | None = None
        self._chunks: AsyncIterator[bytes] | None = None
        self._cutter = PartCutter()

    async def begin(self) -> None:
        """Ask, and read up to what the node counts."""
        try:
            self._stream = await _opened(self.part, self._request, self._query)
        except MillstreamError as error:
            self.failure = error
            return
        self.etag = str(self._stream.head.get("etag", ""))
        self._chunks = aiter(self._stream)
        await self.more()
        counts = self.take()
        if isinstance(counts, Counts):
            self.counts = counts
        elif self.failure is None:
            self.failure = _failed(self.name, "does not say what it counts")

    async def more(self) -> None:
        """Read until there is a message."""
        assert self._chunks is not None
        try:
            while not self.messages:
                chunk = await _next_chunk(self.name, self._chunks)
                if chunk is None:
                    raise _failed(self.name, "broke off its answer")
                self.messages = self._cutter.receive(chunk)[::-1]
        except MillstreamError as error:
            self.failure = error

    def take(self) -> PartMessage | None:
        """Return the next message, None at the end."""
        if not self.messages:
            return None
        message = self.messages.pop()
        if isinstance(message, Failure):
            self.failure = UnavailableError(
                f"node {self.name}: {message.reason}", code=message.code
            )
        return None if isinstance(message, Failure | End) else message

    async def close(self) -> None:
        """Want no more."""
        if self._stream is not None:
            await self._stream.close()
