"""Conditions on documents, worked out where they do not hold the loop.

Invariants:
1. What may take more than `STEPS_IN_LOOP_MAX` steps runs in a thread. There is one, so that the
   loop competes with no more than one for the interpreter.
2. A large document is looked at in a helper process, as its decoder would hold up the loop. So
   is any document by a large selector. Its text is sent in the pieces that there are: to put
   20 MiB together would hold up the loop for milliseconds.
3. The documents of one query are worked out one after the other, some that are sent together.

Elsewhere: conditions (`views.core.mango`), who asks (`mango_pages`, `changes_pages`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from millstream.documents.reading import Piece
from millstream.gateway.aio.parsing import SMALL_TEXT_BYTES
from millstream.gateway.core.mango_answers import (
    LargeSelector,
    judged,
    judged_by,
    judged_large,
    pass_of,
)
from millstream.runtime.long_calls import run_apart
from millstream.runtime.pace import Turns
from millstream.views.core.mango.paths import Path
from millstream.views.core.mango.selectors import Selector

__all__ = ["SENT_TOGETHER_BYTES_MAX", "STEPS_IN_LOOP_MAX", "selected", "which_pass"]

STEPS_IN_LOOP_MAX: Final = 4_000
"""Bytes of a document times steps for each: a few milliseconds if all of them are needed."""
SENT_TOGETHER_BYTES_MAX: Final = 1024 * 1024
"""Bytes of several documents that are sent to a helper process at a time."""
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


async def which_pass(
    selector: Selector | LargeSelector, documents: Sequence[Sequence[Piece]]
) -> list[bool]:
    """Return which documents match.

    Args:
        selector: the condition.
        documents: pieces of the text of each.
    """
    turns, verdicts = Turns(), [False] * len(documents)
    apart = list[list[int]]()
    room = 0
    for number, pieces in enumerate(documents):
        await turns.give()
        size = sum(map(len, pieces))
        if size <= SMALL_TEXT_BYTES and not isinstance(selector, LargeSelector):
            shown = await selected(selector, (), b"".join(pieces))
            verdicts[number] = shown is not None
            continue
        if size > room:
            apart.append([])
            room = SENT_TOGETHER_BYTES_MAX
        apart[-1].append(number)
        room -= size
    condition = selector if isinstance(selector, LargeSelector) else selector.normal
    for numbers in apart:
        found = await run_apart(pass_of, condition, [documents[number] for number in numbers])
        for number, verdict in zip(numbers, found, strict=True):
            verdicts[number] = verdict
    return verdicts
