"""Nodes: their bytes, their decoded form, and a cache of decoded ones.

A node is a crc32 (four bytes, big-endian, begun with the node's number) and a msgpack array:
a leaf has [keys, values, partitions], an inner node [last keys, numbers, counts, partitions,
partials of its children]. Partitions of rows are one byte each, or two (big-endian) where one of
them is above 255; sets of partitions are whole numbers, or one bin of equal slices
(little-endian) where one does not fit into 64 bits.

Invariants:
1. A decoded node has as many of one thing as of the other, at least one, and never changes:
   who edits copies the lists.
2. Bytes that are not what was written for this number give CorruptionError, nothing else.
3. A node's number is never used again for another one, so the cache is never stale.

Elsewhere: when a node is too large or too small (`packing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct, pack, unpack
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from millstream.errors import CorruptionError
from millstream.trees.core.shapes import NodeSource

__all__ = [
    "CACHE_BYTES_DEFAULT",
    "COMMIT_LEAVES_MAX",
    "CommitNodes",
    "InnerNode",
    "LeafNode",
    "NodeCache",
    "Nodes",
    "decode_inner",
    "decode_leaf",
    "decode_values",
    "inner_body",
    "leaf_body",
    "sealed",
    "set_of",
]

CACHE_BYTES_DEFAULT: Final = 64 * 1024 * 1024
"""Decoded nodes kept by one cache, as reckoned here: their bytes and what the objects add."""
COMMIT_LEAVES_MAX: Final = 4096
"""Leaves kept decoded for one commit."""
_OBJECT_BYTES: Final = 40
_SHARE_OF_ONE: Final = 16  # of half a cache
_NARROW_MAX: Final = 255
_UINT64_BITS: Final = 64
_crc: Final = Struct(">I")
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_leaf: Final = msgspec.msgpack.Decoder(tuple[list[bytes], list[bytes], bytes]).decode
_decode_values: Final = msgspec.msgpack.Decoder(tuple[msgspec.Raw, list[bytes], bytes]).decode
_decode_inner: Final = msgspec.msgpack.Decoder(
    tuple[list[bytes], list[int], list[int], list[int] | bytes, list[bytes]]
).decode
_set_bit: Final = (1).__lshift__


class LeafNode(NamedTuple):
    """Rows; `size` is that of the node's bytes."""

    keys: list[bytes]
    values: list[bytes]
    partitions: Sequence[int]
    size: int


class InnerNode(NamedTuple):
    """Children; `size` is that of the node's bytes."""

    lasts: list[bytes]
    numbers: list[int]
    counts: list[int]
    sets: list[int]
    partials: list[bytes]
    size: int


def set_of(partitions: Sequence[int]) -> int:
    """Return the bitmap of the partitions of some rows."""
    return sum(map(_set_bit, set(partitions)))


# ---- bytes


def leaf_body(
    keys: list[bytes], values: list[bytes], partitions: Sequence[int]
) -> tuple[bytes, LeafNode]:
    """Return the bytes of a leaf before they are sealed for a number, and the node."""
    if not isinstance(partitions, bytes) and max(partitions) <= _NARROW_MAX:
        partitions = bytes(partitions)
    packed = partitions
    if not isinstance(packed, bytes):
        packed = pack(f">{len(packed)}H", *packed)
    body = _encode((keys, values, packed))
    return body, LeafNode(keys, values, partitions, len(body) + _crc.size)


def decode_leaf(number: int, data: bytes) -> LeafNode:
    """Take a leaf from its bytes; CorruptionError, code `corrupt`."""
    try:
        keys, values, partitions = _decode_leaf(_opened(number, data))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _corrupt(number, f"no leaf: {error}") from error
    count = len(keys)
    rows_of: Sequence[int] = partitions
    if len(partitions) == 2 * count:
        rows_of = unpack(f">{count}H", partitions)
    if not count == len(values) == len(rows_of) or not count:
        raise _corrupt(number, "a leaf whose lists differ in length")
    return LeafNode(keys, values, rows_of, len(data))


def decode_values(number: int, data: bytes) -> tuple[list[bytes], Sequence[int]]:
    """Take values and partitions of a leaf from its bytes: two thirds of the work.

    Raises:
        CorruptionError: `index_damaged`.
    """
    try:
        _, values, partitions = _decode_values(_opened(number, data))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _corrupt(number, f"no leaf: {error}") from error
    rows_of: Sequence[int] = partitions
    if len(partitions) == 2 * len(values):
        rows_of = unpack(f">{len(values)}H", partitions)
    if len(values) != len(rows_of) or not values:
        raise _corrupt(number, "a leaf whose lists differ in length")
    return values, rows_of


def inner_body(
    lasts: list[bytes],
    numbers: list[int],
    counts: list[int],
    sets: list[int],
    partials: list[bytes],
) -> tuple[bytes, InnerNode]:
    """Return the bytes of an inner node before they are sealed, and the node."""
    packed: list[int] | bytes = sets
    bits = max(sets).bit_length()
    if bits > _UINT64_BITS:
        width = (bits + 7) // 8
        packed = b"".join([one.to_bytes(width, "little") for one in sets])
    body = _encode((lasts, numbers, counts, packed, partials))
    return body, InnerNode(lasts, numbers, counts, sets, partials, len(body) + _crc.size)


