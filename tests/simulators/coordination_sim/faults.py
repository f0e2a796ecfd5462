"""The faults of a run: each class comes by itself, at times and with choices of its own stream.

Invariants:
1. The disks of so many members are harmed at once that every committed entry is whole somewhere:
   of no set of members that counts more than a minority is harmed or dead.
2. One disk is harmed once between two whole starts.
3. Links are gone through by the numbers of their nodes: sets have an order of their own in each
   interpreter, and a seed has to be the same run in all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from millstream.vsr.core.disk.durable_steps import (
    COPY_BYTES,
    SUPERBLOCK,
    header_file_name,
    segment_name,
)
from millstream.vsr.core.effects import Refused
from simulators.coordination_sim.loop import stream
from support.kv.simulated_disk import Content, Fault

if TYPE_CHECKING:
    from simulators.coordination_sim.machine import Machine
    from simulators.coordination_sim.world import World

SECTOR_BYTES = 512


class Faults:
    """What goes wrong; one method per class."""

    def __init__(self, world: World) -> None:
        self.world, self.loop, self.network = world, world.loop, world.network
        self.rng: Random = stream(world.seed, "faults/none")
        self.streams: dict[str, Random] = {}

    def begin(self) -> None:
        """Have all classes come that have a period; the others are rates, or nothing."""
        for fault, period in self.world.conditions.periods.items():
            if hasattr(self, fault):
                self.streams[fault] = stream(self.world.seed, f"faults/{fault}")
                self._next(fault, period)

    def _next(self, fault: str, period: float) -> None:
        self.loop.after(self.streams[fault].expovariate(1 / period), self.strike, fault, period)

    def strike(self, fault: str, period: float) -> None:
        """Let one fault of a class happen."""
        if self.world.calm:
            return
        self._next(fault, period)
        self.rng = self.streams[fault]
        act: Callable[[], object] = getattr(self, fault)
        if act() is not False:
            self.world.counts[fault] += 1

    # ---- choices

    def _one(self) -> Machine:
        """Return a machine, rather the primary or a member than any."""
        machines = self.world.machines
        leaders = [m for m in machines if m.leads]
        if leaders and self.rng.random() < 0.4:
            return self.rng.choice(leaders)
        return self.rng.choice(machines)

    def _for_ms(self) -> float:
        low, high = self.rng.choice(((100, 700), (500, 3000), (2000, 15_000)))
        return self.rng.uniform(low, high)

    def _links(self, ones: list[Machine], *, out: bool = True, into: bool = True) -> list:
        mine = sorted({machine.number for machine in ones})
        numbers = range(len(self.world.machines))
        return [
            pair for a in mine for b in numbers if b not in mine
            for pair, wanted in (((a, b), out), ((b, a), into)) if wanted
        ]  # fmt: skip

    def _some(self) -> list[Machine]:
        machines = self.world.machines
        return self.rng.sample(machines, self.rng.randint(1, max(1, len(machines) - 1)))

    # ---- network

    def clog(self) -> None:
        ones = self._some()
        links = self._links(ones, out=self.rng.random() < 0.7, into=self.rng.random() < 0.5)
        self.network.clog(links, self.rng.uniform(50, 5000))

    def partition(self) -> None:
        self.network.cut(self._links(self._some()), self._for_ms())

    def one_way(self) -> None:
        out = self.rng.random() < 0.5
        self.network.cut(self._links([self._one()], out=out, into=not out), self._for_ms())

    def isolate_primary(self) -> None:
        leaders = [machine for machine in self.world.machines if machine.leads]
        chance = self.rng.random()
        if leaders:
            one = self.rng.choice(leaders)
            links = self._links([one], out=chance < 0.8, into=chance > 0.2)
            self.network.cut(links, self._for_ms())

    def bridge(self) -> None:
        """Two halves that see each other only through one node."""
        machines = self.world.machines[:]
        self.rng.shuffle(machines)
        half = len(machines) // 2
        left, right = machines[1 : half + 1], machines[half + 1 :]
        links = [(a.number, b.number) for a in left for b in right]
        self.network.cut(links + [(b, a) for a, b in links], self._for_ms())

    def swizzle(self) -> None:
        """Clog links one by one, release them in another order."""
        links = self._links(self._some())
        for link in links:
            begin = self.rng.uniform(0, 2000)
            self.loop.after(begin, self.network.clog, [link], self.rng.uniform(0, 4000 - begin))

    # ---- processes

    def _has_power(self) -> bool:
        return self.rng.random() >= self.world.conditions.power

    def crash(self) -> None:
        self._one().crash(power_lost=not self._has_power())

    def crash_in_step(self) -> None:
        self._one().fuse = self.rng.randint(0, 4)

    def crash_in_write(self) -> None:
        kind = "kill" if self._has_power() else "power"
        self._one().fault = Fault(kind, self.rng.randint(0, 12))

    def pause(self) -> None:
        self._one().pause(100 * 100 ** self.rng.random())

    def slow_node(self) -> None:
        machine = self._one()
        machine.slowness = 10.0
        self.loop.after(self._for_ms(), machine.hurry)

    def restart_storm(self) -> None:
        for _ in range(self.rng.randint(2, 8)):
            self.loop.after(self.rng.uniform(0, 5000), self._restart, self._one())

    def _restart(self, machine: Machine) -> None:
        if self.world.calm:
            return  # without a journal it would lose its log beside the one that stays broken
        machine.crash()
        machine.start()

    def refused(self) -> None:
        """Tell some that another one refuses connections, whether its process has ended or not."""
        gone = self._one()
        if self.rng.random() < 0.5:
            gone.crash()
        for machine in self._some():
            self.loop.after(self.rng.uniform(0, 200), machine.receive, Refused(gone.id))

    def all_down(self) -> None:
        power_lost = not self._has_power()
        for machine in self.world.machines:
            machine.crash(power_lost=power_lost)

    def rolling_restart(self) -> None:
        when = 0.0
        for machine in self.world.machines:
            when += self.rng.uniform(200, 3000)
            self.loop.after(when, self._restart, machine)

    # ---- disks

    def damage(self) -> bool:
        """Harm one place of one file, as disks do."""
        machine = self._one()
        if not self.world.may_harm(machine):
            return False
        names = [name for name in machine.disk.names() if machine.disk.files[name].data]
        name = self.rng.choice(names)
        content = machine.disk.files[name]
        self._harm(machine, name, content)
        machine.harmed, machine.harm_run = True, machine.process
        return True

    def _harm(self, machine: Machine, name: str, content: Content) -> None:
        data = content.data
        at = self.rng.randrange(len(data))
        if name == SUPERBLOCK:
            at = self.rng.randrange(2) * COPY_BYTES + self.rng.randrange(300)
        elif self.rng.random() < 0.5:
            at = self.rng.randrange(max(0, len(data) - 1500), len(data))  # what is young
        sector = slice(at // SECTOR_BYTES * SECTOR_BYTES, (at // SECTOR_BYTES + 1) * SECTOR_BYTES)
        kind = self.rng.choice(("flip", "flip", "zeros", "misdirected"))
        if kind == "flip":
            data[at] ^= 1 << self.rng.randrange(8)
        elif kind == "zeros":
            data[sector] = bytes(len(data[sector]))
        else:
            source = machine.disk.files[self.rng.choice(machine.disk.names())].data
            begin = self.rng.randrange(len(source) // SECTOR_BYTES + 1) * SECTOR_BYTES
            part = bytes(source[begin : begin + SECTOR_BYTES])[: len(data[sector])]
            data[sector] = part.ljust(len(data[sector]), b"\0")
        size = min(len(content.synced), len(data))
        where = slice(sector.start, min(sector.stop, size))
        content.synced[where] = data[where]
        self.world.say(machine, f"{kind} in {name} at {at} of {len(data)}")

    def lost_log(self) -> bool:
        """Take the header file away and damage the log's end: nobody can tell what it was."""
        machine = self._one()
        if not self.world.conditions.journalled or not self.world.may_lose_log(machine):
            return False
        machine.crash()
        layout = machine.layout()
        if layout is None or not layout.segments:
            return False
        disk = machine.disk
        last = segment_name(layout.segments[-1].segment)
        if header_file_name(layout.headers) not in disk.names() or last not in disk.names():
            return False
        disk.remove(header_file_name(layout.headers))
        disk.sync_directory()
        content = disk.files[last]
        content.data += b"rubbish"
        content.synced = content.data[:]
        machine.harmed, machine.harm_run = True, machine.process
        self.world.say(machine, "has lost its log")
        return True

    def lost_disk(self) -> bool:
        """Lose the promises, and so the node; somebody puts a new one in its place."""
        machine = self._one()
        if not self.world.may_harm(machine):
            return False
        if not self.world.may_end(machine):
            return False
        machine.crash()
        for name in machine.disk.names():
            machine.disk.remove(name)
        machine.disk.sync_directory()
        machine.harmed, machine.dead = True, True
        self.world.say(machine, "has lost its disk")
        self.world.add_machine()
        return True

    def lost_entry(self) -> bool:
        """Damage all copies of an entry: the group must stand still, and not go on without it."""
        return self.world.destroy_entry(self.rng)

    def forget_all(self) -> bool:
        """Have so many forget at once that nobody can know what was committed."""
        return self.world.forget_all(self.rng)

    # ---- memory

    def wrong_state(self) -> bool:
        """Have one state go wrong, where no client looks."""
        machine = self._one()
        world = self.world
        if not world.conditions.journalled or not world.may_lose_log(machine):
            return False
        if any(other.is_astray for other in world.machines):
            return False  # a node that is no member now may come back as it is: two would be many
        if len(machine.replica.members) < 3 or not machine.well or not machine.replica.has_state:
            return False
        machine.replica.machine.go_astray()
        machine.harmed, machine.harm_run = True, machine.process - 1
        world.say(machine, "has a wrong state")
        return True

    # ---- disks, once more

    def sync_error(self) -> None:
        self._one().fault = Fault(self.rng.choice(("sync", "write")), self.rng.randint(0, 9))

    def disk_full(self) -> None:
        machine = self._one()
        machine.fault = Fault("full", self.rng.randint(0, 9))
        self.loop.after(self._for_ms(), machine.has_room)

    def slow_disk(self) -> None:
        machine = self._one()
        machine.disk_slowness = self.rng.choice((10.0, 100.0))
        self.loop.after(self._for_ms(), machine.hurry)

    # ---- clocks

    def drift(self) -> None:
        self._one().run_at(self.rng.uniform(0.8, 1.2))

    def jump(self) -> None:
        self._one().jump(self.rng.randint(-20_000_000, 20_000_000))

    # ---- operations

    def reconfigure(self) -> bool:
        leaders = [machine for machine in self.world.machines if machine.leads]
        return bool(leaders) and self.world.reconfigure(self.rng.choice(leaders), self.rng)

    def move_primary(self) -> bool:
        leaders = [machine for machine in self.world.machines if machine.leads]
        if leaders:
            self.world.move_primary(self.rng.choice(leaders), self.rng)
        return bool(leaders)

    def snapshot_storm(self) -> None:
        """Have one snapshot taken after the other, whether or not the last one is done."""
        for _ in range(self.rng.randint(3, 30)):
            self.loop.after(self.rng.uniform(0, 3000), self.world.take_snapshot, self.rng)

    def death_in_reconfigure(self) -> bool:
        """End an epoch, and its primary a moment later."""
        leaders = [machine for machine in self.world.machines if machine.leads]
        if not leaders:
            return False
        machine = self.rng.choice(leaders)
        if not self.world.reconfigure(machine, self.rng):
            return False
        delay = self.rng.uniform(0, 10 * self.world.conditions.delay_ms + 50)
        delay += self.rng.choice((0, 100, 100, 500))
        if self.rng.random() < 0.5:
            self.loop.after(delay, machine.crash)
        else:
            links = self._links([machine])
            self.loop.after(delay, self.network.cut, links, self._for_ms())
        return True

    # ---- clients

    def client_restart(self) -> None:
        self.world.clients.restart_one(self.rng)
