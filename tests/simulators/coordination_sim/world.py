"""One run: machines, network, clients and faults, put together from a seed.

Invariants:
1. Every event is followed by the checks of `truth`; at the end all that is broken is mended, or a
   quorum of it, and the group must work again (`endings`).
"""

from __future__ import annotations

from collections import Counter, deque
from contextlib import nullcontext
from random import Random
from typing import Any

from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.disk.durable_steps import newest_root
from millstream.vsr.core.effects import MovePrimary, Reconfigure, TakeSnapshot
from millstream.vsr.core.entries import Kind
from millstream.vsr.core.hard_state import founded
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.replica.replica import Replica
from simulators.coordination_sim.clients import Clients
from simulators.coordination_sim.conditions import Conditions, Options
from simulators.coordination_sim.endings import heal
from simulators.coordination_sim.faults import Faults
from simulators.coordination_sim.forcing import force
from simulators.coordination_sim.loop import Loop, stream
from simulators.coordination_sim.machine import Machine
from simulators.coordination_sim.namespace_clients import NamespaceClients
from simulators.coordination_sim.network import Network
from simulators.coordination_sim.plants import PLANTS
from simulators.coordination_sim.shadow import Shadow
from simulators.coordination_sim.times import Times
from simulators.coordination_sim.truth import Truth, WrongError
from simulators.histories.check import check

__all__ = ["World", "WrongError"]

GROUP = b"g" * 16
TRACE_LINES = 400
SEARCH_STEPS_MAX = 100_000
MACHINES_MAX = 16
ALL = Options()


