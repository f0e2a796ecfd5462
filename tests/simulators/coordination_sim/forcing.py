"""All members but one are lost, as far as the operator knows: the group is forced to go on.

Invariants:
1. It happens at the end of the conditions, whatever state that has left things in; the others have
   been down for longer than a member listens.
2. It is asked for until it is done, or refused for a reason that does not go by itself; then the
   others come back, to a group that they are no members of any more, or to the one they know.
3. In a pool the others come back while the survivor is away, if there is a node that has heard of
   the fork: within `RETIRE_MS` they have heard of it, too, and go on no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.vsr.core.configuration import generation
from millstream.vsr.core.effects import Force
from millstream.vsr.core.replica.forced_groups import LISTEN_MS
from millstream.vsr.core.replica.member import Status
from simulators.coordination_sim.truth import WrongError

if TYPE_CHECKING:
    from simulators.coordination_sim.groups_of_nodes import GroupMachine, Scope
    from simulators.coordination_sim.machine import Machine
    from simulators.coordination_sim.nodes import Node
    from simulators.coordination_sim.whole import WholeWorld
    from simulators.coordination_sim.world import World

TRIES = 6
ALONE_MS = 30_000.0
CALM_DOWN_MS = 10_000.0
GOSSIP_MS = 5_000.0
RETIRE_MS = 20_000.0


def force(world: World) -> None:
    """Lose all but one, and have that one go on; then have the others back."""
    survivor = _choose(world)
    if survivor is None:
        return
    world.network.heal()
    world.calm = True
    for machine in world.machines:
        if machine is not survivor:
            machine.stays_down = True
            machine.crash()
    survivor.mend()
    for _ in range(TRIES):
        world.loop.run_until(world.loop.now + LISTEN_MS)
        if survivor.replica is None:
            continue
        world.survivor = survivor
        before = survivor.replica.epoch
        for is_confirmed in (False, True):
            ticket = world.clients.operator_ticket(survivor)
            survivor.receive(Force(ticket, is_confirmed))
            if not is_confirmed and survivor.replica.epoch != before:
                raise AssertionError("a group goes on before that is confirmed")
        world.loop.run_until(world.loop.now + ALONE_MS / TRIES)
        if survivor.replica is not None and _is_forced(survivor):
            world.counts["forced"] += 1
            break
    for machine in world.machines:
        if machine is not survivor and (world.rng.random() < 0.9 or not _is_forced(survivor)):
            machine.stays_down = False
            machine.start()
    if _is_forced(survivor):
        for _ in range(2):
            world.add_machine()


# ---- whole nodes


def force_in_pool(world: WholeWorld) -> None:
    """Lose all but one member of a group, have that one go on, and then lose it, too."""
    if world.conditions.namespaces:
        return
    world.operators.is_resting = True
    world.network.heal()
    for node in world.machines:
        node.mend()
    world.loop.run_until(world.loop.now + CALM_DOWN_MS)
    found = _choose_in_pool(world)
    world.calm = True
    if found is None:
        return
    survivor, scope = found
    members = {world.network.machines[one] for one in survivor.replica.members}
    others: list[Node] = sorted(members - {survivor.node}, key=lambda node: node.number)
    if world.rng.random() < 0.5:
        _leave_behind(world, survivor.node, others)
    for node in others:
        node.lose()
    scope.survivor = survivor
    for _ in range(TRIES):
        world.loop.run_until(world.loop.now + LISTEN_MS)
        words = f"ADMIN GROUP FORCE {scope.number} CONFIRM {scope.number}"
        world.callers.ask(survivor.node, words, lambda _: None)
        world.loop.run_until(world.loop.now + GOSSIP_MS)
        if _is_forced(survivor):
            break
    if _is_forced(survivor):
        world.counts["forced"] += 1
        _meet_again(world, survivor, scope, others)
    for node in (survivor.node, *others):
        node.come_back()


def _leave_behind(world: WholeWorld, behind: Node, others: list[Node]) -> None:
    """Have the group go on for a while without the member that is to survive."""
    numbers = [node.number for node in others]
    world.calm = False
    world.network.cuts.update((behind.number, number) for number in numbers)
    world.network.cuts.update((number, behind.number) for number in numbers)
    world.loop.run_until(world.loop.now + CALM_DOWN_MS)
    world.calm = True
    for node in others:
        node.stays_down = True  # sooner than the network is whole again
        node.crash()
    world.network.heal()


def _choose_in_pool(world: WholeWorld) -> tuple[GroupMachine, Scope] | None:
    """Return a member of a group of several that could go on without the others."""
    found = []
    for number, group in world.living().items():
        leader, scope = world.leader(group), world.scopes[group]
        called = [
            node.pool.discovery.called(number) == [group] for node in world.machines if node.pool
        ]
        if leader is None or scope.number != number or not all(called):
            continue
        for member in leader.replica.members:
            machine = world.network.machines[member].running.get(group)
            is_well = machine is not None and machine.replica.status is Status.NORMAL
            if is_well and machine.replica.epoch == leader.replica.epoch:
                found += [(machine, scope)] * (len(leader.replica.members) > 2)
    return world.rng.choice(found) if found else None


def _meet_again(
    world: WholeWorld, survivor: GroupMachine, scope: Scope, others: list[Node]
) -> None:
    """Have the old members come back where only others can tell them of the fork."""
    group = scope.group_id
    witnesses = []
    for node in world.machines:
        seen = node.pool.directory.get(group) if node.pool is not None else None
        is_other = node is not survivor.node and node not in others
        if is_other and seen is not None and generation(seen.epoch) == generation(
            survivor.replica.epoch
        ):  # fmt: skip
            witnesses.append(node)
    if not witnesses:
        return
    world.counts["forced, and told by others"] += 1
    survivor.node.lose()
    old_end, scope.truth.old_end = scope.truth.old_end, 1 << 62
    for node in others:
        node.come_back()
    world.loop.run_until(world.loop.now + RETIRE_MS)
    scope.truth.old_end = old_end
    for node in others:
        machine = node.running.get(group)
        if machine is not None and machine.replica.status is not Status.RETIRED:
            raise WrongError(f"node {node.number} goes on in a group that was given up")


def _is_forced(machine: Machine) -> bool:
    replica = machine.replica
    return replica is not None and generation(replica.epoch) > 0


def new_nodes(world: World) -> list[Machine]:
    """Return nodes that had no part in the group before it was forced to go on."""
    return [
        machine for machine in world.machines[world.truth.old_machines :]
        if machine.replica is not None and machine.replica.status is Status.INITIALIZATION
    ]  # fmt: skip


def _choose(world: World) -> Machine | None:
    """Return a member that could go on; none where too much is lost, or is not in this world."""
    conditions = world.conditions
    if world.is_lost or not conditions.journalled or conditions.namespaces or conditions.upgrades:
        return None
    running = [m for m in world.machines if m.replica is not None and not m.dead]
    top = max(map(world.durable_epoch, world.machines))
    members = [
        m for m in running
        if m.replica.status not in (Status.LOST, Status.RETIRED, Status.INITIALIZATION)
        and m.id in m.replica.members and world.durable_epoch(m) == top and not m.is_astray
    ]  # fmt: skip
    return world.rng.choice(members) if members else None