def decode_inner(number: int, data: bytes) -> InnerNode:
    """Take an inner node from its bytes; CorruptionError, code `corrupt`."""
    try:
        lasts, numbers, counts, sets, partials = _decode_inner(_opened(number, data))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _corrupt(number, f"no inner node: {error}") from error
    count = len(lasts)
    if isinstance(sets, bytes):
        width, rest = divmod(len(sets), count or 1)
        if rest or not width:
            raise _corrupt(number, "an inner node whose sets differ in width")
        starts = range(0, len(sets), width)
        sets = [int.from_bytes(sets[at : at + width], "little") for at in starts]
    if not count == len(numbers) == len(counts) == len(sets) == len(partials) or not count:
        raise _corrupt(number, "an inner node whose lists differ in length")
    if min(numbers) < 0 or min(counts) < 1 or min(sets) < 1:
        raise _corrupt(number, "an inner node with a child that cannot be")
    return InnerNode(lasts, numbers, counts, sets, partials, len(data))


def sealed(number: int, body: bytes) -> bytes:
    """Return what is stored for this number."""
    return _crc.pack(crc32(body, number & 0xFFFFFFFF)) + body


def _opened(number: int, data: bytes) -> memoryview:
    body = memoryview(data)[4:]
    if len(data) < 4 or _crc.unpack_from(data)[0] != crc32(body, number & 0xFFFFFFFF):
        raise _corrupt(number, "its checksum differs")
    return body


def _corrupt(number: int, what: str) -> CorruptionError:
    return CorruptionError(
        f"node {number} of an index is damaged ({what}): rebuild the index",
        code="index_damaged",
    )


# ---- decoded


class NodeCache:
    """Decoded nodes by number, the recently used ones, in bounded memory.

    Two halves: what is used is put into the young one; when that is full it becomes the old one,
    and what the old one had is forgotten. Several threads may use it.

    Args:
        bytes_max: both halves together, as reckoned from nodes' bytes and their objects.
    """

    __slots__ = ("_bytes", "_half_max", "_old", "_young")

    def __init__(self, bytes_max: int = CACHE_BYTES_DEFAULT) -> None:
        self._half_max = bytes_max // 2
        self._bytes = 0
        self._young: dict[int, LeafNode | InnerNode] = {}
        self._old: dict[int, LeafNode | InnerNode] = {}

    def get(self, number: int) -> LeafNode | InnerNode | None:
        """Return a node if it is here."""
        if (node := self._young.get(number)) is None and (node := self._old.get(number)):
            self.put(number, node)
        return node

    def put(self, number: int, node: LeafNode | InnerNode) -> None:
        """Keep a node as the one used last; not one that would drive out many."""
        if node.size > self._half_max // _SHARE_OF_ONE:
            return
        self._bytes += node.size + 2 * _OBJECT_BYTES * len(node[0])
        if self._bytes > self._half_max:
            self._old, self._young, self._bytes = self._young, {}, 0
        self._young[number] = node

    def clear(self) -> None:
        """Forget all."""
        self._young, self._old, self._bytes = {}, {}, 0


class CommitNodes:
    """Decoded nodes as one commit reads them: those of a cache, and leaves for itself alone.

    What a commit looks up it mostly changes next. So leaves are kept until its end, and neither
    decoded twice nor put where readers would lose what they use.

    Args:
        cache: of the readers.
    """

    __slots__ = ("_cache", "_leaves")

    def __init__(self, cache: NodeCache) -> None:
        self._cache = cache
        self._leaves: dict[int, LeafNode] = {}

    def get(self, number: int) -> LeafNode | InnerNode | None:
        """Return a node if it is here."""
        return self._leaves.get(number) or self._cache.get(number)

    def put(self, number: int, node: LeafNode | InnerNode) -> None:
        """Keep a node."""
        if type(node) is InnerNode:
            self._cache.put(number, node)
        elif type(node) is LeafNode and len(self._leaves) < COMMIT_LEAVES_MAX:
            self._leaves[number] = node


class Nodes:
    """Decoded nodes of a source, through a cache.

    Args:
        source: where nodes are kept.
        cache: of decoded nodes, by several readers at once if they like; or those of one commit.
        fresh: nodes that a writer made and that are not stored yet. With them nothing is put into
            the cache: a commit may fail, and what a writer reads it is about to replace.
    """

    __slots__ = ("_cache", "_fresh", "_is_writer", "_source")

    def __init__(
        self,
        source: NodeSource,
        cache: NodeCache | CommitNodes | None = None,
        fresh: Mapping[int, bytes] | None = None,
    ) -> None:
        self._source = source
        self._cache = cache
        self._is_writer = fresh is not None
        self._fresh: Mapping[int, bytes] = {} if fresh is None else fresh

    def leaf(self, number: int) -> LeafNode:
        """Return a leaf; CorruptionError."""
        node = None if self._cache is None else self._cache.get(number)
        if node is None:
            data = self._fresh.get(number)
            node = decode_leaf(number, self._source.read(number) if data is None else data)
            if self._cache is not None and not self._is_writer:
                self._cache.put(number, node)
        if type(node) is not LeafNode:
            raise _corrupt(number, "not at the level it was made for")
        return node

    def values(self, number: int) -> tuple[list[bytes], Sequence[int]]:
        """Return values and partitions of a leaf, which is kept nowhere; CorruptionError."""
        return decode_values(number, self._source.read(number))

    def inner(self, number: int) -> InnerNode:
        """Return an inner node; CorruptionError."""
        node = None if self._cache is None else self._cache.get(number)
        if node is None:
            data = self._fresh.get(number)
            node = decode_inner(number, self._source.read(number) if data is None else data)
            if self._cache is not None and not self._is_writer:
                self._cache.put(number, node)
        if type(node) is not InnerNode:
            raise _corrupt(number, "not at the level it was made for")
        return node
