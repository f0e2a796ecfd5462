"""JSON text of documents."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["is_plain_object"]

_BACKSLASH: Final = 0x5C


class _Anything(msgspec.Struct):
    """Decoding into it checks that a text is one JSON object, and keeps nothing."""


_check: Final = msgspec.json.Decoder(_Anything).decode
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NO_DOCUMENT: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


def is_plain_object(value: bytes) -> bool:
    """Return whether a value is a JSON object without a top-level member that begins with `_`."""
    try:
        _check(value)
        if not value.isascii():
            value.decode()
        # A member's name may be written with escapes, so these two decide who is looked at. From
        # the end the search takes half the time.
        return not (
            (value.rfind(b'"_') >= 0 or (_BACKSLASH in value and b"\\u005" in value))
            and any(name.startswith("_") for name in _members(value))
        )
    except _NO_DOCUMENT:
        return False
