"""All members but one are lost, as far as the operator knows: the group is forced to go on.

Invariants:
1. It happens at the end of the weather, whatever state that has left things in; the others have
   been down for longer than a member listens.
2. It is asked for until it is done, or refused for a reason that does not go by itself; then the
   others come back, to a group that they are no members of any more, or to the one they know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.vsr.core.configuration import generation
from millstream.vsr.core.effects import Force
from millstream.vsr.core.replica.forced_groups import LISTEN_MS
from millstream.vsr.core.replica.member import Status

if TYPE_CHECKING:
    from simulators.coordination_sim.machine import Machine
    from simulators.coordination_sim.world import World

TRIES = 6
ALONE_MS = 30_000.0


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
    weather = world.weather
    if world.is_lost or not weather.journalled or weather.namespaces or weather.upgrades:
        return None
    running = [m for m in world.machines if m.replica is not None and not m.dead]
    top = max(map(world.durable_epoch, world.machines))
    members = [
        m for m in running
        if m.replica.status not in (Status.LOST, Status.RETIRED, Status.INITIALIZATION)
        and m.id in m.replica.members and world.durable_epoch(m) == top and not m.is_astray
    ]  # fmt: skip
    return world.rng.choice(members) if members else None