class World:
    """One seed."""

    def __init__(
        self, seed: int, options: Options = ALL, *, trace: int | str | None = None
    ) -> None:
        self.seed, self.options = seed, options
        self.plant = plant = PLANTS.get(options.plant or "")
        self.replica_class: type[Replica] = plant.replica if plant else Replica
        self.loop = Loop()
        self.conditions = Conditions.drawn(seed, options)
        self.counts: Counter[str] = Counter()
        self.trace = trace
        self.lines: deque[str] = deque(maxlen=TRACE_LINES)
        self.calm = False
        self.is_lost = False
        """What was committed is gone, on purpose: nothing may go on, and nobody may lie."""
        self.survivor: Machine | None = None
        """Who was asked to go on alone: all others are taken for lost."""
        self.last_leader: tuple[Any, ...] = ()
        self.rng = stream(seed, "world")
        self.network = Network(seed, self.loop, self.conditions, self.counts)
        self.times = Times(self)
        self.shadow = Shadow(self) if self.conditions.namespaces else None
        self.truth = Truth(self)
        self.machines: list[Machine] = []
        self._found()
        self.clients = Clients(self)
        self.namespace_clients = NamespaceClients(self) if self.conditions.namespaces else None
        self.faults = Faults(self)

    def _found(self) -> None:
        conditions = self.conditions
        ids = [self._id(number) for number in range(conditions.members + conditions.spares)]
        self.rng.shuffle(ids)
        members = tuple(sorted(ids[: conditions.members]))
        self.configurations: dict[int, set[tuple[bytes, ...]]] = {0: {members}}
        self.counts["no_journal"] += not conditions.journalled
        for node_id in ids:
            self._add(node_id, members)

    @staticmethod
    def _id(number: int) -> bytes:
        return bytes([number * 37 % 251 + 1]) * 16

    def _add(self, node_id: bytes, members: tuple[bytes, ...]) -> Machine:
        hard_state = founded(GROUP, node_id, members, self.conditions.journalled)
        if node_id not in members:
            hard_state = hard_state._replace(configuration=Configuration(0, ()))
        machine = Machine(self, len(self.machines), hard_state)
        self.machines.append(machine)
        self.network.machines[node_id] = machine
        return machine

    def add_machine(self) -> None:
        """Bring a new node, that belongs to no group yet."""
        if len(self.machines) < MACHINES_MAX:
            machine = self._add(self._id(len(self.machines)), ())
            self.loop.after(self.down_ms(), machine.start)

    def run(self) -> None:
        """Let the conditions come, then heal; with the mistake that is planted, if one is."""
        plant = self.plant.patch() if self.plant is not None else nullcontext()
        with self.conditions.bounds(), plant:
            self._run()

    def _run(self) -> None:
        for machine in self.machines:
            machine.start()
        self.clients.begin()
        if self.namespace_clients is not None:
            self.namespace_clients.begin()
        self.faults.begin()
        end = min(self.conditions.duration_ms, self.options.until_s * 1000)
        self.loop.run_until(end)
        if self.options.until_s * 1000 > end:
            if self.conditions.forced:
                force(self)
            heal(self)
        self._check_history()

    def _check_history(self) -> None:
        """Look for an order in which what clients were told can have happened, once more."""
        operations = self.clients.operations()
        if self.namespace_clients is not None:
            self.namespace_clients.check()
            operations += self.namespace_clients.history()
        verdict = check(operations, SEARCH_STEPS_MAX)
        self.counts["histories"] += verdict.keys
        self.counts["histories undecided"] += verdict.undecided
        if verdict.wrong:
            raise WrongError(f"the history of the clients cannot be: {verdict.wrong[0]}")

    def down_ms(self) -> float:
        """Draw how long a process is not there."""
        return self.rng.choice((1.0, 50.0, 300.0, 2000.0, 8000.0)) * self.rng.random()

    # ---- what faults may do

    def counted(self) -> list[tuple[bytes, ...]]:
        """Return all sets of members that may still matter."""
        top = max(self.durable_epoch(machine) for machine in self.machines)
        epochs = [epoch for epoch in self.configurations if epoch >= top - 1]
        return [members for epoch in epochs for members in sorted(self.configurations[epoch])]

    @staticmethod
    def durable_epoch(machine: Machine) -> int:
        """Return the epoch that a machine is in."""
        return machine.told[0]

    def may_harm(self, machine: Machine) -> bool:
        """Return whether every entry is still whole somewhere if this disk is harmed."""
        if machine.harmed and machine.process > machine.harm_run and machine.well:
            machine.harmed = False
        if machine.harmed or machine.dead or self.is_lost:
            return False
        for members in self.counted():
            if machine.id in members:
                harmed = 1 + sum(1 for m in self.machines if m.id in members and self.is_harmed(m))
                if harmed > (len(members) - 1) // 2:
                    return False
        return True

    @staticmethod
    def is_harmed(machine: Machine) -> bool:
        """Return whether something of a machine is not what it was, and may matter still."""
        if machine.harmed and machine.process > machine.harm_run and machine.well:
            machine.harmed = machine.dead
        return machine.harmed

    def may_lose_log(self, machine: Machine) -> bool:
        """Return whether the other members can tell a member that lost its log what it was."""
        if machine.replica is None or not self.may_harm(machine):
            return False
        members = machine.replica.members
        others = [m for m in self.machines if m.id in members and m is not machine]
        return machine.id in members and all(
            m.well and m.replica.epoch == machine.replica.epoch for m in others
        )

    def may_end(self, machine: Machine) -> bool:
        """Return whether a process may end: without a journal it forgets the log.

        No more than a minority may have forgotten it at once, and not while the epoch ends.
        """
        replica = machine.replica
        if self.conditions.journalled or replica is None or self.is_lost:
            return True
        if replica.is_persisting:
            return False
        members = replica.members
        if machine.id not in members or replica.status is Status.RETIRED:
            return True
        forgotten = 1
        for other in (self.network.machines[m] for m in members if m != machine.id):
            r = other.replica
            if other.told[0] > replica.epoch or (
                r and (r.is_persisting or r.epoch != replica.epoch)
            ):
                return False
            forgotten += not other.remembers
        return forgotten <= (len(members) - 1) // 2

    def forgets(self, machine: Machine) -> None:
        """Know that a process that ends forgets its log, if there is no journal."""
        if not self.conditions.journalled and machine.replica is not None:
            machine.harmed, machine.harm_run = True, machine.process

    def forget_all(self, rng: Random) -> bool:
        """Have more members forget at once than may: what is committed is gone."""
        leader = next((m for m in self.machines if m.leads), None)
        if leader is None or self.conditions.journalled or self.is_lost:
            return False
        members = [self.network.machines[m] for m in leader.replica.members]
        if any(m.told[0] > leader.replica.epoch for m in self.machines) or not all(
            m.well and m.replica.epoch == leader.replica.epoch
            and not m.replica.is_persisting and not m.replica.state.closing for m in members
        ):  # fmt: skip
            return False
        self.is_lost = True
        for machine in rng.sample(members, rng.randint(len(members) // 2 + 1, len(members))):
            machine.crash()
        return True

    def destroy_entry(self, rng: Random) -> bool:
        """Damage all copies that there are of an entry that no snapshot stands for."""
        if self.is_lost or not self.conditions.journalled or not self.truth.end:
            return False
        for machine in self.machines:
            machine.crash()
        roots = [newest_root(machine.superblock())[0] for machine in self.machines]
        begin = max((root.snapshot.lsn for root in roots if root and root.snapshot), default=0)
        found = [e for e in self.truth.committed[begin:][-20:] if e.header.kind is Kind.REQUEST]
        if not found:
            return False
        entry = rng.choice(found)
        self.is_lost = True
        for machine in self.machines:
            self.say(machine, f"entry {entry.lsn} is destroyed")
            machine.destroy(entry.body)
        return True

    # ---- operations

    def take_snapshot(self, rng: Random) -> None:
        """Have one taken, by whoever may be asked."""
        running = [m for m in self.machines if m.replica is not None]
        leaders = [m for m in running if m.leads]
        if running:
            machine = rng.choice(leaders if leaders and rng.random() < 0.9 else running)
            machine.receive(TakeSnapshot(self.clients.operator_ticket(machine)))

    def reconfigure(
        self, machine: Machine, rng: Random, wanted: list[Machine] | None = None
    ) -> bool:
        """Have the primary go to other members; the dead are no candidates."""
        replica = machine.replica
        alive = sorted(m.id for m in self.machines if not m.dead and m.replica is not None)
        sizes = [size for size in (3, 3, 5, 7) if size <= len(alive)]
        if not sizes or machine.paused:
            return False
        members = tuple(sorted(rng.sample(alive, rng.choice(sizes))))
        if wanted is not None:
            members = tuple(sorted(one.id for one in wanted))
        self.configurations.setdefault(replica.epoch + 1, set()).add(members)
        numbers = [self.network.machines[member].number for member in members]
        self.say(machine, f"shall end its epoch for {numbers}")
        machine.receive(Reconfigure(self.clients.operator_ticket(machine), members))
        return True

    def move_primary(self, machine: Machine, rng: Random) -> None:
        """Have another member lead."""
        node = rng.choice(machine.replica.members)
        machine.receive(MovePrimary(self.clients.operator_ticket(machine), node))

    # ---- the trace

    def say(self, machine: Machine, text: str) -> None:
        """Note what happens, if somebody wants to know."""
        if self.trace is not None and self.trace in ("all", machine.number):
            self.lines.append(f"{self.loop.now:12.3f} {self._state(machine)}: {text}")

    def say_step(self, machine: Machine, events: Any, effects: list[Any]) -> None:
        """Note what a replica takes and gives."""
        if self.trace in ("all", machine.number):
            self.say(
                machine, f"{'; '.join(map(_short, events))} -> {'; '.join(map(_short, effects))}"
            )

    @staticmethod
    def _state(machine: Machine) -> str:
        r = machine.replica
        if r is None:
            return f"node {machine.number} (down)"
        flags = "".join(
            f" {flag}" for flag, is_so in (
                ("leads", r.leading), ("suspended", r.suspended), ("flips", r.is_persisting),
            ) if is_so
        )  # fmt: skip
        return (
            f"node {machine.number} ({r.epoch}:{r.view} {r.status.name}{flags} "
            f"log {r.log.op_lsn} commit {r.commit_lsn})"
        )

    def summary(self) -> Counter[str]:
        """Return what this run was, for the ledger."""
        counts = Counter(self.counts)
        counts["epochs"] = max((epoch for epoch, _ in self.truth.leaders), default=0)
        counts["events"] = self.loop.events
        counts["requests"] = len(self.clients.history)
        return counts

    @property
    def normal(self) -> list[Machine]:
        """The machines that are members in full."""
        return [m for m in self.machines if m.replica and m.replica.status is Status.NORMAL]


def _short(thing: Any) -> str:
    text = repr(thing)
    return text if len(text) < 300 else text[:300] + "..."
