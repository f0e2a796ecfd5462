"""Readers who do as they are told hold, in the end, what the partition holds: nothing that its
history dropped, and no more is undone than the rule says.

The model shares nothing with the product: a copy of a partition is a dict of seqno -> change, its
failover log a list of pairs. Copies part ways: one that knows only the beginning of another's
history goes on in a history of its own, any number of times, and any copy may be the one that is
asked. Deletions are forgotten. Readers stop inside snapshots, in which each key occurs once.
"""

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.model.position import FailoverEntry, Position
from millstream.upr.core.decision import Grant, RollbackError, decide
from millstream.upr.core.messages import StreamRequest
from support.budget import budget
from support.streams.fake_source import FakeBucket, FakePartition

KEYS = "abcd"


class Change(NamedTuple):
    key: str
    value: int
    """Never used twice; below 0: a deletion."""


class Copy:
    """A copy of the partition: everything it was ever told, and what it says of its history."""

    def __init__(self, uuid: int) -> None:
        self.changes: dict[int, Change] = {}
        self.log = [(uuid, 0)]
        self.purge_seqno = 0

    @property
    def high(self) -> int:
        return len(self.changes)

    def parted(self, uuid: int, seqno: int) -> "Copy":
        """A copy that has this one's changes up to a seqno, and now goes its own way."""
        other = Copy(uuid)
        other.changes = {at: change for at, change in self.changes.items() if at <= seqno}
        other.log = [(uuid, seqno)] + [entry for entry in self.log if entry[1] <= seqno]
        other.purge_seqno = min(self.purge_seqno, seqno)
        return other

    def state(self, upto: int) -> dict[str, int]:
        newest = {c.key: c.value for at, c in sorted(self.changes.items()) if at <= upto}
        return {key: value for key, value in newest.items() if value >= 0}

    def snapshot(self, after: int) -> list[tuple[int, Change]]:
        """What a stream sends of (after, high]: the newest of each key that is not forgotten."""
        newest = {change.key: at for at, change in sorted(self.changes.items())}
        return [
            (at, self.changes[at])
            for at in sorted(newest.values())
            if at > after and (self.changes[at].value >= 0 or at > self.purge_seqno)
        ]

    def as_source(self) -> FakePartition:
        branches = range(len(self.log), 0, -1)
        log = tuple(FailoverEntry(*e, n) for e, n in zip(self.log, branches, strict=True))
        return FakePartition(
            0, failover_log=log, high_seqno=self.high, purge_seqno=self.purge_seqno
        )


class Reader:
    """State and position; every complete state it ever had can be restored.

    A tidy one says of a complete snapshot that it starts where it ends; the others name the start
    that the marker had.
    """

    def __init__(self, *, is_tidy: bool) -> None:
        self.is_tidy = is_tidy
        self.began = 0
        self.state: dict[str, int] = {}
        self.at = self.start = self.end = self.uuid = 0
        self.purge_seqno: int | None = None
        self.log: list[tuple[int, int]] = []
        self.source: Copy | None = None
        """Whom it has read from, and whether it still does."""
        self.is_open = False
        self.coming: list[tuple[int, Change]] | None = None
        self.kept: dict[int, dict[str, int]] = {0: {}}

    @property
    def is_inside(self) -> bool:
        return self.start < self.at < self.end

    def needed(self) -> int:
        """Up to which seqno its state depends on the history it was read from."""
        return self.end if self.is_inside else self.at

    def position(self) -> Position:
        start = self.start if self.is_tidy or self.is_inside else min(self.began, self.start)
        return Position(self.uuid, self.at, start, self.end, self.purge_seqno)

    def rename(self) -> None:
        """The uuid goes with the history in which the snapshot ends."""
        below = [uuid for uuid, seqno in self.log if seqno < self.end]
        self.uuid = below[0] if below else self.log[-1][0]

    def undo(self, seqno: int) -> None:
        self.kept = {at: state for at, state in self.kept.items() if at <= seqno}
        self.at = self.start = self.end = self.began = max(self.kept)
        self.state = dict(self.kept[self.at])
        self.purge_seqno = None
        if self.log:
            self.rename()

    def accepted(self, copy: Copy, grant: Grant) -> None:
        assert (grant.start, grant.snap_start) == (self.at, self.position().snap_start)
        assert grant.snap_end <= copy.high
        if self.at == 0:
            self.purge_seqno = copy.purge_seqno
        if self.at == self.start:
            self.end = self.at  # of that snapshot nothing came
        self.source, self.log, self.is_open, self.coming = copy, list(copy.log), True, None
        self.rename()

    def take(self, count: int) -> None:
        """Receive some changes of the snapshot under way, or of the next."""
        assert self.source is not None
        if self.coming is None:
            if self.source.high == self.at == self.end:
                return
            self.began = self.start
            self.coming, self.end = self.source.snapshot(self.at), self.source.high
            self.rename()
        for at, change in self.coming[:count]:
            self.at = at
            self.state[change.key] = change.value
            if change.value < 0:
                del self.state[change.key]
        del self.coming[:count]
        if count and not self.coming:
            self.at = self.start = self.end
            self.coming = self.purge_seqno = None
            self.kept[self.at] = dict(self.state)
            assert self.state == self.source.state(self.at), "not what the partition held"


