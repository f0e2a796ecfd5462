"""Bodies of queries that may be large, interpreted at once; what comes back is quickly passed on.

Invariants:
1. What is returned asks for the same as the body.
2. It has few values, however many keys the body has: they are packed, or are JSON text.

Elsewhere: parameters (`views.core.query.parameters`), lists of documents (`gateway.core.listing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, overload

import msgspec

from millstream.documents.large_texts import Slices
from millstream.views.core.query.parameters import (
    KNOWN_NAMES,
    body_options,
    multi_options,
    parse_query,
)

__all__ = ["PORTION_KEYS", "PackedKeys", "view_options", "view_queries"]

PORTION_KEYS: Final = 500
"""Keys that are unpacked at a time."""
_TEXT_BYTES_MIN: Final = 1024
"""A longer value is passed on as its text."""
_encode: Final = msgspec.json.Encoder().encode
_keys_of: Final = msgspec.json.Decoder(list[Any]).decode


class PackedKeys(Sequence[Any]):
    """Keys of a query, some in each of several texts."""

    def __init__(self, keys: Sequence[Any]) -> None:
        self._length = len(keys)
        begins = range(0, len(keys), PORTION_KEYS)
        self._texts = Slices([_encode(keys[begin : begin + PORTION_KEYS]) for begin in begins])

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = range(self._length)[index]
        return _keys_of(self._texts[at // PORTION_KEYS])[at % PORTION_KEYS]

    def __iter__(self) -> Iterator[Any]:
        for text in self._texts:
            yield from _keys_of(text)

    def __reversed__(self) -> Iterator[Any]:
        for text in reversed(self._texts):
            yield from reversed(_keys_of(text))


def view_options(body: bytes, url: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checked parameters of a query of a view; large values as their texts.

    Args:
        body: of the request; empty: there is none.
        url: parameters of the address; they win.

    Raises:
        UsageError: as `body_options` and `parse_query`.
    """
    return _checked((body_options(body) | dict(url)).items())


def view_queries(body: bytes, url: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the same of each query in a body with `queries`; those in the body win.

    Raises:
        UsageError: as `multi_options` and `parse_query`.
    """
    return [_checked((dict(url) | options).items()) for options in multi_options(body)]


def _checked(options: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    known = {name: value for name, value in options if name in KNOWN_NAMES}
    parse_query(known)
    return {name: _passed_on(value) for name, value in known.items()}


def _passed_on(value: Any) -> Any:
    if not isinstance(value, str | list | dict):
        return value
    text = _encode(value)
    return value if len(text) < _TEXT_BYTES_MIN else msgspec.Raw(text)
