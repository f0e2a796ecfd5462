"""Answers of views with the document beside each row (`include_docs`).

An answer comes as text, one row per line. If the value of a row is an object with `_id`, the row
gets that document, in the revision `_rev` if there is one. Other rows get the document that
emitted them. A missing document is null.

Invariants:
1. Documents are read in their current state, not as they were indexed.
2. At most `PORTION_ROWS_MAX` rows, and documents of about `PORTION_BYTES` and one more, are
   buffered before they are sent. Then the loop gets control.

3. A document comes from the node that has its partition active by the map.

Elsewhere: the rows (`views.core.query.rendering`), documents as text
(`views.core.design.documents`), reads over nodes (`databases.documents.distributed_reads`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from itertools import compress
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from millstream.databases.documents.distributed_reads import DistributedReads, Places
from millstream.databases.routing import Node
from millstream.documents.json_text import LARGE_BYTES
from millstream.documents.reading import Shown, text_of
from millstream.documents.sent import is_legal_id
from millstream.documents.stored import StoredDocument, load
from millstream.errors import MillstreamError, UsageError
from millstream.gateway.aio.documents.attaching import in_base64, in_pieces, inflated
from millstream.gateway.aio.documents.documents_out import INLINE_BYTES_MAX
from millstream.gateway.aio.room import hold_copies
from millstream.gateway.core.api.stored import Stored
from millstream.kv.aio.documents.revision_store import QUICK_SIDE_BYTES_MAX
from millstream.model.sides import has_sidecar
from millstream.runtime.pace import Turns
from millstream.views.core.design.documents import Documents

__all__ = [
    "PORTION_BYTES",
    "PORTION_ROWS_MAX",
    "AskedDocument",
    "DistributedTexts",
    "StoredTexts",
    "WithDocuments",
]

PORTION_ROWS_MAX: Final = 100
PORTION_BYTES: Final = 256 * 1024
_LINE_END: Final = b"\r\n"
_ROW: Final = b'{"id":'
_BRACE: Final = ord("{")
ReadBlob = Callable[[bytes, int, int], AsyncIterator[bytes]]


class _Row(msgspec.Struct):
    id: str
    value: msgspec.Raw


class _Link(msgspec.Struct):
    id: Any = msgspec.field(name="_id", default=None)
    rev: Any = msgspec.field(name="_rev", default=None)


_row: Final = msgspec.json.Decoder(_Row).decode
_link: Final = msgspec.json.Decoder(_Link).decode


class _Line(NamedTuple):
    """A line of an answer, and the document that belongs to it."""

    text: bytes
    asked: AskedDocument | None


class AskedDocument(NamedTuple):
    """A document that belongs to a row."""

    id: str
    rev: Any = None
    """Only in this revision; None: in its current one."""
    attachments: bool = False
    """Include the data of its attachments."""


class Answer(Protocol):
    """The answer to which documents are added."""

    @property
    def head(self) -> Mapping[str, Any]:
        """What is known before the first row."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return the JSON text in pieces."""

    async def close(self) -> None:
        """End the answer early."""


