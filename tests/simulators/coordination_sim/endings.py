"""After the conditions: all of a group, or just a quorum of it, is mended, and must work again.

Invariants:
1. What is not mended stays as it is: down, deaf, or mute.
2. It takes `CALM_MS` at most, and what messages take on their way, until a new request commits and
   all that are well are equal; then nothing is left that would grow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.vsr.core.configuration import generation
from millstream.vsr.core.replica.member import Status
from simulators.coordination_sim.forcing import new_nodes
from simulators.coordination_sim.truth import WrongError

if TYPE_CHECKING:
    from simulators.coordination_sim.machine import Machine
    from simulators.coordination_sim.world import World

CALM_MS = 30_000.0
SESSIONS_MS = 15_000.0
"""So much longer it takes until those sessions end of which nothing is heard."""
ROUND_MS = 1000.0


def heal(world: World) -> None:
    """Mend, wait, and look."""
    if world.is_lost:
        _look_at_ruins(world)
        return
    broken, fault = _choose(world)
    world.calm = True
    world.network.heal()
    world.counts[f"healed, one {fault}"] += 1
    for machine in world.machines:
        machine.mend()
    if broken is not None:
        _break(world, broken, fault)
    for client in world.clients.clients:
        client.target = 0
    if world.namespace_clients is not None:
        world.namespace_clients.finish()
    begin = world.loop.now
    goal = world.clients.born()
    asked = None
    while world.loop.now < begin + _patience_ms(world):
        world.loop.run_until(world.loop.now + ROUND_MS)
        _operate(world)
        if goal.session and asked is None:
            asked = world.clients.change(goal, "set", b"key0")
            world.clients.invoke(asked)
        is_done = asked is not None and asked.is_done and not _unfinished(world)
        if is_done and _converged(world, broken):
            _check_rest(world, broken)
            return
    what = "differ" if asked is not None and asked.is_done else "no commit"
    what = _unfinished(world) or what
    states = "; ".join(world._state(m) for m in world.machines)
    raise WrongError(f"stuck after healing, one {fault}: {what}: {states}")


def _unfinished(world: World) -> str:
    return "" if world.namespace_clients is None else world.namespace_clients.unfinished()


def _patience_ms(world: World) -> float:
    """Return how long it may take; longer once there is a snapshot that somebody may need."""
    patience = CALM_MS + 4 * world.conditions.delay_ms * (100 + 3 * _parts(world))
    patience *= 1 if world.survivor is None else 3  # it grows, too
    return patience + SESSIONS_MS * (world.namespace_clients is not None)


def _parts(world: World) -> int:
    """Return how many questions and answers it takes to fetch a snapshot."""
    known = [m.replica.stable for m in world.machines if m.replica and m.replica.stable]
    return max((stable.size for stable in known), default=0) // world.conditions.part


def _look_at_ruins(world: World) -> None:
    """What was committed is gone: the group stands still, says so if it can, and does not lie.

    An entry that was on its way may have come back, and the group with it; if nobody has a log,
    nobody can.
    """
    world.calm = True
    world.network.heal()
    for machine in world.machines:
        machine.mend()
    world.loop.run_until(world.loop.now + CALM_MS)
    leads = any(machine.leads for machine in world.machines)
    world.counts["ruins that stand still"] += not leads
    if world.conditions.journalled:
        return
    lost = [m for m in world.machines if m.replica and m.replica.status is Status.LOST]
    if leads or not lost:
        raise WrongError("a group goes on whose log nobody can know")
    for machine in lost:
        if not machine.replica.report().is_data_lost:
            raise WrongError(f"node {machine.number} does not say that data is lost")


def _choose(world: World) -> tuple[Machine | None, str]:
    """Return which machine stays broken, and how; none if another one's disk is not whole."""
    fault = world.rng.choice(("whole", "down", "deaf", "mute"))
    machine = world.rng.choice(world.machines)
    leaders = [m for m in world.machines if m.leads]
    if leaders and world.rng.random() < 0.5:
        machine = world.rng.choice(leaders)
    for other in world.machines:
        world.may_harm(other)
    harmed = any(m.harmed for m in world.machines)
    lone = any(len(members) == 1 and machine.id in members for members in world.counted())
    lone |= world.survivor is not None  # who goes on alone needs all that are new
    if fault == "whole" or harmed or lone or machine.dead or not world.may_end(machine):
        return None, "whole"
    return machine, fault


def _break(world: World, machine: Machine, fault: str) -> None:
    numbers = [m.number for m in world.machines if m is not machine]
    if fault == "down":
        machine.stays_down = True
        machine.crash()
    elif fault == "deaf":
        world.network.cuts.update((number, machine.number) for number in numbers)
    else:
        world.network.cuts.update((machine.number, number) for number in numbers)


def _operate(world: World) -> None:
    """Do what an operator does: replace a member whose disk is lost, find a wrong state.

    And have a group that was forced to go on alone grow, with nodes that never were in it.
    """
    survivor, new = world.survivor, new_nodes(world)
    if survivor is not None and survivor.leads and len(survivor.replica.members) == 1:
        if len(new) >= 2:
            world.reconfigure(survivor, world.rng, [survivor, *new[:2]])
        return
    for machine in world.machines:
        if machine.leads and any(world.network.machines[m].dead for m in machine.replica.members):
            world.reconfigure(machine, world.rng)
            return
    for machine in world.machines:
        members = machine.replica.members if machine.leads else ()
        if any(m.is_astray for m in map(world.network.machines.__getitem__, members)):
            world.take_snapshot(world.rng)
            return


def _converged(world: World, broken: Machine | None) -> bool:
    leaders = [m.replica for m in world.machines if m is not broken and m.leads]
    if not leaders:
        return False
    last = max(leaders, key=lambda r: (r.epoch, r.view))
    if generation(last.epoch) and len(last.members) == 1 and len(new_nodes(world)) >= 2:
        return False
    wanted = _end_of(last)
    members = [world.network.machines[m] for m in last.members]
    well = [m for m in members if m is not broken and not m.dead]
    return last.commit_lsn == last.log.op_lsn and all(
        m.replica is not None and m.replica.status is Status.NORMAL
        and _end_of(m.replica) == wanted for m in well
    )  # fmt: skip


def _end_of(replica: Any) -> tuple[Any, ...]:
    values = sorted(replica.machine.values.items())
    ends = getattr(replica.machine, "ends", None)
    return replica.epoch, replica.view, replica.log.head, replica.commit_lsn, values, ends


def _check_rest(world: World, broken: Machine | None) -> None:
    """Nothing that waits grows, and each process has one timer."""
    world.loop.run_until(world.loop.now + 5 * ROUND_MS)
    for machine in world.machines:
        replica = machine.replica
        if replica is None or machine is broken:
            continue
        if len(machine.steps) > 4 or len(replica._deferred) > 100:
            raise WrongError(f"node {machine.number} has {len(machine.steps)} steps to do in calm")
    waiting = world.loop.waiting("on_timer")
    if waiting > 6 * len(world.machines):
        raise WrongError(f"{waiting} timers for {len(world.machines)} machines")
