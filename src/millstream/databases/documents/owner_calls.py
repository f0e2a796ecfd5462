"""Runs an operation at the node that owns a document: here, or where the newest map says.

Invariants:
1. If a node says that it does not have the document, the map is read again, `TRIES_MAX` times,
   `PAUSE_S` apart.
2. A request that was sent and not answered is sent again once, and only if that is harmless.
   Otherwise the result is `ambiguous`.

Elsewhere: places (`databases.documents.document_owners`), many documents at once
(`databases.documents.distributed_updates`, `databases.documents.distributed_reads`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.documents.document_owners import HERE, no_owner, place
from millstream.errors import MillstreamError, OutcomeUnknownError, UnavailableError
from millstream.kv.core.bucket import Bucket

__all__ = ["PAUSE_S", "TRIES_MAX", "ambiguous", "at_owner", "has_moved"]

TRIES_MAX: Final = 10
"""How often the owner of a document is looked up in the newest map until a node has it."""
PAUSE_S: Final = 0.2
"""Pause before the next lookup."""
_A = TypeVar("_A")


async def at_owner(
    bucket: Bucket,
    doc_id: str,
    here: Callable[[], Awaitable[_A]],
    there: Callable[[NodeAt], Awaitable[_A]],
    *,
    is_harmless: bool,
) -> _A:
    """Run an operation at the node that owns a document.

    Args:
        bucket: of the document.
        doc_id: of the document.
        here: runs it on this node.
        there: runs it on another node.
        is_harmless: whether it may be run twice.

    Raises:
        UnavailableError: `not_my_partition`; `node_failed`; `ambiguous`, it may have been done.
        MillstreamError: what `here` or `there` raises.
    """
    may_repeat = is_harmless
    for last in range(TRIES_MAX - 1, -1, -1):
        where = place(bucket, doc_id)
        try:
            if where == HERE:
                return await here()
            if where is not None:
                return await there(where)
        except OutcomeUnknownError as error:
            if not is_harmless:
                raise ambiguous(doc_id, error) from error
            if not may_repeat:
                raise
            may_repeat = False
            continue
        except MillstreamError as error:
            if not has_moved(error) or not last:
                raise
        if last:
            await asyncio.sleep(PAUSE_S)
    raise no_owner(bucket, doc_id)


def has_moved(error: MillstreamError) -> bool:
    """Return whether a node says that another node has the requested data."""
    return error.code == "not_my_partition"


def ambiguous(doc_id: str, error: MillstreamError) -> UnavailableError:
    """Return the error of a change that may or may not have been made."""
    return UnavailableError(
        f"whether {doc_id!r} was changed is not known, look whether it was: {error}",
        code="ambiguous",
    )
