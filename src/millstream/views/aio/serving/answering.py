"""Answers one query from one snapshot of an index, in pieces.

Invariants:
1. The snapshot is closed when the answer is complete, abandoned or failed. A short answer is made
   at once, and its snapshot is closed before anything is sent.
2. Slow work runs in a thread, piece by piece: leaving out rows of unwanted partitions, and calling
   reduce functions of the design document. Other work yields to the event loop after each chunk,
   and at least every `ANSWER_TURN_S_MAX` within a chunk.
3. An error before the first chunk is raised. A later error ends the answer.

Elsewhere: rows and groups (`views.core.query.executor`), how long a snapshot's nodes are kept
(`views.core.index.commits`), waiting for an index (`views.aio.indexing.indexing`).
"""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

import msgspec

from millstream.views.core.query.executor import View, find_groups, find_rows, wanted_partitions
from millstream.views.core.query.parameters import Query, query_options
from millstream.views.core.query.partial_answers import group_part, row_part
from millstream.views.core.query.rendering import render_groups, render_rows
from millstream.views.core.query.wait_for import vector_to_text

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence

    from millstream.model.position import Position
    from millstream.views.core.query.executor import RowReader
    from millstream.views.core.reduce.reductions import ViewReducer

__all__ = [
    "ANSWER_CHUNK_BYTES_MIN",
    "ANSWER_TURN_S_MAX",
    "Answered",
    "AskedView",
    "Form",
    "Snapshot",
    "answer",
]

Form = Literal["json", "part"]
"""The whole answer as text, or a part of one that another node merges."""
ANSWER_CHUNK_BYTES_MIN: Final = 32 * 1024
"""Pieces of an answer are joined up to this size before they are handed on."""
ANSWER_TURN_S_MAX: Final = 0.002
"""How long pieces are made before the loop is given back; a piece takes a millisecond or two."""
_ETAG_BYTES: Final = 16
_encode: Final = msgspec.json.Encoder().encode


class RootShape(Protocol):
    """The root of a tree."""

    @property
    def partitions(self) -> int:
        """Bitmap of those that have rows in it."""


class HeaderShape(Protocol):
    """What a query reads of an index's header (`views.core.index.header`)."""

    @property
    def signature(self) -> str:
        """The signature of the index."""

    @property
    def positions(self) -> Mapping[int, Position]:
        """The positions in active and passive partitions."""

    @property
    def vector(self) -> Callable[[int], bytes]:
        """Return the positions in some of them (bitmap), as bytes."""

    @property
    def active(self) -> int:
        """Bitmap of those that the index answers for."""

    @property
    def void(self) -> int:
        """Bitmap of partitions whose rows in the trees count for nothing."""

    @property
    def trees(self) -> Sequence[RootShape | None]:
        """Their roots."""


class Snapshot(Protocol):
    """One commit of an index, held for reading (`views.core.index.commits`)."""

    @property
    def header(self) -> HeaderShape:
        """The header of the commit."""

    def tree(
        self, number: int, reducer: ViewReducer, kind: int, doubter: ViewReducer | None
    ) -> RowReader:
        """Return the reader of one tree, for the reduce of this number."""

    def close(self) -> None:
        """Release the commit. May be called again."""


class AskedView(NamedTuple):
    """A view as its design document has it.

    Args:
        tree: number of its tree.
        reduce: number of its reduce there, -1 without one.
        reducer: of the tree.
        emits: number of the tree's `_count`.
        encode: the order of its keys.
        is_own_reduce: whether its reduce is a function of the design document's own.
        turns: where it is called, of the threads that do; None: as many as there are.
    """

    tree: int
    reduce: int
    reducer: ViewReducer
    emits: int
    encode: Callable[[Any], bytes]
    is_own_reduce: bool = False
    turns: asyncio.Semaphore | None = None


class Answered(NamedTuple):
    """An answer: what is known before its first byte, and its bytes."""

    head: dict[str, Any]
    chunks: tuple[bytes, ...] | AsyncGenerator[bytes, None]


