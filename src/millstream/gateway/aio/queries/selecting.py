"""Conditions on documents, worked out where they do not hold the loop.

Invariants:
1. What may take more than `STEPS_IN_LOOP_MAX` steps runs in a thread. There is one, so that the
   loop competes with no more than one for the interpreter.
2. A large document is looked at in a helper process, as its decoder would hold up the loop. So
   is any document by a large selector.
3. The documents of one query are worked out one after the other.

Elsewhere: conditions (`views.core.mango`), who asks (`mango_pages`, `changes_pages`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from millstream.gateway.aio.parsing import SMALL_TEXT_BYTES
from millstream.gateway.core.mango_answers import LargeSelector, judged, judged_by, judged_large
from millstream.runtime.long_calls import run_apart
from millstream.views.core.mango.paths import Path
from millstream.views.core.mango.selectors import Selector

__all__ = ["STEPS_IN_LOOP_MAX", "selected"]

STEPS_IN_LOOP_MAX: Final = 4_000
"""Bytes of a document times steps for each: a few milliseconds if all of them are needed."""
_THREADS: Final = ThreadPoolExecutor(1, "selectors")


async def selected(
    selector: Selector | LargeSelector, paths: Sequence[Path], text: bytes
) -> bytes | None:
    """Return the text to show of a document; None: it does not match.

    Args:
        selector: the condition.
        paths: of the members to show; none: all. A large selector has its own.
        text: of the document; `null` if it no longer exists.
    """
    if isinstance(selector, LargeSelector):
        shown = await run_apart(judged_by, selector, text)
        return text if shown == b"" else shown
    if len(text) > SMALL_TEXT_BYTES:
        shown = await run_apart(judged_large, selector.normal, tuple(paths), text)
        return text if shown == b"" else shown
    if len(text) * selector.steps_per_byte <= STEPS_IN_LOOP_MAX:
        return judged(selector.matches, paths, text)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_THREADS, judged, selector.matches, paths, text)
