"""Reads and changes documents with their revisions, and waits for the disk where needed.

Invariants:
1. A result that is to be durable is durable when it is returned. Otherwise the error is
   `ambiguous`: history was rolled back, or the durability is unknown.
2. Changes requested together wait for the disk together.
3. The loop gets control after `STEP_S`.
4. A document with many branches is read and decided on in a thread. The decision is written if the
   document has not changed in between.
5. Several changes of one document requested together are decided in order, each on the result of
   the one before, and the document is stored once per turn: a thousand conflicts are not stored a
   thousand times. If they do not fit together they are stored one by one, as far as they fit.

Elsewhere: decisions (`documents.updating`), the change (`kv.core.revisions.revision_store`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from math import inf
from typing import Final

from millstream.documents.stored import Packed, StoredDocument, pack
from millstream.documents.updating import LongDecision, carry
from millstream.errors import MillstreamError, UnavailableError
from millstream.kv.aio.documents.changes import SUSPENDED_SECONDS_MAX, SUSPENDED_WAIT_S
from millstream.kv.aio.majority import MajorityWait
from millstream.kv.aio.reading_back import with_documents
from millstream.kv.core.bucket import Bucket
from millstream.kv.core.partition.residents import NotInMemory
from millstream.kv.core.revisions.revision_store import (
    Found,
    Kept,
    Made,
    RevisedDocuments,
    Version,
)
from millstream.runtime.pace import Turns

__all__ = [
    "BESIDE_TRIES_MAX", "QUICK_SIDE_BYTES_MAX", "STEPS_SECONDS", "DocumentStore",
]  # fmt: skip

STEPS_SECONDS: Final = 0.003
"""How long changes of one document are combined in the loop before it is stored."""
QUICK_SIDE_BYTES_MAX: Final = 16 * 1024
"""Size of the sidecar of a document that is read and changed in the loop: some 250 branches."""
BESIDE_TRIES_MAX: Final = 3
"""How often a decision outside the loop is repeated because the document changed, before it is
made in the loop."""
Decide = Callable[[StoredDocument | None], StoredDocument | None]


class _Steps:
    """Several decisions on one document as one: the first ones, as many as time allows.

    Args:
        decides: the decisions.
        now: seconds.
    """

    def __init__(self, decides: Sequence[Decide], now: Callable[[], float]) -> None:
        self._decides = decides
        self.are_long = any(isinstance(decide, LongDecision) for decide in decides)
        """Whether one of them takes longer than a turn."""
        self._now = now
        self._results: list[bool | MillstreamError] = []

    def decide(self, document: StoredDocument | None) -> StoredDocument | None:
        """Return their common result for a document; refusals are kept for `made`."""
        return self._decide(document, self._now() + STEPS_SECONDS)

    def decide_all(self, document: StoredDocument | None) -> StoredDocument | None:
        """Do the same with all of them, however long it takes."""
        return self._decide(document, inf)

    def _decide(self, document: StoredDocument | None, end_s: float) -> StoredDocument | None:
        self._results = []
        following: StoredDocument | None = None
        for decide in self._decides:
            if self._results and self._now() > end_s:
                break
            try:
                after = decide(document if following is None else following)
            except MillstreamError as error:
                self._results.append(error)
                continue
            self._results.append(after is not None)
            if after is not None and following is not None:
                carry(after, following)
            following = following if after is None else after
        return following

    def seqnos(self, whole: int) -> list[int | MillstreamError]:
        """Return the result of each decision: the seqno of the common change, 0 for no change."""
        return [
            one if isinstance(one, MillstreamError) else whole if one else 0
            for one in self._results
        ]


def _whole(load: Callable[[], Found]) -> Found:
    """Return a document whose leaves are computed."""
    found = load()
    if found.document.exists:
        _ = found.document.winner, found.document.contents
    return found


def _decided(
    load: Callable[[], Found] | None, steps: _Steps, *, carries: bool
) -> tuple[StoredDocument | None, StoredDocument | None, Packed | None]:
    """Return a document, the result of steps on it, and that result as it is written.

    `carries`: the document is not in the log yet.
    """
    before = None if load is None else load().document
    after = steps.decide_all(before)
    if carries and before is not None and after is not None:
        carry(after, before)
    return before, after, None if after is None else pack(after)


def _by_key(edits: Sequence[tuple[bytes, Decide]]) -> dict[bytes, list[int]]:
    """Return the indexes of edits, by the key that they change."""
    found: dict[bytes, list[int]] = {}
    for number, (key, _) in enumerate(edits):
        found.setdefault(key, []).append(number)
    return found


def _tell(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


class DocumentStore:
    """The documents of one bucket.

    Args:
        bucket: of the documents.
        until_durable: returns once everything of a partition up to a seqno can no longer be lost;
            raises if that is unknown.
        majority: the wait that all changes of the bucket share.
        now_ns: Unix time.
    """

    def __init__(
        self,
        bucket: Bucket,
        until_durable: Callable[[int, int], Awaitable[None]],
        majority: MajorityWait,
        now_ns: Callable[[], int],
    ) -> None:
        self._bucket = bucket
        self._documents = RevisedDocuments(bucket)
        self._until_durable = until_durable
        self._now_ns = now_ns
        self._majority = majority

    async def read(self, key: bytes, revs_limit: int, *, is_durable: bool) -> Found | None:
        """Return a document; raises as `RevisedDocuments.read`.

        `is_durable`: the returned version can no longer be lost; UnavailableError, `ambiguous`, if
        that is unknown.
        """
        self._bucket.reads[0] += 1
        while True:
            kept = await with_documents(lambda: self._documents.kept(key, self._now_ns()))
            if kept is None:
                return None
            load = partial(self._documents.load, key, kept, revs_limit)
            is_quick = len(kept.side) <= QUICK_SIDE_BYTES_MAX
            found = load() if is_quick else await asyncio.to_thread(_whole, load)
            if not is_durable:
                return found
            if await self._lasts(found.partition, found.seqno):
                return found

    async def kept(self, key: bytes, *, is_durable: bool) -> Kept | None:
        """Return a document as it is stored; raises as `RevisedDocuments.kept`."""
        self._bucket.reads[0] += 1
        while True:
            found = await with_documents(lambda: self._documents.kept(key, self._now_ns()))
            if found is None or not is_durable:
                return found
            if await self._lasts(found.partition, found.version.seqno):
                return found

    async def update(
        self, edits: Sequence[tuple[bytes, Decide]], revs_limit: int, *, is_durable: bool
    ) -> list[Made | MillstreamError]:
        """Change documents; return the result of each, in order."""
        done: list[Made | MillstreamError | None] = [None] * len(edits)
        turns = Turns()
        end_s = asyncio.get_running_loop().time() + SUSPENDED_SECONDS_MAX
        for key, numbers in _by_key(edits).items():
            refusal = await self._refusal(key) if is_durable else None
            for number, made in zip(
                numbers,
                await self._update_one(key, [edits[at][1] for at in numbers], revs_limit, end_s)
                if refusal is None
                else [refusal] * len(numbers),
                strict=True,
            ):
                done[number] = made
            if turns.is_over:
                self._bucket.changed()
                await turns.give()
        self._bucket.changed()
        found = [one for one in done if one is not None]
        assert len(found) == len(edits), "each has its key"
        if is_durable:
            await self._settle(found, with_unchanged=True)
        return found

    async def _refusal(self, key: bytes) -> MillstreamError | None:
        """Return why a change cannot reach a majority of the copies now."""
        try:
            await self._majority.until_possible(self._bucket.partition_for(key))
        except UnavailableError as error:
            return error
        return None

    async def _update_one(
        self, key: bytes, decides: Sequence[Decide], revs_limit: int, end_s: float
    ) -> list[Made | MillstreamError]:
        """Change one document, perhaps several times; it is stored once per turn.

        `end_s`: until then it waits while the partition is about to change its state.

        Where changes do not fit together, half of them are tried, and so on; after each success
        and each single refusal twice as many.
        """
        seqnos: list[int | MillstreamError] = []
        last: Made | None = None
        now, width = asyncio.get_running_loop().time, len(decides)
        while len(seqnos) < len(decides):
            some = decides[len(seqnos) : len(seqnos) + width]
            steps = _Steps(some, now)
            made = await self._made_of(key, steps, revs_limit)
            while await self._is_to_be_repeated(key, made, end_s):
                made = await self._made_of(key, steps, revs_limit)
            width = 2 * len(some)
            if isinstance(made, Made):
                seqnos += steps.seqnos(made.seqno)
                last = made
            elif len(some) == 1:
                seqnos.append(made)
            else:
                width = len(some) // 2
            if len(seqnos) < len(decides):
                self._bucket.changed()
                await asyncio.sleep(0)
        done: list[Made | MillstreamError] = []
        for one in seqnos:
            if isinstance(one, int):
                assert last is not None, "it has a seqno"
                done.append(last._replace(seqno=one))
            else:
                done.append(one)
        return done

    async def _is_to_be_repeated(
        self, key: bytes, made: Made | MillstreamError, end_s: float
    ) -> bool:
        """Return whether a partition refused because it is about to change; after a pause."""
        if isinstance(made, Made) or made.code != "temporarily_unavailable":
            return False
        if not self._bucket.partition_for(key).is_suspended:
            return False
        if asyncio.get_running_loop().time() >= end_s:
            return False
        await asyncio.sleep(SUSPENDED_WAIT_S)
        return True

    async def _made_of(self, key: bytes, steps: _Steps, revs_limit: int) -> Made | MillstreamError:
        made = await self._made_beside(key, steps, revs_limit)
        if made is not None:
            return made
        return await self._updated(key, steps.decide, revs_limit)

    async def _made_beside(
        self, key: bytes, steps: _Steps, revs_limit: int
    ) -> Made | MillstreamError | None:
        """Change a document with many branches; None: it is small, or changes all the time."""
        for _ in range(BESIDE_TRIES_MAX):
            try:
                kept = await with_documents(lambda: self._documents.kept(key, self._now_ns()))
                is_quick = kept is None or len(kept.side) <= QUICK_SIDE_BYTES_MAX
                if is_quick and not steps.are_long:
                    return None
                load = kept and partial(self._documents.load, key, kept, revs_limit)
                stored = kept is None or self._documents.is_stored(key, kept.version.seqno)
                before, after, packed = await asyncio.to_thread(
                    _decided, load, steps, carries=not stored
                )
            except MillstreamError as error:
                return error
            if after is None or packed is None:
                return Made(before, self._bucket.partition_for(key).partition_id, 0)
            version = None if kept is None else kept.version
            made = await self._made(partial(self._documents.replace, key, version, packed, after))
            if not isinstance(made, Made) or made.seqno:
                return made
        return None

    async def replace(
        self, changes: Sequence[tuple[bytes, Version | None, Packed]], *, is_durable: bool
    ) -> list[Made | MillstreamError]:
        """Write decisions of another node; return the result of each, seqno 0: it has changed."""
        done: list[Made | MillstreamError] = []
        turns = Turns()
        end_s = asyncio.get_running_loop().time() + SUSPENDED_SECONDS_MAX
        for change in changes:
            refusal = await self._refusal(change[0]) if is_durable else None
            if refusal is None:
                step = partial(self._documents.replace, *change)
                made = await self._made(step)
                while await self._is_to_be_repeated(change[0], made, end_s):
                    made = await self._made(step)
                done.append(made)
            else:
                done.append(refusal)
            if turns.is_over:
                self._bucket.changed()
                await turns.give()
        self._bucket.changed()
        if is_durable:
            await self._settle(done)
        return done

    async def _updated(
        self, key: bytes, decide: Decide, revs_limit: int
    ) -> Made | MillstreamError:
        return await self._made(
            partial(self._documents.update, key, decide, revs_limit=revs_limit)
        )

    async def _made(self, step: Callable[..., Made]) -> Made | MillstreamError:
        while self._bucket.writes.is_delaying:  # for a bounded time: then writes are refused
            room = asyncio.get_running_loop().create_future()
            self._bucket.writes.when_room(partial(_tell, room))
            await room
        try:
            try:
                return step(now_ns=self._now_ns())
            except NotInMemory:  # it has to be read from the disk first
                return await with_documents(lambda: step(now_ns=self._now_ns()))
        except MillstreamError as error:
            return error

    async def _settle(
        self, done: list[Made | MillstreamError], *, with_unchanged: bool = False
    ) -> None:
        """Wait until all changes are durable; others become refusals.

        `with_unchanged`: where nothing had to be changed, what is there is to last.
        """
        awaited: list[tuple[int, int] | None] = []
        for one in done:
            upto = one.seqno if isinstance(one, Made) else 0
            if isinstance(one, Made) and not upto and with_unchanged:
                upto = self._bucket.partitions[one.partition].high_seqno
            awaited.append((one.partition, upto) if isinstance(one, Made) and upto else None)
        newest: dict[int, int] = {}
        for number, upto in filter(None, awaited):
            newest[number] = max(upto, newest.get(number, 0))
        waits = [self._wait(*one) for one in newest.items()]
        refusals = dict(zip(newest, await asyncio.gather(*waits), strict=True))
        for at, place in enumerate(awaited):
            refusal = None if place is None else refusals[place[0]]
            if refusal is not None:
                done[at] = refusal

    async def _lasts(self, number: int, seqno: int) -> bool:
        """Wait until a read version is durable; False: the history has changed, read again.

        Raises:
            UnavailableError: as `until_durable`.
        """
        epoch = self._bucket.partitions[number].epoch
        failure = await self._wait(number, seqno)
        if failure is not None and self._bucket.partitions[number].epoch == epoch:
            raise failure
        return failure is None

    async def _wait(self, number: int, seqno: int) -> MillstreamError | None:
        """Wait until a change is durable; return why that is unknown, None once it is durable."""
        partition = self._bucket.partitions[number]
        epoch = partition.epoch
        try:
            await self._until_durable(number, seqno)
        except MillstreamError as error:
            return error
        if partition.epoch != epoch:
            return UnavailableError(
                f"partition {number} changed its history before the change was durable: check "
                f"whether it is stored",
                code="ambiguous",
            )
        return None
