"""Which hot functions run compiled: the optional package `millstream_accelerator`.

The Python function is the specification; its compiled twin answers the same to every input. The
twins are chosen when the module of the function is imported, if the package is installed, was made
for exactly these functions, and MILLSTREAM_PURE is not set in the environment.

Invariants:
1. A package made for other versions of the functions is left alone: `SPECIFICATION` is written in
   both; a unit test holds it to the source of the functions.
2. Without the package everything works the same, slower.

Elsewhere: the twins (the folder accelerator/), why these (docs/design/0007-accelerator.md).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

__all__ = [
    "PURE_VARIABLE",
    "SPECIFICATION",
    "Twin",
    "bind",
    "is_installed",
    "load",
    "state",
    "twins",
    "use_compiled",
]

PURE_VARIABLE: Final = "MILLSTREAM_PURE"
"""Set to anything but 0 it keeps the compiled package out of use."""
SPECIFICATION: Final = "1d051b022689"
"""Digest of the functions that have twins: written anew, here and in the package, by whoever
changes one of them and has made its twin equal."""


class Twin(NamedTuple):
    """A function that has a compiled twin: where it is found, and both of them."""

    owner: Any
    name: str
    python: Callable[..., Any]
    compiled: Callable[..., Any] | None
    also: tuple[Callable[..., Any], ...]
    """Other functions whose work the compiled one does by itself."""


def load() -> tuple[Any, str]:
    """Return the package, None if it is not to be used, and why not."""
    if os.environ.get(PURE_VARIABLE, "0") not in ("", "0"):
        return None, f"python: asked for by {PURE_VARIABLE}"
    try:
        from millstream_accelerator import twins as package
    except ImportError:
        return None, "python: the accelerator is not installed"
    if package.SPECIFICATION != SPECIFICATION:
        return None, "python: the accelerator installed is of another version"
    return package, "compiled"


_package, _state = load()
_twins: list[Twin] = []


def state() -> str:
    """Return whether the hot functions run compiled, and why not."""
    return _state


def is_installed() -> bool:
    """Return whether there are twins to use."""
    return _package is not None


def twins() -> list[Twin]:
    """Return the functions that can have twins, as far as their modules are imported."""
    return list(_twins)


def bind(owner: Any, name: str, *shapes: Any, also: tuple[Callable[..., Any], ...] = ()) -> None:
    """Put the compiled twin of `owner.name` in its place, if there is one.

    `shapes` is what the twin must know: classes whose slots it reads, bounds. Callers must find
    the function through `owner` each time.
    """
    python = getattr(owner, name)
    compiled = None
    if _package is not None:
        with suppress(TypeError):  # a class is not what the twin knows
            compiled = getattr(_package, f"bind_{name}")(owner, python, *shapes)
    _twins.append(Twin(owner, name, python, compiled, also))
    if compiled is not None:
        setattr(owner, name, compiled)


def use_compiled(wanted: bool) -> bool:
    """Choose for the whole process, between requests; for tests. Return whether all could be."""
    for twin in _twins:
        setattr(twin.owner, twin.name, (wanted and twin.compiled) or twin.python)
    return not wanted or all(twin.compiled for twin in _twins)
