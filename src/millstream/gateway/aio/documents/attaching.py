"""Bytes of attachments on their way in and out.

Invariants:
1. Bytes are durable before a document that names them is written.
2. Of an attachment that is not in memory already no more than `PIECE_BYTES` are at a time.

Elsewhere: which attachments a document has after a change (`documents.updating`).
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from millstream.documents.stored import Attachment
from millstream.errors import UsageError
from millstream.gateway.core.api.documents import DocumentApi
from millstream.gateway.core.attachments import (
    ATTACHMENT_BYTES_MAX,
    ATTACHMENTS_MAX,
    NOTHING_SAID,
    Said,
    checked_name,
    checked_type,
    decoded,
    is_compressible,
)
from millstream.runtime.pace import Turns

__all__ = [
    "BASE64_PIECE_CHARACTERS", "PIECE_BYTES", "content_of", "content_type_of", "in_base64",
    "in_pieces", "inflated", "keep", "keep_inline",
]  # fmt: skip

PIECE_BYTES: Final = 256 * 1024
BASE64_PIECE_CHARACTERS: Final = PIECE_BYTES
"""Characters of data in a document that are decoded at a time: a multiple of four."""
_GZIP_LEVEL: Final = 8
_SMALL: Final = 8 * 1024
_GZIP_WINDOW: Final = 31
"""zlib's way to say: with a gzip header."""
_DEFAULT_TYPE: Final = "application/octet-stream"


async def keep(
    documents: DocumentApi,
    bucket: str,
    pieces: AsyncIterator[bytes],
    content_type: str,
    encoding: str = "",
    said: Said = NOTHING_SAID,
) -> Attachment:
    """Keep the bytes of an attachment and describe it; the generation is filled in later.

    Args:
        documents: of the node.
        bucket: the database.
        pieces: the bytes, compressed already where `encoding` says gzip.
        content_type: of the attachment.
        encoding: "gzip" or "".
        said: of the bytes as they come.

    Raises:
        UsageError: `bad_request`, `attachment_too_large`, `content_md5_mismatch`.
    """
    counted = _Counted(pieces, said, is_gzip=encoding == "gzip")
    source: AsyncIterator[bytes] = counted.pass_on()
    if not encoding and is_compressible(content_type):
        encoding, source = "gzip", _deflated(source)
    blob = await documents.put_blob(bucket, source)
    return Attachment(
        content_type=content_type, revpos=0, length=counted.length, md5=blob.md5,
        sha256=blob.sha256, encoding=encoding, stored_length=blob.length,
    )  # fmt: skip


class _Counted:
    """Passes bytes on and counts them as they were before they were compressed."""

    def __init__(self, pieces: AsyncIterator[bytes], said: Said, *, is_gzip: bool) -> None:
        self._pieces = pieces
        self._said = said
        self._digest = hashlib.md5(usedforsecurity=False) if said.md5 else None
        self._inflate = zlib.decompressobj(_GZIP_WINDOW) if is_gzip else None
        self._stored = 0
        self.length = 0

    async def pass_on(self) -> AsyncIterator[bytes]:
        async for piece in self._pieces:
            self._stored += len(piece)
            await self._count(piece)
            if max(self.length, self._stored) > ATTACHMENT_BYTES_MAX:
                raise UsageError(
                    f"an attachment has at most {ATTACHMENT_BYTES_MAX} bytes",
                    code="attachment_too_large",
                )
            if self._digest is not None:
                self._digest.update(piece)
            yield piece
        self._check()
        if self._inflate is not None and not self._inflate.eof:
            raise UsageError("the attachment is no whole gzip stream", code="bad_request")

    def _check(self) -> None:
        """Refuse bytes that are not those that the client spoke of."""
        said = self._said
        if said.length is not None and said.length != self._stored:
            raise UsageError(
                f"an attachment of {said.length} bytes came with {self._stored}",
                code="bad_request",
            )
        if self._digest is not None and self._digest.digest() != said.md5:
            raise UsageError("Possible message corruption.", code="content_md5_mismatch")

    async def _count(self, piece: bytes) -> None:
        inflate = self._inflate
        if inflate is None:
            self.length += len(piece)
            return
        try:
            rest = piece
            while rest and self.length <= ATTACHMENT_BYTES_MAX:
                if inflate.eof:
                    raise UsageError("bytes behind the end of the gzip", code="bad_request")
                self.length += len(inflate.decompress(rest, PIECE_BYTES))
                rest = inflate.unconsumed_tail
                await asyncio.sleep(0)  # a piece may hold a thousand of such
        except zlib.error as error:
            raise UsageError(f"the attachment is no gzip: {error}", code="bad_request") from error
        if inflate.unused_data:
            raise UsageError("bytes behind the end of the gzip", code="bad_request")