def answer_to(asked: StreamRequest, bucket: FakeBucket) -> Grant | int:
    """What was granted, or the seqno to undo to."""
    try:
        return decide(asked, bucket, is_streaming=False)
    except RollbackError as error:
        return error.seqno


class World:
    def __init__(self, readers: int) -> None:
        self.values = 0
        self.copies = [Copy(0x100)]
        self.active = self.copies[0]
        self.readers = [Reader(is_tidy=number == 0) for number in range(readers)]

    # -- what happens

    def write(self, number: int) -> None:
        self.values += 1
        value = self.values if number % 4 else -self.values
        self.active.changes[self.active.high + 1] = Change(KEYS[number % len(KEYS)], value)

    def fork(self, number: int) -> None:
        """A copy of the present one becomes active, or an old one; its newest changes are lost."""
        base = self.copies[-1 - number % min(3, len(self.copies))] if number > 20 else self.active
        seqno = base.high - number % 5
        if seqno >= base.purge_seqno:
            self.active = base.parted(0x100 + len(self.copies), seqno)
            self.copies.append(self.active)
            for reader in self.readers:
                reader.is_open = False

    def forget(self, number: int) -> None:
        """Deletions go that every reader under way has passed."""
        passed = [reader.at for reader in self.readers if reader.is_open]
        upto = min([self.active.high, *passed, number])
        self.active.purge_seqno = max(self.active.purge_seqno, upto)

    def read(self, number: int) -> None:
        reader = self.readers[number % len(self.readers)]
        if not reader.is_open:
            self.ask(reader)
        reader.take(number // 8)

    def leave(self, number: int) -> None:
        self.readers[number % len(self.readers)].is_open = False

    # -- the conversation

    def ask(self, reader: Reader) -> None:
        bucket = FakeBucket([self.active.as_source()])
        for _ in range(4):
            expected = self.expected(reader)
            answer = answer_to(StreamRequest(0, reader.position()), bucket)
            if isinstance(answer, Grant):
                assert expected is None, "accepted, though the histories part before"
                reader.accepted(self.active, answer)
                return
            assert answer == expected
            reader.undo(answer)
        raise AssertionError("never accepted")

    def expected(self, reader: Reader) -> int | None:
        """What must be undone, as seen from above."""
        copy = self.active
        if reader.at == 0:
            return None
        if reader.at < copy.purge_seqno != reader.purge_seqno:
            return 0  # deletions that it has not seen are forgotten
        if all(uuid != reader.uuid for uuid, _ in copy.log):
            return 0  # nobody can know
        assert reader.source is not None
        common = 0
        while copy.changes.get(common + 1, 0) == reader.source.changes.get(common + 1, 1):
            common += 1
        if common >= reader.needed():
            return None
        return min(common, reader.start if reader.is_inside else reader.at)


HAPPENINGS = ("write", "write", "write", "read", "read", "read", "leave", "fork", "forget")
happening = st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 40))


@settings(max_examples=budget(400), deadline=None)
@given(st.integers(1, 3), st.lists(happening, min_size=10, max_size=80))
def test_who_follows_the_decision_holds_what_history_holds(
    readers: int, happenings: list[tuple[str, int]]
) -> None:
    world = World(readers)
    for what, number in happenings:
        getattr(world, what)(number)
    for reader in world.readers:
        reader.is_open = False
        world.ask(reader)
        reader.take(len(KEYS))
        assert reader.state == world.active.state(world.active.high)
