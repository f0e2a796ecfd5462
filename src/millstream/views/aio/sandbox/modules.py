"""Modules of the operator, imported for the functions that they register.

Invariants:
1. Only names that the operator gave on a command line or in the settings are imported.

Elsewhere: the registry (`views.core.design.registered`).
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

__all__ = ["load_modules"]


def load_modules(names: Iterable[str]) -> list[ModuleType]:
    """Import modules that are installed or lie in the working directory.

    Raises:
        UsageError: `bad_module`: it is not there, or importing it fails.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    return [_load(name) for name in names]


def _load(name: str) -> ModuleType:
    try:
        return import_module(name)
    except Exception as error:  # the module's fault, whatever it raises while it is run
        raise UsageError(
            f"--python-module {name}: {type(error).__name__}: {error}; give the name of a module "
            "that is installed or lies in the working directory",
            code="bad_module",
        ) from error
