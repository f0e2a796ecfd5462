"""Runs of whole nodes: pools of several groups, with clients, operators and strangers.

Network, disks, clocks and faults are those of runs of one group (`world`); what differs: a node
has several groups, which live and die with it, clients are callers over connections, and groups
are founded, changed, deleted, backed up and restored by commands that operators give to nodes.

Invariants:
1. Each group is held to all that a group alone is held to (`truth`), the pool to `pool_truth`.
2. After the faults everything is healed. Then all nodes of a pool get equal tables, and each group
   that has begun and was not deleted commits again, and its members become equal.
"""

from __future__ import annotations

from collections import Counter, deque
from contextlib import nullcontext
from itertools import count
from typing import Any

from millstream.coordination.core.group_state import GROUP_COMMANDS
from millstream.coordination.core.registers import REGISTER_COMMANDS
from millstream.coordination.core.resp.common_commands import CONNECTION_COMMANDS
from millstream.coordination.core.resp.session import RespSession
from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.replica.replica import Replica
from simulators.coordination_sim.callers import Callers
from simulators.coordination_sim.clients_of_nodes import ClientsOfGroups, ClientsOfNode
from simulators.coordination_sim.conditions import Conditions, Options
from simulators.coordination_sim.faults import Faults
from simulators.coordination_sim.forcing import force_in_pool
from simulators.coordination_sim.groups_of_nodes import GroupMachine, Scope
from simulators.coordination_sim.lines import Line, NodesNetwork, NoGuard
from simulators.coordination_sim.loop import Loop, stream
from simulators.coordination_sim.nodes import Node
from simulators.coordination_sim.operators import Operators
from simulators.coordination_sim.plants import PLANTS
from simulators.coordination_sim.pool_truth import PoolTruth
from simulators.coordination_sim.rights import Users
from simulators.coordination_sim.runs import ALL, Outcome, outcome_of
from simulators.coordination_sim.truth import WrongError
from simulators.coordination_sim.whole_mistakes import WHOLE_PLANTS
from simulators.coordination_sim.world import SEARCH_STEPS_MAX, TRACE_LINES, World
from simulators.histories.check import check
from support.kv.simulated_disk import SimulatedDisk

ALL_PLANTS = PLANTS | WHOLE_PLANTS
CALM_MS = 60_000.0
NAMES_MS = 90_000.0
"""So much longer it takes until what nobody asks for any more is undone, and sessions end."""
ROUND_MS = 1000.0
SETTLE_MS = 4000.0


class NodeFaults(Faults):
    """Those of a group that mean the same for nodes; operators do the rest."""

    def damage(self) -> bool:
        return False

    lost_log = lost_disk = lost_entry = forget_all = wrong_state = damage

    def snapshot_storm(self) -> None:
        for _ in range(self.rng.randint(3, 30)):
            self.loop.after(self.rng.uniform(0, 3000), self.world.operators.snapshot)  # type: ignore[attr-defined]

    def reconfigure(self) -> bool:
        return self.world.operators.reconfigure()  # type: ignore[attr-defined,no-any-return]

    def move_primary(self) -> bool:
        return self.world.operators.move_primary()  # type: ignore[attr-defined,no-any-return]

    def death_in_reconfigure(self) -> bool:
        leaders = [node for node in self.world.machines if node.leads]
        if not leaders or not self.reconfigure():
            return False
        delay = self.rng.uniform(0, 10 * self.world.conditions.delay_ms + 300)
        self.loop.after(delay, self.rng.choice(leaders).crash)
        return True


