"""Texts of documents taken apart without keeping others waiting.

Invariants:
1. A text of more than `SMALL_TEXT_BYTES` is taken apart in a thread, one after the other: it takes
   seconds where somebody wants it to.

Elsewhere: what is in a text (`documents.sent`).
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from millstream.documents.json_text import emptied
from millstream.documents.revision_ids import term_of_body
from millstream.documents.sent import Sent, parse_sent

__all__ = ["SMALL_TEXT_BYTES", "parsed", "shallow"]

SMALL_TEXT_BYTES: Final = 64 * 1024
_thread: Final = ThreadPoolExecutor(1, thread_name_prefix="documents")


async def parsed(text: bytes) -> Sent:
    """Return what a client sent; raises as `parse_sent`."""
    if len(text) <= SMALL_TEXT_BYTES:
        return parse_sent(text)
    return await asyncio.get_running_loop().run_in_executor(_thread, _with_term, text)


async def shallow(text: bytes, depth: int) -> bytes:
    """Return a text without what lies too deep; see `emptied`."""
    return await asyncio.get_running_loop().run_in_executor(_thread, emptied, text, depth)


def _with_term(text: bytes) -> Sent:
    sent = parse_sent(text)
    return sent._replace(term=term_of_body(sent.body, sent.content))
