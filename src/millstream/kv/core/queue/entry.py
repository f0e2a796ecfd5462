"""A document in memory, and its size.

Elsewhere: the hash tables (`kv.core.partition.residents`), the changes that refer to entries
(`mutation_queue`).
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

__all__ = ["ENTRY_BYTES", "Entry", "size_of", "value_of"]

ENTRY_BYTES: Final = 240
"""Memory of a document in a hash table besides the bytes of key, frame and side: their objects,
the entry, its places in table and ring, as measured from 100 bytes to 1.5 KiB a document."""


class Entry(Struct, gc=False):
    """A document in memory: its key, its newest frame, tombstones included, and its side.

    Changed in place. The garbage collector does not track it, since there are millions.
    """

    key: bytes
    frame: bytes
    side: bytes
    """Data stored beside the frame: see `model.sides`."""
    is_used: bool = False
    """It was read since eviction last passed it."""


def size_of(entry: Entry) -> int:
    """Return the memory of a document in bytes, as it is counted."""
    return ENTRY_BYTES + len(entry.key) + len(entry.frame) + len(entry.side)


def value_of(frame: bytes) -> bytes:
    """Return the value of a mutation's frame."""
    return frame[55 + (frame[2] << 8 | frame[3]) :]
