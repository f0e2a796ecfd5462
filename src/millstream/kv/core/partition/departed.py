"""Keys of a partition that may have left memory: a Bloom filter with two places per key.

It saves the look-up in the log for most keys that were never written, for example when new
documents are loaded. It is valid in one process only: places come from Python's hash.

Invariants:
1. For a key that was added, `may_have` is never False.

Elsewhere: who adds keys (`residents`), the compiled check (`accelerated`).
"""

from __future__ import annotations

from typing import Final

__all__ = ["DEPARTED_BITS_MAX", "KEY_BITS", "Departed"]

KEY_BITS: Final = 64
"""Places per key that is in memory when the first one leaves: 1.3 % of such a key's memory. With
eight times as many keys 3 % of all look-ups are needless, with forty times 40 %."""
DEPARTED_BITS_MAX: Final = 1 << 31
"""Upper bound of places."""
_BITS_MIN: Final = 1 << 10


class Departed:
    """The filter of one partition.

    Args:
        keys: about how many it has now.
    """

    __slots__ = ("bits", "mask")

    def __init__(self, keys: int) -> None:
        count = min(max(_BITS_MIN, 1 << (keys * KEY_BITS - 1).bit_length()), DEPARTED_BITS_MAX)
        self.bits = bytearray(count >> 3)
        self.mask = count - 1

    def add(self, key: bytes) -> None:
        """Note that a key has left; also called again."""
        number, bits, mask = hash(key), self.bits, self.mask
        at = number & mask
        bits[at >> 3] |= 1 << (at & 7)
        at = number >> 32 & mask
        bits[at >> 3] |= 1 << (at & 7)

    def may_have(self, key: bytes) -> bool:
        """Return whether a key may have left; False: it has not."""
        number, bits, mask = hash(key), self.bits, self.mask
        first, second = number & mask, number >> 32 & mask
        return bool(bits[first >> 3] >> (first & 7) & bits[second >> 3] >> (second & 7) & 1)
