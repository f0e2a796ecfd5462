"""A journal on a simulated disk, with a model of what it said is durable.

Invariants:
1. Every step changes the hard state, so that each state there can be is told from the others.
2. `allowed` are the states that a start may find: before a step has returned, the one before it
   and the one behind it; of an append any number of its entries, and the same of what a view
   has added to the log that it began with, under the new hard state only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import count
from typing import NamedTuple

from millstream.errors import UnavailableError
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.disk.durable_steps import DurableImage
from millstream.vsr.core.disk.journal import Journal, format_group, is_formatted
from millstream.vsr.core.entries import GENESIS, Body, Entry, Kind, Link, chain
from millstream.vsr.core.hard_state import HardState
from millstream.vsr.core.snapshots import Snapshot, SnapshotId, snapshot_of
from support.kv.simulated_disk import FAULTS, Crash, Fault, SimulatedDisk, nothing_happens

GROUP, NODE, OTHER = b"group-of-the-day", b"a" * 16, b"b" * 16
SEGMENT_BYTES = 1500
"""A few entries, so that segments are many."""
STANDING = HardState(GROUP, NODE, 0, 0, (0, 0), Configuration(0, (NODE, OTHER)))


class State(NamedTuple):
    """What a start may find; the log's entries, those below `base` included."""

    hard_state: HardState
    base: Link = GENESIS
    log: tuple[Entry, ...] = ()
    snapshot: SnapshotId | None = None

    @property
    def op_lsn(self) -> int:
        return self.log[-1].lsn if self.log else self.base.lsn

    def link(self, lsn: int) -> Link:
        return next((e.header.link for e in self.log if e.lsn == lsn), self.base)

    def kept(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.log if entry.lsn > self.base.lsn)


def found_in(image: DurableImage) -> State:
    """Return what a start found, all of it whole."""
    assert image.hard_state is not None
    assert not image.is_journal_lost
    assert not list(image.faulty())
    assert (image.snapshot and image.snapshot.id) == image.snapshot_id
    log = [image.entry(lsn) for lsn in range(image.base.lsn + 1, image.op_lsn + 1)]
    return State(image.hard_state, image.base, tuple(filter(None, log)), image.snapshot_id)


class SmallJournal(Journal):
    """One that takes small segments along soon, so that whatever strikes strikes there, too."""

    segments_few = 3


