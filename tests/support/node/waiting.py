"""Waiting for a condition that another process brings about, and tells nobody of."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["WAIT_S", "until"]

WAIT_S = 60.0
"""Far longer than anything takes; a busy machine may be slow."""
_BETWEEN_LOOKS_S = 0.02
_Found = TypeVar("_Found")


def until(
    is_so: Callable[[], _Found],
    say: Callable[[], object] = lambda: "it took too long",
    wait_s: float = WAIT_S,
) -> _Found:
    """Look until it is so, return what was found; fail with what `say` returns after `wait_s`."""
    end = time.monotonic() + wait_s
    while not (found := is_so()):
        assert time.monotonic() < end, say()
        time.sleep(_BETWEEN_LOOKS_S)  # nobody tells: looked at again
    return found