async def _deflated(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    squeeze = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    async for piece in pieces:
        # It takes 40 ms for a piece of full length.
        compress = squeeze.compress
        whole = (
            compress(piece) if len(piece) < _SMALL else await asyncio.to_thread(compress, piece)
        )
        if whole:
            yield whole
    yield await asyncio.to_thread(squeeze.flush)


async def inflated(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield what was compressed as it was."""
    inflate = zlib.decompressobj(_GZIP_WINDOW)
    async for piece in pieces:
        rest = piece
        while rest:
            data = inflate.decompress(rest, PIECE_BYTES)
            rest = inflate.unconsumed_tail
            if data:
                yield data
    data = inflate.flush()
    if data:
        yield data


async def keep_inline(
    documents: DocumentApi, bucket: str, table: Mapping[str, Any], *, is_replicated: bool = False
) -> dict[str, Attachment]:
    """Keep the attachments whose bytes stand in their document.

    Args:
        documents: of the node.
        bucket: the database.
        table: `_attachments` as it was sent.
        is_replicated: a peer has them: what it judged good is taken.

    Raises:
        UsageError: `bad_request`.
    """
    if len(table) > ATTACHMENTS_MAX and not is_replicated:
        raise UsageError(
            f"a document has at most {ATTACHMENTS_MAX} attachments", code="bad_request"
        )
    kept: dict[str, Attachment] = {}
    for name, entry in table.items():
        checked_name(name, is_replicated=is_replicated)
        if not isinstance(entry, dict):
            raise UsageError(f"Attachment {name!r} must be an object", code="bad_request")
        if "data" in entry:
            kind = content_type_of(entry)
            encoding = "gzip" if entry.get("encoding") == "gzip" else ""
            pieces = _decoded(entry["data"])
            kept[name] = await keep(documents, bucket, pieces, kind, encoding)
    return kept


def content_type_of(entry: Mapping[str, Any]) -> str:
    """Return the type that an entry says."""
    return checked_type(entry.get("content_type", _DEFAULT_TYPE))


async def _decoded(data: object) -> AsyncIterator[bytes]:
    """Yield the bytes of an inline attachment; raises as `decoded`."""
    if not isinstance(data, str):
        decoded(data)  # which refuses it
        return
    turns = Turns()
    for begin in range(0, len(data), BASE64_PIECE_CHARACTERS):
        end = begin + BASE64_PIECE_CHARACTERS
        yield decoded(data[begin:end], is_last=end >= len(data))
        await turns.give()


async def in_pieces(data: bytes) -> AsyncIterator[bytes]:
    """Yield bytes, `PIECE_BYTES` at a time."""
    for begin in range(0, len(data), PIECE_BYTES):
        yield data[begin : begin + PIECE_BYTES]


async def in_base64(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield bytes in base64, others having turns meanwhile."""
    rest, turns = b"", Turns()
    async for piece in pieces:
        data = rest + piece
        whole = len(data) // 3 * 3
        rest = data[whole:]
        yield b64encode(data[:whole])
        await turns.give()
    yield b64encode(rest)


def content_of(
    documents: DocumentApi, bucket: str, attachment: Attachment, *, is_plain: bool
) -> AsyncIterator[bytes]:
    """Return the bytes of an attachment; `is_plain`: not compressed, however they are stored."""
    stored = documents.open_blob(bucket, attachment.sha256, 0, attachment.stored_length)
    return inflated(stored) if is_plain and attachment.encoding else stored
