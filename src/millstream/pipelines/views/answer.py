"""Cuts the answer of a view, as it arrives, into rows: `(key, value, id)`, unchanged JSON texts.

Invariants:
1. Memory holds one incomplete row, and the rows of one piece.
2. An answer without its last line was cut off. That is an error, never fewer rows.

Elsewhere: the form of answers, one line per row (docs/reference/views.md), requests (`requests`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from millstream.errors import RemoteProtocolError, UnavailableError

__all__ = ["ViewRow", "ViewRows"]

ROW_BYTES_MAX: Final = 128 * 1024 * 1024
"""Most bytes of one row. One document's rows in a view have 64 MiB at most."""


class ViewRow(NamedTuple):
    """One row, or one group, whose `id` is None; `key` and `value` are JSON texts."""

    key: str
    value: str
    id: str | None


class _Row(msgspec.Struct):
    key: msgspec.Raw
    value: msgspec.Raw
    id: str | None = None


_decode: Final = msgspec.json.Decoder(_Row).decode


class ViewRows:
    """Cuts one answer."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._has_begun = False
        self._has_ended = False

    def feed(self, piece: bytes) -> list[ViewRow]:
        """Return the rows that have arrived whole.

        Raises:
            RemoteProtocolError: `bad_answer`, `too_large`.
        """
        self._pieces.append(piece)
        self._held_bytes += len(piece)
        if b"\n" not in piece:
            if self._held_bytes > ROW_BYTES_MAX:
                raise RemoteProtocolError("a row of the view is too long", code="too_large")
            return []
        *lines, rest = b"".join(self._pieces).split(b"\n")
        self._pieces, self._held_bytes = [rest], len(rest)
        rows = []
        for line in lines:
            text = line.rstrip(b"\r")
            if not self._has_begun:
                self._begin(text)
            elif text.startswith(b"{") and not self._has_ended:
                rows.append(_row(text.removesuffix(b",")))
            elif text:
                self._end(text)
        return rows

    def close(self) -> None:
        """End the input.

        Raises:
            UnavailableError: `cut_off`.
        """
        if not self._has_ended:
            raise UnavailableError("the answer of the view was cut off: ask again", code="cut_off")

    def _begin(self, text: bytes) -> None:
        if not text.endswith(b'"rows":['):
            raise _bad(text)
        self._has_begun = True

    def _end(self, text: bytes) -> None:
        if not text.startswith(b"]") or self._has_ended:
            raise _bad(text)
        self._has_ended = True


def _row(text: bytes) -> ViewRow:
    try:
        row = _decode(text)
        return ViewRow(bytes(row.key).decode(), bytes(row.value).decode(), row.id)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _bad(text) from error


def _bad(text: bytes) -> RemoteProtocolError:
    return RemoteProtocolError(f"{text!r:.80} is in the answer of a view", code="bad_answer")
