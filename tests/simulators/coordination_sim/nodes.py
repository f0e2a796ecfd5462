"""A whole node: its pool, its groups, the connections of its clients, on one false machine.

Invariants:
1. Effects of the pool are carried out in their order, what is of the disk one after the other; a
   crash comes before, after, or in the middle of any of them.
2. A process that ends takes all of it along: pool, groups, connections.
3. Nobody is listened to before all groups have read their files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

from millstream.coordination.aio.client_requests import ClientRequests
from millstream.coordination.aio.namespaces import Namespaces
from millstream.coordination.core.backup import backup_parts, format_restored, read_backup
from millstream.coordination.core.pool.effects import (
    FIRST_GROUP,
    Admin,
    AdminReply,
    Answered,
    AskBackup,
    AskGroup,
    AskLog,
    AskReport,
    AskRestore,
    CloseGroups,
    DropGroup,
    FormatGroup,
    GroupReplied,
    HangUp,
    Heard,
    KeepNode,
    KeepRefusal,
    NodeStart,
    OpenGroup,
    Refusal,
    Say,
    Stray,
    TellFork,
    Warn,
)
from millstream.coordination.core.pool.messages import (
    Address,
    PoolEnvelope,
    decode_pool,
    encode_pool,
)
from millstream.coordination.core.pool.pool import Pool
from millstream.coordination.core.resp.session import RespSession
from millstream.errors import CorruptionError, MillstreamError, UnavailableError
from millstream.vsr.core.disk.journal import format_group, is_formatted
from millstream.vsr.core.effects import (
    Code,
    DiskDone,
    Message,
    Refused,
    Reply,
    SetTimer,
    Timer,
)
from simulators.coordination_sim.doors import Owed
from simulators.coordination_sim.groups_of_nodes import GroupMachine
from simulators.coordination_sim.lines import Line
from simulators.coordination_sim.loop import stream
from simulators.coordination_sim.truth import WrongError
from support.kv.simulated_disk import Crash, Fault, SimulatedDisk, nothing_happens

if TYPE_CHECKING:
    from millstream.coordination.core.namespace.state.run import Notice
    from simulators.coordination_sim.whole import WholeWorld

PEER_PORT, COORD_PORT = 7000, 7379
FULL_RETRY_MS = 1000.0
NOT_HERE = Refusal("NOTPRIMARY", "the group is not open here")


class NoNames:
    """Clients of these nodes name the group that they mean; registers have no namespaces."""

    @staticmethod
    def group_of(_: bytes) -> int:
        return FIRST_GROUP

    @staticmethod
    def has_root(gid: int, path: bytes) -> bool:
        return True

    @staticmethod
    def hear(_: PoolEnvelope) -> bool:
        return False


class Turns:
    """The loop of a node's process, as far as it is asked for."""

    def __init__(self, node: Node) -> None:
        self.node, self.process = node, node.process

    def time(self) -> float:
        return self.node.loop.now / 1000

    def call_later(self, after_s: float, what: Callable[[], None]) -> None:
        self.node.loop.after(after_s * 1000, self._call, what)

    def _call(self, what: Callable[[], None]) -> None:
        if self.process == self.node.process:
            self.node.call(self._do, what)

    def _do(self, what: Callable[[], None]) -> None:
        if self.process == self.node.process:
            what()


