"""Texts of documents taken apart without keeping others waiting.

Invariants:
1. A text of more than `SMALL_TEXT_BYTES`, or `INTERPRETED_BYTES_MAX`, is taken apart in a helper
   process: it takes seconds where somebody wants it to, and a thread would keep the interpreter's
   lock meanwhile.
2. What a large stored document holds is worked out in the thread, once there is room for it.

Elsewhere: what is in a text (`documents.sent`), the processes (`runtime.long_calls`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from aiohttp import web

from millstream.documents.json_text import (
    LARGE_BYTES,
    is_plain_here,
    judge_large_values,
    parse,
)
from millstream.documents.large_texts import BulkTexts, bulk_texts, large_sent, sliced
from millstream.documents.portions import Assembly, portioned
from millstream.documents.sent import Sent, parse_sent
from millstream.documents.stored import StoredDocument
from millstream.gateway.aio.room import hold_copies
from millstream.runtime.long_calls import call_apart, run_apart
from millstream.runtime.pace import Pace

__all__ = [
    "BRANCHES_QUICK_MAX", "QUICK_BODY_BYTES_MAX", "SMALL_TEXT_BYTES", "beside", "decoded",
    "interpreted",
    "is_heavy", "judge_apart", "parsed", "prepare", "taken_apart", "understood", "worked",
]  # fmt: skip

SMALL_TEXT_BYTES: Final = 64 * 1024
INTERPRETED_BYTES_MAX: Final = 16 * 1024
"""Most bytes of a body whose values are looked at one by one in the loop: 3,000 entries of
`_bulk_get` took 5 ms."""
QUICK_BODY_BYTES_MAX: Final = 8 * 1024
"""Most bytes of a request that is parsed in the loop: a condition of a query takes 8 us, an entry
of `_bulk_get` 2 us."""
BRANCHES_QUICK_MAX: Final = 128
"""Most branches of a document whose text is made in the loop."""
_Result = TypeVar("_Result")
_thread: Final = ThreadPoolExecutor(1, thread_name_prefix="documents")


async def beside(call: Callable[..., _Result], *arguments: Any) -> _Result:
    """Run a call that takes long in the thread; return its result."""
    return await asyncio.get_running_loop().run_in_executor(_thread, call, *arguments)


async def understood(
    request: web.Request, call: Callable[..., _Result], *arguments: Any
) -> _Result:
    """Run a call that interprets a request; if its body is long, in the thread."""
    size = request.content_length if request.body_exists else 0
    if size is not None and size <= QUICK_BODY_BYTES_MAX:
        return call(*arguments)
    return await beside(call, *arguments)


async def parsed(text: bytes) -> Sent:
    """Return what a client sent; raises as `parse_sent`."""
    if len(text) <= SMALL_TEXT_BYTES:
        return parse_sent(text)
    return await run_apart(large_sent, text)


async def decoded(text: bytes) -> Any:
    """Return the value of a JSON text, others having turns meanwhile; raises as `parse`."""
    if len(text) <= SMALL_TEXT_BYTES:
        return parse(text)
    assembly, pace = Assembly(), Pace()
    for step in (await run_apart(portioned, text)).steps():
        assembly.take(step)
        await pace.breathe(0)
    return assembly.value


async def interpreted(call: Callable[..., _Result], text: bytes, *more: object) -> _Result:
    """Return what a function of a module makes of a text; of a large one in a helper process."""
    if len(text) <= INTERPRETED_BYTES_MAX:
        return call(text, *more)
    return await run_apart(call, text, *more)


async def taken_apart(data: bytes, most: int) -> BulkTexts:
    """Return the texts of the documents in a body, `most` at most; raises as `bulk_texts`."""
    if len(data) <= SMALL_TEXT_BYTES:
        return bulk_texts(data, most)
    return await run_apart(sliced, data, most)


def judge_apart() -> None:
    """Judge large values of kv clients in a helper process, if a thread asks."""
    judge_large_values(_judged)


def _judged(value: bytes) -> bool:
    is_in_loop = asyncio._get_running_loop() is not None
    return is_plain_here(value) if is_in_loop else call_apart(is_plain_here, value)


def is_heavy(document: StoredDocument) -> bool:
    """Return whether the text of a document takes long, by its size and its branches."""
    return document.frame_bytes > LARGE_BYTES or len(document.tree.branches) > BRANCHES_QUICK_MAX


async def worked(
    document: StoredDocument, call: Callable[..., _Result], *arguments: Any, **named: Any
) -> _Result:
    """Run a call about a document; if the document is heavy, in the thread."""
    if is_heavy(document):
        return await beside(partial(call, *arguments, **named))
    return call(*arguments, **named)


async def prepare(document: StoredDocument) -> None:
    """Work out in the thread what the leaves of a heavy document hold.

    Raises:
        UnavailableError: `temporarily_unavailable`: there is no room for it.
    """
    if not is_heavy(document):
        return
    if document.frame_bytes > LARGE_BYTES:
        hold_copies(document.frame_bytes)
    await beside(getattr, document, "contents")
