"""Paths: `/namespace/name/...`, absolute, of names that are checked.

Invariants:
1. A path that was parsed has at least one name, and each is 1 to 255 bytes of UTF-8 without NUL,
   control characters and slashes, and neither `.` nor `..`.

Elsewhere: what is there (`elements`).

Source: V2R2, "Namespace".
"""

from __future__ import annotations

from typing import Final

from millstream.coordination.core.namespace.refused import Refused

__all__ = ["DEPTH_MAX", "NAME_BYTES_MAX", "Path", "joined", "parse_path", "parse_root"]

NAME_BYTES_MAX: Final = 255
"""Most bytes of one name in a path."""
DEPTH_MAX: Final = 128
"""Names in a path: the cost of a command grows with them, of making them all with their square."""
Path = tuple[bytes, ...]
"""The names of a path, that of its namespace first."""


def parse_path(text: bytes) -> Path:
    """Return the names of a path.

    Raises:
        Refused: BADPATH.
    """
    if not text.startswith(b"/"):
        raise Refused("BADPATH", "a path begins with /")
    if text.count(b"/") > DEPTH_MAX:
        raise Refused("BADPATH", f"a path has at most {DEPTH_MAX} names")
    names = tuple(text[1:].split(b"/"))
    for name in names:
        _check(name)
    return names


def parse_root(text: bytes) -> Path:
    """Return the one name of a namespace's path.

    Raises:
        Refused: BADPATH.
    """
    path = parse_path(text)
    if len(path) != 1:
        raise Refused("BADPATH", "a namespace is /name")
    return path


def joined(path: Path) -> bytes:
    """Return a path as text."""
    return b"/" + b"/".join(path)


def _check(name: bytes) -> None:
    if not 0 < len(name) <= NAME_BYTES_MAX:
        raise Refused("BADPATH", f"a name in a path has 1 to {NAME_BYTES_MAX} bytes")
    if name in (b".", b".."):
        raise Refused("BADPATH", "no name is . or ..")
    try:
        text = name.decode()
    except UnicodeDecodeError:
        raise Refused("BADPATH", "a path is UTF-8") from None
    if not text.isprintable() and any(sign < " " or "\x7f" <= sign < "\xa0" for sign in text):
        raise Refused("BADPATH", "a path has no control characters")
