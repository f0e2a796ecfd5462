"""Answers of views with the document beside each row (`include_docs`).

An answer comes as text, a row a line. A row whose value is an object with `_id` gets the document
that this names, in the revision `_rev` if that is named, too; others the one that emitted them.
Null stands for what is not there.

Invariants:
1. Documents are those of now, not of when they were indexed.
2. At most `PORTION_ROWS_MAX` rows, and documents of about `PORTION_BYTES` and one more, wait to be
   sent; then the loop is given back.

Elsewhere: the rows (`views.core.rendering`), documents as text (`views.core.documents`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from millstream.errors import UnavailableError, UsageError
from millstream.kv.aio.reading_back import with_documents
from millstream.kv.core.bucket import Bucket
from millstream.model.partitions import DESIGN_PREFIX
from millstream.views.core.documents import Documents
from millstream.wire.frames import change_of
from millstream.wire.mcbp import Status

__all__ = ["PORTION_BYTES", "PORTION_ROWS_MAX", "WithDocuments", "refuse_elsewhere"]

PORTION_ROWS_MAX: Final = 100
PORTION_BYTES: Final = 256 * 1024
_LINE_END: Final = b"\r\n"
_ROW: Final = b'{"id":'
_BRACE: Final = ord("{")
_SECOND_NS: Final = 1_000_000_000


class _Row(msgspec.Struct):
    id: str
    value: msgspec.Raw


class _Link(msgspec.Struct):
    id: Any = msgspec.field(name="_id", default=None)
    rev: Any = msgspec.field(name="_rev", default=None)


_row: Final = msgspec.json.Decoder(_Row).decode
_link: Final = msgspec.json.Decoder(_Link).decode


def refuse_elsewhere(bucket: Bucket) -> None:
    """Refuse to include documents of a bucket of which some are active on other nodes.

    Raises:
        UsageError: `not_supported`.
    """
    for partition in bucket.partitions:
        if partition.refusal is Status.NOT_MY_VBUCKET:
            raise UsageError(
                f"partition {partition.partition_id} of bucket {bucket.name!r} is not active on "
                "this node, so its documents cannot be included: ask without include_docs, and "
                "read the documents by their ids",
                code="not_supported",
            )


class Answer(Protocol):
    """The answer that is completed."""

    @property
    def head(self) -> Mapping[str, Any]:
        """What is known before the first row."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return the JSON text in pieces."""

    async def close(self) -> None:
        """No more of it is wanted."""


class WithDocuments:
    """An answer whose rows have documents.

    Args:
        answer: without them.
        bucket: whose documents they are.
        now_ns: Unix time.
    """

    def __init__(self, answer: Answer, bucket: Bucket, now_ns: Callable[[], int]) -> None:
        self._answer = answer
        self._bucket = bucket
        self._now_ns = now_ns
        self._documents = Documents(bucket.uuid, include_design=True)

    @property
    def head(self) -> Mapping[str, Any]:
        """What is known before the first row."""
        return self._answer.head

    async def close(self) -> None:
        """No more of it is wanted."""
        await self._answer.close()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the JSON text in pieces.

        Raises:
            UnavailableError: `not_my_partition`; what the answer itself raises.
        """
        rest = b""
        async for piece in self._answer:
            *lines, rest = (rest + piece).split(_LINE_END)
            async for text in self._completed(lines):
                yield text
        yield rest

    async def _completed(self, lines: list[bytes]) -> AsyncIterator[bytes]:
        """Yield whole lines, rows among them with their documents."""
        done, size = list[bytes](), 0
        for line in lines:
            if line.startswith(_ROW):
                line = await with_documents(partial(self._with_document, line))
            done.append(line)
            size += len(line)
            if len(done) >= PORTION_ROWS_MAX or size >= PORTION_BYTES:
                yield _LINE_END.join([*done, b""])
                done, size = [], 0
                await asyncio.sleep(0)
        if done:
            yield _LINE_END.join([*done, b""])

    def _with_document(self, line: bytes) -> bytes:
        comma = b"," if line.endswith(b",") else b""
        text = line[: -len(comma)] if comma else line
        row = _row(text)
        doc_id, rev = row.id, None
        if memoryview(row.value)[0] == _BRACE:
            link = _link(row.value)
            if isinstance(link.id, str):
                doc_id, rev = link.id, link.rev
        return b'%b,"doc":%b}%b' % (text[:-1], self._document(doc_id, rev) or b"null", comma)

    def _document(self, doc_id: str, rev: Any) -> bytes | None:
        """Return the text of a document, of its present revision only.

        Raises:
            NotInMemory: it has to be read from the disk first.
        """
        key = doc_id.encode(errors="surrogatepass")
        if key.startswith(b"_") and not key.startswith(DESIGN_PREFIX):
            return None
        partition = self._bucket.partition_for(key)
        if partition.refusal is not None:
            raise UnavailableError(
                f"partition {partition.partition_id}, which has document {doc_id!r}, is not "
                "active on this node: ask without include_docs, or the node that the bucket's "
                "map names",
                code="not_my_partition",
                retry="refresh_map",
            )
        entry = partition.entry(key)
        if entry is None:
            return None
        change = change_of(entry.frame)
        is_over = 0 < change.expiry <= self._now_ns() // _SECOND_NS
        found = self._documents.of([entry.frame], [entry.lineage])
        text = found[0][2] if found else None
        if change.is_deleted or is_over or text is None:
            return None
        return text if rev is None or _link(text).rev == rev else None
