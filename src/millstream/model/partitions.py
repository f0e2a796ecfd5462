"""Keys and partitions: which partition owns a key, and the text form of a key.

Invariants:
1. The partition of a key never changes during the life of a bucket (count fixed at creation).
2. The text form is reversible for every byte string a client can write.

Source: the customary CRC-32 mapping of memcached clients that know partitions.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final
from zlib import crc32

__all__ = ["DESIGN_PREFIX", "PartitionState", "key_from_text", "partition_of", "text_of_key"]

DESIGN_PREFIX: Final = b"_design/"
"""What the keys of design documents begin with."""


class PartitionState(IntEnum):
    """State of one copy of a partition; the numbers are those of the wire, but for ABSENT."""

    ABSENT = 0
    """This node has no copy."""
    ACTIVE = 1
    """Serves reads and writes."""
    REPLICA = 2
    """Follows an active copy elsewhere; may be streamed from."""
    PENDING = 3
    """It is about to take over from an active copy, which it follows."""
    DEAD = 4
    """Serves nothing; keeps what it has until it is deleted or becomes something else."""


def partition_of(key: bytes, partition_count: int) -> int:
    """Return the partition (0..partition_count-1) that owns `key`."""
    return (crc32(key) >> 16 & 0x7FFF) % partition_count


def text_of_key(key: bytes) -> str:
    r"""Return the key itself, or `\x` + hex where it is not UTF-8 or begins with `\x`.

    >>> text_of_key(b"user::42"), text_of_key(b"\xff\x00")
    ('user::42', '\\xff00')
    """
    if not key.startswith(b"\\x"):
        try:
            return key.decode()
        except UnicodeDecodeError:
            pass
    return "\\x" + key.hex()


def key_from_text(text: str) -> bytes:
    r"""Return the key whose text form is `text`; the reverse of `text_of_key`.

    Raises:
        ValueError: `text` begins with `\x` and what follows is not hex.
    """
    return bytes.fromhex(text[2:]) if text.startswith("\\x") else text.encode()
