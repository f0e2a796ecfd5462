"""Mistakes in the real code that whole clusters must find: those of the decisions, and of engines.

Each replaces functions of the real code. The seed is one that finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from simulators.cluster import plants as of_decisions
from simulators.cluster.plants import Plant

PLANTS: Final[dict[str, Plant]] = dict(of_decisions.PLANTS)
FOUND: Final[dict[str, int]] = {}
"""Mistakes that are found, and by which seed."""


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Have the mistake in the code inside."""
    with of_decisions.patched(PLANTS[name]):
        yield
