"""Endings that chance finds too seldom; from their causes on little is written.

Each leads to a state in which one wrong rule would lose something, or make two hold different
things. Most begin with all copies holding the same (`gather`); those of the winner of a promotion
need three nodes. What is wrong is found by the checks of `world`, once everything is healed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simulators.simulation.node import KEYS, Copy
from simulators.simulation.readers import Keeping, Reader

if TYPE_CHECKING:
    from simulators.simulation.world import World

GATHER_TURNS_MAX: Final = 40


def end_badly(world: World, p: int) -> None:
    """Play one of the endings, or none."""
    if world.newest_active(p) is not None and world.rng.random() < 0.6:
        has_three = len(world.nodes) > 2
        world.rng.choice(ENDINGS + ENDINGS_OF_THREE if has_three else ENDINGS)(world, p)


# -- what they are made of


def undoing_readers(world: World, p: int) -> list[Reader]:
    return [r for r in world.readers if r.partition_id == p and not r.is_durable_only]


def disconnect_all(world: World, p: int) -> None:
    for reader in world.readers:
        if reader.partition_id == p:
            reader.disconnect()


def gather(world: World, p: int) -> tuple[Copy, list[Copy]] | None:
    """All copies hold the same, in one history: return the active one and the others."""
    world.quiet_down()
    active = world.heal_one(p)
    others = [copy for copy in world.copies(p) if copy is not active]
    return (active, others) if all(catch_up(world, copy, active) for copy in others) else None


def catch_up(world: World, replica: Copy, active: Copy) -> bool:
    """It follows until it has on disk what the active copy has, and that one knows."""
    active.node.flush()
    for _ in range(GATHER_TURNS_MAX):
        world.pull(replica, active, 30)
        replica.node.flush()
        log = active.partition.failover_log
        if replica.end == active.end and replica.partition.failover_log == log:
            world.pull(replica, active, 30)
            world.acknowledge(active)
            return replica.standing().is_whole
    return False


def put(world: World, copy: Copy, key: bytes, level: str = "memory") -> None:
    copy.write(key, b"%d" % next(world.numbers), level)


def promoted(world: World, p: int, among: list[Copy], *, forced: bool = False) -> Copy | None:
    """Promote while only these are reached; return the copy that won."""
    for copy in world.copies(p):
        copy.node.is_isolated = copy not in among
    world.promote(p, forced=forced)
    newest = world.newest_active(p)
    return newest if newest in among else None


def forget_deletions(world: World, active: Copy) -> None:
    """All that a majority has on disk."""
    disconnect_all(world, active.partition_id)
    active.node.flush()
    active.node.compact(is_full=True)
    active.node.evict(0)


# -- of readers


def fail_over_twice(world: World, p: int) -> None:
    """A second time between a reader's undo and its next items."""
    active = world.newest_active(p)
    assert active is not None
    for reader in undoing_readers(world, p):
        world.write(active)
        reader.follow(active.node, 20)
    active.node.crash()
    active.node.restart()
    world.promote(p, forced=True)
    for newest in world.actives(p):
        if newest.last_branch == newest.branch:
            for key in world.rng.sample(KEYS, 2):
                put(world, newest, key)
            for reader in undoing_readers(world, p):
                reader.disconnect()
                reader.follow(newest.node, 2)
            newest.node.crash()


def leave_behind(world: World, p: int) -> None:
    """Deletions are forgotten twice in one history that readers have not seen."""
    if (gathered := gather(world, p)) is None:
        return
    active, others = gathered
    for key in KEYS:
        put(world, active, key)
    for reader in undoing_readers(world, p):
        reader.follow(active.node, 100)
    for keys in (KEYS[:2], KEYS[2:]):
        disconnect_all(world, p)
        for key in keys:
            active.write(key, None, "memory")
        world.write(active)
        if not all(catch_up(world, copy, active) for copy in others):
            return
        forget_deletions(world, active)
        for reader in undoing_readers(world, p):
            reader.follow(active.node, world.rng.choice((4, 100, 100)))


def part_inside_a_snapshot(world: World, p: int) -> None:
    """History goes on from a seqno inside the snapshot that readers have a part of."""
    if (gathered := gather(world, p)) is None:
        return
    active, others = gathered
    for reader in undoing_readers(world, p):
        reader.follow(active.node, 100)
    disconnect_all(world, p)
    often, *rest = world.rng.sample(KEYS, 4)
    put(world, active, often)
    put(world, active, rest[0])
    if not all(catch_up(world, copy, active) for copy in others):
        return
    for copy in others:
        copy.node.cut_all()
    for key in (often, *rest[1:]):
        put(world, active, key)
    for reader in undoing_readers(world, p):
        for _ in range(5):
            if not reader.is_open or reader.position.is_closed:
                reader.follow(active.node, 1)
        reader.disconnect()
    active.node.crash()
    promoted(world, p, others)


