"""Map and reduce functions of a design document behind one interface, whatever their language.

    mapper = open_mapper(design)
    mapped = mapper.map([document_text(key, value), ...])

Invariants:
1. No document makes a mapper raise: what a function cannot take becomes a MapError.
2. Keys come out in canonical JSON text: no spaces, integral numbers without fraction, so that
   equal keys of equal form have equal texts in both languages.

Elsewhere: the JavaScript process (`views.aio.sandbox`), the registry of Python functions
(`views.core.registered`), built-in reduces (`views.core.reduce`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from millstream.model.partitions import key_from_text
from millstream.views.aio.sandbox import MapError, Mapped, Sandbox
from millstream.views.core.reduce import is_error, overflow_error
from millstream.views.core.reductions import REDUCE_VALUES_MAX
from millstream.views.core.registered import find_registered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.views.core.design import DesignDocument, View

__all__ = [
    "Mapper",
    "PythonMapper",
    "document_id",
    "document_text",
    "open_mapper",
    "reduce_groups",
]

_INTEGRAL_MAX: Final = float(2**53)
_MESSAGE_CHARACTERS_MAX: Final = 200

ReduceCall = tuple[Any, list[Any], bool]


class Mapper(Protocol):
    """Runs the functions of one design document. Blocking, one thread at a time."""

    def map(self, documents: Sequence[bytes]) -> list[Mapped]:
        """Return rows and errors of each document (JSON object text with `_id`)."""

    def reduce(self, view: int, calls: Sequence[ReduceCall]) -> list[Any]:
        """Return the value of each (keys, values, rereduce) call of the view's own reduce."""

    def close(self) -> None:
        """Free what the mapper holds."""


def open_mapper(design: DesignDocument) -> Mapper:
    """Return a mapper with all functions compiled or found.

    Raises:
        UsageError: `compilation_error` or `unknown_function`.
        UnavailableError: the JavaScript process cannot be started.
    """
    if design.language == "python":
        return PythonMapper(design)
    sandbox = Sandbox(design)
    sandbox.compile()
    return sandbox


class _Anything(msgspec.Struct):
    """Decoding into it checks that a text is one JSON object, and keeps nothing."""


_CHECK: Final = msgspec.json.Decoder(_Anything)
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def document_id(key: str) -> str | None:
    r"""Return the document id of a key in its text form, None where the key is none.

    Keys that are not UTF-8, or begin with `_`, are no document ids.
    """
    if key.startswith("\\x"):
        try:
            key = key_from_text(key).decode()
        except ValueError:
            return None
    return None if key.startswith("_") else key


def document_text(key: str, value: bytes) -> bytes | None:
    r"""Return a kv value as document text with `_id`, None where it is no JSON document.

    Args:
        key: text form of the key (`\x` + hex where it is not UTF-8 or begins with `\x`).
        value: as stored. A document is a JSON object without a top-level member whose name
            begins with `_`.
    """
    doc_id = document_id(key)
    body = value.lstrip(b" \t\r\n")
    if doc_id is None or not body.startswith(b"{"):
        return None
    try:
        _CHECK.decode(body)
        # A member's name may be written with escapes, so these two decide who is looked at.
        if (b'"_' in body or b"\\u005" in body) and any(
            name.startswith("_") for name in _MEMBERS.decode(body)
        ):
            return None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    rest = body[1:].lstrip(b" \t\r\n")
    separator = b"" if rest.startswith(b"}") else b","
    return b'{"_id":' + msgspec.json.encode(doc_id) + separator + rest


class PythonMapper:
    """Calls registered Python functions in this process; they are the operator's own code."""

    def __init__(self, design: DesignDocument) -> None:
        self._maps = [find_registered(view.map) for view in design.views]
        self._reduces = [_own_reduce(view) for view in design.views]

    def map(self, documents: Sequence[bytes]) -> list[Mapped]:
        """Return rows and errors of each document."""
        return [self._map_one(document) for document in documents]

    def reduce(self, view: int, calls: Sequence[ReduceCall]) -> list[Any]:
        """Return the value of each call of the view's own reduce."""
        function = self._reduces[view]
        assert function is not None
        return [_reduce_one(function, call) for call in calls]

    def close(self) -> None:
        """Nothing is held."""

    def _map_one(self, document: bytes) -> Mapped:
        rows: list[tuple[int, bytes | msgspec.Raw, bytes | msgspec.Raw]] = []
        errors: list[MapError] = []
        for view, function in enumerate(self._maps):
            try:
                # Decoded once per view: what one function changes, the next does not see.
                pairs = function(msgspec.json.decode(document))
                rows += [(view, _key_text(key), _encode(value)) for key, value in pairs or ()]
            except Exception as error:  # noqa: BLE001 - the function's fault, shown as such
                message = f"{type(error).__name__}: {error}"
                errors.append(MapError(view, message[:_MESSAGE_CHARACTERS_MAX]))
        return Mapped(rows, errors)


_encode: Final = msgspec.json.encode


def _key_text(key: Any) -> bytes:
    return _encode(key if isinstance(key, str | int) or key is None else _canonical(key))


def _canonical(key: Any) -> Any:
    if isinstance(key, float):
        return int(key) if key.is_integer() and abs(key) < _INTEGRAL_MAX else key
    if isinstance(key, list | tuple):
        return [_canonical(element) for element in key]
    if isinstance(key, dict):
        return {name: _canonical(value) for name, value in key.items()}
    return key


def _own_reduce(view: View) -> Callable[..., Any] | None:
    return find_registered(view.reduce) if view.has_own_reduce else None


def _reduce_one(function: Callable[..., Any], call: ReduceCall) -> Any:
    try:
        return msgspec.to_builtins(function(*call))
    except Exception as error:  # noqa: BLE001 - the function's fault, shown as such
        message = f"{type(error).__name__}: {error}"
        return {"error": "reduce_error", "reason": message[:_MESSAGE_CHARACTERS_MAX]}


def reduce_groups(
    mapper: Mapper, view: int, groups: Sequence[tuple[list[Any] | None, list[Any]]]
) -> list[Any]:
    """Return the value of a view's own reduce for each group.

    Args:
        mapper: of the design document.
        view: its number.
        groups: (keys as [key, id] pairs, values) of rows, or (None, partial results).

    Returns:
        One value per group; an error value where the function fails or does not shrink.
    """
    partials: list[list[Any]] = [[] for _ in groups]
    calls: list[ReduceCall] = []
    owners: list[int] = []
    for number, (keys, values) in enumerate(groups):
        for at in range(0, len(values), REDUCE_VALUES_MAX):
            part = slice(at, at + REDUCE_VALUES_MAX)
            calls.append((keys and keys[part], values[part], keys is None))
            owners.append(number)
    for owner, call, result in zip(owners, calls, mapper.reduce(view, calls), strict=True):
        if not is_error(result):
            result = overflow_error(result, len(_encode(call[1]))) or result
        partials[owner].append(result)
    return [_merged(mapper, view, parts) for parts in partials]


def _merged(mapper: Mapper, view: int, partials: list[Any]) -> Any:
    for partial in partials:
        if is_error(partial):
            return partial
    if len(partials) == 1:
        return partials[0]
    return reduce_groups(mapper, view, [(None, partials)])[0]
