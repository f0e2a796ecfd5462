"""Map and reduce functions in Python, registered by the operator under a name.

    @register("flights.by_carrier")
    def by_carrier(document):
        yield document["carrier"], 1

Invariants:
1. A name is registered in code that the operator runs (a module named to the pipeline with
   `--python-module`, or imported before it); nothing that arrives over the network adds one.
2. A function gets a document of its own: what it changes in it nobody else sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from millstream.errors import UsageError
from millstream.views.core.design.design_documents import REGISTERED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["MapFunction", "ReduceFunction", "find_registered", "register"]

if TYPE_CHECKING:
    MapFunction = Callable[[dict[str, Any]], Iterable[tuple[Any, Any]] | None]
    ReduceFunction = Callable[[list[Any] | None, list[Any], bool], Any]

_Function = TypeVar("_Function", bound="Callable[..., Any]")
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {}


def register(name: str) -> Callable[[_Function], _Function]:
    """Register a function under `name`, for `"map": "registered:<name>"` in design documents.

    A map takes a document (a dict with `_id`) and yields (key, value) pairs of JSON values. A
    reduce takes (keys, values, rereduce) as in JavaScript. Registering the same name again
    replaces the function, so that a notebook cell can be run twice.

    Raises:
        UsageError: `bad_name`: empty name.
    """
    if not name:
        raise UsageError("a registered function needs a name", code="bad_name")

    def keep(function: _Function) -> _Function:
        _FUNCTIONS[name] = function
        return function

    return keep


def find_registered(source: str) -> Callable[..., Any]:
    """Return the function that a design document names as `registered:<name>`.

    Raises:
        UsageError: `unknown_function`, with what to do.
    """
    name = source.removeprefix(REGISTERED)
    function = _FUNCTIONS.get(name)
    if function is None:
        known = ", ".join(sorted(_FUNCTIONS)) or "none"
        raise UsageError(
            f"no Python function is registered as {name!r} (registered: {known}); "
            "name the module that registers it with --python-module",
            code="unknown_function",
        )
    return function