class JournalWorld:
    """Runs steps against a journal; a fault may strike at any effect."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = SimulatedDisk(self.rng, count(1))
        self.fault: Fault | None = None
        self.struck: Fault | None = None
        self.again: Fault | None = None
        """What strikes when a step is repeated that had no space before; else it is drawn."""
        self.disk.before = self._before
        self.state = State(STANDING)
        self.allowed = [self.state]
        self.journal: Journal | None = None

    def _before(self, effect: str, name: str) -> None:
        if self.fault is not None and self.fault.strikes(effect):
            if self.fault.kind in ("kill", "power"):
                self.disk.before = nothing_happens
            if self.fault.kind != "full":
                self.struck, self.fault = self.fault, None
                raise self.struck.error(effect)
            self.struck = self.fault
            raise self.fault.error(effect)

    def attempt(self, step: Callable[[], None]) -> None:
        """Do a step; whatever strikes, go on as people would, and do it if it was not done."""
        try:
            step()
        except Crash:
            self.restart(has_power=self.struck is not None and self.struck.kind == "kill")
        except UnavailableError as error:
            if error.code == "disk_full":
                self.fault, self.again = self.again or self._drawn(), None  # people make room
                self.attempt(step)
                self.fault = None
            else:
                self.fault = None
                self.restart(has_power=self.rng.random() < 0.7)
                self.restart(has_power=self.rng.random() < 0.5)

    def _drawn(self) -> Fault | None:
        """Return what strikes, if anything does, when a step that had no space is repeated."""
        if self.rng.random() < 0.5:
            return None
        kind = self.rng.choice([kind for kind in FAULTS if kind != "full"])
        return Fault(kind, self.rng.randint(0, 12))

    def restart(self, *, has_power: bool) -> None:
        """End the process as it is, and start it again."""
        self.disk.before = self._before
        if not has_power:
            self.disk.lose_power()
        self.journal = None
        self.start()

    def start(self) -> None:
        """Open the journal, formatted if it is not; what it finds must be allowed."""
        if self.journal is None:
            if not is_formatted(self.disk):
                assert self.state == State(STANDING)
                format_group(self.disk, STANDING)
            self.journal = SmallJournal(self.disk, SEGMENT_BYTES)
            self.check(found_in(self.journal.image))

    def check(self, found: State) -> None:
        """Take the state found for the one there is, if it may be."""
        for state in self.allowed:
            if found == state._replace(log=state.kept()):
                self.state, self.allowed = state, [state]
                return
        raise AssertionError(f"found {found}\nallowed {self.allowed}")

    @property
    def open(self) -> Journal:
        assert self.journal is not None
        return self.journal

    # -- steps

    def entries(self, link: Link, number: int, size: int = 40) -> list[Entry]:
        view, found = self.state.hard_state.view, []
        for _ in range(number):
            body = Body(b"ann", (), (self.rng.randbytes(self.rng.randint(0, size)),))
            found.append(
                chain(
                    link, group_id=GROUP, epoch=0, view=view, kind=Kind.REQUEST,
                    ts_ms=self.rng.randint(0, 9), body=body,
                )
            )  # fmt: skip
            link = found[-1].header.link
        return found

    def promised(self) -> HardState:
        old = self.state.hard_state
        return old._replace(
            view=old.view + 1, commit_hint=self.rng.randint(old.commit_hint, self.state.op_lsn)
        )

    def _do(self, call: Callable[[], None], *outcomes: State) -> None:
        before = self.state
        self.allowed = [before, *outcomes]

        def step() -> None:
            call()
            self.state, self.allowed = outcomes[-1], [outcomes[-1]]

        self.attempt(step)

    def append(self, number: int, size: int = 40) -> None:
        state = self.state
        new = self.entries(state.link(state.op_lsn), number, size)
        parts = [state._replace(log=(*state.log, *new[: i + 1])) for i in range(number)]
        self._do(lambda: self.open.append(new), *parts)

    def promise(self) -> None:
        hard_state = self.promised()
        after = self.state._replace(hard_state=hard_state)
        self._do(lambda: self.open.write_hard_state(hard_state), after)

    def install(self, cut: int, number: int) -> None:
        state, hard_state = self.state, self.promised()
        keep = max(state.base.lsn, state.op_lsn - cut, hard_state.commit_hint)
        suffix = self.entries(state.link(keep), number)
        log = (*(entry for entry in state.log if entry.lsn <= keep), *suffix)
        after = state._replace(hard_state=hard_state, log=log)
        self._do(lambda: self.open.install(keep, suffix, hard_state), after)

    def take_over(self, number: int) -> None:
        """Install the log of a view that begins with this one, and has added to it."""
        state, hard_state = self.state, self.promised()
        hard_state = hard_state._replace(last_normal=(0, hard_state.view))
        begun = self.state = state._replace(hard_state=hard_state)
        suffix = self.entries(state.link(state.op_lsn), number)
        parts = [begun._replace(log=(*state.log, *suffix[:i])) for i in range(number + 1)]
        self.state = state
        self._do(lambda: self.open.install(state.op_lsn, suffix, hard_state), *parts)

    def make_snapshot(self, lsn: int) -> Snapshot:
        data = self.rng.randbytes(200)
        number = 1 if self.state.snapshot is None else self.state.snapshot.number + 1
        return snapshot_of(number, self.state.link(lsn), data)

    def snapshot(self) -> None:
        """Write one, let it be stable, and cut the log for it."""
        state = self.state
        if not state.log or state.log[-1].lsn <= state.base.lsn:
            return
        lsn = self.rng.randint(state.base.lsn + 1, state.op_lsn)
        made = self.make_snapshot(lsn)
        self._do(lambda: self.open.write_snapshot(made), state)
        self._do(
            lambda: (self.open.write_snapshot(made), self.open.adopt_snapshot(made.id))[1],
            state._replace(snapshot=made.id),
        )
        if self.state.snapshot == made.id:
            bases = [self.state._replace(base=state.link(at)) for at in range(state.base.lsn, lsn)]
            bases.append(self.state._replace(base=state.link(lsn)))
            self.allowed = bases
            self.attempt(lambda: self.open.truncate_prefix(lsn))
            self.allowed = bases
            self.check_base()

    def check_base(self) -> None:
        base = self.open.root.layout.base
        (self.state,) = [state for state in self.allowed if state.base == base]
        self.allowed = [self.state]

    def begin_anew(self, ahead: int, number: int) -> None:
        """Another member's snapshot and log, instead of what was here."""
        state, hard_state = self.state, self.promised()
        far = self.entries(state.link(state.op_lsn), ahead)
        link, data = far[-1].header.link, self.rng.randbytes(99)
        old = state.snapshot.number if state.snapshot else 0
        snapshot = snapshot_of(old + 1, link, data)
        suffix = self.entries(link, number)

        def call() -> None:
            self.open.write_snapshot(snapshot)
            self.open.begin_anew(snapshot.id, suffix, hard_state)

        self._do(call, State(hard_state, link, tuple(suffix), snapshot.id))

    def restart_cleanly(self) -> None:
        self.open.close()
        self.journal = None
        self.attempt(self.start)

    def random_step(self) -> None:
        steps: list[Callable[[], None]] = [
            lambda: self.append(self.rng.randint(1, 6)),
            lambda: self.append(self.rng.randint(1, 3), 600),
            self.promise,
            lambda: self.install(self.rng.randint(0, 5), self.rng.randint(0, 4)),
            lambda: self.take_over(self.rng.randint(0, 3)),
            self.snapshot,
            lambda: self.begin_anew(self.rng.randint(1, 9), self.rng.randint(0, 3)),
            self.restart_cleanly,
        ]
        self.rng.choices(steps, (8, 3, 3, 3, 2, 2, 1, 2))[0]()


def damage(rng: random.Random, disk: SimulatedDisk, names: Iterable[str], kind: str) -> str:
    """Do one file one harm, as disks do; return which one."""
    name = rng.choice([n for n in names if disk.files[n].data] or ["superblock"])
    content = disk.files[name]
    data, at = content.data, rng.randrange(len(content.data))
    sector = slice(at // 512 * 512, at // 512 * 512 + 512)
    if kind == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "zeros":
        data[sector] = bytes(len(data[sector]))
    elif kind == "cut":
        del data[at:]
    elif kind == "misdirected":
        source = disk.files[rng.choice(sorted(disk.files))].data
        begin = rng.randrange(len(source) // 512 + 1) * 512
        part = source[begin : begin + 512][: len(data[sector])]
        data[sector] = part + bytes(len(data[sector]) - len(part))
    elif kind == "gone":
        disk.files.pop(name)
        disk.synced.pop(name, None)
    content.synced = data[:]
    content.dirty = None
    return name


DAMAGES = ("flip", "zeros", "cut", "misdirected", "gone")
