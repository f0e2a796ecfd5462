"""Changes documents of a bucket, on whatever nodes they are.

The decision is made on this node. For documents of another node, their current versions are
requested first, a batch in one request. Then the decided documents are sent, each with the version
on which its decision was based. If a document has changed in between, it is read and decided
again.

Invariants:
1. A change is made at most once: it is resent only against the same version of its document.
2. If a sent change is not acknowledged, the document is read back. If it is as it was sent, the
   change was made. If it is different by then, or cannot be read, the result is `ambiguous`.
3. Several edits of one document are decided in order, each on the result of the one before it.
4. The owner has the bytes of attachments, durably, before the document that names them.
5. Nodes are asked concurrently. All pending documents of one node form one batch.

Elsewhere: the writing side (`databases.documents.local_node`), decisions (`documents.updating`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Final

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.documents.distributed_reads import (
    checked,
    loaded,
    nonsense,
    read_stored,
)
from millstream.databases.documents.local_documents import Documents
from millstream.databases.remote_node import RemoteNode
from millstream.databases.routing import (
    HERE,
    PAUSE_S,
    Router,
    ambiguous,
    has_moved,
    may_pass,
    tries_max,
)
from millstream.documents.stored import Packed, StoredDocument, pack
from millstream.documents.updating import LongDecision
from millstream.errors import MillstreamError, OutcomeUnknownError, UnavailableError
from millstream.gateway.core.api.documents import Decide, Written
from millstream.gateway.core.api.stored import (
    CHANGES_MAX,
    PORTION_BYTES,
    Change,
    Changed,
    Lacking,
    Placed,
    ReadStored,
    Refused,
    Stored,
    WriteStored,
    WrittenList,
    error_of,
)
from millstream.kv.core.revisions.revision_store import Kept, Version
from millstream.model.partitions import partition_of
from millstream.model.sides import split
from millstream.wire.frames import change_of

__all__ = ["DistributedUpdate"]

_TURN_DOCUMENTS: Final = 100
"""Number of decisions before other tasks have a turn."""


class _Edit:
    """One requested change and its progress."""

    def __init__(self, doc_id: str, decide: Decide) -> None:
        self.doc_id, self.decide = doc_id, decide
        self.key = doc_id.encode()
        self.result: Written | MillstreamError | None = None
        self.why: MillstreamError | None = None
        """Why it is retried."""
        self.version: Version | None = None
        """The version on which it was decided last."""
        self.after: StoredDocument | None = None
        self.packed: Packed | None = None
        """The last decision, as it was sent."""
        self.lost: MillstreamError | None = None
        """Set if it was sent and not acknowledged."""
        self.is_there = False
        """Nothing has to be written: what the node has is read again, once it is durable."""

    def fail(self, error: MillstreamError) -> None:
        """End with an error; a change that may have been made is not reported as failed."""
        self.result = error if self.lost is None else ambiguous(self.doc_id, self.lost)

    def is_as_sent(self, found: Stored) -> bool:
        """Return whether a document equals the sent result of the change."""
        change = change_of(found.frame)
        value = None if change.is_deleted else change.value
        return Packed(value, split(found.side)[1]) == self.packed


class DistributedUpdate:
    """Changes that are made together to documents of one bucket.

    Args:
        router: of the bucket.
        own: the documents of this node.
        revs_limit: number of generations computed for documents that kv wrote.
        is_durable: acknowledge each change only when it can no longer be lost.
    """

    def __init__(
        self,
        router: Router,
        own: Documents,
        revs_limit: int,
        *,
        is_durable: bool,
    ) -> None:
        self._router, self._bucket, self._own = router, router.bucket, own
        self._revs_limit, self._is_durable = revs_limit, is_durable
        self._given = set[tuple[NodeAt, bytes]]()
        """Which attachment bytes were sent to which node."""

    async def update(self, edits: Sequence[tuple[str, Decide]]) -> list[Written | MillstreamError]:
        """Change documents; return the result of each, in order."""
        wanted = [_Edit(doc_id, decide) for doc_id, decide in edits]
        counts: Counter[str] = Counter()
        waves: list[list[_Edit]] = []
        for edit in wanted:
            if counts[edit.doc_id] == len(waves):
                waves.append([])
            waves[counts[edit.doc_id]].append(edit)
            counts[edit.doc_id] += 1
        for wave in waves:
            await self._make(wave)
        results = [edit.result for edit in wanted if edit.result is not None]
        assert len(results) == len(wanted), "every change has a result"
        return results

    async def _make(self, wave: Sequence[_Edit]) -> None:
        """Make changes of different documents."""
        tries = tries_max(self._router.is_managed)
        for last in range(tries - 1, -1, -1):
            by_place: dict[NodeAt | str, list[_Edit]] = {}
            for edit in wave:
                where = self._router.place(edit.key)
                if where is not None:
                    by_place.setdefault(where, []).append(edit)
                else:
                    edit.why = self._router.no_owner(edit.key)
            await asyncio.gather(
                *(
                    self._at_node(self._router.link_to(where), there)
                    if isinstance(where, NodeAt)
                    else self._here(there)
                    for where, there in by_place.items()
                )
            )
            wave = [edit for edit in wave if edit.result is None]
            if not wave:
                return
            if last and any(edit.why is not None for edit in wave):
                await asyncio.sleep(PAUSE_S)
        for edit in wave:
            edit.fail(edit.why or _contended(edit.doc_id, tries))

    async def _here(self, edits: Sequence[_Edit]) -> None:
        """Change documents of this node."""
        for edit in edits:
            if edit.lost is not None:  # it moved here; with or without the change
                edit.fail(edit.lost)
        left = [edit for edit in edits if edit.result is None]
        if not left:
            return
        try:
            made = await self._own.update(
                self._bucket.name,
                [(edit.doc_id, edit.decide) for edit in left],
                is_durable=self._is_durable,
            )
        except MillstreamError as error:  # the bucket is no longer served
            made = [error] * len(left)
        for edit, one in zip(left, made, strict=True):
            edit.why = None
            if isinstance(one, MillstreamError) and has_moved(one, HERE):
                edit.why = one
            else:
                edit.result = one

    # -- another node

    async def _at_node(self, node: RemoteNode, edits: Sequence[_Edit]) -> None:
        """Change documents of another node, one batch at a time."""
        left = list(edits)
        while left:
            portion = left[:CHANGES_MAX]
            ids = [edit.doc_id for edit in portion]
            asked = ReadStored(self._bucket.uuid, ids, self._is_durable_look(portion))
            try:
                found = await read_stored(node, asked)
            except MillstreamError as error:
                for edit in left:
                    self._not_read(edit, error)
                return
            read, left = portion[: len(found)], left[len(found) :]
            ready = list[_Edit]()
            for number, (edit, one) in enumerate(zip(read, found, strict=True), 1):
                edit.why = None
                await self._decide(node, edit, one)
                if edit.packed is not None and edit.result is None and edit.why is None:
                    ready.append(edit)
                if number % _TURN_DOCUMENTS == 0:
                    await asyncio.sleep(0)
            while ready:
                size = 0
                together = list[_Edit]()
                while ready and size < PORTION_BYTES:
                    together.append(ready.pop(0))
                    size += _bytes_of(together[-1].packed)
                await self._write(node, together)

    def _is_durable_look(self, edits: Sequence[_Edit]) -> bool:
        """Return whether the document that is read stands for a change that is to be durable."""
        return self._is_durable and any(edit.lost or edit.is_there for edit in edits)

    def _not_read(self, edit: _Edit, error: MillstreamError) -> None:
        """Handle a document that cannot be read: retry where that may help."""
        if isinstance(error, OutcomeUnknownError):
            may_help = edit.why is None
        else:
            may_help = may_pass(error, self._router.is_managed)
        if may_help:
            edit.why = error
        else:
            edit.fail(error)

    async def _decide(self, node: RemoteNode, edit: _Edit, found: Stored | Refused | None) -> None:
        """Decide on the current version of a document; the result is in `packed`."""
        try:
            now = checked(edit.key, found)
            document = await loaded(self._bucket.uuid, edit.key, now, self._revs_limit)
        except MillstreamError as error:
            self._not_read(edit, error)
            return
        partition = partition_of(edit.key, self._bucket.partition_count)
        version: Version | None = None
        if now is not None:
            version = Kept(partition, now.frame, now.side).version
            if edit.lost is not None and version != edit.version and edit.is_as_sent(now):
                edit.result = Written(partition, version.seqno, edit.after)
                return
        if edit.lost is not None and version != edit.version:
            edit.fail(edit.lost)
            return
        try:
            if isinstance(edit.decide, LongDecision):
                after, packed = await asyncio.to_thread(_decided, edit.decide, document)
            else:
                after, packed = _decided(edit.decide, document)
        except MillstreamError as error:
            edit.fail(error)
            return
        if packed is None:
            if edit.is_there or now is None or not self._is_durable:
                edit.result = Written(partition, 0, document)
            edit.is_there = True
        edit.version, edit.after, edit.packed = version, after, packed

    async def _write(self, node: RemoteNode, edits: Sequence[_Edit]) -> None:
        """Send the decided documents."""
        changes = [
            Change(edit.doc_id, edit.version, edit.packed.value, edit.packed.sidecar)
            for edit in edits
            if edit.packed is not None
        ]
        asked = WriteStored(self._bucket.uuid, changes, self._is_durable)
        try:
            made = (await node.ask(asked, WrittenList)).changes
            if len(made) != len(changes):
                raise OutcomeUnknownError(str(nonsense()), code="node_failed")
        except OutcomeUnknownError as error:
            for edit in edits:
                edit.lost = error
            return
        except MillstreamError as error:
            for edit in edits:
                self._not_written(edit, error)
            return
        for edit, one in zip(edits, made, strict=True):
            await self._answered(node, edit, one)

    async def _answered(
        self, node: RemoteNode, edit: _Edit, one: Placed | Changed | Lacking | Refused
    ) -> None:
        match one:
            case Placed(seqno=seqno):
                partition = partition_of(edit.key, self._bucket.partition_count)
                edit.result = Written(partition, seqno, edit.after)
            case Lacking(blobs=blobs):
                try:
                    for name in blobs:
                        await self._give(node, edit, name)
                except MillstreamError as error:
                    edit.fail(error)
            case Refused():
                self._not_written(edit, error_of(one))

    def _not_written(self, edit: _Edit, error: MillstreamError) -> None:
        """Handle a change that a node has not made: retry where another node will have it."""
        if has_moved(error) or (self._router.is_managed and error.code == "node_failed"):
            edit.why = error
        else:
            edit.fail(error)

    async def _give(self, node: RemoteNode, edit: _Edit, name: bytes) -> None:
        """Send the bytes of an attachment to the owner of the document."""
        if (node.at, name) in self._given or edit.after is None:
            return
        contents = edit.after.contents.values()
        attachments = [one for content in contents for one in content.attachments.values()]
        length = next((one.stored_length for one in attachments if one.sha256 == name), None)
        if length is None:
            raise nonsense()
        pieces = self._own.open_blob(self._bucket.name, name, 0, length)
        first = await anext(pieces, b"")  # it is here, or rejected before anything is sent
        await node.give_blob(name, _chained(first, pieces))
        self._given.add((node.at, name))


async def _chained(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


def _decided(
    decide: Decide, document: StoredDocument | None
) -> tuple[StoredDocument | None, Packed | None]:
    """Return the result of a decision, and that result as it is written."""
    after = decide(document)
    return after, None if after is None else pack(after)


def _bytes_of(packed: Packed | None) -> int:
    return 0 if packed is None else len(packed.value or b"") + len(packed.sidecar)


def _contended(doc_id: str, times: int) -> UnavailableError:
    return UnavailableError(
        f"document {doc_id!r} changed {times} times while this change of it was made; try again",
        code="temporarily_unavailable",
    )
