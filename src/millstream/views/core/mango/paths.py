r"""Fields of documents, named by dotted paths.

    "a.b.0"      member b of member a, of that the element 0
    "a\\.b"      the member "a.b" (one backslash in the string itself)

Invariants:
1. A path has at least one name, and no name is empty.
2. What is not there is `NOT_FOUND` where the last object on the way lacks the member, and
   `BAD_PATH` where the way goes through something that has no members of such a name.

Elsewhere: conditions on what is found (`views.core.mango.matching`).
Source: CouchDB's Mango.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from millstream.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["BAD_PATH", "NOT_FOUND", "Path", "Unfound", "at_path", "parse_path", "project"]

Path = tuple[str, ...]
_DOT: Final = re.compile(r"(?<!\\)\.")
_INDEX: Final = re.compile(r"[+-]?[0-9]{1,18}")


class Unfound:
    """Why there is no value."""

    __slots__ = ()


NOT_FOUND: Final = Unfound()
BAD_PATH: Final = Unfound()


def parse_path(field: str) -> Path:
    """Return the names of a field.

    Raises:
        UsageError: `invalid_field_name`: a name in it is empty.
    """
    names = tuple(name.replace("\\", "") for name in _DOT.split(field))
    if "" in names:
        raise UsageError(f"Invalid field name: {field!r}", code="invalid_field_name")
    return names


def at_path(value: Any, path: Path) -> Any:
    """Return what is at a path, `NOT_FOUND` or `BAD_PATH`. Hot path."""
    for name in path:
        if type(value) is dict:
            value = value.get(name, NOT_FOUND)
            if value is NOT_FOUND:
                return NOT_FOUND
        elif type(value) is list:
            at = _index(name, len(value))
            if at is None:
                return BAD_PATH
            value = value[at]
        else:
            return BAD_PATH
    return value


def _index(name: str, size: int) -> int | None:
    """Return the place of an element, None where the array has none of this name."""
    if not _INDEX.fullmatch(name):
        return None
    at = int(name)
    return at if 0 <= at < size else None


def project(document: Any, paths: Iterable[Path]) -> dict[str, Any]:
    """Return an object with some fields of a document only; those that it lacks are left out.

    An element of an array comes as a member of an object, named by its place.
    """
    shown: dict[str, Any] = {}
    for path in paths:
        value = at_path(document, path)
        if not isinstance(value, Unfound):
            _set(shown, path, value)
    return shown


def _set(shown: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *way, last = path
    for name in way:
        inner = shown.get(name)
        if not isinstance(inner, dict):
            if isinstance(inner, list):
                return  # the whole array is shown already
            inner = {}
        # A copy: what is shown whole belongs to the document.
        shown[name] = inner = dict(inner)
        shown = inner
    shown[last] = value
