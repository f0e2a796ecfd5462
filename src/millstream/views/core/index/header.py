"""The header of an index: one durable commit of all its trees, and the positions it contains.

Invariants:
1. `positions`, `failover_logs` and `purge_seqnos` have exactly the active and passive partitions.
2. Rows of an active or passive partition equal the source up to the partition's position, on the
   history that the position names. If the partition is void, its rows count for nothing and its
   position is 0. Rows of partitions in cleanup count for nothing either.
3. `model.position.rollback_seqno` is the only rule that judges a position.
4. A header never changes. The one with the largest commit number is in force.

Elsewhere: what a commit may do (`views.core.index.publishing`, `views.core.index.rollback`), the
bytes on disk (docs/reference/index-format.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from struct import Struct
from types import MappingProxyType
from typing import Final, Literal, NamedTuple
from zlib import crc32

import msgspec

from millstream.errors import CorruptionError
from millstream.model.position import FailoverLog, Position, rollback_seqno
from millstream.trees.core.shapes import Root

__all__ = [
    "INDEX_FORMAT",
    "MAP_ERRORS_KEPT_MAX",
    "MAP_ERROR_CHARACTERS_MAX",
    "DocumentRows",
    "Header",
    "Judged",
    "MapErrors",
    "MapFailure",
    "PartRead",
    "PartitionState",
    "Row",
    "bitmap_of",
    "decode_header",
    "encode_header",
    "members_of",
    "with_checksum",
    "without_checksum",
]

INDEX_FORMAT: Final = 1
"""Format of headers, nodes and keys together. An index of another format is built anew."""
MAP_ERRORS_KEPT_MAX: Final = 20
"""Documents on which a map failed that are listed by name, per tree."""
MAP_ERROR_CHARACTERS_MAX: Final = 500
_VECTORS_KEPT_MAX: Final = 4

PartitionState = Literal["active", "passive", "cleanup"]
Row = tuple[int, bytes, bytes, bytes]
"""(tree, encoded key, JSON key, JSON value), as emitted."""


class DocumentRows(NamedTuple):
    """What a document contributes now, in the order of emits. No rows: it contributes nothing."""

    partition: int
    doc_id: bytes
    rows: Sequence[Row] = ()


class MapFailure(NamedTuple):
    """A document whose map failed in one tree: it has no rows there."""

    tree: int
    doc_id: str
    message: str


class PartRead(NamedTuple):
    """What a writer read of one partition: every document changed in (start, end], mapped.

    `failover_log` and `purge_seqno` are the source's, as of the reading. `is_whole`: the source
    gave all of it; false where the lease under which it was read was lost meanwhile.
    `failures_before`: how many more there were, by tree, that are not listed.
    """

    start: Position
    end: Position
    failover_log: FailoverLog
    purge_seqno: int = 0
    documents: Sequence[DocumentRows] = ()
    is_whole: bool = True
    failures: Sequence[MapFailure] = ()
    failures_before: Mapping[int, int] = MappingProxyType({})


class Judged(NamedTuple):
    """What the source of a partition judges positions by."""

    log: FailoverLog
    high_seqno: int
    purge_seqno: int = 0

    def accepts(self, position: Position) -> bool:
        """Whether a stream may go on from that position."""
        return None is rollback_seqno(
            position, log=self.log, high_seqno=self.high_seqno, purge_seqno=self.purge_seqno
        )


class MapErrors(NamedTuple):
    """How often the map of one tree failed, and on which documents last: (id, message)."""

    total: int = 0
    last: tuple[tuple[str, str], ...] = ()

    def with_failures(self, failures: Iterable[MapFailure], before: int = 0) -> MapErrors:
        """Count more failures, and how many came before the listed ones."""
        found = [(each.doc_id, each.message[:MAP_ERROR_CHARACTERS_MAX]) for each in failures]
        last = (*self.last, *found)[-MAP_ERRORS_KEPT_MAX:]
        return MapErrors(self.total + before + len(found), last)


class Header(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One commit of an index.

    `void`: bitmap of active and passive partitions whose rows in the trees count for nothing.
    `back`, `trees`: root of the back-index and of each tree. `reduces`: names of each tree's
    reduces, for who reads without the design document. `nodes`: how many all roots have.
    `fence`: number of the writer that may commit; `writer`: what it calls itself.
    """

    signature: str
    collation: str
    reduces: tuple[tuple[str, ...], ...]
    commit: int = 0
    next_node: int = 1
    nodes: int = 0
    fence: int = 0
    writer: str = ""
    states: Mapping[int, PartitionState] = {}
    positions: Mapping[int, Position] = {}
    failover_logs: Mapping[int, FailoverLog] = {}
    purge_seqnos: Mapping[int, int] = {}
    void: int = 0
    back: Root | None = None
    trees: tuple[Root | None, ...] = ()
    map_errors: Mapping[int, MapErrors] = {}
    created_ms: int = 0
    committed_ms: int = 0

    def bitmap(self, *states: PartitionState) -> int:
        """Return the partitions in one of these states."""
        return bitmap_of(p for p, state in self.states.items() if state in states)

    @cached_property
    def active(self) -> int:
        """The active partitions; every query asks for them."""
        return self.bitmap("active")

    @cached_property
    def vector(self) -> Callable[[int], bytes]:
        """Positions of some partitions as bytes, made once; every query asks for them."""
        return lru_cache(_VECTORS_KEPT_MAX)(
            lambda wanted: _encode([(p, self.positions[p]) for p in members_of(wanted)])
        )

    @property
    def countable(self) -> int:
        """The partitions whose rows count: active and passive, not void."""
        return bitmap_of(self.positions) & ~self.void

    @property
    def dirty(self) -> int:
        """The partitions that may have rows which count for nothing."""
        return self.bitmap("cleanup") | self.void

    def check_invariants(self) -> None:
        """Raise AssertionError if invariant 1 or 2 does not hold; called before each commit."""
        counted = {p for p, state in self.states.items() if state != "cleanup"}
        assert self.positions.keys() == counted, "positions of other partitions"
        assert self.failover_logs.keys() == counted, "failover logs of other partitions"
        assert self.purge_seqnos.keys() == counted, "purge seqnos of other partitions"
        assert not self.void & ~bitmap_of(counted), "a void partition is not here"
        for p in members_of(self.void):
            assert not self.positions[p].seqno, "a void partition has a position"

    @property
    def roots(self) -> tuple[Root | None, ...]:
        """The back-index and all trees."""
        return (self.back, *self.trees)


