"""Operators of a pool: commands over connections, at any time, to nodes that may not do them.

Invariants:
1. A number is given to one group only, so that what clients ask of it is of one group.
2. Whatever is answered is right or refused; that it is answered at all is looked at by the node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.coordination.core.client.events import (
    ErrorReply,
)
from millstream.coordination.core.pool.effects import FIRST_GROUP
from simulators.coordination_sim.loop import stream

if TYPE_CHECKING:
    from simulators.coordination_sim.whole import WholeWorld

PERIOD_MS, SHORT_PERIOD_MS = (2000.0, 20_000.0), (300.0, 2000.0)
GROUPS_MAX = 5
NODES_MAX = 8


class Operators:
    """Draws commands."""

    def __init__(self, world: WholeWorld) -> None:
        self.world, self.loop = world, world.loop
        self.rng = stream(world.seed, "operators")
        is_short = world.options.only is not None
        self.period = self.rng.uniform(*SHORT_PERIOD_MS if is_short else PERIOD_MS)
        self._number = 1
        self.is_resting = False

    def begin(self) -> None:
        """Give commands from time to time."""
        self.loop.after(self.rng.expovariate(1 / self.period), self.work)

    def work(self) -> None:
        """Give one command."""
        if self.world.calm:
            return
        self.begin()
        if self.is_resting:
            return
        acts = (
            self.create, self.create, self.delete, self.reconfigure, self.reconfigure,
            self.move_primary, self.snapshot, self.back_up, self.restore, self.look, self.join,
            self.leave, self.add_node,
        )  # fmt: skip
        self.rng.choice(acts)()

    def _ask(self, words: str, node: Any = None) -> bool:
        node = node or self.rng.choice(self.world.machines)
        name = " ".join(words.split()[1:3]) if "GROUP" in words else words.split()[1]

        def told(reply: Any) -> None:
            said = reply.code if isinstance(reply, ErrorReply) else "OK"
            self.world.counts[f"{name} {said}"] += 1

        self.world.callers.ask(node, words, told)
        return True

    def _group(self) -> tuple[int, Any] | None:
        """Return a group and, mostly, the node that leads it."""
        living = self.world.living()
        if not living:
            return None
        number, group_id = self.rng.choice(list(living.items()))
        leader = self.world.leader(group_id)
        if leader is None or self.rng.random() < 0.1:
            return number, self.rng.choice(self.world.machines)
        return number, leader.node

    def _members(self) -> str:
        nodes = self.world.machines
        sizes = [size for size in (1, 3, 3, 5) if size <= len(nodes)]
        chosen = self.rng.sample(nodes, self.rng.choice(sizes))
        return " ".join(node.id.hex() for node in chosen)

    # ---- groups

    def create(self) -> None:
        if len(self.world.living()) < GROUPS_MAX:
            self._number += 1
            words = f"ADMIN GROUP CREATE {self._number} {self._members()}"
            self._ask(words)
            if self.rng.random() < 0.7:
                self.loop.after(3000, self._have_client, self._number)

    def _have_client(self, number: int) -> None:
        if not self.world.calm:
            callers = self.world.callers
            index = self.rng.randrange(len(callers.clients))
            callers.clients[index].die()
            callers.clients[index] = callers.born(number)

    def delete(self) -> None:
        if (found := self._group()) and len(self.world.living()) > 2:
            number, node = found
            if number == FIRST_GROUP and self.world.conditions.namespaces:
                return  # all names would be gone
            self._ask(f"ADMIN GROUP DELETE {number} CONFIRM {number}", node)

    def reconfigure(self) -> bool:
        found = self._group()
        if found is None:
            return False
        number, node = found
        return self._ask(f"ADMIN GROUP RECONFIG {number} {self._members()}", node)

    def move_primary(self) -> bool:
        found = self._group()
        if found is None:
            return False
        number, node = found
        other = self.rng.choice(self.world.machines).id.hex()
        return self._ask(f"ADMIN GROUP MOVE-PRIMARY {number} {other}", node)

    def snapshot(self) -> None:
        if found := self._group():
            self._ask(f"ADMIN SNAPSHOT {found[0]}", found[1])

    def back_up(self) -> None:
        if found := self._group():
            number, node = found
            self._ask(f"ADMIN BACKUP {number} /backup/{number}.{self.loop.now:.0f}", node)

    def restore(self) -> None:
        holders = [node for node in self.world.machines if node.files]
        if holders and len(self.world.living()) < GROUPS_MAX:
            node = self.rng.choice(holders)
            self._number += 1
            self._ask(f"ADMIN RESTORE {self._number} {self.rng.choice(sorted(node.files))}", node)
            self.loop.after(3000, self._have_client, self._number)

    # ---- nodes

    def look(self) -> None:
        words = ("NODES", "STATUS", "STATUS 1", "LOG 1 1 50")
        self._ask(f"ADMIN {self.rng.choice(words)}")

    def join(self) -> None:
        """Have a node that is alone join another one."""
        for node in self.world.machines:
            pool = node.pool
            if pool is not None and not pool.tables.others() and not pool.membership.joining:
                other = self.rng.choice([one for one in self.world.machines if one is not node])
                self._ask(f"ADMIN JOIN {other.peer.host} {other.peer.port}", node)
                return

    def leave(self) -> None:
        self._ask("ADMIN LEAVE")

    def add_node(self) -> None:
        if len(self.world.machines) < NODES_MAX and self.rng.random() < 0.5:
            self.world.add_node().start()