class WholeWorld:
    """One seed."""

    def __init__(
        self, seed: int, options: Options = ALL, *, trace: int | str | None = None
    ) -> None:
        self.seed, self.options, self.trace = seed, options, trace
        self.plant = plant = ALL_PLANTS.get(options.plant or "")
        self.replica_class: type[Replica] = plant.replica if plant else Replica
        self.loop = Loop()
        self.conditions = Conditions.drawn(seed, options)._replace(journalled=True)
        self.counts: Counter[str] = Counter()
        self.lines: deque[str] = deque(maxlen=TRACE_LINES)
        self.vocabulary: tuple[Any, Any] = (NoGuard(), REGISTER_COMMANDS)
        if self.conditions.namespaces:
            self.vocabulary = (Users(), GROUP_COMMANDS)
        self.calm = False
        self.rng = stream(seed, "whole world")
        self.network = NodesNetwork(seed, self.loop, self.conditions, self.counts)
        self.network.by_address = {}
        self.at_coord: dict[str, Node] = {}
        self.scopes: dict[bytes, Scope] = {}
        self.pool_truth = PoolTruth(self)
        self.machines: list[Node] = []
        self._disks = count(1)
        self._connections = count(1)
        for _ in range(self.rng.choice((3, 3, 4, 5, 6))):
            self.add_node()
        self.callers = self.clients = Callers(self)
        self.operators = Operators(self)
        self.clients_of_groups = ClientsOfGroups(self)
        self.faults = NodeFaults(self)  # type: ignore[arg-type]

    # ---- making

    id_of = staticmethod(World._id)

    def add_node(self) -> Node:
        """Add a node that joins those there are."""
        known = self.machines[: self.rng.choice((1, 1, 2))]
        join = tuple(node.peer for node in known)
        node = Node(self, len(self.machines), join)
        self.machines.append(node)
        self.network.machines[node.id] = node  # type: ignore[assignment]
        self.network.by_address[node.peer] = node
        self.at_coord[node.coord.text] = node
        return node

    def scope(self, group_id: bytes, number: int) -> Scope:
        """Return a group."""
        if group_id not in self.scopes:
            self.scopes[group_id] = Scope(self, group_id, number)
        return self.scopes[group_id]

    def restored(self, group_id: bytes, source_id: bytes, lsn: int) -> None:
        """A group begins with what another one was."""
        source = self.scopes[source_id]
        scope = self.scopes[group_id] = Scope(self, group_id, 0, source)
        scope.truth.inherit(source.truth, lsn)

    def disk_of(self, node: Node, group_id: bytes) -> SimulatedDisk:
        """Return an empty disk."""
        number = next(self._disks)
        purpose = f"disk/{number}/{node.number}/{group_id.hex()}"
        return SimulatedDisk(stream(self.seed, purpose), count(1))

    def resp_of(self, node: Node, line: Line) -> RespSession:
        """Return a node's end of a connection."""
        return RespSession(
            node.requests, *self.vocabulary, CONNECTION_COMMANDS,
            number=next(self._connections), attached=node.attached,
            chance_bytes=self.callers.rng.randbytes, on_output=lambda _: line.go_on_soon(),
            call_later=self.loop.after,
        )  # fmt: skip

    def down_ms(self) -> float:
        """Draw how long a process is not there."""
        return self.rng.choice((1.0, 50.0, 300.0, 2000.0, 8000.0)) * self.rng.random()

    # ---- looking

    def tombstones(self) -> set[bytes]:
        """Return the groups that some node refuses for ever."""
        return {
            group for node in self.machines if node.pool is not None
            for group in node.pool.tables.tombstones
        }  # fmt: skip

    def living(self) -> dict[int, bytes]:
        """Return the groups that have committed something and are not deleted, by numbers."""
        dead, found = self.tombstones(), {}
        for node in self.machines:
            if node.pool is not None:
                for group, founding in sorted(node.pool.tables.foundings.items()):
                    if group not in dead and group in self.scopes and self.scopes[group].truth.end:
                        found[founding.number] = group
        return dict(sorted(found.items()))

    def numbers(self) -> list[int]:
        """Return what groups are called that clients may ask for."""
        return list(self.living()) or [1]

    def leader(self, group_id: bytes) -> GroupMachine | None:
        """Return the machine that leads a group in its latest view."""
        found = [
            node.running[group_id] for node in self.machines
            if group_id in node.running and node.running[group_id].leads
        ]  # fmt: skip
        return max(found, key=lambda m: (m.replica.epoch, m.replica.view), default=None)

    # ---- the run

    def run(self) -> None:
        """Let the conditions come, then heal; with the mistake that is planted, if one is."""
        plant = self.plant.patch() if self.plant is not None else nullcontext()
        with self.conditions.bounds(), plant:
            self._run()

    def _run(self) -> None:
        for node in self.machines:
            self.loop.after(self.rng.random() * 3000 * (node.number > 0), node.start)
        self.callers.begin()
        self.operators.begin()
        if self.conditions.namespaces:
            self.clients_of_groups.begin()
        self.loop.run_until(SETTLE_MS)
        self.faults.begin()
        end = min(self.conditions.duration_ms + SETTLE_MS, self.options.until_s * 1000)
        self.loop.run_until(end)
        if self.options.until_s * 1000 > end:
            if self.conditions.forced:
                force_in_pool(self)
            self._heal()
        operations = self.callers.history()
        self.clients_of_groups.check()
        for clients in self.clients_of_groups.namespace_clients.values():
            operations += clients.history()
        verdict = check(operations, SEARCH_STEPS_MAX)
        self.counts["histories"] += verdict.keys
        self.counts["histories undecided"] += verdict.undecided
        if verdict.wrong:
            raise WrongError(f"the history of the clients cannot be: {verdict.wrong[0]}")

    def _heal(self) -> None:
        self.calm = True
        self.network.heal()
        for node in self.machines:
            node.mend()
        self.clients_of_groups.each(ClientsOfNode.finish)
        end = self.loop.now + CALM_MS + 400 * self.conditions.delay_ms
        end += NAMES_MS * self.conditions.namespaces
        goals: dict[bytes, Any] = {}
        why = ""
        while self.loop.now < end:
            self.loop.run_until(self.loop.now + ROUND_MS)
            for node in self.machines:
                node.mend()
            for number, group in self.living().items():
                if group not in goals:
                    goals[group] = self._asked(number)
            why = self._amiss(goals)
            if not why:
                return
        raise WrongError(f"stuck after healing: {why}")

    def _asked(self, number: int) -> Any:
        client = self.callers.born(number)
        client.change("set", b"%d/last" % number)
        return client

    def _amiss(self, goals: dict[bytes, Any]) -> str:
        """Return what is not as it should be yet."""
        pools = [node.pool for node in self.machines]
        if None in pools or not all(node.is_listening for node in self.machines):
            return "nodes are down"
        if why := self._pools_differ():
            return why
        living = self.living()
        dead = self.tombstones()
        for node in self.machines:
            if dead & set(node.running) & set(node.pool.tables.tombstones):
                return f"node {node.number} runs a deleted group"
        for number, group in living.items():
            if why := self._group_amiss(group):
                return f"group {number}: {why}"
            client = goals.get(group)
            if client is None:
                return f"group {number} is new"
            if client.open:
                return f"group {number}: no commit"
        return self.clients_of_groups.amiss()

    def _pools_differ(self) -> str:
        """Return whether nodes of one pool know different things."""
        for node in self.machines:
            for info in node.pool.tables.others():
                other = self.network.machines[info.node_id].pool
                if other.tables.digest != node.pool.tables.digest:
                    return f"nodes {node.number} and {other.id.hex()[:4]} know different things"
        return ""

    def _group_amiss(self, group: bytes) -> str:
        leader = self.leader(group)
        if leader is None:
            return "nobody leads it"
        last = leader.replica
        wanted = self._end_of(last)
        if last.commit_lsn != last.log.op_lsn:
            return "not all is committed"
        tables = leader.node.pool.tables
        ends = []
        for member in last.members:
            node: Any = self.network.machines[member]
            machine = node.running.get(group)
            if tables.node(member) is None:
                continue  # it left the pool while it was taken in: an operator has to replace it
            ends.append(machine is not None and self._end_of(machine.replica) == wanted)
        quorum = Configuration(0, last.members).quorum
        return "" if all(ends) and len(ends) >= quorum else "members differ"

    @staticmethod
    def _end_of(replica: Any) -> tuple[Any, ...]:
        values = sorted(replica.machine.values.items())
        ends = getattr(replica.machine, "ends", None)
        return replica.status, replica.epoch, replica.view, replica.log.head, values, ends

    # ---- the trace

    def say(self, machine: Any, text: str, group_id: bytes = b"") -> None:
        """Note what happens, if somebody wants to know."""
        if self.trace is not None and self.trace in ("all", machine.number):
            group = group_id.hex()[:4] or "pool"
            self.lines.append(f"{self.loop.now:12.3f} node {machine.number} {group}: {text}")

    def say_step(
        self, machine: Any, events: Any, effects: list[Any], group_id: bytes = b""
    ) -> None:
        """Note what a replica or a pool takes and gives."""
        if self.trace in ("all", machine.number):
            told = "; ".join(repr(one)[:200] for one in events)
            done = "; ".join(repr(one)[:200] for one in effects)
            self.say(machine, f"{told} -> {done}", group_id)

    def summary(self) -> Counter[str]:
        """Return what this run was."""
        counts = Counter(self.counts)
        counts["groups"] = sum(scope.truth.end > 0 for scope in self.scopes.values())
        counts["groups deleted"] = len(self.tombstones())
        counts["events"] = self.loop.events
        counts["requests"] = len(self.callers.operations)
        return counts


def run(seed: int, options: Options = ALL, trace: int | str | None = None) -> Outcome:
    """Run one seed."""
    return outcome_of(seed, lambda: WholeWorld(seed, options, trace=trace), _ends)


def _ends(world: WholeWorld) -> str:
    return "-".join(str(scope.truth.end) for _, scope in sorted(world.scopes.items()))
