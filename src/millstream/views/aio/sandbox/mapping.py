"""Map and reduce functions of a design document behind one interface for all languages.

    mapper = open_mapper(design)
    mapped = mapper.map([document_text(key, value), ...])

Invariants:
1. No document makes a mapper raise: a failure of a function becomes a MapError.
2. Keys are canonical JSON text: no spaces, integral numbers without fraction. So equal keys of
   equal form have equal texts in both languages.

Elsewhere: the JavaScript process (`views.aio.sandbox.process`), the registry of Python functions
(`views.core.design.registered`), texts of documents (`views.core.design.documents`), rows for an
index (`millstream.views.aio.indexing.index_mapping`), built-in reduces
(`views.core.reduce.values`).
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from millstream.views.aio.sandbox.process import ROWS_PER_DOCUMENT_MAX, MapError, Mapped, Sandbox
from millstream.views.core.design.registered import find_registered
from millstream.views.core.mango.definitions import key_maker, parse_definition
from millstream.views.core.reduce.reductions import REDUCE_VALUES_MAX
from millstream.views.core.reduce.values import is_error, overflow_error, reduce_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.views.core.design.design_documents import DesignDocument, Functions
    from millstream.views.core.reduce.reductions import ReduceCall as TextCall
    from millstream.views.core.reduce.reductions import ReduceResult

__all__ = [
    "Mapper",
    "PythonMapper",
    "QueryMapper",
    "open_functions",
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

    def reduce(self, number: int, calls: Sequence[ReduceCall]) -> list[Any]:
        """Return the value of each (keys, values, rereduce) call of an own reduce."""

    def reduce_texts(self, number: int, calls: Sequence[TextCall]) -> Sequence[ReduceResult]:
        """Do the same with JSON texts."""

    def close(self) -> None:
        """Free what the mapper holds."""

    def stop(self) -> None:
        """End what it is doing, for ever, from any thread; where that cannot be done, nothing.

        The call under way and later ones raise `UnavailableError` (`stopping`).
        """


def open_mapper(design: DesignDocument) -> Mapper:
    """Return a mapper with a map per view of a design document; see `open_functions`."""
    return open_functions(design.functions_by_view())


def open_functions(functions: Functions) -> Mapper:
    """Return a mapper with all functions compiled or found.

    Raises:
        UsageError: `compilation_error` or `unknown_function`.
        UnavailableError: the JavaScript process cannot be started.
    """
    if functions.language == "python":
        return PythonMapper(functions)
    if functions.language == "query":
        return QueryMapper(functions)
    sandbox = Sandbox(functions)
    sandbox.compile()
    return sandbox


class PythonMapper:
    """Calls registered Python functions in this process; they are the operator's own code."""

    def __init__(self, functions: Functions) -> None:
        self._numbered = [(at, find_registered(map_)) for at, map_ in enumerate(functions.maps)]
        self._reduces = {at: find_registered(source) for at, source in functions.reduces}

    def map(self, documents: Sequence[bytes]) -> list[Mapped]:
        """Return rows and errors of each document."""
        return list(map(self._map_one, documents))

    def reduce(self, number: int, calls: Sequence[ReduceCall]) -> list[Any]:
        """Return the value of each call of an own reduce."""
        function = self._reduces[number]
        return [_reduce_one(function, call) for call in calls]

    def reduce_texts(self, number: int, calls: Sequence[TextCall]) -> Sequence[ReduceResult]:
        """Return JSON text, or an error value, for each call given as JSON texts."""
        function = self._reduces[number]
        return [_reduce_text(function, *call) for call in calls]

    def close(self) -> None:
        """Nothing is held."""

    def stop(self) -> None:
        """Nothing can be ended: it runs in this process."""

    def _map_one(self, document: bytes) -> Mapped:
        rows: list[tuple[int, bytes | msgspec.Raw, bytes | msgspec.Raw]] = []
        errors: list[MapError] | None = None
        for view, function in self._numbered:
            try:
                # Decoded once per view: what one function changes, the next does not see.
                pairs = function(_decode(document))
                found = [
                    (
                        view,
                        _encode(key if type(key) in _PLAIN else _canonical(key)),
                        _encode(value),
                    )
                    for key, value in islice(pairs or (), ROWS_PER_DOCUMENT_MAX + 1)
                ]
                if len(rows) + len(found) > ROWS_PER_DOCUMENT_MAX:
                    raise ValueError(
                        f"more than {ROWS_PER_DOCUMENT_MAX} rows of one document: emit fewer, or "
                        "split the document"
                    )
                rows += found
            except Exception as error:  # noqa: BLE001 - the function's fault, shown as such
                errors = [*(errors or ()), MapError(view, _said(error))]
        return Mapped(rows, errors or ())


class QueryMapper:
    """Makes the rows of JSON indexes; they have built-in reduces only."""

    def __init__(self, functions: Functions) -> None:
        self._keys = [
            (at, key_maker(parse_definition(_decode(definition))))
            for at, definition in enumerate(functions.maps)
        ]

    def map(self, documents: Sequence[bytes]) -> list[Mapped]:
        """Return the rows of each document."""
        return list(map(self._map_one, documents))

    def reduce(self, number: int, calls: Sequence[ReduceCall]) -> list[Any]:
        """Return nothing: no index has a reduce of its own."""
        raise AssertionError("a JSON index has no reduce function")

    def reduce_texts(self, number: int, calls: Sequence[TextCall]) -> Sequence[ReduceResult]:
        """Return nothing: no index has a reduce of its own."""
        raise AssertionError("a JSON index has no reduce function")

    def close(self) -> None:
        """Nothing is held."""

    def stop(self) -> None:
        """Nothing can be ended: it runs in this process."""

    def _map_one(self, document: bytes) -> Mapped:
        try:
            decoded = _decode(document)
        except (msgspec.DecodeError, RecursionError) as error:
            return Mapped((), (MapError(-1, _said(error)),))
        keys = [(at, key_of(decoded)) for at, key_of in self._keys]
        return Mapped(
            [(at, _encode(_canonical(key)), b"null") for at, key in keys if key is not None], ()
        )


_encode: Final = msgspec.json.encode
_decode: Final = msgspec.json.decode
_PLAIN: Final = frozenset({str, int, bool, type(None)})
"""Types of which every key is canonical as it is."""


def _canonical(key: Any) -> Any:
    if isinstance(key, float):
        return int(key) if key.is_integer() and abs(key) < _INTEGRAL_MAX else key
    if isinstance(key, list | tuple):
        return [_canonical(element) for element in key]
    if isinstance(key, dict):
        return {name: _canonical(value) for name, value in key.items()}
    return key


def _reduce_one(function: Callable[..., Any], call: ReduceCall) -> Any:
    try:
        return msgspec.to_builtins(function(*call))
    except Exception as error:  # noqa: BLE001 - the function's fault, shown as such
        return reduce_error(_said(error))


def _reduce_text(
    function: Callable[..., Any], keys: bytes, values: bytes, is_again: bool
) -> ReduceResult:
    try:
        return _encode(function(_decode(keys), _decode(values), is_again))
    except Exception as error:  # noqa: BLE001 - the function's fault, shown as such
        return reduce_error(_said(error))


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_MESSAGE_CHARACTERS_MAX]


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