def bitmap_of(partitions: Iterable[int]) -> int:
    """Return the bitmap with these partitions set."""
    bitmap = 0
    for partition in partitions:
        bitmap |= 1 << partition
    return bitmap


def members_of(bitmap: int) -> Iterator[int]:
    """Yield the partitions of a bitmap, ascending."""
    while bitmap:
        lowest = bitmap & -bitmap
        yield lowest.bit_length() - 1
        bitmap ^= lowest


# ---- as bytes

_StoredRoot = tuple[int, int, int, bytes, bytes]
_CHECKSUM: Final = Struct(">I")


class _Stored(msgspec.Struct, kw_only=True):
    format: int
    signature: str
    collation: str
    reduces: tuple[tuple[str, ...], ...]
    commit: int
    next_node: int
    nodes: int
    fence: int
    writer: str
    states: dict[int, PartitionState]
    positions: dict[int, Position]
    failover_logs: dict[int, FailoverLog]
    purge_seqnos: dict[int, int]
    void: bytes
    back: _StoredRoot | None
    trees: tuple[_StoredRoot | None, ...]
    map_errors: dict[int, MapErrors]
    created_ms: int
    committed_ms: int


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Stored).decode
_SAME: Final = (
    "signature", "collation", "reduces", "commit", "next_node", "nodes", "fence", "writer",
    "states", "positions", "failover_logs", "purge_seqnos", "map_errors", "created_ms",
    "committed_ms",
)  # fmt: skip


def encode_header(header: Header) -> bytes:
    """Return a header as it is kept."""
    same = {name: getattr(header, name) for name in _SAME}
    stored = _Stored(
        format=INDEX_FORMAT,
        void=_bitmap_bytes(header.void),
        back=_stored_root(header.back),
        trees=tuple(_stored_root(root) for root in header.trees),
        **same,
    )
    return with_checksum(_encode(stored))


def decode_header(data: bytes) -> Header:
    """Reverse `encode_header`.

    Raises:
        CorruptionError: `index_damaged`.
    """
    try:
        stored = _decode(without_checksum(data, "header"))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptionError(f"header of an index: {error}", code="index_damaged") from error
    return Header(
        void=int.from_bytes(stored.void, "little"),
        back=_root(stored.back),
        trees=tuple(_root(root) for root in stored.trees),
        **{name: getattr(stored, name) for name in _SAME},
    )


def with_checksum(body: bytes) -> bytes:
    """Return the bytes behind their crc32 (big-endian)."""
    return _CHECKSUM.pack(crc32(body)) + body


def without_checksum(data: bytes, what: str) -> memoryview:
    """Reverse `with_checksum`.

    Raises:
        CorruptionError: `index_damaged`, naming `what`.
    """
    body = memoryview(data)[_CHECKSUM.size :]
    if len(data) < _CHECKSUM.size or _CHECKSUM.unpack_from(data)[0] != crc32(body):
        raise CorruptionError(f"{what} of an index: its checksum differs", code="index_damaged")
    return body


def _bitmap_bytes(bitmap: int) -> bytes:
    return bitmap.to_bytes((bitmap.bit_length() + 7) // 8, "little")


def _stored_root(root: Root | None) -> _StoredRoot | None:
    if root is None:
        return None
    return (root.number, root.height, root.count, _bitmap_bytes(root.partitions), root.partial)


def _root(stored: _StoredRoot | None) -> Root | None:
    if stored is None:
        return None
    number, height, count, partitions, partial = stored
    return Root(number, height, count, int.from_bytes(partitions, "little"), partial)
