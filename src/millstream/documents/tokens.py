"""Where a reader of a whole database stands: a position per partition, and its text form.

    N-<base64url>      N: sum of the seqnos, for people and for clients that read a number

The bytes, numbers as varints (7 bits each, low ones first), every part padded with zeros to a
multiple of three bytes, so that parts are encoded apart from each other:

    head               version 1, origin (4 bytes), number of partitions, purge epoch
    per partition      uuid, snap_start, seqno - snap_start,
                       2 * (snap_end - seqno) + 1 if a purge seqno follows, purge seqno

Invariants:
1. A position in a token is the position that every stream has, judged by the same rule.
2. Equal vectors have one text; what is no such text is refused, never guessed.
3. A token names its database and its number of partitions: one of another database is refused. A
   seqno that the partition has not is an answer of the rule, partition by partition.
4. A token per row costs what changed: its own partition's bytes.

Elsewhere: the rule (`model.position`), the feed (`kv.core.revisions.changes_feed`).
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple
from zlib import crc32

from millstream.errors import UsageError
from millstream.model.limits import PARTITIONS_MAX, UINT48_MAX, UINT64_MAX
from millstream.model.position import (
    FailoverLog,
    Position,
    position_at,
    position_from_json,
    position_to_json,
    rollback_seqno,
)

__all__ = [
    "MALFORMED", "SPREAD_EPOCH", "SPREAD_PURGED", "TOKEN_BYTES_MAX", "History", "TokenWriter",
    "Vector", "at_total", "check_origin", "closed_part", "is_below", "is_position",
    "is_position_below", "is_valid", "judged", "judged_position", "maximum", "may_hide", "minimum",
    "origin_of", "parse_token", "start_at", "vector_at", "vector_from_json", "vector_to_json",
]  # fmt: skip

TOKEN_BYTES_MAX: Final = 64 * 1024
MALFORMED: Final = "Malformed sequence supplied in 'since' parameter."
SPREAD_EPOCH: Final = 1 << 47
"""Set in the purge epoch of a bucket that several nodes may have: the rest is no number there, but
names one state of histories and counts."""
SPREAD_PURGED: Final = 1
"""Set in such a one if any purge was counted."""
_VERSION: Final = 1
_ORIGIN_BYTES: Final = 4
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_", b"+/")
_DIGITS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_COUNT_DIGITS_MAX: Final = 30
_NOWHERE: Final = Position()
_PADDING: Final = (b"", b"\0\0", b"\0")
_SHORT: Final = tuple(bytes((number,)) for number in range(0x80))


class Vector(NamedTuple):
    """A position for each partition of one database; `Position()` where nothing was read."""

    origin: int
    """Names the database: see `origin_of`."""
    positions: tuple[Position, ...]
    purge_epoch: int = 0
    """How often documents of the database had been purged when the reader began, or a name of
    that (`SPREAD_EPOCH`): equal ones mean that none was purged in between."""

    @property
    def total(self) -> int:
        """The sum of the seqnos."""
        return sum(position.seqno for position in self.positions)

    @property
    def is_closed(self) -> bool:
        """Whether the reader holds a complete snapshot of every partition."""
        return all(position.is_closed for position in self.positions)

    def text(self) -> str:
        """Return the token."""
        return TokenWriter(self).text().decode()


class History(NamedTuple):
    """What a position of a partition is judged by."""

    log: FailoverLog
    high_seqno: int
    purge_seqno: int


def origin_of(database_uuid: str) -> int:
    """Return the number by which tokens name a database."""
    return crc32(database_uuid.encode())


def vector_at(
    origin: int, histories: Iterable[History], seqnos: Iterable[int], purge_epoch: int = 0
) -> Vector:
    """Return the vector of a reader that holds everything up to these seqnos."""
    positions = tuple(
        position_at(history.log, seqno, seqno, seqno) if seqno else _NOWHERE
        for history, seqno in zip(histories, seqnos, strict=True)
    )
    return Vector(origin, positions, purge_epoch)


def at_total(
    origin: int,
    histories: Sequence[History],
    ends: Sequence[int],
    total: int,
    purge_epoch: int = 0,
) -> Vector:
    """Return the latest vector that every reader holds who has read `total` changes.

    What is missing to all that there are may be missing in any one partition. More than there are
    is nothing that this history had: then it is the beginning.

    Args:
        origin: of the database.
        histories: of its partitions.
        ends: up to where a reader may have read each.
        total: the number in front of a token.
        purge_epoch: of the database.
    """
    missing = sum(ends) - total
    if missing < 0:
        missing = sum(ends)
    seqnos = [max(0, end - missing) for end in ends]
    return vector_at(origin, histories, seqnos, purge_epoch)


def start_at(
    since: Vector | int | None,
    latest: Vector,
    histories: Sequence[History],
    origins: Iterable[int],
) -> Vector:
    """Return where a reader stands who says a token, a number, or None: now.

    Args:
        since: what the reader says.
        latest: where one stands who has everything that lasts.
        histories: of the partitions.
        origins: of the database, and of those that it is a copy of.

    Raises:
        UsageError: `bad_request`: a token of another database.
    """
    if since is None:
        return latest
    if isinstance(since, Vector):
        check_origin(since, origins, len(histories))
        return since._replace(origin=latest.origin)
    ends = [position.seqno for position in latest.positions]
    return at_total(latest.origin, histories, ends, since, latest.purge_epoch)


# -- judging


def may_hide(purge_epoch: int) -> bool:
    """Return whether documents had been purged, so that a lost change may have hidden some."""
    if purge_epoch & SPREAD_EPOCH:
        return bool(purge_epoch & SPREAD_PURGED)
    return purge_epoch != 0


def check_origin(vector: Vector, origins: Iterable[int], partitions: int) -> None:
    """Refuse the vector of another database, or of one with other partitions.

    Raises:
        UsageError: `bad_request`.
    """
    if vector.origin not in origins:
        raise UsageError(
            "The sequence supplied in 'since' is of another database, or of one of this name that "
            "was deleted since: begin at 0.",
            code="bad_request",
        )
    if len(vector.positions) != partitions:
        raise UsageError(
            f"The sequence supplied in 'since' is of {len(vector.positions)} partitions, but this "
            f"database has {partitions}: begin at 0.",
            code="bad_request",
        )


def judged_position(position: Position, history: History, *, restarts: bool) -> Position:
    """Return from where a reader goes on: from its position, or from where it is rolled back to.

    `restarts`: of a history that was lost nothing counts. So it is for who sees a part of the
    documents by their content, for what a lost version hid was never judged, and for who may have
    passed over what a lost purge had hidden.
    """
    back_to = rollback_seqno(
        position,
        log=history.log,
        high_seqno=history.high_seqno,
        purge_seqno=history.purge_seqno,
    )
    if back_to is None:
        return position
    if back_to == 0 or restarts:
        return _NOWHERE
    return position_at(history.log, back_to, back_to, back_to)


def judged(vector: Vector, histories: Iterable[History], *, restarts: bool = False) -> Vector:
    """Return the part of a vector that lies in these histories, partition by partition."""
    restarts = restarts or may_hide(vector.purge_epoch)
    pairs = zip(vector.positions, histories, strict=True)
    return vector._replace(
        positions=tuple(judged_position(p, history, restarts=restarts) for p, history in pairs)
    )


def is_valid(vector: Vector, histories: Iterable[History]) -> bool:
    """Return whether all of it lies in these histories."""
    return judged(vector, histories).positions == vector.positions


# -- comparing: both were judged by the same histories


def closed_part(vector: Vector) -> Vector:
    """Return what the reader holds whole: of each partition its last complete snapshot.

    Its uuids are those of the snapshots under way: in their histories these ends lie, too.
    """
    return vector._replace(
        positions=tuple(
            position
            if position.is_closed
            else _whole(position.uuid, position.snap_start)
            for position in vector.positions
        )
    )  # fmt: skip


def _whole(uuid: int, seqno: int) -> Position:
    return Position(uuid, seqno, seqno, seqno) if seqno else _NOWHERE


def is_below(lower: Vector, upper: Vector) -> bool:
    """Return whether who stands at `upper` has all that `lower` speaks of."""
    if lower.origin != upper.origin or len(lower.positions) != len(upper.positions):
        return False
    return all(map(is_position_below, lower.positions, upper.positions))


def is_position_below(lower: Position, upper: Position) -> bool:
    """Return the same of one partition."""
    return lower == upper or _reach(lower) <= _held(upper)


def _reach(position: Position) -> int:
    return position.snap_start if position.seqno == position.snap_start else position.snap_end


def _held(position: Position) -> int:
    return position.seqno if position.seqno >= position.snap_end else position.snap_start


def maximum(one: Vector, other: Vector) -> Vector:
    """Return the further position of each partition."""
    return _chosen(one, other, max)


def minimum(one: Vector, other: Vector) -> Vector:
    """Return the less far position of each partition."""
    return _chosen(one, other, min)


def _chosen(one: Vector, other: Vector, choose: Callable[..., Position]) -> Vector:
    assert one.origin == other.origin, "vectors of two databases"
    pairs = zip(one.positions, other.positions, strict=True)
    positions = tuple(choose(*pair, key=_how_far) for pair in pairs)
    return one._replace(positions=positions, purge_epoch=max(one.purge_epoch, other.purge_epoch))


def _how_far(position: Position) -> tuple[int, int]:
    return position.seqno, position.snap_start


# -- JSON


def vector_to_json(vector: Vector) -> dict[str, Any]:
    """Return the form that logs of replications keep."""
    return {
        "origin": vector.origin,
        "purge_epoch": vector.purge_epoch,
        "positions": [
            None if position == _NOWHERE else position_to_json(position)
            for position in vector.positions
        ],
    }


def vector_from_json(form: Mapping[str, Any]) -> Vector:
    """Reverse `vector_to_json`.

    Raises:
        ValueError: not such a form.
    """
    try:
        positions = [
            _NOWHERE if one is None else position_from_json(one) for one in form["positions"]
        ]
        vector = Vector(form["origin"], tuple(positions), form["purge_epoch"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a vector: {form!r:.200}") from error
    if not isinstance(vector.origin, int) or not isinstance(vector.purge_epoch, int):
        raise ValueError(f"not a vector: {form!r:.200}")
    if not 0 < len(positions) <= PARTITIONS_MAX or not all(map(is_position, positions)):
        raise ValueError(f"no positions of partitions: {form!r:.200}")
    return vector


def is_position(position: Position) -> bool:
    """Return whether a reader can stand there."""
    return (
        0 <= position.uuid <= UINT48_MAX
        and 0 <= position.snap_start <= position.seqno <= position.snap_end <= UINT64_MAX
        and (position.purge_seqno is None or 0 <= position.purge_seqno <= UINT64_MAX)
    )


# -- the text


class TokenWriter:
    """The current position of a reader, with its text.

    Args:
        vector: where it begins.
    """

    __slots__ = ("_after", "_at", "_before", "_count", "_head", "_parts", "_positions", "_vector")

    def __init__(self, vector: Vector) -> None:
        self._vector = vector
        self._head = _head_of(vector)
        self._positions = list(vector.positions)
        self._parts = list(map(_kept_text, vector.positions))
        self._count = vector.total
        self._at = -1
        self._before = self._after = b""

    @property
    def vector(self) -> Vector:
        """The position of the reader."""
        return self._vector._replace(positions=tuple(self._positions))

    def position(self, partition: int) -> Position:
        """Return the position of the reader in a partition."""
        return self._positions[partition]

    @property
    def purge_epoch(self) -> int:
        """See `Vector`."""
        return self._vector.purge_epoch

    def mark_purges(self, purge_epoch: int) -> None:
        """Documents were purged."""
        self._vector = self._vector._replace(purge_epoch=purge_epoch)
        self._head = _head_of(self._vector)
        self._at = -1

    def move(self, partition: int, position: Position) -> None:
        """Set the position of the reader in a partition. Hot path."""
        self._count += position[1] - self._positions[partition][1]
        self._positions[partition] = position
        self._parts[partition] = _text_of(_part(position))
        if partition != self._at:
            self._at = -1

    def text(self, partition: int = 0) -> bytes:
        """Return the token. Hot path; quickest where `partition` is the one that moves."""
        if partition != self._at:
            self._before = b"".join((b"-", self._head, *self._parts[:partition]))
            self._after = b"".join(self._parts[partition + 1 :])
            self._at = partition
        return b"%d%b%b%b" % (self._count, self._before, self._parts[partition], self._after)


def _number(number: int) -> bytes:
    """Return a number as a varint. Hot path."""
    if number < 0x80:
        return _SHORT[number]
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _head_of(vector: Vector) -> bytes:
    head = b"%c%b%b%b" % (
        _VERSION, vector.origin.to_bytes(_ORIGIN_BYTES, "big"),
        _number(len(vector.positions)), _number(vector.purge_epoch),
    )  # fmt: skip
    return _text_of(head)


@lru_cache(maxsize=4 * PARTITIONS_MAX)
def _snapshot(uuid: int, snap_start: int) -> bytes:
    return _number(uuid) + _number(snap_start)


def _part(position: Position) -> bytes:
    uuid, seqno, snap_start, snap_end, purge = position
    rest = snap_end - seqno << 1
    if purge is not None:
        return b"%b%b%b%b" % (
            _snapshot(uuid, snap_start), _number(seqno - snap_start), _number(rest | 1),
            _number(purge),
        )  # fmt: skip
    if seqno == snap_start:  # complete: another one with every snapshot
        return b"%b%b\0%b" % (_number(uuid), _number(seqno), _number(rest))
    return _snapshot(uuid, snap_start) + _number(seqno - snap_start) + _number(rest)


def _text_of(part: bytes) -> bytes:
    """Return a part as text; it begins and ends with whole letters."""
    return b2a_base64(part + _PADDING[len(part) % 3], newline=False).translate(_TO_URL)


@lru_cache(maxsize=4 * PARTITIONS_MAX)
def _kept_text(position: Position) -> bytes:
    """Return the text of a position at which readers begin: mostly that of the last one."""
    return _text_of(_part(position))


class _Reader:
    """Reads the bytes of a token."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def raw(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if len(found) < size:
            raise ValueError("it ends too early")
        self._at += size
        return found

    def number(self, largest: int = UINT64_MAX) -> int:
        number = shift = 0
        while True:
            byte = self.raw(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        if number > largest or (byte == 0 and shift):
            raise ValueError("a number in it is too long")
        return number

    def end_part(self) -> None:
        if any(self.raw(-self._at % 3)):
            raise ValueError("a part of it is too long")

    def end(self) -> None:
        if self._at != len(self._data):
            raise ValueError("there are bytes after its end")

    def position(self) -> Position:
        uuid = self.number(UINT48_MAX)
        snap_start = self.number()
        seqno = snap_start + self.number()
        rest = self.number(2 * UINT64_MAX + 1)
        purge = self.number() if rest & 1 else None
        self.end_part()
        position = Position(uuid, seqno, snap_start, seqno + (rest >> 1), purge)
        if not is_position(position):
            raise ValueError("it has an invalid position")
        return position


def parse_token(text: str) -> Vector | int:
    """Return the vector that a token stands for, or the number that it is, 0 for the beginning.

    Raises:
        UsageError: `bad_request`: it is neither.
    """
    count, dash, payload = text.strip('"').partition("-")
    is_number = count.isascii() and count.isdigit() and len(count) <= _COUNT_DIGITS_MAX
    if is_number and not dash:
        return int(count)
    try:
        if not is_number or not _DIGITS.issuperset(payload) or len(payload) > TOKEN_BYTES_MAX:
            raise ValueError("not a number, a dash and base64")
        return _vector_of(a2b_base64(payload.encode().translate(_FROM_URL), strict_mode=True))
    except (ValueError, Base64Error) as error:
        raise UsageError(MALFORMED, code="bad_request") from error


def _vector_of(data: bytes) -> Vector:
    read = _Reader(data)
    if read.raw(1)[0] != _VERSION:
        raise ValueError("of another version")
    origin = int.from_bytes(read.raw(_ORIGIN_BYTES), "big")
    partitions, purge_epoch = read.number(PARTITIONS_MAX), read.number()
    read.end_part()
    positions = tuple(read.position() for _ in range(partitions))
    read.end()
    if not positions:
        raise ValueError("of no partition")
    return Vector(origin, positions, purge_epoch)
