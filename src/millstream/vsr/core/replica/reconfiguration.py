"""Reconfiguration: from one set of members (an epoch) to the next, without refusing requests.

Invariants:
1. The log of an epoch ends in the entry that names the next members. No entry of that epoch
   follows it. Requests that arrive meanwhile wait for the next epoch.
2. The old members commit that entry like any other. The new members begin with exactly the log
   that ends there.
3. A member acts in an epoch only once it is durably in it, and so has left the one before.
4. Only the process that entered an epoch as primary of its first view may lead that view.
5. A member that is not in the new epoch keeps its log until a quorum of the new members has
   begun. Then it retires, and only tells which epoch there is.
6. A member that hears from anybody that the group was forked without it retires, though it cannot
   say where the fork began: a primary has led the fork by then, so its members have it durably.

Elsewhere: who is a member (`configuration`), fetching the log (`log_repair`).

Source: Liskov and Cowling 2012, section 7; V2R2, "Reconfiguration".
"""

from __future__ import annotations

from typing import Final

from millstream.vsr.core.configuration import (
    Configuration,
    closing_body,
    generation,
    heard_of,
    successor,
)
from millstream.vsr.core.effects import Code, Read, Request, Superseded
from millstream.vsr.core.entries import Entry, Kind
from millstream.vsr.core.messages import Envelope, EpochStarted, GetEpoch, StartEpoch
from millstream.vsr.core.replica.learners import Learners
from millstream.vsr.core.replica.log_repair import LogRepair
from millstream.vsr.core.replica.member import ReplicaState, Status
from millstream.vsr.core.replica.normal_case import NormalCase
from millstream.vsr.core.replica.reads import Asked, Reads
from millstream.vsr.core.replica.storage import Storage
from millstream.vsr.core.replica.upcalls import Upcalls
from millstream.vsr.core.replica.view_change import ViewChange

__all__ = ["HELD_BYTES_MAX", "HELD_REQUESTS_MAX", "Reconfiguration"]