async def answer(
    snapshot: Snapshot,
    view: AskedView,
    query: Query,
    asked: int | None = None,
    form: Form = "json",
) -> Answered:
    """Answer a query; the snapshot is closed in any case.

    Args:
        snapshot: of the index.
        view: which view of it.
        query: as parsed, and checked for this view.
        asked: bitmap of the partitions to answer for; None: all that are active here.
        form: of the answer.

    Raises:
        RoutingError: `not_my_partition`.
        UnavailableError: `snapshot_expired`.
        CorruptionError: `index_damaged`.
    """
    try:
        header = snapshot.header
        wanted = wanted_partitions(header.active, header.void, asked)
        pieces = _pieces(snapshot, view, query, wanted, form)
        root = header.trees[view.tree]
        is_called = query.is_reduced(view.reduce >= 0) and view.is_own_reduce
        is_long = (root is not None and bool(root.partitions & ~wanted)) or is_called
        # Documents beside the rows are those of now: they change without the index. A reduce
        # function that is called may run out of time once, and not the next time.
        is_fixed = not (query.include_docs or is_called)
        head = {"etag": _etag(header, query, wanted)} if is_fixed else {}
        turns = view.turns if is_called else None
        first = await _next_chunk(pieces, is_long, turns)
        second = await _next_chunk(pieces, is_long, turns)
    except BaseException:  # also when cancelled: no snapshot stays open
        snapshot.close()
        raise
    if second is None:
        snapshot.close()
        return Answered(head, () if first is None else (first,))
    assert first is not None, "an answer has a first chunk"
    return Answered(head, _streamed(snapshot, (first, second), pieces, is_long, turns))


async def _streamed(
    snapshot: Snapshot,
    begun: tuple[bytes, ...],
    pieces: Iterator[bytes],
    is_long: bool,
    turns: asyncio.Semaphore | None,
) -> AsyncGenerator[bytes, None]:
    try:
        for chunk in begun:
            yield chunk
        while (following := await _next_chunk(pieces, is_long, turns)) is not None:
            yield following
            await asyncio.sleep(0)
    finally:
        snapshot.close()


async def _next_chunk(
    pieces: Iterator[bytes], is_long: bool, turns: asyncio.Semaphore | None
) -> bytes | None:
    """Return the next pieces together, None at the end."""
    if is_long:
        return await _chunk_of_thread(pieces, turns)
    now = asyncio.get_running_loop().time
    began = now()
    chunk: list[bytes] = []
    size = 0
    for piece in pieces:
        chunk.append(piece)
        size += len(piece)
        if size >= ANSWER_CHUNK_BYTES_MIN:
            break
        if now() - began > ANSWER_TURN_S_MAX:
            await asyncio.sleep(0)
            began = now()
    return b"".join(chunk) or None


async def _chunk_of_thread(
    pieces: Iterator[bytes], turns: asyncio.Semaphore | None
) -> bytes | None:
    """Make a chunk in a thread. It ends after the present piece if the caller was cancelled.

    The thread keeps its turn until it ends, even if the caller was cancelled.
    """
    is_wanted = True

    def work() -> bytes | None:
        chunk: list[bytes] = []
        size = 0
        for piece in pieces:
            chunk.append(piece)
            size += len(piece)
            if size >= ANSWER_CHUNK_BYTES_MIN or not is_wanted:
                break
        return b"".join(chunk) or None

    def done(job: asyncio.Future[bytes | None]) -> None:
        if turns is not None:
            turns.release()
        if not job.cancelled():
            job.exception()  # nobody may wait for it any more

    if turns is not None:
        await turns.acquire()
    job = asyncio.ensure_future(asyncio.to_thread(work))
    job.add_done_callback(done)
    try:
        return await asyncio.shield(job)
    finally:
        is_wanted = False


def _pieces(
    snapshot: Snapshot, asked: AskedView, query: Query, wanted: int, form: Form
) -> Iterator[bytes]:
    """Yield the answer; reads nothing before the first piece is taken."""
    is_reduced = query.is_reduced(asked.reduce >= 0)
    number = asked.reduce if is_reduced else asked.emits
    reducer = asked.reducer.only(number)
    view = View(
        snapshot.tree(asked.tree, reducer, number, reducer if asked.is_own_reduce else None),
        asked.encode,
        lambda partial: int(reducer.finalize(asked.emits, partial)),
    )
    seqs = _update_seq(snapshot.header, wanted) if query.update_seq else None
    signature = snapshot.header.signature
    if is_reduced:
        groups = find_groups(view, query, wanted)
        if form == "json":
            yield from render_groups(groups, reducer, asked.reduce, seqs)
        else:
            yield from group_part(groups, signature, seqs)
    else:
        found = find_rows(view, query, wanted)
        if form == "json":
            yield from render_rows(found, seqs)
        else:
            yield from row_part(found, signature, seqs)


def _etag(header: HeaderShape, query: Query, wanted: int) -> str:
    """Return what changes whenever the answer may: it names index, rows and query."""
    named = _encode([header.signature, header.vector(wanted), query_options(query)])
    return blake2b(named, digest_size=_ETAG_BYTES).hexdigest()


def _update_seq(header: HeaderShape, wanted: int) -> str:
    return vector_to_text({p: at for p, at in header.positions.items() if wanted >> p & 1})
