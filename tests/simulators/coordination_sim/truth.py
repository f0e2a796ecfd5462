"""What is true of the group, and whether what its members do and say agrees with it.

Invariants:
1. An entry is true from the moment any member commits it; there is one per LSN for ever.
2. Which requests are executed, and with what result, is worked out here a second time, from the
   entries alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.vsr.core.client_table import WINDOW_MAX
from millstream.vsr.core.configuration import generation, successor
from millstream.vsr.core.effects import Code, Reply
from millstream.vsr.core.entries import Entry, Kind
from millstream.vsr.core.hard_state import HardState
from millstream.vsr.core.messages import (
    DoViewChange,
    Envelope,
    PrepareOk,
    QuorumCheckOk,
    SnapshotDone,
)
from millstream.vsr.core.replica import requested_changes as changing
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.versions import version_of
from simulators.coordination_sim.states import States, weight

if TYPE_CHECKING:
    from simulators.coordination_sim.machine import Machine
    from simulators.coordination_sim.world import World

NOBODY = (Status.INITIALIZATION, Status.LOST, Status.RETIRED)
NOTHING = (None, 0)
IN_FLIGHT_MAX = 100
"""Entries behind the last one that is committed, mostly; learners are not taught them."""
VOTES = (DoViewChange, PrepareOk, QuorumCheckOk)


class WrongError(AssertionError):
    """An invariant does not hold."""


def contradicted(what: str) -> None:
    """Be no less strict than a member: it would go on."""
    raise WrongError(what)


class Executed(NamedTuple):
    """A request that counts: what it was answered, at which entry."""

    value: bytes
    lsn: int


def is_of_namespaces(entry: Entry) -> bool:
    """Return whether a request is the shadow's: it is logged behind a time."""
    return entry.content.argv[0].isdigit()


class Model:
    """Registers and sessions once more, with all their past."""

    def __init__(self) -> None:
        self.past: dict[bytes, tuple[list[int], list[bytes]]] = {}
        self.sessions: dict[int, tuple[bytes, set[int]]] = {}
        self.results: dict[tuple[int, int], Executed] = {}
        self.at_lsn: dict[int, tuple[bytes, int]] = {}
        """LSN -> what a request was answered, and the number of the state after it."""
        self.number = 0
        self._weights: dict[bytes, int] = {}

    def value_at(self, key: bytes, lsn: int) -> bytes:
        """Return what a register held once this entry was applied."""
        lsns, values = self.past.get(key, ([], []))
        index = bisect_right(lsns, lsn)
        return values[index - 1] if index else b""

    def commit(self, entry: Entry) -> None:
        """Execute the next entry."""
        header = entry.header
        if header.kind is Kind.SESSION_OPEN:
            self.sessions[entry.lsn] = (header.instance, set())
        elif header.kind is Kind.SESSION_EXPIRE:
            for session in entry.content.argv:
                self.sessions.pop(int(session), None)
        elif header.kind is Kind.REQUEST and not is_of_namespaces(entry) and self._counts(header):
            value = self._execute(entry)
            self.at_lsn[entry.lsn] = value, self.number
            if header.session:
                self.results[(header.session, header.csn)] = Executed(value, entry.lsn)

    def _counts(self, header: Any) -> bool:
        if not header.session:
            return True
        instance, executed = self.sessions.get(header.session, (None, set()))
        if instance != header.instance or header.csn in executed:
            return False
        if header.csn <= max(executed, default=0) - WINDOW_MAX:
            return False
        executed.add(header.csn)
        return True

    def _execute(self, entry: Entry) -> bytes:
        command, key, *rest = entry.content.argv
        if command == b"CAS":
            expected, value = rest
            if self.value_at(key, entry.lsn) != expected:
                return b"-CAS_MISMATCH"
        else:
            (value,) = rest
        lsns, values = self.past.setdefault(key, ([], []))
        lsns.append(entry.lsn)
        values.append(value)
        now = weight(key, value, version_of(entry.header))
        self.number += now - self._weights.get(key, 0)
        self._weights[key] = now
        return b"+OK"