HELD_REQUESTS_MAX: Final = 10_000
"""Most requests that wait for the next epoch. Beyond that they are refused."""
HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Most bytes of requests that wait for the next epoch."""


class Reconfiguration:
    """Ends and enters epochs: StartEpoch, EpochStarted, GetEpoch."""

    def __init__(
        self, state: ReplicaState, up: Upcalls, storage: Storage, repairs: LogRepair,
        normal: NormalCase, reads: Reads, views: ViewChange, learners: Learners,
    ) -> None:  # fmt: skip
        self.state, self.up = state, up
        self.storage, self.repairs = storage, repairs
        self.normal, self.reads, self.views, self.learners = normal, reads, views, learners
        self.begin()

    def begin(self) -> None:
        """Start without knowledge of other epochs."""
        self._next: Configuration | None = None
        self._started: set[bytes] = set()
        self._entering: Configuration | None = None
        self.entered_view = 0
        """The view to begin the next epoch in: its first one, or that of the member that gave a
        snapshot."""
        self._held: list[Request] = []
        self._held_bytes = 0

    @property
    def newest(self) -> Configuration:
        """The newest epoch that is known to begin."""
        return self._next or self.state.retired or self.state.configuration

    @property
    def next_known(self) -> Configuration | None:
        """The epoch that begins without this member, or is about to begin with it."""
        return self._next

    @property
    def has_begun(self) -> bool:
        """Whether a quorum of the members of `next_known` is in its epoch."""
        later = self._next
        return later is not None and (
            len(self._started.intersection(later.members)) >= later.quorum
        )

    @property
    def entering(self) -> bool:
        """Whether the log of a later epoch is being fetched."""
        return self._entering is not None

    @property
    def next_epoch(self) -> Configuration | None:
        """The epoch whose log is being fetched."""
        return self._entering

    @property
    def sources(self) -> tuple[bytes, ...]:
        """Members of the epoch that is being entered, else of this one."""
        return (self._entering or self.state.configuration).everybody

    def is_source(self, node: bytes) -> bool:
        """Whether a node is one of them."""
        configuration = self._entering or self.state.configuration
        return node in configuration.members or node in configuration.old

    # ---- ending an epoch

    def close_epoch(self, members: tuple[bytes, ...]) -> None:
        """End the epoch and have these members in the next."""
        state = self.state
        assert state.leading
        assert not state.closing
        self.normal.add(Kind.RECONFIG, closing_body(members, state.id))

    def hold(self, request: Request) -> None:
        """Keep a request until the next epoch runs."""
        size = sum(map(len, request.body.argv))
        if self._next is not None:
            self.state.reply(request.ticket, Code.NOTPRIMARY)
        elif len(self._held) >= HELD_REQUESTS_MAX or self._held_bytes + size > HELD_BYTES_MAX:
            self.state.reply(request.ticket, Code.BUSY)
        else:
            self._held.append(request)
            self._held_bytes += size

    def on_read(self, read: Asked) -> None:
        """Answer a read, unless no quorum of this epoch can answer any more."""
        stale = isinstance(read, Read) and read.seen is not None
        if self.state.leading and self._next is not None and not stale:
            return self.state.reply(read.ticket, Code.NOTPRIMARY)
        return self.reads.on_read(read)

    @property
    def requests_waiting(self) -> int:
        """How many requests are accepted and not answered."""
        return len(self._held) + sum(map(len, self.state.waiting.values()))

    def _take_held(self) -> list[Request]:
        held, self._held, self._held_bytes = self._held, [], 0
        return held

    def suspended(self) -> None:
        """Refuse what waits for the next epoch: it is not logged."""
        self.refuse_held(Code.NOTPRIMARY if self.views.resigned else Code.NOQUORUM)

    def give_up(self) -> None:
        """Give up entering an epoch. The next report of it starts anew."""
        self._entering = None

    def release_held(self) -> None:
        """Go on with what waited: the epoch goes on."""
        for request in self._take_held():
            self.normal.on_request(request)

    def refuse_held(self, code: Code) -> None:
        """Refuse what waits for the next epoch."""
        for request in self._take_held():
            self.state.reply(request.ticket, code)

    def end_epoch(self, closing: Entry) -> None:
        """Tell everybody that the epoch is over. A member of the next one begins it."""
        self._next, self._started = successor(self.state.configuration, closing), set()
        self._send_start()
        if self.state.id in self._next.members:
            self._enter(self._next)
        else:
            self.reads.refuse_reads(Code.NOTPRIMARY)
            self.refuse_held(Code.NOTPRIMARY)

    def _send_start(self) -> None:
        assert self._next is not None
        for member in self._next.everybody:
            if member != self.state.id and member not in self._started:
                self.state.send(member, StartEpoch(self._next))

    # ---- entering an epoch

    def _enter(self, configuration: Configuration, giver: bytes = b"") -> None:
        state = self.state
        if self._entering is not None and self._entering.epoch >= configuration.epoch:
            return
        self.repairs.giver = giver
        leads = configuration.primary(configuration.first_view) == state.id and state.leading
        held: list[Request] = self._take_held() if leads else []
        reads: list[Asked] = self.reads.take_reads() if leads else []
        self._entering, self.entered_view = configuration, configuration.first_view
        self.up.stand_down()
        self.repairs.fetch(
            configuration.closed_lsn, configuration.closed_hash,
            lambda: self._install_epoch(configuration, held, reads),
        )  # fmt: skip
        if state.status not in (Status.RETIRED, Status.LOST):
            state.become(Status.GAP if state.members else Status.INITIALIZATION)
        self.repairs.go_on()

    def _install_epoch(
        self, configuration: Configuration, held: list[Request], reads: list[Asked]
    ) -> None:
        state = self.state
        if not self.views.keeps(configuration.closed_lsn):
            return
        suffix = self.repairs.take_result()
        self._entering = None
        self.up.stand_down()
        state.belong_to(configuration)
        state.view = self.entered_view
        state.last_normal = (configuration.epoch, configuration.first_view)
        state.retired = None
        self.begin()
        self.learners.begin()
        self.views.begin()
        state.become(Status.GAP)
        self.storage.persist(lambda: self._begin(held, reads), suffix)

    def _begin(self, held: list[Request], reads: list[Asked]) -> None:
        state = self.state
        self.views.why = "a new epoch began"
        state.durable_lsn = state.log.op_lsn
        for member in state.configuration.old:
            if member != state.id:
                state.send(member, EpochStarted(state.epoch))
        if not state.current or (state.primary == state.id and not state.has_state):
            return None
        if state.primary != state.id:
            return self.views.follow_on(state.configuration.closed_lsn)
        self.views.lead(state.configuration.closed_lsn)
        for request in held:
            self.normal.on_request(request)
        for read in reads:
            self.on_read(read)
        return None

    # ---- hearing of epochs

    def on_start_epoch(self, envelope: Envelope, start: StartEpoch) -> None:
        """Enter the epoch, or learn that it goes on without this member."""
        state = self.state
        configuration = start.configuration
        if not state.members and state.id not in configuration.members:
            return
        if configuration.epoch <= state.epoch:
            if configuration.epoch == state.epoch and state.id in state.members:
                state.send(envelope.sender, EpochStarted(state.epoch))
            self.answer_lower_epoch(envelope.sender, configuration.epoch)
        elif state.id in configuration.members:
            if configuration.closed_lsn >= state.commit_lsn:
                self._enter(configuration, envelope.sender)
        elif configuration.epoch > self.newest.epoch:
            self._goes_on_without(configuration)
            if configuration.epoch > state.epoch + 1:
                self._retire()

    def answer_lower_epoch(self, sender: bytes, epoch: int) -> None:
        """Tell a member that speaks of an old epoch which one is current."""
        if self.state.members and epoch < self.newest.epoch and not self.newest.is_hearsay:
            self.state.send(sender, StartEpoch(self.newest))

    def ask_epoch(self, sender: bytes) -> None:
        """Ask a member that speaks of an unknown epoch for it."""
        self.state.send(sender, GetEpoch())

    def on_superseded(self, heard: Superseded) -> None:
        """Ask for an epoch that this member has not heard of. Leave a group that has forked."""
        state = self.state
        if heard.epoch <= self.newest.epoch:
            return
        for member in heard.members:
            if member != state.id:
                self.ask_epoch(member)
        is_fork = generation(heard.epoch) > generation(self.newest.epoch)
        if is_fork and state.members and state.id not in heard.members:
            journalled = state.configuration.journalled
            self._goes_on_without(heard_of(heard.epoch, heard.members, journalled))
            self._retire()

    def _goes_on_without(self, later: Configuration) -> None:
        """Note that the group goes on in an epoch without this member.

        It serves nobody any more.
        """
        self._next, self._started = later, set()
        self.reads.refuse_reads(Code.NOTPRIMARY)
        self.refuse_held(Code.NOTPRIMARY)

    def on_epoch_started(self, envelope: Envelope, started: EpochStarted) -> None:
        """Count the new members that have begun without this one."""
        later = self._next
        if later is None or started.started != later.epoch or self.state.id in later.members:
            return
        self._started.add(envelope.sender)
        if self.has_begun:
            self._retire()

    def _retire(self) -> None:
        state = self.state
        if state.status is Status.RETIRED:
            return
        self._entering = None
        self.up.stand_down()
        state.become(Status.RETIRED)
        state.retired = self._next
        self.storage.persist(lambda: None)

    def tick(self) -> None:
        """Tell members that have not begun."""
        if self._next is not None:
            self._send_start()
