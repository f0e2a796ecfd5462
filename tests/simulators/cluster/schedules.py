"""Seeded schedules of a simulated cluster: what happens next, turns on purpose, and healing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from millstream.cluster.core.orders import Order, Place
from millstream.cluster.core.planner import plan_rows
from millstream.errors import MillstreamError
from simulators.cluster.index_parts import Gateway
from simulators.cluster.node import ACTIVE, Log, Node
from simulators.cluster.orchestrator import Orchestrator
from simulators.cluster.truth import LEVELS, WrongError
from simulators.cluster.world import World

MENU = {
    "write": 6.0,
    "read": 1.0,
    "pull": 14.0,
    "flush": 4.0,
    "build": 5.0,
    "query": 7.0,
    "lead": 26.0,
    "deliver": 20.0,
    "gossip": 2.0,
    "wait": 2.0,
    "sync": 4.0,
    "repair": 1.5,
}
"""Methods of a schedule, and how often they are called; others are added by its seed."""
FAULTS = {
    "crash": 16,
    "end_session": 28,
    "forget_session": 6,
    "cut_node": 8,
    "cut_orchestrator": 3,
    "split": 6,
    "lose_lock": 3,
    "stop_orchestrator": 5,
    "lose_quorum": 3,
    "lose_disk": 3,
    "lose_message": 17,
}
HEALING = {"query": 8, "tidy": 30, "lead": 15, "deliver": 25, "gossip": 7, "wait": 3}
HEAL_TURNS_MAX = 9000
TOTAL: Counter[str] = Counter()
"""What happened in all schedules of this process."""
FORCED_AT = 2500


RECOVERY = {"back_up": 2.0, "restore": 0.4, "recover": 2.0}
"""Coordination goes back to a backup, and the state is rebuilt from the nodes."""


class Schedule:
    def __init__(self, seed: int, *, is_restored: bool = False) -> None:
        self.world = self.new_world(seed)
        self.rng = rng = self.world.rng
        self.weights = MENU | {
            "operate": rng.choice((0.5, 2.0)),
            "turn": rng.choice((0.2, 3.0)),
            "fault": rng.choice((0.7, 1.5, 3.0)),
        }
        if is_restored:
            self.weights |= RECOVERY
            self.world.space.back_up()

    def new_world(self, seed: int) -> World:
        return World(seed)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.world.pass_ms(self.rng.randrange(6))
            self.call(self.weights)
            self.world.dispose()
            self.world.truth.check()
        self.heal()

    def call(self, menu: dict[str, Any]) -> None:
        """Do one thing of a menu, to some node."""
        name = self.rng.choices(list(menu), list(menu.values()))[0]
        getattr(self, name)(self.rng.choice(self.world.all_nodes()))

    # ---- what goes on

    def read(self, _: Node) -> None:
        self.world.truth.read(self.rng.choice(self.world.places))

    def pull(self, node: Node) -> None:
        self.follow(node, self.rng.randint(1, 4))

    def flush(self, node: Node) -> None:
        place = self.rng.choice(self.world.places)
        if node.is_up and place in node.copies:
            node.flush(place)

    def build(self, node: Node) -> None:
        if node.is_up:
            for place in list(node.index.parts):
                node.index.follow(place, self.rng.randint(1, 3))

    def query(self, _: Node) -> None:
        self.rng.choice(self.world.gateways).step()

    def deliver(self, _: Node) -> None:
        for _ in range(self.rng.randint(1, 5)):
            self.world.deliver()

    def gossip(self, node: Node) -> None:
        self.world.gossip(node)

    def wait(self, _: Node) -> None:
        self.world.advance(self.rng.choice((100, 501, 501, 501, 6000)))

    def sync(self, node: Node) -> None:
        if not node.boots:
            node.sync()

    def turn(self, _: Node) -> None:
        self.rng.choice((self.usurp, self.delay, self.late_voter))()

    def fault(self, _: Node) -> None:
        self.call(FAULTS)

    def write(self, _: Node | None = None) -> None:
        world, place = self.world, self.rng.choice(self.world.places)
        able = [one for one in world.all_nodes() if one.is_up and place in one.copies
                and one.copies[place].state is ACTIVE]  # fmt: skip
        if able:
            at, level = self.rng.choice(able), self.rng.choice(LEVELS)
            if level != "memory" or at.right(place).is_given:
                at.write(place, level)

    @staticmethod
    def follow(node: Node, count: int) -> None:
        if node.is_up:
            for place in list(node.copies):
                node.follow(place, count)

    def lead(self, _: Node) -> None:
        for _ in range(self.rng.randint(1, 3)):
            is_boss = self.rng.random() < 0.7
            one = self.boss() if is_boss else self.rng.choice(self.world.orchestrators)
            one.step()

    def boss(self) -> Orchestrator:
        """Return who leads, or one that could."""
        holder = self.world.space.holder
        if isinstance(holder, Orchestrator):
            return holder
        return self.rng.choice(self.world.orchestrators)

    # ---- operators and faults

    def operate(self, node: Node) -> None:
        world, rng = self.world, self.rng
        if not world.space.has_quorum:
            return
        dice, members = rng.random(), world.state().nodes
        if dice < 0.35:
            if node.name not in members:
                world.join(node.name)
            world.request("rebalance", add=[node.name])
        elif dice < 0.65:
            world.request("rebalance", remove=[node.name])
        elif dice < 0.75:
            world.request("cancel")
        elif dice < 0.85:
            world.request("failover", node=node.name, mode="graceful")
        elif dice < 0.92:
            world.request("failover", node=node.name, mode="hard")
        else:
            world.request("reset")

    def repair(self, _: Node) -> None:
        world, rng = self.world, self.rng
        broken = [one for one in self.everybody() if one.side or not one.is_up]
        if rng.random() < 0.2:
            for one in broken:
                one.side = 0
        if not world.space.has_quorum:
            world.space.has_quorum = True
        elif broken:
            one = rng.choice(broken)
            if one.side:
                one.side = 0
            else:
                one.is_up = True

    def everybody(self) -> list[Node | Orchestrator | Gateway]:
        return [*self.world.all_nodes(), *self.world.orchestrators, *self.world.gateways]

    def crash(self, node: Node) -> None:
        if node.is_up:
            self.world.trace(f"crash {node.name}")
            node.crash()

    def end_session(self, node: Node) -> None:
        world = self.world
        live = world.state().live.get(node.name)
        if live is not None and (world.space.has_quorum or not world.clocks_good):
            world.trace(f"session of {node.name} ends")
            world.end_session(node.name, live.boots)

    def forget_session(self, node: Node) -> None:
        node.lose_session()  # its own clock says so

    def cut_node(self, node: Node) -> None:
        node.side = 1

    def cut_orchestrator(self, _: Node) -> None:
        self.rng.choice((*self.world.orchestrators, *self.world.gateways)).side = 1

    def split(self, _: Node) -> None:
        self.world.trace("split")
        for one in self.everybody():
            one.side = int(self.rng.random() < 0.45)

    def lose_lock(self, _: Node) -> None:
        self.world.space.holder = None

    def stop_orchestrator(self, _: Node) -> None:
        one, space = self.rng.choice(self.world.orchestrators), self.world.space
        one.is_up = not one.is_up
        one.forget()
        if space.holder is one and self.rng.random() < 0.5:
            space.holder = None

    def lose_quorum(self, _: Node) -> None:
        self.world.space.has_quorum = self.rng.random() < 0.7

    def lose_message(self, _: Node) -> None:
        if self.world.flying:
            self.world.flying.pop(self.rng.randrange(len(self.world.flying)))

    def lose_disk(self, node: Node) -> None:
        """Mostly only where others have it; else the operator must give it up in the end."""
        world, struck = self.world, set()
        for place in node.copies:
            others = [world.nodes[name].copies.get(place) for name in world.record(place).voters
                      if name != node.name and not world.nodes[name].is_gone]  # fmt: skip
            if not any(copy and copy.is_whole and copy.is_intact for copy in others):
                struck.add(place)
        gone = sum(one.is_gone for one in world.nodes.values())
        if (struck and self.rng.random() < 0.7) or gone > 1 or len(world.nodes) > 8:
            return
        world.truth.struck |= struck
        world.trace(f"{node.name} loses its disk, {struck or 'nothing'} with it")
        world.count("lost disks")
        world.take_away(node)
        world.add_node(node)

    # ---- coordination is lost

    def back_up(self, _: Node) -> None:
        if not self.world.state().is_forked:
            self.world.space.back_up()

    def restore(self, _: Node) -> None:
        self.world.restore()

    def recover(self, _: Node) -> None:
        self.world.recover()

    # ---- turns that chance finds too seldom

    def usurp(self) -> None:
        """An orchestrator loses the lock in the middle of a promotion, and goes on."""
        world, rng, space = self.world, self.rng, self.world.space
        old, place = self.boss(), rng.choice(world.places)
        active = world.record(place).active
        if old is not space.holder or active is None or world.nodes[active].is_gone:
            return
        at = world.nodes[active]
        live = world.state().live.get(at.name)
        at.side = 1
        if live is not None:
            world.end_session(at.name, live.boots)
        for _ in range(3):
            old.step(is_careful=True)
        if rng.random() < 0.6:
            space.holder = None
        for _ in range(rng.choice((0, 3, 30))):
            world.deliver()
            old.step()
            if rng.random() < 0.2:
                world.advance(501)
        if rng.random() < 0.8:
            at.side = 0
            at.sync()
        space.holder = None
        new = next(one for one in world.orchestrators if one is not old)
        new.side, new.is_up = 0, True
        new.step(is_careful=True)
        if rng.random() < 0.6:
            old.side = 1
            for node in world.all_nodes():
                node.side = int(node is not at and rng.random() < 0.6)
        if rng.random() < 0.7:
            victims = [name for name in world.record(place).voters if rng.random() < 0.6]
            world.request("rebalance", remove=victims)
        self.progress(rng.choice((2, 8, 25)), lambda sender, order: sender is old)
        for _ in range(15):
            world.deliver()
            old.step()
            world.truth.check()

    def delay(self) -> None:
        """Orders of one kind arrive late: the plan they belong to has changed twice meanwhile."""
        world, rng = self.world, self.rng
        kind = rng.choice(("remove", "take_over", "promise", "adopt", "activate", "fence"))
        node = world.nodes[rng.choice(world.record(rng.choice(world.places)).voters)]
        for what in ("remove", "add", "add"):
            world.request("rebalance", **{what: [node.name]})
            self.progress(rng.choice((5, 15)), lambda sender, order: order.kind == kind)
        if rng.random() < 0.4 and node.is_up:
            node.crash()
            node.restart()

    def late_voter(self) -> None:
        """A voter is away while another copy is activated, then promises the same branch."""
        world, rng = self.world, self.rng
        place = rng.choice(world.places)
        record = world.record(place)
        if record.active is None or len(record.voters) < 3 or world.space.holder is None:
            return
        away = world.nodes[record.active if rng.random() < 0.7 else rng.choice(record.voters)]
        if away.is_active(place) and away.right(place).is_given:
            away.write(place, "memory")
        live = world.state().live.get(away.name)
        if live is not None:
            world.end_session(away.name, live.boots)
        away.lose_session()
        away.side = 1
        world.request("failover", node=away.name, mode="hard")
        self.boss().side = 0
        for _ in range(12):
            self.progress(1, lambda sender, order: order.to == away.name)
            actives = [node for node in world.all_nodes()
                       if node is not away and node.is_active(place)]  # fmt: skip
            if actives:
                break
            world.advance(501)
        else:
            return
        for node in actives:
            node.side = 1  # nobody hears of it
        away.side = 0
        away.sync()
        for _ in range(10):
            self.boss().step()
            for _ in range(8):
                world.deliver()
            world.truth.check()

    def progress(self, rounds: int, is_held: Callable[[object, Order], bool]) -> None:
        """All goes well for a while, but some orders are held back."""
        world, rng = self.world, self.rng
        for _ in range(rounds):
            self.boss().step()
            items, world.flying = world.flying, []
            held = []
            for item in items:
                if item[0] == "write" or (item[0] == "order" and is_held(item[1], item[3])):
                    held.append(item)
                else:
                    world.arrive(item)
            world.flying += held
            for node in world.all_nodes():
                self.follow(node, 9)
                for place in list(node.copies):
                    if node.is_up:
                        node.flush(place)
                for place in list(node.index.parts):
                    if node.is_up:
                        node.index.follow(place, 9)
                if not node.boots:
                    node.sync()
            if rng.random() < 0.3:
                self.query(node)
            if rng.random() < 0.3:
                world.advance(501)
            self.write()
            world.truth.check()

    # ---- the end

    def heal(self) -> None:
        world, space = self.world, self.world.space
        world.trace("healing")
        space.has_quorum = True
        for one in self.everybody():
            one.side, one.is_up = 0, True
        for turn in range(HEAL_TURNS_MAX):
            world.recover()
            self.heal_step(turn)
            world.dispose()
            for name in world.state().live:
                if world.nodes[name].is_gone:
                    space.end_session(name)  # it runs out
            world.truth.check()
            if turn % 50 == 49 and self.is_settled():
                world.truth.check_end()
                return
        state = world.state()
        nodes = [(name, one.state, one.by) for name, one in state.nodes.items()]
        raise WrongError(
            f"no end: plan {state.plan} nodes {nodes} "
            f"data {state.data} live {sorted(state.live)} notes {world.counts}"
        )

    def heal_step(self, turn: int) -> None:
        world, rng, space = self.world, self.rng, self.world.space
        node = rng.choice(world.all_nodes())
        world.pass_ms(rng.randrange(6))
        boss = space.holder
        if not isinstance(boss, Orchestrator) or boss.token != space.token:
            space.holder = None  # it has restarted: its session ends
        if turn % 500 == 0:
            self.help()
        if turn % 500 == 250:
            world.request("rebalance")
        if turn >= FORCED_AT and turn % 100 == 0:
            self.give_up()
        self.call(HEALING)
        is_out = not node.boots or node.name not in world.state().live
        if is_out and rng.random() < 0.1:
            node.lose_session()
            node.sync()

    def tidy(self, node: Node) -> None:
        self.follow(node, 6)
        for place in list(node.copies):
            node.flush(place)
        for place in list(node.index.parts):
            node.index.follow(place, 6)

    def give_up(self) -> None:
        """The operator says that nodes never come back."""
        for name, record in self.world.state().nodes.items():
            if self.world.nodes[name].is_gone and record.state != "out":
                self.world.request("failover", node=name, mode="force")

    def help(self) -> None:
        """Do what operators do who want the cluster to be whole."""
        world = self.world
        world.request("reset")
        members = world.state().nodes
        roles = {
            role
            for name, one in members.items()
            for role in one.roles
            if one.state in ("in", "failed") and not world.nodes[name].is_gone
        }
        if roles != {"data", "index"}:  # too few are left: all that there are
            for node in world.all_nodes():
                world.join(node.name)
            leaving = [name for name, one in members.items() if one.state == "leaving"]
            world.request("rebalance", add=leaving)

    def is_settled(self) -> bool:
        world, state = self.world, self.world.state()
        alive = {node.name: node for node in world.all_nodes()}
        if state.plan is not None:
            return False
        for name, record in state.nodes.items():
            if record.state == "leaving" and world.must_stay(name):
                continue
            if record.state not in ("in", "out") or (record.state == "in" and name not in alive):
                return False
        for uuid, bucket in state.buckets.items():
            rows = tuple(record.row for record in state.data[uuid].records)
            is_dropped = bucket.state == "dropping"
            if is_dropped or rows != plan_rows(rows, state.members("data"), bucket.replicas):
                return False
        return all(self.is_whole(place, alive) for place in world.places)

    def is_whole(self, place: Place, alive: dict[str, Node]) -> bool:
        world = self.world
        record = world.record(place)
        active = alive.get(record.active or "")
        if active is None or record.is_moving or record.building:
            return False
        copy = active.copies.get(place)
        if copy is None or copy.state is not ACTIVE or record.row[0] != record.active:
            return False
        if not active.right(place).is_given:
            return False
        for name in record.row:
            if name is not None:
                other = alive[name].copies.get(place) if name in alive else None
                if other is None or other.log != copy.log:
                    return False
        if not self.is_indexed(place, alive, copy.log):
            return False
        members = world.state().members("data")
        left = {node.name for node in alive.values() if place in node.copies} & set(members)
        return left <= set(record.row)

    def is_indexed(self, place: Place, alive: dict[str, Node], log: Log) -> bool:
        """Whether the owner answers with everything, and nobody has a part left over."""
        record = self.world.index_record(place)
        owner = alive.get(record.owner or "")
        part = None if owner is None else owner.index.parts.get(place)
        if owner is None or part is None or part.state != "active" or part.log != log:
            return False
        members = self.world.state().members("index")
        left = {node.name for node in alive.values() if place in node.index.parts} & set(members)
        return left <= set(record.placed)


def run(
    seed: int,
    steps: int | None = None,
    lines: list[str] | None = None,
    *,
    is_restored: bool = False,
) -> str | None:
    """One schedule; None, or what is wrong. `is_restored`: coordination loses entries in it."""
    schedule = Schedule(seed, is_restored=is_restored)
    schedule.world.lines = lines
    try:
        schedule.run(steps or schedule.rng.choice((200, 500, 1000)))
    except (WrongError, AssertionError, MillstreamError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        TOTAL.update(schedule.world.counts)
    return None
