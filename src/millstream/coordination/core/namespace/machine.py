"""The state machine of a group: its namespaces.

    machine.apply(entry)      # the reply; its other results: machine.take_happened()
    machine.read(body)

A logged command is `(stamp, name, words...)`, the stamp in decimal digits. A command that reads is
`(name, words...)`.

Invariants:
1. The same entries in the same order give the same replies and the same state.
2. A refused command changes nothing.
3. No logged command stops the machine: an unknown one gets an error.
4. A command of a later state format than that of the state is refused, even by members that know
   it.

Elsewhere: commands (the modules of this package), sessions and repeated requests (`client_table`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from millstream.coordination.core.namespace.audience import Audience, Subscription
from millstream.coordination.core.namespace.commands.acl import ACL
from millstream.coordination.core.namespace.commands.barriers import BARRIER_COMMANDS
from millstream.coordination.core.namespace.commands.command import Call, Command, Words, parse
from millstream.coordination.core.namespace.commands.counters import COUNTER
from millstream.coordination.core.namespace.commands.forcing import FORCE, force_of, without_force
from millstream.coordination.core.namespace.commands.lists import LIST
from millstream.coordination.core.namespace.commands.locks import LOCK_COMMANDS
from millstream.coordination.core.namespace.commands.naming import NAMESPACE, NAMING_COMMANDS
from millstream.coordination.core.namespace.commands.queues import QUEUE
from millstream.coordination.core.namespace.commands.semaphores import SEMAPHORE_COMMANDS
from millstream.coordination.core.namespace.commands.sets import SET
from millstream.coordination.core.namespace.commands.settings import CONFIG
from millstream.coordination.core.namespace.commands.subscriptions import (
    SUBSCRIBE_COMMANDS,
    announce,
)
from millstream.coordination.core.namespace.commands.transactions import CHECK, exec_of, names_in
from millstream.coordination.core.namespace.commands.tree import (
    TREE,
    TREE_COMMANDS,
    list_names,
)
from millstream.coordination.core.namespace.paths import parse_path
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.access_lists import READ
from millstream.coordination.core.namespace.state.run import Asker
from millstream.coordination.core.namespace.state.state import Job, State
from millstream.vsr.core.client_table import Past, Verdict
from millstream.vsr.core.entries import Body, Entry, argv_of
from millstream.vsr.core.snapshots import Pieces
from millstream.vsr.core.state_machine import Answer, Offer
from millstream.vsr.core.versions import NEVER, version_of

__all__ = ["COMMANDS", "QUEUED", "Namespace"]


def _list(words: Words) -> Call:
    """LIST is about names if a path follows, else about the items of a list."""
    is_about_names = words.peek().startswith(b"/") or not len(words)
    return list_names(words) if is_about_names else LIST[1](words)


QUEUED: Final[Mapping[bytes, tuple[str, Command]]] = {
    **NAMING_COMMANDS,
    **TREE_COMMANDS,
    **LOCK_COMMANDS,
    **SEMAPHORE_COMMANDS,
    **BARRIER_COMMANDS,
    b"ACL": ACL,
    b"CHECK": CHECK,
    b"CONFIG": CONFIG,
    b"COUNTER": COUNTER,
    b"LIST": (f"{TREE_COMMANDS[b'LIST'][0]}, or {LIST[0]}", _list),
    b"QUEUE": QUEUE,
    b"SET": SET,
}
"""What a client may send, and but for a few a transaction may have."""
_EXEC: Final = {b"EXEC": exec_of(QUEUED)}
COMMANDS: Final[Mapping[bytes, tuple[str, Command]]] = {
    **QUEUED,
    **SUBSCRIBE_COMMANDS,
    **_EXEC,
    FORCE: force_of({**QUEUED, **_EXEC, b"TREE": TREE}),
    b"NAMESPACE": NAMESPACE,
    b"TREE": TREE,
}
"""All commands: name -> how it is written, and how it is understood."""
STATE_FORMAT: Final = 1
"""The highest state format that this program understands (docs/design/0027-state-formats.md)."""
SINCE: Final[Mapping[bytes, int]] = {}
"""Commands that came later: name -> the first state format that has them."""
_DIGITS_MAX: Final = 20
_STAMP_MAX: Final = (1 << 64) - 1


def _stamp_in(text: bytes) -> int:
    """Return the time of a client in ms; 0 if it is no number or too large for the state."""
    stamp = int(text) if text.isdigit() and len(text) <= _DIGITS_MAX else 0
    return stamp if stamp <= _STAMP_MAX else 0


class Namespace:
    """The state machine (`vsr.core.state_machine.StateMachine`)."""

    def __init__(self, audience: Audience | None = None) -> None:
        self.audience = audience if audience is not None else Audience()
        """The subscribers at this member. They are not part of the state."""
        self.audience.may_hear = self._may_hear
        self._begin()

    def _begin(self) -> None:
        self.state = State()
        self.answers: list[Answer] = []
        """The final replies that entries since `take_answers` brought requests that waited."""
        self.open = self.state.synchronisation.waits.open
        """Requests that wait: without any of them nothing has to be looked up."""

    @property
    def format_max(self) -> int:
        """The highest state format that this program supports."""
        return STATE_FORMAT

    def use_format(self, number: int) -> None:
        """Execute entries, and freeze, in this state format from now on."""
        self.state.tables.state_format = number

    def apply(self, entry: Entry) -> bytes:
        """Execute a logged command and return its reply."""
        header, body = entry.header, entry.content
        argv = body.argv or (b"",)
        asker = Asker(
            header.session, header.csn, header.instance, body.principal, body.groups,
            _stamp_in(argv[0]), header.claim,
        )  # fmt: skip
        job = Job(self.state, asker, version_of(header), header.ts_ms)
        job.is_heard = len(self.state.marks) > 0 or not self.audience.is_empty
        return self.execute(job, argv[1:])

    def execute(self, job: Job, words: Sequence[bytes]) -> bytes:
        """Carry out a command that changes something, and what follows from it."""
        mark = job.mark()
        try:
            reply = self._executed(job, words)
            for family in self.state.finishing:
                family.finished(job)
        except Refused as refused:
            job.roll_back(mark)
            reply = refused.value
        self._settle(job)
        return reply

    def _settle(self, job: Job) -> None:
        self.answers += job.answers
        self.state.tables.settle()
        if job.notices or not self.audience.is_empty:
            announce(self.state, self.audience, job)

    def _executed(self, job: Job, words: Sequence[bytes]) -> bytes:
        if len(self.open):
            sync = self.state.synchronisation
            waiting = sync.waits.opened(job.asker.session, job.asker.csn)
            if waiting is not None:
                return sync.come_again(job, waiting)
        call = self._understood(words)
        if not call.is_change:
            raise Refused("BADARG", "this command changes nothing, and is not logged")
        return call.execute(job)

    def _understood(self, words: Sequence[bytes]) -> Call:
        call = parse(words, COMMANDS)
        if SINCE:
            self._refuse_later(words)
        return call

    def _refuse_later(self, words: Sequence[bytes]) -> None:
        plain = without_force(words)
        name = plain[0].upper()
        known = self.state.tables.state_format
        for each in names_in(plain) if name == b"EXEC" else (name,):
            if SINCE.get(each, 1) > known:
                shown = each.decode()
                raise Refused("UNKNOWN_COMMAND", f"{shown} needs all members to be upgraded first")

    def _finish(self, job: Job) -> None:
        for family in self.state.finishing:
            family.finished(job)

    def weight(self, session: int) -> int:
        """Return how much ends with a session: elements, claims, items that it has taken."""
        state = self.state
        claims = state.synchronisation.weight(session)
        return state.elements.owned(session) + claims + state.queues.number_taken(session)

    def silence_ms(self, session: int) -> int | None:
        """Return what is set for that of which a session holds something; None: nothing is."""
        state = self.state
        holds = chain(
            state.elements.owned_by(session),
            state.synchronisation.claims.elements_of(session),
            (queue for queue, _ in state.queues.taken_by(session)),
        )
        return state.settings.least_number(holds, b"NAMESPACE.SESSION.HEARTBEAT.DURATION")

    def end_sessions(self, entry: Entry, sessions: Sequence[int]) -> None:
        """Release everything that only these sessions held, then offer it to waiting sessions."""
        header = entry.header
        self.end(Job(self.state, Asker(), version_of(header), header.ts_ms), sessions)

    def end(self, job: Job, sessions: Sequence[int]) -> None:
        """Do it, for an entry that ends sessions."""
        for session in sessions:
            for family in self.state.families:
                family.session_ended(job, session)
        self._finish(job)
        self._settle(job)

    def end_offers(self, entry: Entry) -> None:
        """End the offers that an entry names: their time is over."""
        header = entry.header
        job = Job(self.state, Asker(), version_of(header), header.ts_ms)
        self.lapse(job, argv_of(entry))

    def lapse(self, job: Job, named: Sequence[bytes]) -> None:
        """End offers whose time is over: path, session and LSN of each, the numbers in digits.

        One that is no more, or is elsewhere by now, is passed over.
        """
        for path, session, offer in zip(named[::3], named[1::3], named[2::3], strict=False):
            numbers = [int(n) for n in (session, offer) if n.isdigit() and len(n) < _DIGITS_MAX]
            try:
                where = parse_path(path)
            except Refused:
                continue
            if len(numbers) == 2:
                self.state.synchronisation.lapse(numbers[0], where, numbers[1])
        self._finish(job)
        self._settle(job)

    def waiting(self, session: int, csn: int) -> Verdict | None:
        """Return whether a request waits: with a reply for now, or for what is there."""
        if not len(self.open):
            return None
        sync = self.state.synchronisation
        name = sync.waits.opened(session, csn)
        if name is None:
            return None
        wait = sync.waits.there(name)
        return Verdict(Past.OFFERED) if wait.offer else Verdict(Past.WAITING, sync.pending(wait))

    def take_answers(self) -> list[Answer]:
        """Return the final replies that the last entry brought requests that waited."""
        answers, self.answers = self.answers, []
        return answers

    def offers(self, start: bytes = b"") -> Iterator[Offer]:
        """Yield offers that end if they are not taken in time, from a name on, in order."""
        elements = self.state.elements
        for name, wait in self.state.synchronisation.waits.offers(start):
            yield Offer(elements.path(wait.elements[0]), wait.session, wait.offer, name)

    def read(self, body: Body, session: int = 0) -> bytes:
        """Return what a session asks for, changing nothing."""
        asker = Asker(session, principal=body.principal, groups=body.groups)
        job = Job(self.state, asker, NEVER, 0, is_reading=True)
        try:
            call = self._understood(body.argv)
            if call.is_change:
                raise Refused("BADARG", "this command changes something, and is logged")
            return call.execute(job)
        except Refused as refused:
            return refused.value

    def _may_hear(self, one: Subscription) -> bool:
        return self.state.permissions.allow(one.subscriber.asker, one.place.element, READ)

    def freeze(self) -> Iterator[bytes]:
        """Return the state of this moment, in small pieces, while changes go on."""
        return self.state.tables.freeze()

    def restore(self, pieces: Pieces) -> Iterator[None]:
        """Replace the state with the one that `freeze` wrote."""
        return self.state.tables.restore(pieces)
