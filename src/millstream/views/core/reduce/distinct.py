"""About how many different keys there are: HyperLogLog sketches over encoded keys.

    sketch of few keys    00, then per used register its number (u16) and rank (u8), ascending
    sketch of many keys   01, then all 2,048 registers of one byte, compressed

Invariants:
1. A sketch is a function of the set of keys alone: merging is associative, commutative and
   changes nothing where keys come again.
2. The estimate is off by 2 % or so (standard error 1.04 / sqrt(2,048)); of one key it is 1.

Source: Flajolet et al. 2007, with 64-bit hashes (no correction for large counts is needed) and
linear counting for small ones.
"""

from __future__ import annotations

import zlib
from hashlib import blake2b
from math import log
from struct import Struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["REGISTERS", "estimate", "merge_sketches", "sketch"]

REGISTERS: Final = 2048
_SPARSE_MAX: Final = 300
"""Registers in use up to which they are listed; then 2,048 compressed ones are smaller."""
_INDEX_BITS: Final = 11
_RANK_MAX: Final = 64 - _INDEX_BITS + 1
_ALPHA: Final = 0.7213 / (1 + 1.079 / REGISTERS)
_ENTRY: Final = Struct(">HB")
_SPARSE: Final = b"\0"
_DENSE: Final = b"\1"


def sketch(keys: Iterable[bytes]) -> bytes:
    """Return the sketch of encoded keys. O(keys)."""
    used: dict[int, int] = {}
    for key in set(keys):
        number = int.from_bytes(blake2b(key, digest_size=8).digest(), "big")
        register = number & (REGISTERS - 1)
        rank = _RANK_MAX - (number >> _INDEX_BITS).bit_length()
        if rank > used.get(register, 0):
            used[register] = rank
    return _packed(used)


def merge_sketches(sketches: Iterable[bytes]) -> bytes:
    """Return the sketch of all keys that went into any of `sketches`."""
    used: dict[int, int] = {}
    dense: list[bytes] = []
    for one in sketches:
        if one[:1] == _DENSE:
            dense.append(zlib.decompress(one[1:]))
            continue
        for register, rank in _ENTRY.iter_unpack(one[1:]):
            if rank > used.get(register, 0):
                used[register] = rank
    if not dense:
        return _packed(used)
    registers = bytearray(map(max, *dense) if len(dense) > 1 else dense[0])
    for register, rank in used.items():
        registers[register] = max(registers[register], rank)
    return _DENSE + zlib.compress(registers, 1)


def estimate(one: bytes) -> int:
    """Return about how many different keys went into a sketch."""
    if one[:1] == _DENSE:
        ranks = list(zlib.decompress(one[1:]))
    else:
        ranks = [rank for _, rank in _ENTRY.iter_unpack(one[1:])]
        ranks += [0] * (REGISTERS - len(ranks))
    found = _ALPHA * REGISTERS * REGISTERS / sum(2.0**-rank for rank in ranks)
    empty = ranks.count(0)
    if found <= 2.5 * REGISTERS and empty:
        found = REGISTERS * log(REGISTERS / empty)
    return round(found)


def _packed(used: dict[int, int]) -> bytes:
    if len(used) <= _SPARSE_MAX:
        return _SPARSE + b"".join(_ENTRY.pack(*entry) for entry in sorted(used.items()))
    registers = bytearray(REGISTERS)
    for register, rank in used.items():
        registers[register] = rank
    return _DENSE + zlib.compress(registers, 1)
