"""Streams of selected documents: what a consumer does not want is not sent.

Invariants:
1. Deletions and expirations are always sent.
2. Conditions are worked out where `selected` is iterated: in a worker thread.

Elsewhere: what conditions are (given to the node's streams by `node.engine`), the setting
(`upr.core.control`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from millstream.errors import UsageError
from millstream.wire.frames import change_of, description_bytes, is_put

__all__ = ["SELECTOR_BYTES_MAX", "Condition", "Conditions", "no_conditions", "selected"]

SELECTOR_BYTES_MAX: Final = 4 * 1024
"""Size of the text of a condition."""

Condition = Callable[[bytes, bytes], bool]
"""Whether a document, given as its key and value, may be wanted."""
Conditions = Callable[[bytes], Condition]
"""Makes a condition of its text; raises `UsageError`."""


def no_conditions(text: bytes) -> Condition:
    """Refuse every condition."""
    raise UsageError("conditions are not known here", code="not_supported")


def selected(
    chunks: Iterator[tuple[list[bytes], int]], condition: Condition
) -> Iterator[tuple[list[bytes], int]]:
    """Yield chunks of frames, described or not, without documents that are not wanted."""
    for frames, covered in chunks:
        yield [frame for frame in frames if _is_wanted(frame, condition)], covered


def _is_wanted(frame: bytes, condition: Condition) -> bool:
    if not is_put(frame):
        return True
    change = change_of(frame[description_bytes(frame) :])
    return condition(change.key, change.value)
