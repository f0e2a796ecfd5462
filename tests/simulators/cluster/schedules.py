"""Seeded schedules of a simulated cluster: what happens next, turns on purpose, and healing."""

from __future__ import annotations

from collections import Counter

from millstream.cluster.core.planner import plan_rows
from millstream.errors import MillstreamError
from simulators.cluster.node import ACTIVE, Node
from simulators.cluster.truth import LEVELS, WrongError
from simulators.cluster.world import World

MENU = (
    ("write", 6.0),
    ("read", 1.0),
    ("pull", 14.0),
    ("flush", 4.0),
    ("order", 26.0),
    ("deliver", 20.0),
    ("gossip", 2.0),
    ("wait", 2.0),
    ("sync", 4.0),
)
HEAL_TURNS_MAX = 9000
TOTAL: Counter[str] = Counter()
"""What happened in all schedules of this process."""
FORCED_AT = 2500


class Schedule:
    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.rng = rng = self.world.rng
        self.weights = dict(MENU) | {
            "operate": rng.choice((0.5, 2.0)),
            "repair": 1.5,
            "turn": rng.choice((0.2, 1.0)),
            "fault": rng.choice((0.7, 1.5, 3.0)),
        }

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.world.dispose()
            self.world.truth.check()
        self.heal()

    def step(self) -> None:
        world, rng = self.world, self.rng
        world.now_ms += rng.randrange(6)
        nodes = world.all_nodes()
        node, place = rng.choice(nodes), rng.choice(world.places)
        what = rng.choices(list(self.weights), list(self.weights.values()))[0]
        if what == "write":
            self.write()
        elif what == "read":
            world.truth.read(place)
        elif what == "pull":
            self.pull(node, rng.randint(1, 4))
        elif what == "flush" and node.is_up and place in node.copies:
            node.flush(place)
        elif what == "order":
            self.lead(rng.randint(1, 3))
        elif what == "deliver":
            for _ in range(rng.randint(1, 5)):
                world.deliver()
        elif what == "gossip":
            world.gossip(node)
        elif what == "wait":
            world.advance(rng.choice((100, 501, 501, 501, 6000)))
        elif what == "sync" and not node.boots:
            node.sync()
        elif what == "operate":
            self.operate(node)
        elif what == "repair":
            self.repair()
        elif what == "turn":
            rng.choice((self.usurp, self.delay, self.late_voter))()
        elif what == "fault":
            self.fault(node)

    def write(self) -> None:
        world, place = self.world, self.rng.choice(self.world.places)
        able = [one for one in world.all_nodes() if one.is_up and place in one.copies
                and one.copies[place].state is ACTIVE]  # fmt: skip
        if able:
            at, level = self.rng.choice(able), self.rng.choice(LEVELS)
            if level != "memory" or at.right(place).is_given:
                at.write(place, level)

    @staticmethod
    def pull(node: Node, count: int) -> None:
        if node.is_up:
            for place in list(node.copies):
                node.follow(place, count)

    def lead(self, steps: int) -> None:
        world, rng = self.world, self.rng
        is_holder = world.space.holder is not None and rng.random() < 0.7
        one = world.space.holder if is_holder else rng.choice(world.orchestrators)
        for _ in range(steps):
            one.step()  # type: ignore[attr-defined]

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

    def repair(self) -> None:
        world, rng = self.world, self.rng
        broken = [one for one in (*world.all_nodes(), *world.orchestrators)
                  if one.side or not one.is_up]  # fmt: skip
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

    def fault(self, node: Node) -> None:
        world, rng, space = self.world, self.rng, self.world.space
        dice, boss = rng.random(), rng.choice(world.orchestrators)
        live = world.state().live.get(node.name)
        if dice < 0.16:
            if node.is_up:
                world.trace(f"crash {node.name}")
                node.crash()
        elif dice < 0.44:
            if live is not None and (space.has_quorum or not world.clocks_good):
                world.trace(f"session of {node.name} ends")
                world.end_session(node.name, live.boots)
        elif dice < 0.50:
            node.lose_session()  # its own clock says so
        elif dice < 0.58:
            node.side = 1
        elif dice < 0.61:
            boss.side = 1
        elif dice < 0.67:
            world.trace("split")
            for one in (*world.all_nodes(), *world.orchestrators):
                one.side = int(rng.random() < 0.45)
        elif dice < 0.72:
            if rng.random() < 0.6:
                space.holder = None
        elif dice < 0.77:
            boss.is_up = not boss.is_up
            boss.forget()
            if space.holder is boss and rng.random() < 0.5:
                space.holder = None
        elif dice < 0.80:
            space.has_quorum = rng.random() < 0.7
        elif dice < 0.83:
            self.lose_disk(node)
        elif world.flying:
            world.flying.pop(rng.randrange(len(world.flying)))

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
        world.add_node(node.zone)

    # ---- turns that chance finds too seldom

    def usurp(self) -> None:
        """An orchestrator loses the lock in the middle of a promotion, and goes on."""
        world, rng, space = self.world, self.rng, self.world.space
        old, place = space.holder, rng.choice(world.places)
        active = world.record(place).active
        if old not in world.orchestrators or active is None or world.nodes[active].is_gone:
            return
        at = world.nodes[active]
        live = world.state().live.get(at.name)
        at.side = 1
        if live is not None:
            world.end_session(at.name, live.boots)
        for _ in range(3):
            old.step(is_careful=True)  # type: ignore[union-attr]
        if rng.random() < 0.6:
            space.holder = None
        for _ in range(rng.choice((0, 3, 30))):
            world.deliver()
            old.step()  # type: ignore[union-attr]
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
            old.side = 1  # type: ignore[union-attr]
            for node in world.all_nodes():
                node.side = int(node is not at and rng.random() < 0.6)
        if rng.random() < 0.7:
            victims = [name for name in world.record(place).voters if rng.random() < 0.6]
            world.request("rebalance", remove=victims)
        self.progress(rng.choice((2, 8, 25)), sender=old)
        for _ in range(15):
            world.deliver()
            old.step()  # type: ignore[union-attr]
            world.truth.check()

    def delay(self) -> None:
        """Orders of one kind arrive late: the plan they belong to has changed twice meanwhile."""
        world, rng = self.world, self.rng
        kind = rng.choice(("remove", "take_over", "promise", "adopt", "activate", "fence"))
        node = world.nodes[rng.choice(world.record(rng.choice(world.places)).voters)]
        for what in ("remove", "add", "add"):
            world.request("rebalance", **{what: [node.name]})
            self.progress(rng.choice((5, 15)), kind=kind)
        if rng.random() < 0.4 and node.is_up:
            node.crash()
            node.restart()

    def late_voter(self) -> None:
        """A voter without a session comes back after the copy of a new branch was chosen."""
        world, rng = self.world, self.rng
        place = rng.choice(world.places)
        record, boss = world.record(place), world.space.holder
        if boss not in world.orchestrators or record.active is None or len(record.voters) < 2:
            return
        away = [world.nodes[name] for name in record.voters if rng.random() < 0.5]
        active = world.nodes[record.active]
        for node in {active.name: active, **{one.name: one for one in away}}.values():
            live = world.state().live.get(node.name)
            if live is not None:
                world.end_session(node.name, live.boots)
            node.lose_session()
        if rng.random() < 0.5 and active.is_up:
            active.crash()
            active.restart()
        for turn in range(rng.choice((6, 12))):
            boss.step(is_careful=True)  # type: ignore[union-attr]
            if rng.random() < 0.3:
                world.advance(501)
            for _ in range(rng.randint(1, 5)):
                world.deliver()
            if turn > 2 and rng.random() < 0.5:
                for node in away:
                    node.sync()
            world.truth.check()

    def progress(self, rounds: int, *, kind: str = "", sender: object = None) -> None:
        """All goes well for a while, but some orders are held back."""
        world, rng = self.world, self.rng
        for _ in range(rounds):
            boss = world.space.holder or rng.choice(world.orchestrators)
            boss.step()  # type: ignore[attr-defined]
            items, world.flying = world.flying, []
            held = []
            for item in items:
                is_order = item[0] == "order"
                if item[0] == "write" or (is_order and (item[3].kind == kind or item[1] is sender)):
                    held.append(item)
                else:
                    world.arrive(item)
            world.flying += held
            for node in world.all_nodes():
                self.pull(node, 9)
                for place in list(node.copies):
                    if node.is_up:
                        node.flush(place)
                if not node.boots:
                    node.sync()
            if rng.random() < 0.3:
                world.advance(501)
            self.write()
            world.truth.check()

    # ---- the end

    def heal(self) -> None:
        world, rng, space = self.world, self.rng, self.world.space
        world.trace("healing")
        space.has_quorum = True
        for one in (*world.all_nodes(), *world.orchestrators):
            one.side, one.is_up = 0, True
        for turn in range(HEAL_TURNS_MAX):
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
        raise WrongError(
            f"no end: plan {state.plan} nodes {[(n, r.state, r.by) for n, r in state.nodes.items()]} "
            f"data {state.data} live {sorted(state.live)} notes {world.counts}"
        )

    def heal_step(self, turn: int) -> None:
        world, rng, space = self.world, self.rng, self.world.space
        node, dice = rng.choice(world.all_nodes()), rng.random()
        world.now_ms += rng.randrange(6)
        if space.holder is not None and space.holder not in world.orchestrators:
            space.holder = None
        if space.holder is not None and space.holder.token != space.token:  # type: ignore[attr-defined]
            space.holder = None  # it has restarted: its session ends
        if turn % 500 == 0:
            self.help()
        if turn % 500 == 250:
            world.request("rebalance")
        if turn >= FORCED_AT and turn % 100 == 0:
            for name, record in world.state().nodes.items():
                if world.nodes[name].is_gone and record.state != "out":
                    world.request("failover", node=name, mode="force")
        if dice < 0.3:
            self.pull(node, 6)
            for place in list(node.copies):
                node.flush(place)
        elif dice < 0.55:
            (space.holder or rng.choice(world.orchestrators)).step()  # type: ignore[attr-defined]
        elif dice < 0.8:
            for _ in range(3):
                world.deliver()
        elif dice < 0.87:
            world.gossip(node)
        elif dice < 0.9:
            world.advance(rng.choice((501, 501, 3000)))
        elif not node.boots or node.name not in world.state().live:
            node.lose_session()
            node.sync()

    def help(self) -> None:
        """Do what operators do who want the cluster to be whole."""
        world = self.world
        world.request("reset")
        members = world.state().nodes
        kept = [name for name, one in members.items()
                if one.state in ("in", "failed") and not world.nodes[name].is_gone]  # fmt: skip
        if not kept:
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
            if record.state not in ("in", "out") or (record.state == "in" and name not in alive):
                return False
        rows = tuple(world.record(place).row for place in world.places)
        if rows != plan_rows(rows, state.members("data"), world.replicas):
            return False
        return all(self.is_whole(place, alive) for place in world.places)

    def is_whole(self, place: object, alive: dict[str, Node]) -> bool:
        world = self.world
        record = world.record(place)  # type: ignore[arg-type]
        active = alive.get(record.active or "")
        if active is None or record.is_moving or record.building:
            return False
        copy = active.copies.get(place)  # type: ignore[call-overload]
        if copy is None or copy.state is not ACTIVE or record.row[0] != record.active:
            return False
        if not active.right(place).is_given:  # type: ignore[arg-type]
            return False
        for name in record.row:
            if name is not None:
                other = alive[name].copies.get(place) if name in alive else None  # type: ignore[call-overload]
                if other is None or other.log != copy.log:
                    return False
        members = world.state().members("data")
        return not any(place in node.copies and node.name in members and node.name not in record.row
                       for node in alive.values())  # fmt: skip


def run(seed: int, steps: int | None = None, lines: list[str] | None = None) -> str | None:
    """One schedule; None, or what is wrong."""
    schedule = Schedule(seed)
    schedule.world.lines = lines
    try:
        schedule.run(steps or schedule.rng.choice((200, 500, 1000)))
    except (WrongError, AssertionError, MillstreamError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        TOTAL.update(schedule.world.counts)
    return None
