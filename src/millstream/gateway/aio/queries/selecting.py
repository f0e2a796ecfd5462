"""Conditions on documents, worked out where they do not hold the loop.

Invariants:
1. What may take more than `STEPS_IN_LOOP_MAX` steps runs in a thread. There is one, so that the
   loop competes with no more than one for the interpreter.
2. The documents of one query are worked out one after the other.

Elsewhere: conditions (`views.core.mango`), who asks (`mango_pages`, `changes_pages`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from millstream.views.core.mango.selectors import Selector

__all__ = ["STEPS_IN_LOOP_MAX", "worked_out"]

STEPS_IN_LOOP_MAX: Final = 4_000
"""Bytes of a document times steps for each: a few milliseconds if all of them are needed."""
_THREADS: Final = ThreadPoolExecutor(1, "selectors")
_Result = TypeVar("_Result")


async def worked_out(selector: Selector, text_bytes: int, call: Callable[[], _Result]) -> _Result:
    """Return the result of a call that applies a selector to a document of this many bytes."""
    if text_bytes * selector.steps_per_byte <= STEPS_IN_LOOP_MAX:
        return call()
    return await asyncio.get_running_loop().run_in_executor(_THREADS, call)
