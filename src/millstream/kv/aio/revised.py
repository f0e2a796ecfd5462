"""Reading and changing documents with their revisions, waiting for the disk where it must.

Invariants:
1. What is to be durable is when it is returned, or is refused as `ambiguous`: history went back,
   or nobody can say.
2. Changes asked for together wait for the disk together.
3. The loop is given back after `TURN_DOCUMENTS` changes.

Elsewhere: what is decided (`documents.updating`), the change (`kv.core.revised`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final

from millstream.documents.stored import Packed, StoredDocument
from millstream.errors import MillstreamError, UnavailableError
from millstream.kv.aio.reading_back import with_documents
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.residents import NotInMemory
from millstream.kv.core.revised import Found, Kept, Made, RevisedDocuments, Version

__all__ = ["TURN_DOCUMENTS", "DocumentStore"]

TURN_DOCUMENTS: Final = 100
"""Changed before others have a turn."""
Decide = Callable[[StoredDocument | None], StoredDocument | None]


class DocumentStore:
    """The documents of one bucket.

    Args:
        bucket: it.
        until_durable: returns once everything of a partition up to a seqno cannot get lost any
            more; raises if that cannot be said.
        now_ns: Unix time.
    """

    def __init__(
        self,
        bucket: Bucket,
        until_durable: Callable[[int, int], Awaitable[None]],
        now_ns: Callable[[], int],
    ) -> None:
        self._bucket = bucket
        self._documents = RevisedDocuments(bucket)
        self._until_durable = until_durable
        self._now_ns = now_ns

    async def read(self, key: bytes, revs_limit: int, *, is_durable: bool) -> Found | None:
        """Return a document; raises as `RevisedDocuments.read`.

        `is_durable`: what is returned cannot get lost any more.
        """
        while True:
            call = partial(self._documents.read, key, self._now_ns(), revs_limit)
            found = await with_documents(call)
            if found is None or not is_durable:
                return found
            if await self._wait(found.partition, found.seqno) is None:
                return found

    async def kept(self, key: bytes, *, is_durable: bool) -> Kept | None:
        """Return a document as it is kept; raises as `RevisedDocuments.kept`."""
        while True:
            found = await with_documents(lambda: self._documents.kept(key, self._now_ns()))
            if found is None or not is_durable:
                return found
            if await self._wait(found.partition, found.version.seqno) is None:
                return found

    async def update(
        self, edits: Sequence[tuple[bytes, Decide]], revs_limit: int, *, is_durable: bool
    ) -> list[Made | MillstreamError]:
        """Change documents; return what came of each, in order."""
        update = self._documents.update
        steps = (
            partial(update, key, decide, revs_limit=revs_limit) for key, decide in edits
        )  # fmt: skip
        return await self._make(steps, is_durable=is_durable)

    async def replace(
        self, changes: Sequence[tuple[bytes, Version | None, Packed]], *, is_durable: bool
    ) -> list[Made | MillstreamError]:
        """Write what was decided elsewhere; what came of each, seqno 0: it has changed."""
        steps = (partial(self._documents.replace, *change) for change in changes)
        return await self._make(steps, is_durable=is_durable)

    async def _make(
        self, steps: Iterable[Callable[..., Made]], *, is_durable: bool
    ) -> list[Made | MillstreamError]:
        done: list[Made | MillstreamError] = []
        now_ns = self._now_ns
        for number, step in enumerate(steps):
            if number and number % TURN_DOCUMENTS == 0:
                self._bucket.changed()
                await asyncio.sleep(0)
            try:
                done.append(step(now_ns=now_ns()))
            except NotInMemory:
                done.append(await self._make_later(step))
            except MillstreamError as error:
                done.append(error)
        self._bucket.changed()
        if is_durable:
            await self._settle(done)
        return done

    async def _make_later(self, step: Callable[..., Made]) -> Made | MillstreamError:
        """Change a document that has to be read from the disk first."""
        try:
            return await with_documents(lambda: step(now_ns=self._now_ns()))
        except MillstreamError as error:
            return error

    async def _settle(self, done: list[Made | MillstreamError]) -> None:
        """Wait until all changes are durable; those that are not become refusals."""
        newest: dict[int, int] = {}
        for one in done:
            if isinstance(one, Made) and one.seqno:
                newest[one.partition] = max(one.seqno, newest.get(one.partition, 0))
        waits = [self._wait(*one) for one in newest.items()]
        refusals = dict(zip(newest, await asyncio.gather(*waits), strict=True))
        for at, one in enumerate(done):
            if isinstance(one, Made) and one.seqno:
                refusal = refusals[one.partition]
                if refusal is not None:
                    done[at] = refusal

    async def _wait(self, number: int, seqno: int) -> MillstreamError | None:
        """Wait until a change is durable; return why that cannot be said, None once it is."""
        partition = self._bucket.partitions[number]
        epoch = partition.epoch
        try:
            await self._until_durable(number, seqno)
        except MillstreamError as error:
            return error
        if partition.epoch != epoch:
            return UnavailableError(
                f"partition {number} changed its history before the change was durable: look "
                "whether it is there",
                code="ambiguous",
            )
        return None
