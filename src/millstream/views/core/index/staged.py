"""The bytes of staged files, which an outside writer uploads before a commit.

A file is a sequence of blocks: length (u32), crc32 of the body (u32), body. The last block has no
body. A body is msgpack:

    rows         [[key, partition, value], ...]                      sorted by key, over the file
    documents    [[partition, id, [[tree, encoded key, JSON key, JSON value], ...]], ...]

Rows are those of the back-index or of one tree, for a first build. Documents are the changed ones,
for a later commit.

Invariants:
1. A truncated file, or one with a changed byte, is refused before its last block is used.

Elsewhere: their place (`views.aio.indexing.staging`), who makes them
(`millstream.pipelines.index`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import IO, Final, TypeVar
from zlib import crc32

import msgspec

from millstream.errors import UsageError
from millstream.views.core.index.header import DocumentRows

__all__ = [
    "BLOCK_BYTES",
    "BLOCK_BYTES_MAX",
    "BLOCK_ROWS",
    "END",
    "Row",
    "block_of_documents",
    "block_of_rows",
    "blocks_of",
    "read_documents",
    "read_rows",
]

Row = tuple[bytes, int, bytes]
"""Key, partition, value."""
BLOCK_ROWS: Final = 512
"""Rows or documents of a block, as writers here make them."""
BLOCK_BYTES: Final = 4 * 1024 * 1024
"""A larger block is made two, unless it is of one row or document."""
BLOCK_BYTES_MAX: Final = 256 * 1024 * 1024
"""A block that a file may have: some documents may emit much."""
_HEAD: Final = Struct(">II")
END: Final = _HEAD.pack(0, 0)
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_rows: Final = msgspec.msgpack.Decoder(list[Row]).decode
_decode_documents: Final = msgspec.msgpack.Decoder(list[DocumentRows]).decode
_Item = TypeVar("_Item")


def block_of_rows(rows: Sequence[Row]) -> bytes:
    """Return some rows as a block; at least one."""
    return _block(_encode(rows))


def block_of_documents(documents: Sequence[DocumentRows]) -> bytes:
    """Return some documents as a block; at least one."""
    return _block(_encode(documents))


def blocks_of(items: Sequence[Row] | Sequence[DocumentRows]) -> Iterator[bytes]:
    """Yield rows, or documents, as blocks; nothing for none."""
    for at in range(0, len(items), BLOCK_ROWS):
        yield from _halves(items[at : at + BLOCK_ROWS])


def _halves(items: Sequence[Row] | Sequence[DocumentRows]) -> Iterator[bytes]:
    body = _encode(items)
    if len(body) <= BLOCK_BYTES or len(items) == 1:
        yield _block(body)
    else:
        middle = len(items) // 2
        yield from _halves(items[:middle])
        yield from _halves(items[middle:])


def _block(body: bytes) -> bytes:
    return _HEAD.pack(len(body), crc32(body)) + body


def read_rows(file: IO[bytes], name: str) -> Iterator[list[Row]]:
    """Yield the blocks of a file of rows.

    Args:
        file: at its beginning.
        name: said where it cannot be used.

    Raises:
        UsageError: `bad_run`: it is cut, damaged, or not in order.
    """
    last = b""
    for rows in _blocks(file, name, _decode_rows):
        if rows[0][0] < last:
            raise _bad(name, "its rows are not in order")
        last = rows[-1][0]
        yield rows


def read_documents(file: IO[bytes], name: str) -> Iterator[list[DocumentRows]]:
    """Yield the blocks of a file of documents; as `read_rows`."""
    return _blocks(file, name, _decode_documents)


def _blocks(
    file: IO[bytes], name: str, decode: Callable[[bytes], list[_Item]]
) -> Iterator[list[_Item]]:
    while True:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise _bad(name, "it is cut")
        size, checksum = _HEAD.unpack(head)
        if not size:
            return
        if size > BLOCK_BYTES_MAX:
            raise _bad(name, f"a block of {size} bytes")
        body = file.read(size)
        if len(body) < size or crc32(body) != checksum:
            raise _bad(name, "it is cut, or its checksum differs")
        try:
            items = decode(body)
        except msgspec.MsgspecError as error:
            raise _bad(name, str(error)) from error
        if items:
            yield items


def _bad(name: str, why: str) -> UsageError:
    return UsageError(f"staged file {name!r} cannot be used: {why}", code="bad_run")
