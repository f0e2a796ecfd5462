"""Texts of documents taken apart without keeping others waiting.

Invariants:
1. A text of more than `SMALL_TEXT_BYTES` is taken apart in a thread, one after the other: it takes
   seconds where somebody wants it to.
2. What a large stored document holds is worked out in the thread, once there is room for it.

Elsewhere: what is in a text (`documents.sent`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from aiohttp import web

from millstream.documents.json_text import LARGE_BYTES, emptied
from millstream.documents.revision_ids import term_of_body
from millstream.documents.sent import Sent, parse_sent
from millstream.documents.stored import StoredDocument
from millstream.gateway.aio.room import hold_copies

__all__ = [
    "BRANCHES_QUICK_MAX", "QUICK_BODY_BYTES_MAX", "SMALL_TEXT_BYTES", "beside", "is_heavy",
    "parsed", "prepare", "shallow", "understood", "worked",
]  # fmt: skip

SMALL_TEXT_BYTES: Final = 64 * 1024
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
    return await beside(_with_term, text)


async def shallow(text: bytes, depth: int) -> bytes:
    """Return a text without what lies too deep; see `emptied`."""
    return await beside(emptied, text, depth)


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


def _with_term(text: bytes) -> Sent:
    sent = parse_sent(text)
    return sent._replace(term=term_of_body(sent.body, sent.content))