class WithDocuments:
    """An answer whose rows have documents.

    Args:
        answer: without documents.
        documents: their source.
        attachments: whether the data of attachments is included.
    """

    def __init__(
        self, answer: Answer, documents: DistributedTexts, *, attachments: bool = False
    ) -> None:
        self._answer = answer
        self._documents = documents
        self._attachments = attachments

    @property
    def head(self) -> Mapping[str, Any]:
        """What is known before the first row."""
        return self._answer.head

    async def close(self) -> None:
        """End the answer early."""
        await self._answer.close()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the JSON text in pieces.

        Raises:
            UnavailableError: `not_my_partition`, `node_failed`; what the answer itself raises.
        """
        rest = b""
        async for piece in self._answer:
            *lines, rest = (rest + piece).split(_LINE_END)
            for at in range(0, len(lines), PORTION_ROWS_MAX):
                async for text in self._completed(lines[at : at + PORTION_ROWS_MAX]):
                    yield text
        yield rest

    async def _completed(self, lines: list[bytes]) -> AsyncIterator[bytes]:
        """Yield whole lines; rows have their documents."""
        cut = [
            _Line(line, self._asked_of(line) if line.startswith(_ROW) else None) for line in lines
        ]
        asked = [line.asked for line in cut if line.asked is not None]
        done, size, turns = list[bytes](), 0, Turns()
        async with aclosing(self._documents.texts(asked)) as texts:
            for line in cut:
                text = line.text
                if line.asked is not None:
                    text = _completed_row(text, await anext(texts))
                await turns.give()
                done.append(text)
                size += len(text)
                if size >= PORTION_BYTES:
                    yield _LINE_END.join([*done, b""])
                    done, size = [], 0
                    await asyncio.sleep(0)
        if done:
            yield _LINE_END.join([*done, b""])
        await asyncio.sleep(0)

    def _asked_of(self, line: bytes) -> AskedDocument:
        row = _row(line.removesuffix(b","))
        if memoryview(row.value)[0] == _BRACE:
            link = _link(row.value)
            if isinstance(link.id, str):
                return AskedDocument(link.id, link.rev, self._attachments)
        return AskedDocument(row.id, None, self._attachments)


def _completed_row(line: bytes, document: bytes | None) -> bytes:
    comma = b"," if line.endswith(b",") else b""
    text = line[: -len(comma)] if comma else line
    return b'%b,"doc":%b}%b' % (text[:-1], document or b"null", comma)


class DistributedTexts:
    """The documents of a bucket on all nodes.

    Args:
        places: where they are.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._texts = StoredTexts(places.uuid)

    async def texts(self, asked: Sequence[AskedDocument]) -> AsyncGenerator[bytes | None, None]:
        """Yield the text of each document in order; None for a missing one.

        Raises:
            UnavailableError: `not_my_partition`; `node_failed`, a node cannot be reached.
            MillstreamError: the error that a node answers.
        """
        are_ids = [is_legal_id(one.id) for one in asked]
        documents = list(compress(asked, are_ids))

        async def made(number: int, node: Node, found: Stored | None) -> bytes | None:
            if found is None:
                return None
            return await self._texts.text(documents[number], found, node.open_blob)

        reads = DistributedReads(self._places, made, bytes_max=PORTION_BYTES)
        async with aclosing(reads.read_all([one.id for one in documents])) as texts:
            for is_id in are_ids:
                text = await anext(texts) if is_id else None
                if isinstance(text, MillstreamError):
                    raise text
                yield text


class StoredTexts:
    """Makes texts of the stored documents of a bucket."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid
        self._documents = Documents(uuid, include_design=True)
        self._whole = Documents(uuid, include_design=True, attachments=True)

    async def text(
        self, asked: AskedDocument, kept: Stored, read_blob: ReadBlob | None = None
    ) -> bytes | None:
        """Return the text of the current revision of a document; None: it has none, or another.

        Args:
            asked: which revision, and what is included.
            kept: the document as it is stored.
            read_blob: reads stored bytes of an attachment; needed to include attachments.

        Raises:
            UnavailableError: `blob_missing`.
            UsageError: `too_large`: the requested attachments exceed the limit of one text.
        """
        if len(kept.frame) <= LARGE_BYTES and len(kept.side) <= QUICK_SIDE_BYTES_MAX:
            found = self._document(asked, kept)
        else:
            if len(kept.frame) > LARGE_BYTES:
                hold_copies(len(kept.frame))
            found = await asyncio.to_thread(self._document, asked, kept)
        if found is None or isinstance(found, bytes):
            return found
        assert read_blob is not None, "who has files can read them"
        return await self._with_attachments(asked.id, found, read_blob)

    async def _with_attachments(
        self, doc_id: str, document: StoredDocument, read_blob: ReadBlob
    ) -> bytes:
        """Return a winner's text with the data of its attachments."""
        winner = document.winner
        content = document.contents[winner.rev]
        size = sum(one.length for one in content.attachments.values())
        if size > INLINE_BYTES_MAX:
            raise UsageError(
                f"attachments of document {doc_id!r} have {size} bytes, too many to stand in a "
                "view: ask without attachments, and for the document itself",
                code="too_large",
            )
        hold_copies(size)
        data: dict[str, list[bytes]] = {}
        for name, one in content.attachments.items():
            pieces = in_pieces(content.value or b"")
            if one.sha256:
                stored = read_blob(one.sha256, 0, one.stored_length)
                pieces = inflated(stored) if one.encoding else stored
            data[name] = [piece async for piece in in_base64(pieces)]
        return text_of(doc_id, document, winner, Shown(conflicts=True), data=data)

    def _document(self, asked: AskedDocument, kept: Stored) -> bytes | StoredDocument | None:
        """Return a text, or a document whose attachments have to be read first."""
        documents = self._whole if asked.attachments else self._documents
        [(_, key, text)] = documents.of([kept.frame], [kept.side]) or [(0, b"", None)]
        if text is None or (asked.rev is not None and _link(text).rev != asked.rev):
            return None
        if asked.attachments and has_sidecar(kept.side):
            document = load(self._uuid, key, kept.frame, kept.side)
            attachments = document.contents[document.winner.rev].attachments
            if any(one.sha256 for one in attachments.values()):
                return document
        return text