class Truth:
    """The entries that are committed, and who led which view."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.committed: list[Entry] = []
        self.committed_in: list[tuple[int, int]] = []
        self.model = Model()
        self.states = States()
        self.leaders: dict[tuple[int, int], tuple[int, int]] = {}
        self.generation: int | None = None
        """Of epochs."""
        self.old_end = 0
        """Where the generation before had ended."""
        self.old_machines = 0
        """So many there were before the fork."""
        self.logs: dict[tuple[int, int], tuple[int, list[bytes | None]]] = {}
        """Epoch and view -> where the longest log of it that was seen begins, and its hashes."""

    @property
    def end(self) -> int:
        """The last LSN that is committed anywhere."""
        return len(self.committed)

    # ---- what is durable and said

    def found(self, machine: Machine, hard_state: HardState) -> None:
        """Look at the promises that a restart found."""
        if (hard_state.configuration.epoch, hard_state.view) < machine.told:
            raise WrongError(f"node {machine.number} said {machine.told}, found {hard_state}")

    def check_installed(
        self, machine: Machine, hard_state: HardState, end: int, new_end: int
    ) -> None:
        """A log ends earlier only in the step in which it becomes that of another view."""
        if (
            hard_state.is_voting
            and new_end < end
            and hard_state.last_normal == machine.last_normal
        ):
            raise WrongError(f"node {machine.number} cuts its log before the new one is here")

    def check_said(self, machine: Machine, envelope: Envelope) -> None:
        """Nothing is said that is not durable, nor that breaks a promise.

        What is said to several at once, in one step, is looked at once.
        """
        if envelope is machine.said:
            return
        journal = machine.journal
        assert journal is not None
        said, hard_state = (envelope.epoch, envelope.view), journal.root.hard_state
        if said != (hard_state.configuration.epoch, hard_state.view):
            raise WrongError(f"node {machine.number} speaks of {said}, durable is {hard_state}")
        if said < machine.told:
            raise WrongError(f"node {machine.number} promised {machine.told}, speaks of {said}")
        machine.told = said
        if envelope.incarnation != hard_state.incarnation:
            raise WrongError("an incarnation is spoken of before it is durable")
        payload = envelope.payload
        if isinstance(payload, PrepareOk):
            if payload.lsn and machine.hash_on_disk(payload.lsn) != payload.hash:
                raise WrongError(f"node {machine.number} acknowledges what is not durable")
            if hard_state.last_normal != said:
                raise WrongError(f"node {machine.number} acknowledges with an older log")
        if isinstance(payload, SnapshotDone) and not machine.has_snapshot(payload):
            raise WrongError(f"node {machine.number} says too early that it has a snapshot")
        is_lost = machine.replica.status is Status.LOST and (
            machine.was_lost or not machine.replica.state.is_diverged
        )  # what it said until it saw that its state is wrong was right
        if is_lost and isinstance(payload, VOTES):
            raise WrongError(f"node {machine.number} has lost its log and says {payload}")
        machine.said = envelope

    # ---- after each event

    def check(self, machine: Machine) -> None:
        """Look at a replica that has just taken an event."""
        replica = machine.replica
        log = replica.log
        born = generation(replica.epoch)
        if self.generation is None:
            self.generation = born  # a restored group is not of the first one
        if born > self.generation:
            self._fork(machine)
        elif self.is_old(machine):
            return self._check_old(machine)
        self.states.check(machine)
        seen = (replica.last_normal, log.op_lsn, replica.commit_lsn, replica.leading)
        if seen == machine.seen_log:
            return None
        machine.seen_log = seen
        if replica.commit_lsn > log.op_lsn:
            raise WrongError(f"node {machine.number} has committed more than it has")
        if replica.commit_lsn < machine.seen_commit and replica.state.is_diverged:
            machine.seen_commit = replica.commit_lsn  # it begins anew, with the others' state
        if replica.commit_lsn < machine.seen_commit:
            raise WrongError(f"node {machine.number} takes back what it committed")
        if machine.seen_commit < replica.commit_lsn:
            begin = machine.seen_commit
            while machine.seen_commit < replica.commit_lsn:
                machine.seen_commit += 1
                self._commit(machine, machine.seen_commit)
            self._check_executed(machine, begin)
        if replica.members and replica.status not in NOBODY:
            self._check_prefix(replica)
        if replica.leading:
            self._check_leader(machine)
            self.world.times.check(machine)
        return None

    def _fork(self, machine: Machine) -> None:
        """Let what is behind the fork be lost, if it was asked for; what is kept is as it was."""
        configuration, log = machine.replica.configuration, machine.replica.log
        if self.world.survivor is not machine or configuration.members != (machine.id,):
            raise WrongError(f"node {machine.number} goes on alone, and nobody asked for it")
        kept = 0
        while kept < min(log.whole_lsn, self.end) and log.hash_at(kept + 1) in (
            None, self.committed[kept].header.hash,
        ):  # fmt: skip
            kept += 1
        if kept < max(machine.seen_commit, configuration.closed_lsn):
            raise WrongError(f"a fork at {kept} takes back what its member has committed")
        self.world.configurations[configuration.epoch] = {configuration.members}
        self.generation, self.old_end = generation(configuration.epoch), self.end
        self.old_machines = len(self.world.machines)
        self.world.counts["committed entries lost by forks"] += max(0, self.end - kept)
        self.world.counts["entries made committed by forks"] += log.whole_lsn - kept
        self.world.clients.fork(kept)
        del self.committed[kept:], self.committed_in[kept:]
        self.model = Model()
        for entry in self.committed:
            self.model.commit(entry)
        self.states.fork(kept)

    def is_old(self, machine: Machine) -> bool:
        """Return whether a node has a part, or was taught, in the group before a fork."""
        if self.generation is None or generation(machine.replica.epoch) >= self.generation:
            return False
        return machine.number < self.old_machines

    def _check_old(self, machine: Machine) -> None:
        """Look at who is of the group before a fork: it commits nothing any more."""
        replica = machine.replica
        if replica.commit_lsn > self.old_end and replica.status is not Status.RETIRED:
            raise WrongError(f"node {machine.number} goes on in a group that was given up")
        replica.machine.executed.clear()
        replica.machine.is_restored = True  # if it comes back: what it executes is not looked at

    def _commit(self, machine: Machine, lsn: int) -> None:
        replica = machine.replica
        digest = replica.log.hash_at(lsn)
        if lsn <= self.end:
            if digest is not None and self.committed[lsn - 1].header.hash != digest:
                raise WrongError(
                    f"entry {lsn} is committed twice: {self.committed[lsn - 1].header}, then "
                    f"{replica.log.entry_at(lsn)} by node {machine.number}"
                )
            return
        entry = replica.log.entry_at(lsn)
        if entry is None or lsn != self.end + 1:
            raise WrongError(f"node {machine.number} commits entry {lsn} without having it")
        self._check_durable(replica, entry)
        if entry.header.kind is Kind.RAISE:
            self._check_raised(replica, entry)
        elif entry.header.kind is Kind.RECONFIG:
            self._check_new(replica, entry)
        self.world.times.commit(entry, self.committed[-1] if self.committed else None)
        self.committed.append(entry)
        self.committed_in.append((replica.epoch, replica.view))
        model = self.model
        model.commit(entry)
        if (shadow := self.world.shadow) is not None:
            shadow.commit(entry, model.at_lsn, model.number)
        self.states.commit(entry)
        self.world.counts["commits"] += 1

    def _check_raised(self, replica: Any, entry: Entry) -> None:
        """All members understand the format that is raised; no program is ever an older one."""
        self.world.counts["upgrade"] += 1
        if replica.epoch != entry.header.epoch:
            return
        for machine in self.machines():
            if machine.id in replica.members and not machine.is_upgraded:
                raise WrongError(f"node {machine.number} does not understand entry {entry.lsn}")

    def _check_new(self, replica: Any, closing: Entry) -> None:
        """New members have the log when an epoch ends for one of theirs, but for its last part."""
        known = replica.configuration
        if known.epoch != closing.header.epoch:
            return
        least = closing.lsn - changing.LAG_MAX - IN_FLIGHT_MAX
        for member in successor(known, closing).members:
            machine = self.world.network.machines[member]
            has = machine.log_end()
            if member not in known.members and not machine.harmed and has < least:
                raise WrongError(
                    f"{machine.number} begins an epoch without the log: {has} of {closing.lsn}"
                )

    def machines(self) -> Iterable[Any]:
        """Return those of the group."""
        return self.world.machines

    def _check_durable(self, replica: Any, entry: Entry) -> None:
        """What is committed first is on the disks of a quorum, unless one was harmed since."""
        known, header = replica.configuration, entry.header
        is_here = header.epoch == known.epoch or known.is_fork
        members = known.members if is_here else known.old
        machines = [self.world.network.machines[member] for member in members]
        if not self.world.conditions.journalled:
            for machine in machines:
                self.world.is_harmed(machine)
        have = sum(m.harmed or m.dead or m.has_on_disk(entry.lsn, header.hash) for m in machines)
        if have < len(machines) // 2 + 1:
            raise WrongError(
                f"entry {entry.lsn} is committed, durable on {have} of {len(machines)}"
            )

    def _check_executed(self, machine: Machine, begin: int) -> None:
        registers, at_lsn = machine.replica.machine, self.model.at_lsn
        executed = registers.executed
        is_restored = registers.is_restored or not machine.replica.has_state
        registers.is_restored = False
        for lsn in range(begin + 1, machine.seen_commit + 1):
            done, number = executed.pop(lsn, NOTHING)
            wanted, right = at_lsn.get(lsn, NOTHING)
            if done != wanted and (done is not None or not is_restored):
                raise WrongError(f"node {machine.number}, entry {lsn}: {done!r}, not {wanted!r}")
            if done is not None and number != right and not registers.is_astray:
                raise WrongError(f"node {machine.number}, entry {lsn}: another state follows")
        if executed:
            raise WrongError(f"node {machine.number} executes {executed}, which is not committed")

    def _check_prefix(self, replica: Any) -> None:
        """Logs of one view are prefixes of one another.

        Who comes to an epoch by a snapshot of a later view than its first has a log of neither
        view, until the later one is told to it.
        """
        log = replica.log
        begin = log.base.lsn
        if 0 < begin <= self.end and self.committed_in[begin - 1] > replica.last_normal:
            return
        if replica.last_normal not in self.logs:
            self.logs[replica.last_normal] = (replica.commit_lsn, [])
        base, hashes = self.logs[replica.last_normal]
        common = min(base + len(hashes), log.op_lsn)
        if common > base:
            digest = log.hash_at(common)
            if digest is not None and hashes[common - base - 1] not in (None, digest):
                raise WrongError(f"two logs of {replica.last_normal} are no prefixes")
        for lsn in range(base + len(hashes) + 1, log.op_lsn + 1):
            hashes.append(log.hash_at(lsn))

    def _check_leader(self, machine: Machine) -> None:
        replica = machine.replica
        where, who = (replica.epoch, replica.view), (machine.number, replica.incarnation)
        leader = self.leaders.setdefault(where, who)
        if leader != who:
            raise WrongError(f"{where} is led by {who} and {leader}")
        if (machine.number, machine.process, where) == self.world.last_leader:
            return
        self.world.last_leader = (machine.number, machine.process, where)
        self.world.counts["views"] += 1
        self.world.say(machine, "leads")
        lsn = self.end
        while lsn and self.committed_in[lsn - 1] >= where:
            lsn -= 1
        found = replica.log.hash_at(lsn)  # None: a snapshot stands for it
        wanted = self.committed[lsn - 1].header.hash if lsn else found
        if lsn > replica.log.op_lsn or found not in (None, wanted):
            raise WrongError(f"view {where} begins without committed entry {lsn}")

    # ---- answers

    def check_written(self, session: int, csn: int, reply: Reply) -> None:
        """A request that is answered was executed, once, with this result."""
        wanted = self.model.results.get((session, csn))
        if wanted is None or wanted != (reply.value, reply.lsn):
            raise WrongError(f"request {session}/{csn} is answered {reply}, it was {wanted}")

    def check_read(self, key: bytes, floor: int, reply: Reply) -> None:
        """A read has all that was committed when it was asked for."""
        if reply.lsn < floor:
            raise WrongError(f"stale read: {reply.lsn} of {floor} entries")
        if reply.lsn > self.end or reply.value != b"=" + self.model.value_at(key, reply.lsn):
            raise WrongError(f"a read of {key!r} at {reply.lsn} is {reply.value!r}")

    def check_refused(self, session: int, code: Code, instance: bytes) -> None:
        """Clients repeat until they are answered, so nothing may be gone but their session."""
        if code is Code.CSNGONE:
            raise WrongError(f"{code} to a client that waits for every answer")
        known = self.model.sessions.get(
            session
        )  # after a fork another client's may have its number
        if code is Code.SESSIONEXPIRED and known is not None and known[0] == instance:
            raise WrongError(f"session {session} lives, and its client is told that it does not")
