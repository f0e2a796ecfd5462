"""Asks one node for the state of its copies, from which an index is read.

Invariants:
1. An index is never read from another bucket than the one it was made of.
2. If a new history begins between two answers, the next answer shows it. A stream request at a
   position that was judged by the old history is refused by the node.
3. In a managed cluster a copy is not read if its branch is lower than one seen before: the copy
   was replaced and may not know it yet.

Elsewhere: connections (`upr.aio.link`), judging of positions (`views.core.index.header`), streams
(`views.aio.indexing.reading`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.errors import RemoteProtocolError, UnavailableError
from millstream.upr.core.messages import decode_branch_log
from millstream.views.core.index.header import Judged
from millstream.wire.mcbp import Opcode, Status, request

if TYPE_CHECKING:
    from pathlib import Path

    from millstream.model.position import FailoverLog
    from millstream.upr.aio.link import Link

__all__ = [
    "Histories",
    "IndexerSpec",
    "ReadableCopies",
    "ReadableCopy",
    "ask_copies",
]

_POSITIONS: Final = Struct(">HB?4x8Q")
_ACTIVE: Final = frozenset({1})
_STREAMED: Final = frozenset({1, 2})
"""States of copies that can be read: active, replica."""


class Histories:
    """The largest branch that was seen of each partition of a bucket."""

    def __init__(self) -> None:
        self.is_guarded = False
        """Whether sources of lower branches are refused: the bucket is in a managed cluster."""
        self._seen: dict[int, int] = {}

    def note(self, partition: int, log: FailoverLog) -> None:
        """Keep the branch of a history that is followed."""
        if log:
            self._seen[partition] = max(log[0].branch, self._seen.get(partition, 0))

    def takes(self, partition: int, log: FailoverLog) -> bool:
        """Return whether a source with this history is read; keep its branch if so."""
        if self.is_guarded and log[0].branch < self._seen.get(partition, 0):
            return False
        self.note(partition, log)
        return True

    def take_all(self, copies: ReadableCopies) -> bool:
        """Return whether a source is still accepted for all its partitions."""
        if not self.is_guarded:
            return True
        return all(self.takes(p, copy.judged.log) for p, copy in copies.items())


class IndexerSpec(NamedTuple):
    """Which bucket, and where runs of a first build are kept."""

    bucket: str
    bucket_uuid: str
    folder: Path
    histories: Histories | None = None
    """None: sources of all histories are read."""


class ReadableCopy(NamedTuple):
    """A copy of a partition that can be read."""

    judged: Judged
    is_active: bool
    is_isolated: bool = False
    """It is active and may not serve now: what it has may be old."""

    @property
    def uuid(self) -> int:
        """The uuid of the newest history."""
        return self.judged.log[0].uuid


class ReadableCopies(dict[int, ReadableCopy]):
    """Those of some partitions; never changed, so that the same object says: nothing happened.

    `reply`: what the source said, empty if not all of it could be understood.
    """

    __slots__ = ("judged", "reply")

    def __init__(self, found: Mapping[int, ReadableCopy] = MappingProxyType({})) -> None:
        super().__init__(found)
        self.reply = b""
        self.judged: Mapping[int, Judged] = {p: each.judged for p, each in found.items()}

    def lacks(self, partition: int, *, is_active: bool) -> bool:
        """Whether a partition cannot be read now, or, where it should be active, is not."""
        return partition not in self or (is_active and not self[partition].is_active)

    def check_served(self, partitions: Iterable[int]) -> None:
        """Raise `UnavailableError`, `isolated`, if a source may not serve one of them now."""
        for partition in partitions:
            if partition in self and self[partition].is_isolated:
                raise UnavailableError(
                    f"partition {partition} is active on this node, which may not serve it now: "
                    "how much the index lacks is not known; ask another node, or with stale=ok",
                    code="isolated",
                    retry="refresh_map",
                )


async def ask_copies(
    link: Link,
    partitions: Iterable[int],
    known: ReadableCopies | None = None,
    *,
    is_active_only: bool = False,
    histories: Histories | None = None,
) -> ReadableCopies:
    """Return how the copies of partitions are; those that cannot be read are left out.

    Args:
        link: opened.
        partitions: which.
        known: what was found before; it is returned if nothing happened, and a history that is
            still the newest is not asked for again.
        is_active_only: replicas cannot be read: they lack what was written at the active copy.
        histories: copies of other histories than these are left out.

    Raises:
        UnavailableError: `timeout`, `connection_closed`.
        AccessError: a right was lost.
        RemoteProtocolError: an answer that is none.
    """
    known = known or ReadableCopies()
    numbers = sorted(partitions)
    if not numbers:
        return ReadableCopies()
    value = b"".join(number.to_bytes(2, "big") for number in numbers)
    packet = await link.demand(request(Opcode.POSITIONS, value=value), "positions")
    if packet.value == known.reply and (histories is None or histories.take_all(known)):
        return known
    if len(packet.value) != len(numbers) * _POSITIONS.size:
        message = f"{link.address} tells the positions of other partitions than were asked for"
        raise RemoteProtocolError(message, code="bad_frame")
    states = _ACTIVE if is_active_only else _STREAMED
    rows = [row for row in _POSITIONS.iter_unpack(packet.value) if row[1] in states]
    logs = {
        row[0]: known[row[0]].judged.log
        for row in rows
        if row[0] in known and known[row[0]].uuid == row[3]
    }
    new = [row[0] for row in rows if row[0] not in logs]
    asks = [request(Opcode.BRANCH_LOG, vbucket=number) for number in new]
    for number, answer in zip(new, await link.ask_all(asks), strict=True):
        if answer.status == Status.SUCCESS:
            logs[number] = decode_branch_log(answer.value)
    found = ReadableCopies(
        {
            number: ReadableCopy(Judged(logs[number], high, purge), state == 1, is_isolated)
            for number, state, is_isolated, _, _, high, *_, purge in rows
            if number in logs and (histories is None or histories.takes(number, logs[number]))
        }
    )
    if all(row[0] in found and found[row[0]].uuid == row[3] for row in rows):
        found.reply = packet.value
    return found
