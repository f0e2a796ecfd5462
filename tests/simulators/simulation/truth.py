"""What is true of the simulated partitions: kept by who writes, apart from the code under test.

A change belongs to (uuid of its history, seqno), so that a failover log and a seqno name a whole
history, on whichever copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from millstream.kv.core.partition.partition import Partition, value_of
from millstream.kv.core.queue.entry import Entry
from millstream.model.lineage import Lineage, decode
from millstream.model.position import FailoverLog, entry_below
from millstream.storage.core.records import key_of
from millstream.wire.frames import change_of, seqno_of
from millstream.wire.mcbp import Opcode


class Change(NamedTuple):
    seqno: int
    key: bytes
    value: bytes | None  # None: a tombstone
    number: int  # identity of the write
    rev: int = 0
    lineage: Lineage | None = None


def replay(history: Iterable[Change]) -> dict[bytes, bytes]:
    newest = {change.key: change.value for change in history}
    return {key: value for key, value in newest.items() if value is not None}


def name_of(frame: bytes) -> tuple[int, bytes | None]:
    """Seqno and value; None for a tombstone."""
    return seqno_of(frame), value_of(frame) if frame[1] == Opcode.DCP_MUTATION else None


class Truth:
    """Every change that was ever written."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self.numbers = numbers
        self.changes: dict[tuple[int, int], Change] = {}

    def written(
        self, partition: Partition, entry: Entry, known: Change | None, value: bytes | None
    ) -> Change:
        """An active copy has just made a change; `known`: that before it, if it may count.

        Its revision and lineage are checked against what they should be.
        """
        log = partition.failover_log
        seqno, branch = partition.high_seqno, log[0].branch
        assert seqno_of(entry.frame) == seqno
        rev = known.rev + 1 if known else 1
        lineage = Lineage(branch, seqno, ((branch, 1),))
        if known is not None and known.lineage is not None:
            runs = known.lineage.runs
            new = () if runs[-1][0] == branch else ((branch, rev),)
            lineage = known.lineage._replace(runs=(*runs, *new))
        assert (change_of(entry.frame).rev, decode(entry.side)) == (rev, lineage)
        change = Change(seqno, entry.key, value, next(self.numbers), rev, lineage)
        assert (log[0].uuid, seqno) not in self.changes, "one seqno, two changes"
        self.changes[log[0].uuid, seqno] = change
        return change

    def inherit(self, uuid: int, changes: Iterable[Change]) -> None:
        """What a promoted copy has above its end is of its own history."""
        for change in changes:
            self.changes[uuid, change.seqno] = change

    def history(self, log: FailoverLog, end: int) -> list[Change]:
        names = ((entry_below(log, seqno).uuid, seqno) for seqno in range(1, end + 1))
        return [self.changes[name] for name in names if name in self.changes]

    def of(self, log: FailoverLog, frame: bytes) -> Change:
        """The change that a frame of this history is; checked."""
        seqno, value = name_of(frame)
        change = self.changes.get((entry_below(log, seqno).uuid, seqno))
        assert change is not None, f"{seqno} was never written in {log}"
        assert (key_of(frame), value) == (change.key, change.value), f"{change} comes as {value!r}"
        return change