class Node:
    """`pool` is None while it is down."""

    def __init__(self, world: WholeWorld, number: int, join: tuple[Address, ...]) -> None:
        self.world, self.loop, self.number, self.join = world, world.loop, number, join
        self.id = world.id_of(number)
        self.peer = Address(f"node{number}", PEER_PORT)
        self.coord = Address(f"node{number}", COORD_PORT)
        self.rng = stream(world.seed, f"node/{number}")
        self.content: bytes | None = None
        self.disks: dict[bytes, SimulatedDisk] = {}
        self.machines: dict[bytes, GroupMachine] = {}
        self.running: dict[bytes, GroupMachine] = {}
        self.files: dict[str, tuple[bytes, bytes]] = {}
        """Backups: path -> content, and the group that it is of."""
        self.pool: Pool | None = None
        self.requests: Any = None
        self.process = self.incarnation = 0
        self.is_listening = self.stays_down = False
        self.attached: dict[tuple[int, int], RespSession] = {}
        self.lines: dict[RespSession, Line] = {}
        self.owed = Owed(self.loop, world.counts)
        self.namespaces: Any = NoNames()
        self.who: dict[Address, bytes] = {}
        self.commands: dict[int, Callable[[bytes], None]] = {}
        self.tickets = count(1)
        self.events: deque[Any] = deque()
        self.is_stepping = False
        self.work: deque[Any] = deque()
        self.writing = self.paused = False
        self.inbox: deque[tuple[Any, ...]] = deque()
        self.slowness = self.disk_slowness = self.rate = 1.0
        self.wall_ms = 0
        self._fuse: int | None = None
        self._fault: Fault | None = None
        self._timer = 0

    # ---- life

    def start(self, process: int | None = None) -> None:
        """Begin a process, unless there is one."""
        if self.pool is not None or self.stays_down or process not in (None, self.process):
            return
        self.process += 1
        self.incarnation += 1
        self.pool = Pool(stream(self.world.seed, f"pool/{self.number}/{self.process}").random)
        if self.world.conditions.namespaces:
            self.namespaces = Namespaces(self.running, self, self, Turns(self))  # type: ignore[arg-type]
        self.requests = ClientRequests(self.running, self, self.namespaces, {})  # type: ignore[arg-type]
        self.is_listening = False
        formatted = tuple(group for group in sorted(self.disks) if is_formatted(self.disks[group]))
        self.world.say(self, f"starts with {len(formatted)} groups")
        self.take(NodeStart(
            self.content, self.id, self.incarnation, formatted, self.peer, self.coord, self.join,
        ))  # fmt: skip
        self._listen()

    def _listen(self) -> None:
        if not self.work and self.pool is not None:
            self.is_listening = True

    def crash(self, *, power_lost: bool = False) -> None:
        """End the process here and now; what was being written may be there in part."""
        if self.pool is None:
            return
        self.world.counts["crashes"] += 1
        self.world.say(self, f"crashes{' without power' if power_lost else ''}")
        for machine in self.running.values():
            machine.tear()
        if self.work and isinstance(self.work[0], KeepNode) and self.rng.random() < 0.5:
            self.content = self.work[0].content
        self.end(power_lost=power_lost)

    def lose(self) -> None:
        """Have no process until somebody says otherwise."""
        self.stays_down = True
        self.crash()

    def come_back(self) -> None:
        """Have a process again."""
        self.stays_down = False
        self.start()

    def end(self, *, power_lost: bool) -> None:
        """Have no process, and start one some time later."""
        if self.pool is None:
            return
        self.pool, self.is_listening = None, False
        self.process += 1
        self._fuse = self._fault = None
        running = list(self.running.values())
        self.running.clear()
        for machine in running:
            machine.stop()
        for disk in self.disks.values():
            disk.before = nothing_happens
            if power_lost:
                disk.lose_power()
        self.events.clear()
        self.work.clear()
        self.inbox.clear()
        self.commands.clear()
        self.attached.clear()
        lines, self.lines = self.lines, {}
        for resp, line in lines.items():
            resp.close()
            line.break_off()
        self.writing = self.paused = self.is_stepping = False
        self.loop.after(self.world.down_ms(), self.start, self.process)

    def pause(self, for_ms: float) -> None:
        """Do nothing for a time; all that comes is there afterwards."""
        if self.pool is not None and not self.paused:
            self.paused = True
            self.world.say(self, f"is paused for {for_ms:.0f} ms")
            self.loop.after(for_ms, self.resume, self.process)
            for machine in self.running.values():
                machine.pause(for_ms)

    def resume(self, process: int) -> None:
        """Go on with all that came meanwhile."""
        if process != self.process or not self.paused:
            return
        self.paused = False
        self.world.say(self, "goes on")
        while self.inbox and process == self.process:
            call, *args = self.inbox.popleft()
            call(*args)

    def call(self, what: Callable[..., None], *args: Any) -> None:
        """Do something now, or when the pause is over."""
        if self.paused:
            self.inbox.append((what, *args))
        else:
            what(*args)

    def mend(self) -> None:
        """Have no fault any more, and run."""
        self.run_at(1.0)
        self._fuse = self._fault = None
        if self.paused:
            self.resume(self.process)
        for machine in list(self.running.values()):
            machine.fault = machine.fuse = None
            if machine.paused:
                machine.resume(machine.process)
        self.hurry()
        self.start()

    # ---- faults, which strike the pool or one of the groups

    def _place(self) -> Any:
        places: list[Any] = [machine for _, machine in sorted(self.running.items())]
        return self.rng.choice([*places, None])

    @property
    def leads(self) -> bool:
        return any(machine.leads for machine in self.running.values())

    @property
    def fuse(self) -> int | None:
        return self._fuse

    @fuse.setter
    def fuse(self, left: int) -> None:
        place = self._place()
        if place is None:
            self._fuse = left
        else:
            place.fuse = left

    @property
    def fault(self) -> Fault | None:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        place = self._place()
        if place is None:
            self._fault = fault
        else:
            place.fault = fault

    def has_room(self) -> None:
        if self._fault is not None and self._fault.kind == "full":
            self._fault = None
        for machine in self.running.values():
            machine.has_room()

    def hurry(self) -> None:
        self.slowness = self.disk_slowness = 1.0
        for machine in self.running.values():
            machine.hurry()

    def run_at(self, rate: float) -> None:
        self.rate = rate
        for machine in self.machines.values():
            machine.run_at(rate)

    def jump(self, by_ms: int) -> None:
        self.wall_ms += by_ms
        for machine in self.machines.values():
            machine.jump(by_ms)

    # ---- what comes over the network

    def receive(self, event: Message | Refused | bytes) -> None:
        """Take a message of a group, a frame of the pool, or that a node refuses connections."""
        if not self.is_listening:
            return
        if isinstance(event, bytes):
            self.call(self._hear, self.process, decode_pool(event))
        elif isinstance(event, Refused):
            for machine in list(self.running.values()):
                machine.receive(event)
        else:
            self.call(self._receive, self.process, event)

    def _hear(self, process: int, said: PoolEnvelope) -> None:
        if process == self.process and not self.namespaces.hear(said):
            self.take(Heard(said))

    def send(self, address: Address, frame: bytes) -> None:
        """Send a node a frame of the pool (`Peers`)."""
        self.world.network.say(self, address, frame[4:])

    def notify(self, gid: int, notice: Notice) -> None:
        """Tell a session's client, if it is here, that a request is worth repeating."""
        if resp := self.attached.get((gid, notice.session)):
            self.owed.note(resp, notice)
            resp.listener.notify(gid, notice)

    def _receive(self, process: int, event: Message) -> None:
        if process == self.process and self.pool is not None:
            machine = self.running.get(event.envelope.group_id)
            if machine is not None:
                machine.receive(event)
            else:
                self.take(Stray(event.envelope))

    def accept(self, line: Line) -> bool:
        """Take a client's connection, unless the node is down."""
        if not self.is_listening or self.paused:
            return False
        line.resp = self.world.resp_of(self, line)
        line.process = self.process
        self.lines[line.resp] = line
        return True

    def admin(self, argv: tuple[bytes, ...], done: Callable[[bytes], None]) -> None:
        """Carry out an administrator's command (`ClientRequests`)."""
        ticket = next(self.tickets)
        self.commands[ticket] = done
        self.take(Admin(ticket, argv))

    # ---- the pool

    def take(self, event: Any) -> None:
        """Have the pool take an event, and do what it wants done."""
        if self.pool is None:
            return
        self.events.append(event)
        if self.is_stepping:
            return
        self.is_stepping = True
        process = self.process
        while self.events and process == self.process:
            event = self.events.popleft()
            effects = self.pool.step(self.loop.now, event)
            self.pool.check_invariants()
            self.world.pool_truth.check_forward(self)
            self.world.say_step(self, (event,), effects)
            for effect in effects:
                if self._burns():
                    return
                self._carry_out(effect)
                if process != self.process:
                    return
        self.is_stepping = False

    def _burns(self) -> bool:
        if self._fuse is not None:
            self._fuse -= 1
            if self._fuse < 0:
                self.crash(power_lost=self.rng.random() < self.world.conditions.power)
                return True
        return False

    def _carry_out(self, effect: Any) -> None:
        match effect:
            case Say(_, address, envelope):
                self.world.pool_truth.check_said(self, effect)
                self.world.network.say(self, address, encode_pool(envelope)[4:])
            case SetTimer(after_ms):
                self._timer += 1
                self.loop.after(after_ms / self.rate * self.slowness, self.on_timer, self._timer,
                                self.process)  # fmt: skip
            case AdminReply(ticket, value):
                done = self.commands.pop(ticket, None)
                assert done is not None, f"command {ticket} is answered twice"
                done(value)
            case HangUp() | Warn():
                pass
            case TellFork(group_id, event):
                if machine := self.running.get(group_id):
                    machine.receive(event)
            case KeepRefusal() | CloseGroups():
                raise WrongError(f"node {self.number} is refused, and there is only one of it")
            case AskGroup() | AskReport() | AskLog() | AskBackup() | AskRestore():
                self._answer(effect)
            case _:
                self.work.append(effect)
                if not self.writing:
                    self._begin_work()

    def on_timer(self, number: int, process: int) -> None:
        if number == self._timer and process == self.process:
            self.call(self.take, Timer())

    # ---- questions

    def _answer(self, asked: Any) -> None:
        ticket = asked.ticket
        if isinstance(asked, AskRestore):
            return self._later(self._restore, asked)
        machine = self.running.get(asked.group_id)
        match asked:
            case AskGroup(_, _, event):
                if machine is None:
                    return self.take(GroupReplied(ticket, Reply(ticket, Code.NOTPRIMARY)))
                return machine.ask(event, lambda reply: self.take(GroupReplied(ticket, reply)))
            case AskReport():
                report = machine.replica.report() if machine else NOT_HERE
                return self.take(Answered(ticket, report))
            case AskLog(_, _, first, last):
                headers = machine.headers(first, last) if machine else NOT_HERE
                return self.take(Answered(ticket, headers))
            case AskBackup():
                return self._later(self._back_up, asked)
        return None

    def _later(self, what: Callable[..., None], asked: Any) -> None:
        def do(process: int) -> None:
            if process == self.process:
                self.call(what, asked)

        self.loop.after(self.world.conditions.disk_ms * 5, do, self.process)

    def _back_up(self, asked: AskBackup) -> None:
        machine = self.running.get(asked.group_id)
        replica = None if machine is None else machine.replica
        snapshot = replica and (replica.take_copy() if asked.is_of_one else replica.stable)
        if snapshot is None:
            return self.take(Answered(asked.ticket, NOT_HERE))
        if asked.file in self.files:
            return self.take(Answered(asked.ticket, Refusal("ERR", "the file exists already")))
        self.files[asked.file] = b"".join(backup_parts(snapshot)), asked.group_id
        self.world.counts["backups"] += 1
        return self.take(Answered(asked.ticket, snapshot.id.lsn))

    def _restore(self, asked: AskRestore) -> None:
        if asked.file not in self.files:
            return self.take(Answered(asked.ticket, Refusal("ERR", "no such file")))
        content, source = self.files[asked.file]
        snapshot, group_id = read_backup(content), asked.hard_state.group_id
        disk = self.world.disk_of(self, group_id)
        disk.before = self._before
        try:
            format_restored(disk, asked.hard_state, snapshot)
        except Crash:
            self.disks[group_id] = disk
            return self.end(power_lost=self._fault is not None and self._fault.kind == "power")
        except MillstreamError as error:
            return self.take(Answered(asked.ticket, Refusal("ERR", str(error))))
        disk.before = nothing_happens
        self.disks[group_id] = disk
        self.world.restored(group_id, source, snapshot.id.lsn)
        self.world.counts["restored groups"] += 1
        return self.take(Answered(asked.ticket, snapshot.id.lsn))

    # ---- the disk

    def _begin_work(self, waits_ms: float = 0.0) -> None:
        self.writing = True
        time = self.world.conditions.disk_ms * (0.5 + self.rng.random()) * self.disk_slowness
        self.loop.after(waits_ms + time, self.worked, self.process)

    def worked(self, process: int) -> None:
        """The time of a disk step is over: do it, and report it."""
        if process == self.process:
            self.call(self._work_one, process)

    def _work_one(self, process: int) -> None:
        if process != self.process:
            return None
        effect = self.work[0]
        try:
            self._do(effect)
        except Crash:
            return self.end(power_lost=self._fault is not None and self._fault.kind == "power")
        except (UnavailableError, CorruptionError, OSError) as error:
            return self._on_disk_error(error)
        if process != self.process:
            return None
        self.work.popleft()
        self.writing = False
        if not isinstance(effect, OpenGroup):
            self.take(DiskDone(effect.op))
        if process == self.process:
            if self.work and not self.writing:
                self._begin_work()
            self._listen()
        return None

    def _on_disk_error(self, error: Exception) -> None:
        self.world.say(self, f"disk: {error}")
        if self._fault is not None and self._fault.kind == "full":
            self._begin_work(FULL_RETRY_MS)
        else:
            self.world.counts["stopped by the disk"] += 1
            self.end(power_lost=self.rng.random() < 0.5)

    def _before(self, effect: str, name: str) -> None:
        if self._fault is not None and self._fault.strikes(effect):
            raise self._fault.error(effect)

    def _do(self, effect: Any) -> None:
        match effect:
            case KeepNode(_, content):
                for kind in ("create", "write", "sync", "rename"):
                    self._before(kind, "pool")
                self.content = content
                self._before("sync_directory", "pool")
            case FormatGroup(_, hard_state):
                disk = self.disks.get(hard_state.group_id)
                if disk is None:
                    disk = self.disks[hard_state.group_id] = self.world.disk_of(
                        self, hard_state.group_id
                    )
                if not is_formatted(disk):
                    disk.before = self._before
                    format_group(disk, hard_state)
                    disk.before = nothing_happens
                    self.world.pool_truth.formatted(self, hard_state)
            case OpenGroup(group_id, number):
                self._open(group_id, number)
            case DropGroup(_, group_id):
                self._before("rename", "group")
                if machine := self.running.pop(group_id, None):
                    machine.close()
                self.machines.pop(group_id, None)
                self.disks.pop(group_id, None)

    def _open(self, group_id: bytes, number: int) -> None:
        assert group_id not in self.running, f"node {self.number} opens a group twice"
        self.world.pool_truth.opened(self, group_id)
        machine = self.machines.get(group_id)
        if machine is None:
            scope = self.world.scope(group_id, number)
            machine = self.machines[group_id] = GroupMachine(scope, self, self.disks[group_id])
        self.running[group_id] = machine
        machine.start()
