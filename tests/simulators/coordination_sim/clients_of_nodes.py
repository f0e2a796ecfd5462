"""Clients of namespaces of whole nodes: those of each group, and who has the namespaces made.

Invariants:
1. Each group has namespaces of its own names, and clients with sessions there; they say which
   group they mean, who only listens leaves it to the node to know.
2. Names are made, and some of them deleted, by clients of the system group, in any group. In the
   end every name is where the system group says, and nowhere else; nothing of it is unfinished.
   Who is told that a namespace was made, or deleted, is told the truth.
3. Clients end with their group.

Elsewhere: what they do (`workloads`), what has to hold (`shadow`, for each group by itself).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from millstream.coordination.core.namespace.names import NameStatus
from millstream.coordination.core.pool.effects import FIRST_GROUP
from simulators.coordination_sim.lines import Line
from simulators.coordination_sim.namespace_clients import NamespaceClient, NamespaceClients
from simulators.coordination_sim.workloads import WAIT_MS, Doing, Nap, one
from simulators.namespace_truth import require

if TYPE_CHECKING:
    from simulators.coordination_sim.groups_of_nodes import Scope
    from simulators.coordination_sim.whole import WholeWorld

__all__ = ["GROUPS_MAX", "ClientsOfGroups", "ClientsOfNode"]

GROUPS_MAX = 3
"""So many groups have clients of namespaces."""
SPARE = ("/s0", "/s1", "/s2")
"""Names that come and go, in any group."""
LOOK_MS = 1000.0
REFUSED, DELETED = 0.15, 0.4
"""So often somebody wants what is in use deleted; another one."""


class ClientsOfNode(NamespaceClients):
    """Those of one group."""

    workloads_max = 8
    has_roots = True

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)  # type: ignore[arg-type]
        self.scope = scope
        self.prefix = ("GROUP", f"{scope.number}")

    def begin(self) -> None:
        super().begin()
        if self.scope.number == FIRST_GROUP:
            self.namespace_clients += [self.born(founding), self.born(renaming)]

    def leaders(self) -> list[int]:
        return [machine.node.number for machine in self.scope.machines.values() if machine.leads]

    def connected(self, node: int, on_data: Any, on_lost: Any) -> Line | None:
        nodes = self.scope.world.machines
        at = nodes[node % len(nodes)]
        line = Line(self, at, on_data, on_lost)  # type: ignore[arg-type]
        return line if at.accept(line) else None

    def end(self) -> None:
        """The group is gone."""
        self.is_over = True
        for client in self.namespace_clients:
            client.end()


def founding(client: NamespaceClient) -> Doing:
    """Have the namespaces made in which the clients of all groups are."""
    world: WholeWorld = client.namespace_clients.world.world  # type: ignore[attr-defined]
    made = set[str]()
    while not client.world.calm:
        missing = [
            (root, number) for root, number in world.clients_of_groups.roots() if root not in made
        ]
        for root, number in missing:
            ended, told = yield one("CREATENAMESPACE", root, "GROUP", f"{number}")
            world.clients_of_groups.note(client.op, ended, told)
            if told in ("OK", "EXISTS"):
                made.add(root)
        yield Nap(WAIT_MS)


def renaming(client: NamespaceClient) -> Doing:
    """Make and delete names in any group, all the time."""
    rng = client.rng
    world: WholeWorld = client.namespace_clients.world.world  # type: ignore[attr-defined]
    while not client.world.calm:
        yield Nap(rng.expovariate(1 / client.namespace_clients.between_ms))
        root, in_use = rng.choice(SPARE), world.clients_of_groups.in_use()
        if in_use and rng.random() < REFUSED:
            ended, told = yield one("DELETENAMESPACE", rng.choice(in_use))
        elif rng.random() < DELETED:
            forced = ("FORCE",) * (rng.random() < 0.5)
            ended, told = yield one("DELETENAMESPACE", root, *forced)
        else:
            number = rng.choice(world.numbers())
            ended, told = yield one("CREATENAMESPACE", root, "GROUP", f"{number}")
        world.clients_of_groups.note(client.op, ended, told)
        said = told if isinstance(told, str) else getattr(told, "code", "nothing")
        client.world.counts[f"names: {ended} {said}"] += 1


def _made_in(scope: Scope) -> Iterator[bytes]:
    """Yield under which ids a group has made roots."""
    for entry in scope.truth.committed:
        argv = entry.content.argv
        is_one = argv[1:3] == (b"NAMESPACE", b"CREATE")
        if is_one and scope.truth.model.at_lsn[entry.lsn][0] == b"+CREATED":
            yield argv[4]


def _there_in(scope: Scope) -> Iterator[bytes]:
    """Yield under which ids a group has roots."""
    state = scope.shadow.state.state
    for _, number in state.elements.children(0):
        if (known := state.registry.id_of(number)) is not None:
            yield known.text


class ClientsOfGroups:
    """The clients of namespaces of all groups."""

    def __init__(self, world: WholeWorld) -> None:
        self.world, self.loop = world, world.loop
        self.namespace_clients: dict[bytes, ClientsOfNode] = {}
        self.told: dict[int, Any] = {}
        """What was asked for of names -> what it came to."""

    def begin(self) -> None:
        """Have clients come to groups that are there, and go with those that are deleted."""
        self.loop.after(LOOK_MS, self.begin)
        for node in self.world.machines:
            if node.requests is not None and node.pool is not None:
                node.call(self._tick, node, node.process)
        dead = self.world.tombstones()
        for group, clients in self.namespace_clients.items():
            if group in dead and not clients.is_over:
                clients.end()
        if self.world.calm:
            return
        living = [clients for clients in self.namespace_clients.values() if not clients.is_over]
        for group in self.world.living().values():
            scope = self.world.scopes[group]
            is_new = group not in self.namespace_clients and scope.source is None
            if is_new and len(living) < GROUPS_MAX:
                clients = self.namespace_clients[group] = ClientsOfNode(scope)
                living.append(clients)
                clients.begin()

    def _tick(self, node: Any, process: int) -> None:
        if process == node.process:
            node.requests.tick(self.loop.now)

    def roots(self) -> list[tuple[str, int]]:
        """Return the names that there have to be, and in which groups."""
        return [
            (clients.names.real(root), clients.scope.number)
            for clients in self.namespace_clients.values() if not clients.is_over
            for root in ("/h", "/n")
        ]  # fmt: skip

    def in_use(self) -> list[str]:
        """Return the names that cannot be deleted, as there is something."""
        return [
            clients.names.real("/h") for clients in self.namespace_clients.values()
            if not clients.is_over and clients.is_prepared
        ]  # fmt: skip

    def note(self, op: int, ended: str, told: Any) -> None:
        """Note what somebody was told of a name."""
        if ended == "ok":
            self.told[op] = getattr(told, "code", told)

    def check(self) -> None:
        """Look at what was told of names."""
        for clients in self.namespace_clients.values():
            clients.check()
        living = self.world.living()
        if not self.told or FIRST_GROUP not in living:
            return
        made = {one for scope in self.world.scopes.values() for one in _made_in(scope)}
        there = {
            one for group in living.values() if self.world.scopes[group].source is None
            for one in _there_in(self.world.scopes[group])
        }  # fmt: skip
        truth = self.world.scopes[living[FIRST_GROUP]].shadow.truth
        for op, told in self.told.items():
            words = truth.requests[op]
            begun, *ids = truth.finals.get(op, b"").split(b" ")
            if begun == b"+RESERVED":
                is_right = {"OK": ids[1] in made, "CONFLICT": ids[1] not in made}
                require(is_right.get(told, True), f"{words} is told {told}, and that is not so")
            elif begun == b"+DELETING" and told == "OK":
                require(ids[1] not in there, f"{words} is told {told}, and it is there")

    def each(self, what: Callable[[ClientsOfNode], None]) -> None:
        """Do something for those of each group that is there."""
        for clients in self.namespace_clients.values():
            if not clients.is_over:
                what(clients)

    def amiss(self) -> str:
        """Return what is not as it should be in the end."""
        if not self.world.conditions.namespaces:
            return ""
        for clients in self.namespace_clients.values():
            if not clients.is_over and (why := clients.unfinished()):
                return f"group {clients.scope.number}: {why}"
        return self._names_amiss()

    def _names_amiss(self) -> str:
        """Return which name is not where the system group has it."""
        living = self.world.living()
        leaders = {number: self.world.leader(group) for number, group in living.items()}
        system = leaders.get(FIRST_GROUP)
        if system is None:
            return ""
        registry = system.replica.machine.state.registry
        said: dict[int, set[bytes]] = {number: set() for number in living}
        for root, name in registry.names.after(b""):
            if name.status is not NameStatus.CONFIRMED and (name.gid or FIRST_GROUP) in living:
                return f"/{root.decode()} is {name.status.name}"
            said.setdefault(name.gid or FIRST_GROUP, set()).add(root)
        self.world.counts["names of deleted groups"] = sum(
            len(roots) for number, roots in said.items() if number not in living
        )
        for number, machine in leaders.items():
            if machine is None or self.world.scopes[living[number]].source is not None:
                continue
            elements = machine.replica.machine.state.elements
            there = {root for root, _ in elements.children(0)}
            if there != said[number]:
                return f"group {number} has {there}, and should have {said[number]}"
        return ""