def go_back_behind_a_purge(world: World, p: int) -> None:
    """A reader loads what has forgotten deletions that the next active copy never had."""
    gathered = gather(world, p)
    if gathered is None:
        return
    first, (second, third) = gathered
    for key in KEYS:
        put(world, first, key)
    if not (catch_up(world, second, first) and catch_up(world, third, first)):
        return
    third.node.cut_all()
    late = Keeping(world, len(world.readers), p)
    world.readers.append(late)
    if world.rng.random() < 0.5:  # then the load below is its second one
        late.follow(first.node, 100)
    for key in world.rng.sample(KEYS, 2):
        first.write(key, None, "memory")
    world.write(first)
    if catch_up(world, second, first):
        forget_deletions(world, first)
        for _ in range(3):
            late.follow(first.node, 100)
        first.node.crash()
        second.node.lose_files()
        second.node.restart()
        promoted(world, p, [second, third], forced=True)


# -- of promotions


def promote_in_first_load(world: World, p: int) -> None:
    """Copies that have nothing complete yet are all there is."""
    if (gathered := gather(world, p)) is None:
        return
    active, others = gathered
    if any(copy.is_active for other in others for copy in other.node.copies):
        return
    for key in KEYS:
        put(world, active, key)
        if world.rng.random() < 0.5:
            active.write(key, None, "memory")
    if not all(catch_up(world, copy, active) for copy in others):
        return
    forget_deletions(world, active)
    for other in others:
        other.node.lose_files()
        other.node.restart()
        world.pull(other, active, 4)
        other.node.flush()
    active.node.crash()
    promoted(world, p, others, forced=True)


def promote_who_has_only_heard(world: World, p: int) -> None:
    """A copy knows the newest branch, and has nothing of it; others, and readers, have more."""
    gathered = gather(world, p)
    if gathered is None:
        return
    first, (second, third) = gathered
    third.node.cut_all()
    for key in world.rng.sample(KEYS, 3):
        put(world, first, key, "majority")
    if not catch_up(world, second, first):
        return
    for reader in undoing_readers(world, p):
        reader.follow(first.node, 100)
        reader.disconnect()
    if promoted(world, p, [second, third]) is second:
        second.lose_holds()  # it has to read its log first
        second.node.evict(0)
        for _ in range(GATHER_TURNS_MAX):
            if third.partition.failover_log == second.partition.failover_log:
                break
            world.pull(third, second, 1)
        third.node.cut_all()
        for reader in undoing_readers(world, p):
            reader.follow(third.node, 4)
        second.node.crash()
        promoted(world, p, [first, third])


def promote_beside_a_long_one(world: World, p: int) -> None:
    """A copy wrote much that nobody followed, others little that a majority has."""
    gathered = gather(world, p)
    if gathered is None:
        return
    first, (second, third) = gathered
    for copy in (second, third):
        if world.rng.random() < 0.5:
            copy.node.cut_all()
    for _ in range(world.rng.choice((2, 4, 8))):
        world.write(first)
    second = promoted(world, p, [second, third])
    if second is not None:
        third = next(copy for copy in gathered[1] if copy is not second)
        put(world, first, world.rng.choice(KEYS), "majority")
        world.pull(third, first, 30)  # it has promised not to
        world.acknowledge(first)
        put(world, second, world.rng.choice(KEYS), world.rng.choice(("majority", "persisted")))
        if catch_up(world, third, second):
            second.node.crash()
            promoted(world, p, [first, third])


def be_active_again(world: World, p: int) -> None:
    """A copy goes back, and is active again in another history below what it had."""
    gathered = gather(world, p)
    if gathered is None:
        return
    first, (second, third) = gathered
    third.node.cut_all()
    for key in KEYS:
        put(world, first, key, "majority")
    for _ in range(GATHER_TURNS_MAX):
        world.pull(second, first, 30)
    world.acknowledge(first)
    second.node.die()
    second.node.restart()
    newest = promoted(world, p, [second, third], forced=True)
    first.stand_down()
    if newest is None or not all(
        catch_up(world, copy, newest) for copy in gathered[1] if copy is not newest
    ):
        return
    put(world, newest, world.rng.choice(KEYS))
    if catch_up(world, first, newest):
        newest.stand_down()
        if promoted(world, p, [c for c in world.copies(p) if c is not newest]) is first:
            first.node.cut_all()
            put(world, first, world.rng.choice(KEYS), world.rng.choice(("majority", "persisted")))
            world.acknowledge(first)
            promoted(world, p, gathered[1])


ENDINGS: Final = (
    fail_over_twice, leave_behind, part_inside_a_snapshot, promote_in_first_load,
)  # fmt: skip
ENDINGS_OF_THREE: Final = (
    go_back_behind_a_purge,
    promote_who_has_only_heard,
    promote_beside_a_long_one,
    be_active_again,
)
"""They need a majority without one of the copies."""
