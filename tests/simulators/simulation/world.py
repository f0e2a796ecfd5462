"""Random schedules of two or three nodes and of their readers, and what must hold at the end.

A schedule writes, deletes, expires, flushes, follows, reads, cuts, crashes at any effect of a
disk, loses power, unflushed tails and files, forgets deletions, compacts, evicts, cuts nodes off,
promotes by a quorum or by force, and hands over cleanly. Then everything is healed.

Checked:
1. what `node` and `readers` say, at every step;
2. once healed all copies and readers come to hold what the active copy does, in a bounded number
   of steps, and that is the replay of its history;
3. nothing acknowledged by a majority is lost, in memory or persisted, as promised;
4. a durable-only reader never held a change that vanished.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator

from millstream.cluster.core.promotion import Verdict, judge, next_branch, winner_of
from millstream.model.bucket_map import BucketMap, NodeAddress
from millstream.model.position import FailoverEntry
from millstream.model.standing import Standing
from simulators.simulation.endings import end_badly
from simulators.simulation.following import Following
from simulators.simulation.node import ACTIVE, KEYS, REPLICA, SECOND, Copy, Node
from simulators.simulation.readers import Durable, Exact, Keeping, Reader
from simulators.simulation.truth import Change, Truth, replay

STEPS = (30, 80, 140)
SETTLE_TURNS_MAX = 150
LEVELS = ("memory", "majority", "persisted")


class World:
    """Random schedule, the cluster's rules, and the checks."""

    def __init__(self, seed: int, lines: list[str] | None = None) -> None:
        self.rng, self.numbers = random.Random(seed), itertools.count(100)
        rng = self.rng
        self.truth = Truth(self.numbers)
        self.lines = lines
        self.clock, self.now_ns = 10, 1_700_000_000 * SECOND
        self.inherits: list[Change] = []
        self.crashes = rng.choice((0, 0.02, 0.1))
        self.is_restless = rng.random() < 0.5  # readers disconnect after every few items
        self.has_views = rng.random() < 0.5  # frozen ones, for long
        self.partition_count = rng.choice((1, 1, 1, 2))
        names = [f"node{number}" for number in range(rng.choice((2, 3)))]
        self.map = self.make_map(names)
        self.nodes: list[Node] = []
        for name in names:
            self.nodes.append(Node(self, name))
        self.majority = len(self.nodes) // 2 + 1
        self.partition_ids = range(self.partition_count)
        for p in self.partition_ids:
            self.nodes[0].copies[p].set_state(ACTIVE)
            for node in self.nodes[1:]:
                node.copies[p].set_state(REPLICA)
        self.readers: list[Reader] = []
        for p in self.partition_ids:
            for number, kind in enumerate((Keeping, Exact, Durable)):
                self.readers.append(kind(self, number, p))
        self.acknowledged: list[tuple[int, Change, str]] = []
        self.promotions: list[Iterator[None]] = []
        """Under way."""

    def make_map(self, names: list[str]) -> BucketMap:
        addresses = tuple(NodeAddress(name, name, 1, 1) for name in names)
        return BucketMap(1, addresses, (tuple(names),) * self.partition_count)

    def trace(self, line: str) -> None:
        if self.lines is not None:
            self.lines.append(line)

    # -- who is there

    def up(self) -> list[Node]:
        return [node for node in self.nodes if not node.is_down]

    def copies(self, p: int) -> list[Copy]:
        return [node.copies[p] for node in self.nodes]

    def actives(self, p: int) -> list[Copy]:
        return [copy for copy in self.copies(p) if copy.is_active]

    def newest_active(self, p: int) -> Copy | None:
        return max(self.actives(p), key=lambda copy: copy.branch, default=None)

    def replicas_of(self, source: Copy) -> list[Copy]:
        copies = self.copies(source.partition_id)
        return [c for c in copies if c.is_replica and c is not source and c.is_fed_by(source)]

    # -- the cluster's rules

    def new_entry(self, seqno: int, last_branch: int) -> FailoverEntry:
        uuid = next(self.numbers)
        self.truth.inherit(uuid, self.inherits)
        return FailoverEntry(uuid, seqno, max(last_branch + 1, self.clock))

    def admit(self, copy: Copy) -> None:
        """A copy that lost its files promises again what it, or anybody, has promised."""
        copy.promise(max(other.last_branch for other in self.copies(copy.partition_id)))
        copy.set_state(REPLICA)

    def acknowledge(self, source: Copy) -> None:
        for done in source.take_acknowledged():
            self.acknowledged.append((source.partition_id, *done))

    def promote(self, p: int, *, forced: bool) -> None:
        """All of a promotion at once."""
        for _ in self.promotion(p, forced=forced):
            pass

    def promotion(self, p: int, *, forced: bool) -> Iterator[None]:
        """Ask those that are reached, let them promise, make the furthest active.

        Anything happens in between, another promotion too; nodes crash at any effect.
        """
        row = tuple(node.name for node in self.nodes)
        asked = [node for node in self.nodes if node.is_reached]
        standings = {node.name: node.copies[p].standing() for node in asked}
        verdict = judge(row, standings)
        if len(verdict.answered) < verdict.needed or not (verdict.is_safe or forced):
            return
        branch = next_branch(standings.values(), self.clock)
        promised: dict[str, Standing] = {}
        for node in asked:
            yield
            with node.may_crash(self.crashes):
                if node.is_reached and node.copies[p].promise(branch):
                    promised[node.name] = node.copies[p].standing()
        verdict, name = judge(row, promised, standings), winner_of(row, promised)
        if len(verdict.answered) < verdict.needed or not (verdict.is_safe or forced):
            return
        yield
        winner = next(node for node in self.nodes if node.name == name)
        if winner.is_reached:
            self.forgive(p, verdict)
            with winner.may_crash(self.crashes):
                is_done = winner.copies[p].activate(branch, promised[winner.name].complete_end)
                self.trace(f"promoted {is_done} {winner.copies[p].describe()} of {[*promised]}")

    def forgive(self, p: int, verdict: Verdict) -> None:
        """What was said to be at risk may be lost."""
        risk = verdict.at_risk
        self.acknowledged = [a for a in self.acknowledged if a[0] != p or a[2] not in risk]
        if "persisted" in risk:
            self.excuse(p)

    def excuse(self, p: int) -> None:
        for reader in self.readers:
            if isinstance(reader, Durable) and reader.partition_id == p:
                reader.is_excused = True

    def take_over(self, old: Copy) -> None:
        """Clean hand-over: everything sent, failover log kept."""
        for new in self.replicas_of(old):
            partition = new.partition
            if (
                partition.queue.high_seqno == new.end == old.end and not old.node.is_isolated
                and partition.failover_log == old.partition.failover_log
                and partition.last_branch == new.branch
            ):  # fmt: skip
                old.stand_down()
                new.set_state(ACTIVE, is_hand_over=True)
                new.check("handed over")
                self.trace(f"take-over {old.name} to {new.name}")
                return

    def pull(self, replica: Copy, source: Copy | None, events_max: int) -> None:
        """A replica follows on, or begins to follow `source`, now and then another one's place."""
        node, p = replica.node, replica.partition_id
        if not replica.may_follow:
            return
        for following in replica.following():
            if following.link.is_cut:
                following.cut()
            elif source is not None and following.source is not source.node:
                following.leave(p)
        if source is not None:
            known = node.following.get(source.node)
            if known is None or known.link.is_cut:
                known = Following(node, source.node)
            known.follow(p)
        for following in list(node.following.values()):
            following.link.run(events_max)

    # -- the schedule

    def run(self) -> None:
        for _ in range(self.rng.choice(STEPS)):
            self.step()
        for p in self.partition_ids:
            end_badly(self, p)
        actives = self.heal()
        self.trace("healed")
        self.compare(self.converge(actives))

    def step(self) -> None:  # noqa: C901 - the dice in one piece
        rng = self.rng
        self.clock += rng.randint(0, 1)
        self.now_ns += rng.choice((0, 1, 1, 2, SECOND))
        p, node, reader = rng.choice(self.partition_ids), rng.choice(self.nodes), None
        copy, reader = node.copies[p], rng.choice(self.readers)
        dice, actives = rng.random(), self.actives(p)
        if dice < 0.28 and actives:
            for _ in range(rng.choice((1, 1, 3))):
                self.write(rng.choice(actives))
        elif dice < 0.36 and not node.is_down:
            with node.may_crash(self.crashes):
                rng.choice((node.flush, node.freeze, node.finish_commit))()
        elif dice < 0.51:
            sources = [one for one in actives if one is not copy]
            is_same = copy.is_replica and copy.following() and rng.random() < 0.8
            source = rng.choice(sources) if sources and not is_same else None
            with node.may_crash(self.crashes):
                self.pull(copy, source, rng.choice((1, 4, 6, 9, 30)))
        elif dice < 0.72 and self.up() and reader.is_awake:
            actives = self.actives(reader.partition_id)
            nodes = [one.node for one in actives] if actives and rng.random() < 0.8 else self.up()
            reader.follow(rng.choice(nodes), rng.choice((1, 4, 6, 9, 30)))
        elif dice < 0.75:
            rng.choice((node.cut_all, reader.disconnect))()
            reader.is_awake = rng.random() < 0.8
        elif dice < 0.79 and not node.is_down:
            copy.lose_holds()
        elif dice < 0.84 and not node.is_down:
            with node.may_crash(self.crashes):
                node.tend()
        elif dice < 0.855 and not node.is_down:
            node.crash()
        elif dice < 0.858 and not node.is_down and not any(c.is_active for c in node.copies):
            node.lose_files()
        elif dice < 0.90 and node.is_down:
            node.restart()
        elif dice < 0.93:
            node.is_isolated = not node.is_isolated
        elif dice < 0.98 and (
            rng.random() < 0.1 or not [c for c in actives if not c.node.is_isolated]
        ):
            self.promotions.append(self.promotion(p, forced=rng.random() < 0.2))
        elif dice < 0.99:
            if copy.may_follow and rng.random() < 0.7:
                for following in copy.following():
                    following.take_over(p)
            elif actives:
                self.take_over(rng.choice(actives))
        elif not node.is_down and not copy.following():
            copy.follow_again()
        if self.has_views and not node.is_down and rng.random() < 0.15:
            copy.look()
        while self.promotions and rng.random() < 0.7:
            promotion = rng.choice(self.promotions)
            if next(promotion, "end") == "end":
                self.promotions.remove(promotion)
        for q in self.partition_ids:
            uuids = [active.partition.failover_log[0].uuid for active in self.actives(q)]
            assert len(set(uuids)) == len(uuids), f"two active copies of one history: {uuids}"
            for active in self.actives(q):
                self.acknowledge(active)

    def write(self, active: Copy) -> None:
        rng, key = self.rng, self.rng.choice(KEYS)
        if active.node.bucket.writes.refuses(active.partition_id):
            return
        dice = rng.random()
        if dice < 0.1:
            active.expire(key)
        elif dice < 0.35:
            active.write(key, None, rng.choice(LEVELS))
        else:
            expiry = self.now_ns // SECOND + rng.randint(1, 9) if rng.random() < 0.2 else 0
            value = b"%d" % next(self.numbers) + bytes(rng.choice((0, 0, 90)))
            active.write(key, value, rng.choice(LEVELS), expiry)

    # -- its end

    def heal(self) -> list[Copy]:
        """Return the active copy of each partition."""
        self.quiet_down()
        return [self.heal_one(p) for p in self.partition_ids]

    def quiet_down(self) -> None:
        """Everybody is there, and nothing is under way."""
        self.crashes = 0
        self.promotions.clear()
        for node in self.nodes:
            node.is_isolated = False
            if node.is_down:
                node.restart()
        for node in self.nodes:
            node.cut_all()  # a hand-over under way ends
            for copy in node.copies:
                copy.follow_again()

    def heal_one(self, p: int) -> Copy:
        """One active copy, of the newest history; return it."""
        newest = self.newest_active(p)
        promised = max(copy.last_branch for copy in self.copies(p))
        if newest is None or newest.branch < promised:
            self.promote(p, forced=True)
            newest = self.actives(p)[0]
        for copy in self.actives(p):
            if copy is not newest:
                copy.stand_down()
        return newest

    def converge(self, actives: list[Copy]) -> list[Copy]:
        self.settle(actives, ())
        for p, active in enumerate(actives):
            if self.rng.random() < 0.5:
                self.take_over(active)
                actives[p] = self.actives(p)[0]
        self.settle(actives, self.readers)
        return actives

    def settle(self, actives: list[Copy], readers: Iterable[Reader]) -> None:
        rng = self.rng
        replicas = [copy for p in self.partition_ids for copy in self.copies(p)]
        replicas = [copy for copy in replicas if copy not in actives]
        for turn in range(SETTLE_TURNS_MAX):
            for node in self.nodes:
                node.flush()
            behind = [copy for copy in replicas if not is_through(copy, actives)]
            late = [reader for reader in readers if not is_through(reader, actives)]
            if not behind and not late and turn > 0:
                return
            for copy in replicas:
                self.pull(copy, actives[copy.partition_id], 6)
            for reader in readers:
                reader.follow(actives[reader.partition_id].node, rng.randint(1, 4))
                if self.is_restless or rng.random() < 0.3:
                    reader.disconnect()
        names = [(one.name, one.stands()) for one in (*behind, *late)]
        raise AssertionError(f"no end: {names}, high {[active.end for active in actives]}")

    def compare(self, actives: list[Copy]) -> None:
        for p, active in enumerate(actives):
            self._compare(p, active)
        ends = [(active.end, replay(active.history())) for active in actives]
        for node in self.nodes:
            node.store.stop()
            node.hang_up()
            node.start()
            for copy, (end, truth) in zip(node.copies, ends, strict=True):
                assert copy.end == end
                assert copy.values() == truth

    def _compare(self, p: int, active: Copy) -> None:
        history = active.history()
        truth, alive = replay(history), {change.number for change in history}
        assert active.values() == truth
        purge = max(copy.partition.purge_seqno for copy in self.copies(p))
        for copy in self.copies(p):
            copy.check("at the end")
            assert copy.documents(purge) == active.documents(purge), copy.name
            assert copy.partition.state in (ACTIVE, REPLICA)
        for reader in self.readers:
            if reader.partition_id == p:
                assert reader.values() == truth, f"{reader.name}: {reader.values()}, {truth}"
                if isinstance(reader, Durable) and not reader.is_excused:
                    gone = [c for c in reader.held.values() if c.number not in alive]
                    assert not gone, f"{reader.name} held {gone}, which vanished"
        for q, change, level in self.acknowledged:
            lost = q == p and change.number not in alive
            assert not lost, f"lost {change}, acknowledged at {level}"


def is_through(one: Copy | Reader, actives: list[Copy]) -> bool:
    """Whether it has all that the active copy has, and knows in which history."""
    active, (position, log) = actives[one.partition_id], one.stands()
    is_at_end = position.seqno == position.snap_end == active.end
    return is_at_end and log[:1] == active.partition.failover_log[:1] and one.is_settled
