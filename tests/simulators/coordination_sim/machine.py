"""One machine: a replica while it runs, its journal on a disk that fails, clocks of its own.

Invariants:
1. Disk steps are done one after the other, each at the end of its time; a crash comes before,
   after, or in the middle of one. Appends that wait behind one another become one.
2. What a machine says is checked against what its journal has, not against what it believes.
3. An error of the disk stops the process; lack of space lets the step wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.errors import CorruptionError, UnavailableError
from millstream.vsr.core.disk.durable_steps import SUPERBLOCK, newest_root
from millstream.vsr.core.disk.journal import Journal, format_group
from millstream.vsr.core.effects import (
    AdoptSnapshot,
    Append,
    CallSoon,
    Damaged,
    DiskDone,
    DiskEffect,
    Install,
    InstallSnapshot,
    Reply,
    Send,
    SetTimer,
    Soon,
    Start,
    Timer,
    WriteSnapshot,
)
from millstream.vsr.core.entries import Entry
from millstream.vsr.core.hard_state import HardState
from millstream.vsr.core.messages import Envelope, SnapshotDone
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.snapshots import SnapshotId
from simulators.coordination_sim.loop import stream
from simulators.coordination_sim.shadow import RecordedState
from simulators.coordination_sim.times import Work
from simulators.coordination_sim.truth import contradicted
from support.coordination.simulated_journal import SmallJournal
from support.kv.simulated_disk import Crash, Fault, SimulatedDisk, nothing_happens

if TYPE_CHECKING:
    from millstream.coordination.core.namespace.state.run import Notice
    from simulators.coordination_sim.world import World

SEGMENT_BYTES = 20_000
FULL_RETRY_MS = 1000.0
SOON_MS = 0.01
UPGRADED = 0.3
"""So many of the programs that start are newer than the one before, in runs with upgrades."""
TIMER, SOON = Timer(), Soon()


class Step(NamedTuple):
    """What is done on the disk at once, and the numbers it is reported with."""

    ops: list[int]
    effect: DiskEffect


class Machine:
    """A node with its disk; `replica` is None while it is down."""

    def __init__(self, world: World, number: int, hard_state: HardState) -> None:
        self.world, self.loop, self.number, self.id = world, world.loop, number, hard_state.node_id
        self.rng = stream(world.seed, f"machine/{number}")
        self.disk = SimulatedDisk(stream(world.seed, f"disk/{number}"), count(1))
        format_group(self.disk, hard_state)
        self.journal: Journal | None = None
        self.replica: Any = None
        self.process = 0
        self.steps: deque[Step] = deque()
        self.writing = False
        """The first of `steps` is under way."""
        self.fault: Fault | None = None
        self.fuse: int | None = None
        self.paused = False
        self.inbox: deque[tuple[Any, ...]] = deque()
        self.slowness = self.disk_slowness = 1.0
        self.rate, self.clock_ms, self.clock_since, self.wall_ms = 1.0, 0.0, 0.0, 0
        self.was_lost = False
        """Before the last event the log was lost, or the state known to be wrong."""
        self.dead = self.stays_down = False
        """The superblock is lost, and the node with it."""
        self.harmed = False
        """Something on the disk is not what was written, and may still be found."""
        self.harm_run = 0
        self.told = (0, 0)
        self.is_upgraded = False
        """Its next program, and all later ones, understand one more state format."""
        self.said: Envelope | None = None
        """What was looked at last of what it says."""
        self.seen_commit = 0
        self.seen_log: tuple[Any, ...] = ()
        self.hashes: dict[int, bytes] = {}
        self.last_normal = (0, 0)
        """What is durable of it."""
        """LSN -> hash of what is durable and whole."""
        self.base_lsn = 0
        """A durable snapshot stands for all before it."""
        self.work = Work(0.0)
        self.written_snapshot: SnapshotId | None = None
        """The last one that this process has on its disk."""
        self._timer = 0
        self._before_fault = self._before

    # ---- clocks

    def clock(self) -> float:
        """Return what the clock shows that only grows."""
        return self.clock_ms + (self.loop.now - self.clock_since) * self.rate

    def run_at(self, rate: float) -> None:
        """Have the clock run faster or slower from now on."""
        self.clock_ms, self.clock_since, self.rate = self.clock(), self.loop.now, rate
        self.world.times.clock_moved(self)

    def jump(self, by_ms: int) -> None:
        """Have the clock that people see show something else."""
        self.wall_ms += by_ms
        self.world.times.clock_moved(self)

    # ---- life

    def start(self, process: int | None = None) -> None:
        """Begin a process, unless there is one, or the one meant is not the last one."""
        if self.replica is not None or process not in (None, self.process):
            return
        if self.dead or self.stays_down:
            return
        self.process += 1
        try:
            self.journal = SmallJournal(self.disk, SEGMENT_BYTES)
        except (UnavailableError, Crash) as error:
            self.world.say(self, f"does not start: {error!r}")
            self._end(power_lost=self.rng.random() < self.world.conditions.power)
            return
        image = self.journal.image
        if image.hard_state is None:
            self.dead = True
            self.world.say(self, "has lost its disk")
            return
        self._load(image)

    def _load(self, image: Any) -> None:
        world, hard_state = self.world, image.hard_state
        world.truth.found(self, hard_state)
        self.last_normal = hard_state.last_normal
        log = () if image.is_journal_lost else image.log
        self.hashes, self.base_lsn = {image.base.lsn: image.base.hash}, image.base.lsn
        self.hashes.update((e.lsn, e.header.hash) for e in log if isinstance(e, Entry))
        world.counts["damaged entries found"] += sum(isinstance(e, Damaged) for e in log)
        world.counts["damaged snapshots found"] += image.snapshot is None and bool(image.base.lsn)
        world.counts["lost logs found"] += image.is_journal_lost
        machine = RecordedState()
        if world.conditions.namespaces:
            machine.audience.on_notice = self.notifier()
        if world.conditions.upgrades:
            luck = stream(world.seed, f"upgrade/{self.number}/{self.process}").random()
            self.is_upgraded = self.is_upgraded or luck < UPGRADED
        machine.format_max = 1 + self.is_upgraded
        chance = stream(world.seed, f"replica/{self.number}/{self.process}").random
        self.replica = world.replica_class(machine, chance)
        self.replica.state.contradict = contradicted
        self.replica.state.tuning.hint_entries_max = world.conditions.hint
        self.replica.state.tuning.batch_entries_max = world.conditions.batch
        self.replica.state.tuning.apply_entries_max = world.conditions.apply
        self.replica.state.tuning.snapshot_entries = world.conditions.snapshot
        self.replica.state.tuning.snapshot_share = 1
        self.replica.state.tuning.retain_entries = world.conditions.retain
        self.replica.state.tuning.part_bytes = world.conditions.part
        self.seen_commit, self.seen_log = 0, ()
        self.clock_ms, self.clock_since = self.rng.random() * 1e6, self.loop.now
        self.work, self.written_snapshot = Work(self.clock()), None
        world.times.clock_moved(self)
        world.say(self, f"starts with {len(log)} entries, {hard_state}")
        self.step(Start(image.for_replica))

    def notifier(self) -> Callable[[Notice], None]:
        """Return what is told whom it is worth to ask again."""
        return self.world.namespace_clients.door(self).notify

    def crash(self, *, power_lost: bool = False) -> None:
        """End the process here and now; what was being written may be there in part."""
        if self.replica is None or not self.world.may_end(self):
            return
        self.world.counts["crashes"] += 1
        self.world.say(self, f"crashes{' without power' if power_lost else ''}")
        if self.writing and self.rng.random() < 0.7:
            self._tear(self.steps[0])
        self._end(power_lost=power_lost)

    def _tear(self, step: Step) -> None:
        """Do a part of a disk step, or all of it, unreported."""
        left = self.rng.randint(0, 12)

        def before(kind: str, name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Crash

        self.disk.before = before
        assert self.journal is not None
        if not self.journal.has_failed:
            with suppress(Crash, CorruptionError):
                self.journal.carry_out(step.effect)

    def _end(self, *, power_lost: bool) -> None:
        """Have no process, and start one some time later."""
        self.disk.before = nothing_happens
        self.world.forgets(self)
        if power_lost:
            self.world.counts["power losses"] += 1
            self.disk.lose_power()
        self.replica, self.journal, self.fault, self.fuse = None, None, None, None
        self.process += 1
        self.world.clients.forget_process(self)
        self.steps.clear()
        self.writing = False
        self.inbox.clear()
        self.paused = False
        self.loop.after(self.world.down_ms(), self.start, self.process)

    def pause(self, for_ms: float) -> None:
        """Do nothing for a time; all that comes is there afterwards."""
        if self.replica is not None and not self.paused:
            self.paused = True
            self.world.say(self, f"is paused for {for_ms:.0f} ms")
            self.loop.after(for_ms, self.resume, self.process)

    def resume(self, process: int) -> None:
        """Go on with all that came meanwhile."""
        if process != self.process or not self.paused:
            return
        self.paused = False
        self.world.say(self, "goes on")
        while self.inbox and process == self.process and not self.paused:
            call, *args = self.inbox.popleft()
            if call == self.receive and self.rng.random() < 0.5:
                self.step(*args, *self._received())
            else:
                call(*args)

    def _received(self) -> Iterator[Any]:
        """Yield the events that come together with the one before."""
        while self.inbox and self.inbox[0][0] == self.receive:
            yield self.inbox.popleft()[1]

    # ---- events and effects

    def receive(self, event: Any) -> None:
        """Let the replica have an event, if there is one."""
        if self.paused:
            self.inbox.append((self.receive, event))
        elif self.replica is not None:
            self.step(event)

    def on_timer(self, number: int) -> None:
        """The time of a SetTimer is over, unless another one followed."""
        if number == self._timer and self.replica is not None:
            if self.paused:
                self.inbox.append((self.on_timer, number))
            else:
                self.step(TIMER)

    def on_soon(self, process: int) -> None:
        """Others had their turn after a CallSoon."""
        if process == self.process:
            self.receive(SOON)

    def step(self, *events: Any) -> None:
        """Let the replica take events, look at it, and do what it wants, as far as it lives."""
        world, process = self.world, self.process
        now = self.clock()
        world.times.hear(self, now, events)
        before = self.replica.status
        self.was_lost = before is Status.LOST
        effects = self.replica.step(now, max(0, int(now) + self.wall_ms), *events)
        if world.plant is None:
            self.replica.check_invariants()
        if self.replica.status is Status.RETIRED is not before:
            self.replica.machine.audience.skip()  # as the node does
        if world.trace is not None:
            world.say_step(self, events, effects)
        world.truth.check(self)
        if process != self.process:
            return  # telling the pool was the end
        for effect in effects:
            if self.fuse is not None:
                self.fuse -= 1
                if self.fuse < 0 and world.may_end(self):
                    self.crash(power_lost=self.rng.random() < world.conditions.power)
                    return
            if type(effect) is Send:
                world.truth.check_said(self, effect.envelope)
                world.network.send(self, effect.receiver, effect.envelope)
                continue
            self._carry_out(effect)
            if process != self.process:
                return

    def _carry_out(self, effect: Any) -> None:
        kind = type(effect)
        if kind is SetTimer:
            self._timer += 1
            delay = effect.after_ms / self.rate * self.slowness
            self.loop.after(delay, self.on_timer, self._timer)
        elif kind is CallSoon:
            self.loop.after(SOON_MS, self.on_soon, self.process)
        elif kind is Reply:
            self.world.clients.replied(self, effect)
        else:
            self._write(effect)

    # ---- the disk

    def _write(self, effect: DiskEffect) -> None:
        if isinstance(effect, WriteSnapshot):
            self.world.truth.states.made(self, effect.snapshot.id)
        steps = self.steps
        waiting = len(steps) > self.writing
        if waiting and isinstance(effect, Append) and isinstance(steps[-1].effect, Append):
            last = steps.pop()
            joined = Append(effect.op, (*last.effect.entries, *effect.entries))
            steps.append(Step([*last.ops, effect.op], joined))
            return
        steps.append(Step([effect.op], effect))
        if not self.writing:
            self.writing = True
            self._begin_write()

    def _begin_write(self, waits_ms: float = 0.0) -> None:
        time = self.world.conditions.disk_ms * (0.5 + self.rng.random()) * self.disk_slowness
        self.loop.after(waits_ms + time, self.written, self.process)

    def written(self, process: int) -> None:
        """The time of a disk step is over: do it, and report it."""
        if process != self.process:
            return
        if self.paused:
            self.inbox.append((self.written, process))
            return
        step = self.steps[0]
        assert self.journal is not None
        self.disk.before = self._before_fault if self.fault else nothing_happens
        try:
            self.journal.carry_out(step.effect)
        except Crash:
            self._end(power_lost=self.fault is not None and self.fault.kind == "power")
            return
        except (UnavailableError, CorruptionError) as error:
            self._on_disk_error(error)
            return
        self.disk.before = nothing_happens
        self._keep(step.effect)
        self.steps.popleft()
        self.writing = False
        self.step(*map(DiskDone, step.ops))
        if process == self.process and self.steps and not self.writing:
            self.writing = True
            self._begin_write()

    def _on_disk_error(self, error: Exception) -> None:
        self.world.say(self, f"disk: {error}")
        if getattr(error, "code", "") == "disk_full":
            self._begin_write(FULL_RETRY_MS)
        else:
            self.world.counts["stopped by the disk"] += 1
            self._end(power_lost=self.rng.random() < 0.5)

    def _before(self, effect: str, name: str) -> None:
        """Have a fault strike; a member that has no room for its superblock ends, too."""
        assert self.fault is not None
        survives = self.fault.kind == "full" and name != SUPERBLOCK
        if self.fault.strikes(effect) and (survives or self.world.may_end(self)):
            raise self.fault.error(effect)

    def _keep(self, effect: DiskEffect) -> None:
        """Know what is durable now."""
        if isinstance(effect, Append):
            self.hashes.update((entry.lsn, entry.header.hash) for entry in effect.entries)
        elif isinstance(effect, Install):
            kept = {lsn: known for lsn, known in self.hashes.items() if lsn <= effect.keep_lsn}
            kept.update((entry.lsn, entry.header.hash) for entry in effect.suffix)
            self.world.truth.check_installed(self, effect.hard_state, max(self.hashes), max(kept))
            self.hashes = kept
        elif isinstance(effect, InstallSnapshot):
            link = effect.snapshot.id.link
            self.hashes, self.base_lsn = {link.lsn: link.hash}, link.lsn
            self.hashes.update((entry.lsn, entry.header.hash) for entry in effect.suffix)
            self.world.counts["snapshots installed"] += 1
        elif isinstance(effect, WriteSnapshot):
            self.written_snapshot = effect.snapshot.id
        elif isinstance(effect, AdoptSnapshot):
            self.world.counts["snapshots adopted"] += 1
        self.last_normal = getattr(effect, "hard_state", self).last_normal

    def hash_on_disk(self, lsn: int) -> bytes | None:
        """Return the hash of an entry that is durable and whole, or remembered where all are."""
        if not self.world.conditions.journalled:
            found: bytes | None = self.replica.log.hash_at(lsn)
            return found
        return self.hashes.get(lsn)

    def log_end(self) -> int:
        """Return the last LSN of the log: durable, or remembered in a group without a journal."""
        if self.world.conditions.journalled:
            return max([self.base_lsn, *self.hashes])
        return int(self.replica.log.op_lsn) if self.remembers else 0

    def has_on_disk(self, lsn: int, digest: bytes) -> bool:
        """Return whether an entry, or a snapshot of what it did, is durable."""
        if not self.world.conditions.journalled:
            log = self.replica.log if self.remembers else None
            return log is not None and (lsn < log.base.lsn or log.hash_at(lsn) == digest)
        return lsn < self.base_lsn or self.hashes.get(lsn) == digest

    def has_snapshot(self, done: SnapshotDone) -> bool:
        """Return whether this snapshot of its own state was made durable."""
        made = self.written_snapshot
        return not self.world.conditions.journalled or (
            made is not None and (made.number, made.hash) == done
        )

    # ---- what others ask

    @property
    def leads(self) -> bool:
        """Whether it leads and believes so."""
        return self.replica is not None and self.replica.leading and not self.replica.suspended

    @property
    def well(self) -> bool:
        """Whether it runs, is a member in full, and has all of its log."""
        r = self.replica
        if r is None or r.status is not Status.NORMAL or self.is_astray:
            return False
        return r.state.current and not r.log.holes

    @property
    def is_astray(self) -> bool:
        """Whether its state went wrong."""
        return self.replica is not None and self.replica.machine.is_astray

    @property
    def remembers(self) -> bool:
        """Whether it runs, and has not lost its log."""
        return self.replica is not None and self.replica.status is not Status.LOST

    def layout(self) -> Any:
        """Return which files are in force, of a machine that is down."""
        root, _ = newest_root(self.superblock())
        return None if root is None else root.layout

    def superblock(self) -> bytes:
        """Return what the disk has of it."""
        found = self.disk.files.get(SUPERBLOCK)
        return b"" if found is None else bytes(found.data)

    def destroy(self, body: bytes) -> None:
        """Damage all that the disk has of an entry, but for its header."""
        for content in (*self.disk.files.values(), *self.disk.synced.values()):
            for data in (content.data, content.synced):
                at = data.find(body)
                while at >= 0:
                    data[at + len(body) // 2] ^= 1
                    at = data.find(body, at)
        self.harmed, self.harm_run = True, self.process

    def hurry(self) -> None:
        """Be as fast as others again."""
        self.slowness = self.disk_slowness = 1.0

    def has_room(self) -> None:
        """Somebody has made room on the disk."""
        if self.fault is not None and self.fault.kind == "full":
            self.fault = None

    def mend(self) -> None:
        """Have no fault any more, and run."""
        self.hurry()
        self.run_at(1.0)
        self.fault = self.fuse = None
        if self.paused:
            self.resume(self.process)
        self.start()
