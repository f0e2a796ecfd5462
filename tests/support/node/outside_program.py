"""Programs of others that a test starts, and that a machine may not have.

`make test-tools` installs them. Where one is missing, tests that need it skip and say so, which
`make ci` forbids.
"""

from __future__ import annotations

import shutil

import pytest

__all__ = ["outside_program", "skip_without"]


def outside_program(name: str) -> str:
    """Return the name of a program; skip the test that asks where it is not installed."""
    skip_without(name, is_there=shutil.which(name) is not None)
    return name


def skip_without(name: str, *, is_there: bool) -> None:
    """Skip the test that asks where something that `make test-tools` installs is missing."""
    if not is_there:
        pytest.skip(f"{name} is not installed; `make test-tools` installs it")
