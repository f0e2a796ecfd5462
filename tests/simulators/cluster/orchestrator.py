"""A node that believes to lead: it reads, asks, decides and sends, all of it imperfectly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.cluster.core.deciding import decide
from millstream.cluster.core.elements import ClusterState
from millstream.cluster.core.memory import Memory
from millstream.cluster.core.orders import Order, Reply
from millstream.cluster.core.reports import NodeReport
from millstream.cluster.core.step import View
from millstream.cluster.core.writes import Txn
from millstream.vsr.core.versions import NEVER

if TYPE_CHECKING:
    from simulators.cluster.world import World


class Orchestrator:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.side = world, name, 0
        self.is_up, self.run = True, 0
        self.forget()

    def forget(self) -> None:
        self.run += 1
        self.token = NEVER
        self.state: ClusterState | None = None
        self.is_fresh = False
        self.memory = Memory()
        self.group = self.world.group_at_first()
        """What it knows of the nodes that coordinate."""

    @property
    def reaches_space(self) -> bool:
        return self.side == 0 and self.world.space.has_quorum

    def step(self, *, is_careful: bool = False) -> None:
        """Take one step; a careful one reads and asks everybody."""
        world, rng = self.world, self.world.rng
        if not self.is_up:
            return
        if self.reaches_space and world.space.holder is None:
            self.forget()
            token = world.space.campaign(self)
            assert token is not None
            self.token = token
            world.trace(f"{self.name} leads, {token.lsn}")
        if self.token == NEVER:
            return
        self.is_fresh = False
        if self.state is None or is_careful or rng.random() < 0.75:
            self.refresh()
        if self.state is not None:
            self.decide(is_careful=is_careful)

    def refresh(self) -> None:
        """Read linearizably, which also says whether the lock is still held."""
        space = self.world.space
        if not self.reaches_space:
            return
        if space.holder is self and space.token == self.token:
            self.is_fresh, self.state = True, space.state()
        elif self.world.rng.random() < 0.3:  # or it does not look, and goes on
            self.forget()

    def decide(self, *, is_careful: bool) -> None:
        world, rng = self.world, self.world.rng
        assert self.state is not None
        names = sorted(world.nodes)
        if not is_careful:
            names = [name for name in names if rng.random() < rng.choice((0.3, 1.0))]
        answered = {name for name in names if self.ask(name)}
        view = View(
            me=min(answered, default=""),
            token=self.token,
            state=self.state,
            is_fresh=self.is_fresh,
            answered=frozenset(answered) if self.is_fresh else frozenset(),
            now_ms=world.now_ms,
            unix_ms=world.now_ms + 1_000_000,
            branch_by_clock=0,
            noise=rng.randrange(4096),
            coordinators=self.group,
        )
        decision = decide(view, self.memory)
        if decision.is_deposed:
            self.forget()
            return
        for note in decision.notes:
            world.count(note.split(":")[0])
        for order in decision.orders:
            world.count(order.kind)
            item = ("order", self, self.run, order)
            if rng.random() < 0.95 and item not in world.flying:
                world.flying.append(item)
        for end in decision.ends:
            world.end_session(end.node, end.boots)
        if decision.write is not None:
            self.put(decision.write)
        world.decided(self, view)

    def ask(self, name: str) -> bool:
        """Ask a node for its report, at once; with the answer it knows the token."""
        node = self.world.nodes[name]
        reply: NodeReport | Reply | None = None
        if self.world.connected(self, node):
            reply = node.obey(Order("report", self.world.uuid, name, self.token))
        if isinstance(reply, NodeReport):
            self.memory.hear(reply)
            return True
        self.memory.miss(name)
        return False

    def put(self, txn: Txn) -> None:
        """Write; it may be lost, or executed late."""
        world, dice = self.world, self.world.rng.random()
        self.state = None
        if not self.reaches_space or dice < 0.05:
            return
        if dice < 0.12:
            world.flying.append(("write", txn))
            return
        is_done = world.space.run(txn)
        world.trace(f"{self.name} writes {txn.why}: {is_done}")
        world.count("writes" if is_done else "writes refused")

    def receive(self, run: int, order: Order, reply: Reply | NodeReport) -> None:
        if self.run != run or not self.is_up or isinstance(reply, NodeReport):
            return
        if reply.code == "behind":
            self.state = None
        if self.memory.take(order, reply, self.world.now_ms) and self.world.rng.random() < 0.3:
            self.forget()
