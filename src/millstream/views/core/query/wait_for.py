"""What a query waits for: `at`, a vector of positions, and when an index has reached it.

A vector has for each partition a position, or the token of a write (uuid, seqno), which means the
position [uuid, seqno, seqno, seqno]. As JSON it is an object from partition number to such a list.
An answer with `update_seq` has the vector of its rows as one opaque text.

Invariants:
1. An index has reached seqno s of a partition if its position is closed and its seqno is at least
   s, or if its snap_start is at least s (inside a snapshot the write may still be missing). The
   history of the index must also contain s on the requested branch.
2. A query never waits for a write that the source no longer has: `model.position.rollback_seqno`
   judges positions. The purge point is not compared for tokens.
3. A text made here is decoded to the same vector. Any other text is decoded or a `UsageError`.

Elsewhere: the waiting (`views.aio`), the position vector of an index (its header).
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from millstream.errors import ConditionError, UnavailableError, UsageError
from millstream.model.limits import PARTITIONS_MAX, UINT53_MAX, UINT64_MAX
from millstream.model.position import (
    FailoverLog,
    Position,
    position_to_json,
    rollback_seqno,
    upper_of,
)
from millstream.views.core.index.header import Judged

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from millstream.views.core.index.header import Header

__all__ = [
    "VECTOR_TEXT_BYTES_MAX",
    "Verdict",
    "Wanted",
    "has_reached",
    "judge",
    "lost_in",
    "not_reached",
    "unreachable",
    "vector_from_json",
    "vector_to_json",
    "vector_to_text",
]

VECTOR_TEXT_BYTES_MAX: Final = 64 * 1024
"""Most bytes of an update_seq given as `at`. A bucket with the most partitions needs half of it.
"""
_SHOWN_MAX: Final = 5
"""Partitions named in an error."""

Verdict = Literal["reached", "waiting", "unreachable"]


class Wanted(NamedTuple):
    """What one partition must have reached."""

    position: Position
    is_token: bool = False


def has_reached(position: Position, seqno: int) -> bool:
    """Whether all changes up to `seqno` are in rows that stand at `position`."""
    return position.snap_start >= seqno or (position.is_closed and position.seqno >= seqno)


def judge(
    wanted: Wanted,
    position: Position,
    log: FailoverLog,
    source_log: FailoverLog | None = None,
    source_purge_seqno: int = 0,
) -> Verdict:
    """Tell whether a partition of an index has reached what is wanted, or never will.

    Args:
        wanted: of this partition.
        position: of the index.
        log: failover log of the history that `position` lies on; empty before the first commit.
        source_log: of the partition's active copy as it is now; None if it is not known.
        source_purge_seqno: of the same copy.
    """
    uuid, seqno = wanted.position[:2]
    if seqno == 0:
        return "reached"
    is_there = has_reached(position, seqno)
    if is_there:
        upper = upper_of(log, uuid, UINT64_MAX)
        if upper is not None and seqno <= upper:
            return "reached"
    if source_log is None:
        return "waiting"
    back_to = rollback_seqno(
        wanted.position,
        log=source_log,
        high_seqno=UINT64_MAX,  # a seqno still to come on the newest branch is waited for
        purge_seqno=source_purge_seqno,
        ignore_purge=wanted.is_token,
    )
    if back_to is not None:
        return "unreachable"
    # A branch that began after the index's last commit, and what lies before it in both.
    is_same = is_there and None is rollback_seqno(
        position, log=source_log, high_seqno=UINT64_MAX, purge_seqno=source_purge_seqno
    )
    return "reached" if is_same else "waiting"


def not_reached(
    wanted: Mapping[int, Wanted], positions: Mapping[int, Position], partitions: Collection[int]
) -> UnavailableError:
    """Return the error of a query whose time is over, naming what was not reached."""
    shown = ", ".join(
        f"partition {partition} is at {positions.get(partition, Position()).seqno}, "
        f"wanted {wanted[partition].position.seqno}"
        for partition in sorted(partitions)[:_SHOWN_MAX]
    )
    late = f" ({len(partitions)} partitions: {shown})" if shown else ""
    return UnavailableError(
        f"the index did not reach the requested changes in time{late}: ask again with a longer "
        "timeout",
        code="timeout",
    )


def unreachable(wanted: Mapping[int, Wanted], partitions: Collection[int]) -> ConditionError:
    """Return the error of a query for changes that are no longer in any history."""
    shown = ", ".join(
        f"partition {partition} at {position_to_json(wanted[partition].position)}"
        for partition in sorted(partitions)[:_SHOWN_MAX]
    )
    return ConditionError(
        f"changes requested by `at` were lost or undone ({len(partitions)} partitions: {shown}): "
        "read the documents again and repeat what is missing",
        code="seq_unreachable",
    )


def vector_to_json(vector: Mapping[int, Wanted]) -> dict[str, list[str | int]]:
    """Return the JSON form of a vector."""
    return {
        str(partition): [f"{wanted.position.uuid:012x}", wanted.position.seqno]
        if wanted.is_token
        else position_to_json(wanted.position)
        for partition, wanted in vector.items()
    }


def vector_from_json(form: Any) -> dict[int, Wanted]:
    """Return the vector of a JSON object, or of the text that `vector_to_text` makes.

    Raises:
        UsageError: `query_parse_error`.
    """
    if isinstance(form, str):
        return _from_text(form)
    if not isinstance(form, dict) or len(form) > PARTITIONS_MAX:
        raise _refused(
            "at must be an object from partition number to position, or an update_seq of an "
            "earlier answer"
        )
    return {_partition(name): _wanted(name, member) for name, member in form.items()}


def _partition(name: str) -> int:
    if not name.isascii() or not name.isdigit() or not 0 <= int(name[:6]) < PARTITIONS_MAX:
        raise _refused(f"at: {name[:20]!r} is not a partition number")
    return int(name)


def _wanted(name: str, form: Any) -> Wanted:
    numbers = form[1:] if isinstance(form, list) else []
    if not (
        isinstance(form, list)
        and len(form) in (2, 4, 5)
        and isinstance(form[0], str)
        and all(type(number) is int and 0 <= number <= UINT53_MAX for number in numbers)
    ):
        raise _refused(
            f"at: partition {name}: a position is [uuid, seqno, snap_start, snap_end], the token "
            "of a write [uuid, seqno]"
        )
    try:
        uuid = int(form[0], 16)
    except ValueError:
        uuid = -1
    if not 0 <= uuid <= UINT64_MAX:
        raise _refused(f"at: partition {name}: a uuid is written in hexadecimal digits")
    if len(form) == 2:
        return Wanted(Position(uuid, numbers[0], numbers[0], numbers[0]), is_token=True)
    position = Position(uuid, *numbers)
    if not position.snap_start <= position.seqno <= position.snap_end:
        raise _refused(f"at: partition {name}: the seqno lies outside of its snapshot")
    return Wanted(position)


def vector_to_text(positions: Mapping[int, Position]) -> str:
    """Return the opaque text of a position vector: what `update_seq` shows. O(partitions)."""
    members = [[partition, *_short(positions[partition])] for partition in sorted(positions)]
    body = urlsafe_b64encode(msgspec.msgpack.encode(members)).rstrip(b"=").decode()
    return f"{sum(position.seqno for position in positions.values())}-{body}"


def _short(position: Position) -> tuple[int, ...]:
    """Return the members of a position; of a closed one only the first two."""
    if position.is_closed and position.purge_seqno is None:
        return position[:2]
    return tuple(member for member in position if member is not None)


class _Members(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """One partition in the text."""

    partition: int
    uuid: int
    seqno: int
    snap_start: int | None = None
    snap_end: int | None = None
    purge_seqno: int | None = None

    def wanted(self) -> Wanted:
        """Return what the members say, closed where only two are given."""
        start = self.seqno if self.snap_start is None else self.snap_start
        end = self.seqno if self.snap_end is None else self.snap_end
        return Wanted(Position(self.uuid, self.seqno, start, end, self.purge_seqno))


_DECODER: Final = msgspec.msgpack.Decoder(list[_Members])


def _from_text(text: str) -> dict[int, Wanted]:
    if len(text) > VECTOR_TEXT_BYTES_MAX:
        raise _refused(f"at: a text of more than {VECTOR_TEXT_BYTES_MAX} characters")
    body = text.partition("-")[2]
    try:
        members = _DECODER.decode(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (ValueError, msgspec.DecodeError) as error:
        raise _refused("at: this is not an update_seq of this database") from error
    vector = {member.partition: member.wanted() for member in members}
    for partition, wanted in vector.items():
        uuid, seqno, start, end, purge = wanted.position
        if (
            not 0 <= partition < PARTITIONS_MAX
            or not 0 <= uuid <= UINT64_MAX
            or not 0 <= start <= seqno <= end <= UINT53_MAX
            or not 0 <= (purge or 0) <= UINT53_MAX
        ):
            raise _refused("at: this is not an update_seq of this database")
    return vector


def _refused(message: str) -> UsageError:
    return UsageError(message, code="query_parse_error")


def lost_in(header: Header, current: Mapping[int, Judged]) -> list[int]:
    """Return the partitions in which an index has what its source has lost."""
    positions = header.positions
    return [
        partition
        for partition, judged in current.items()
        if partition in positions
        and not Judged(judged.log, UINT64_MAX, judged.purge_seqno).accepts(positions[partition])
    ]
