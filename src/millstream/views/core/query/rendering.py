"""Answers of queries as JSON text, joined from the texts that rows are kept as.

Invariants:
1. A row is a line: its texts are JSON without line ends, rows are joined by `SEPARATOR`.
2. Pieces come as those of what is answered do, if need be empty; no row is split between two.

Elsewhere: what is answered (`views.core.query.executor`), documents beside the rows (who has
them).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from millstream.views.core.rows import pairs_of_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from millstream.views.core.query.executor import FoundRows, Group

__all__ = [
    "SEPARATOR",
    "Finalizer",
    "groups_json",
    "head_text",
    "ids_json",
    "render_groups",
    "render_rows",
    "rendered",
    "rows_json",
    "tail_text",
]

SEPARATOR: Final = b",\r\n"
_HEAD_END: Final = b'"rows":[\r\n'
_TAIL_BYTES: Final = 3
_PLAIN: Final = re.compile(rb'[^"\\\x00-\x1f]*').fullmatch


class Finalizer(Protocol):
    """The reduces of a tree (`views.core.reduce.reductions`)."""

    def finalize(self, number: int, partial: bytes) -> Any:
        """Return the value that a query shows of a partial result."""


def head_text(
    total_rows: int | None = None, offset: int | None = None, update_seq: str | None = None
) -> bytes:
    """Return an answer up to its first row; what is None is left out."""
    members = {"total_rows": total_rows, "offset": offset, "update_seq": update_seq}
    given = {name: value for name, value in members.items() if value is not None}
    return msgspec.json.encode(given)[:-1] + (b"," if given else b"") + _HEAD_END


def tail_text(errors: Sequence[Any] = ()) -> bytes:
    """Return an answer's end behind its last row."""
    if not errors:
        return b"\r\n]}\n"
    return b'\r\n],"errors":' + msgspec.json.encode(errors) + b"}\n"


def rendered(head: bytes, pieces: Iterable[bytes], tail: bytes) -> Iterator[bytes]:
    """Yield an answer of a head, pieces with a separator between two, and a tail."""
    yield head
    is_first = True
    for piece in pieces:
        if piece and not is_first:
            piece = SEPARATOR + piece
        is_first = is_first and not piece
        yield piece
    yield tail


def render_rows(found: FoundRows, update_seq: str | None = None) -> Iterator[bytes]:
    """Yield the whole answer of a map query."""
    pieces = (rows_json(keys, values) for _, keys, values in found.pieces)
    head = head_text(found.total_rows, found.offset, update_seq)
    return rendered(head, pieces, tail_text())


def rows_json(keys: Sequence[bytes], values: Sequence[bytes]) -> bytes:
    """Return rows as JSON objects, joined by `SEPARATOR`. Hot path."""
    ids = ids_json(keys)
    all_texts = pairs_of_all(values)
    try:
        return SEPARATOR.join(
            [
                b'{"id":%b,"key":%b,"value":%b}' % (doc_id, key, value)
                for doc_id, (key, value) in zip(ids, all_texts, strict=True)
            ]
        )
    except ValueError:  # some document emitted equal keys repeatedly
        return SEPARATOR.join(
            [
                b'{"id":%b,"key":%b,"value":%b}' % (doc_id, texts[at], texts[at + 1])
                for doc_id, texts in zip(ids, all_texts, strict=True)
                for at in range(0, len(texts), 2)
            ]
        )


def ids_json(keys: Sequence[bytes]) -> list[bytes]:
    """Return the JSON texts of the document ids in row keys. Hot path."""
    ids = []
    for key in keys:
        end = len(key) - _TAIL_BYTES
        ids.append(key[end - int.from_bytes(key[-2:], "big") : end])
    if _PLAIN(b"".join(ids)):
        return [b'"%b"' % doc_id for doc_id in ids]
    encode = msgspec.json.encode
    return [encode(doc_id.replace(b"\0\xff", b"\0").decode(errors="replace")) for doc_id in ids]


def render_groups(
    pieces: Iterable[Sequence[Group]],
    finalizer: Finalizer,
    number: int,
    update_seq: str | None = None,
) -> Iterator[bytes]:
    """Yield the whole answer of a reduce query; `number`: of the reduce among the tree's."""
    texts = (groups_json(groups, finalizer, number) for groups in pieces)
    return rendered(head_text(update_seq=update_seq), texts, tail_text())


def groups_json(groups: Sequence[Group], finalizer: Finalizer, number: int) -> bytes:
    """Return groups as JSON objects, joined by `SEPARATOR`."""
    encode, finalize = msgspec.json.encode, finalizer.finalize
    return SEPARATOR.join(
        [
            b'{"key":%b,"value":%b}' % (group.key_json, encode(finalize(number, group.partial)))
            for group in groups
        ]
    )
