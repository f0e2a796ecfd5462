"""From one set of members to another, without refusing requests: epochs.

Invariants:
1. The log of an epoch ends in the entry that names the next members; nothing of that epoch ever
   follows it. Requests that come meanwhile wait for the next epoch.
2. The entry is committed by the old members as any other; the new ones begin with exactly the log
   that ends there.
3. A member acts in an epoch only once it is durably in it, and so has left the one before.
4. Only the process run that entered an epoch as primary of its first view may lead that view.
5. Who is not in the new epoch keeps the log until a quorum of the new members has begun; then it
   is retired and only says which epoch there is.
6. Who hears from anybody that the group was forked without it retires, though it cannot say where
   the fork began: a primary has led the fork by then, so its members have it durably.

Elsewhere: who is a member (`configuration`), fetching the log (`repair`).

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
from millstream.vsr.core.replica.learners import Learning
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.replica.reads import Asked
from millstream.vsr.core.replica.repair import Repair

__all__ = ["HELD_BYTES_MAX", "HELD_REQUESTS_MAX", "Epochs"]

HELD_REQUESTS_MAX: Final = 10_000
"""That wait for the next epoch; beyond that they are refused."""
HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""The same in bytes."""


class Epochs(Learning):
    """StartEpoch, EpochStarted, GetEpoch."""

    def begin_epochs(self) -> None:
        """Know of no other epoch."""
        self._next: Configuration | None = None
        self._started: set[bytes] = set()
        self._entering: Configuration | None = None
        self.entered_view = 0
        """The view to begin the next epoch in: its first one, or that of who gave a snapshot."""
        self._held: list[Request] = []
        self._held_bytes = 0

    @property
    def newest(self) -> Configuration:
        """The newest epoch that is known to begin."""
        return self._next or self.retired or self.configuration

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
        """The one whose log is being fetched."""
        return self._entering

    @property
    def sources(self) -> tuple[bytes, ...]:
        """Members, of the epoch that is being entered if there is one."""
        return (self._entering or self.configuration).everybody

    def is_source(self, node: bytes) -> bool:
        """Whether a node is one of them."""
        configuration = self._entering or self.configuration
        return node in configuration.members or node in configuration.old

    # ---- ending an epoch

    def close_epoch(self, members: tuple[bytes, ...]) -> None:
        """End the epoch and have these members in the next."""
        assert self.leading
        assert not self.closing
        self.add(Kind.RECONFIG, closing_body(members, self.id))

    def hold(self, request: Request) -> None:
        """Keep a request until the next epoch runs."""
        size = sum(map(len, request.body.argv))
        if self._next is not None:
            self.reply(request.ticket, Code.NOTPRIMARY)
        elif len(self._held) >= HELD_REQUESTS_MAX or self._held_bytes + size > HELD_BYTES_MAX:
            self.reply(request.ticket, Code.BUSY)
        else:
            self._held.append(request)
            self._held_bytes += size

    def on_read(self, read: Asked) -> None:
        """Also refuse a read that no quorum of this epoch will answer any more."""
        stale = isinstance(read, Read) and read.seen is not None
        if self.leading and self._next is not None and not stale:
            return self.reply(read.ticket, Code.NOTPRIMARY)
        return super().on_read(read)

    @property
    def requests_waiting(self) -> int:
        """How many are let in and not answered."""
        return len(self._held) + sum(map(len, self._waiting.values()))

    def _take_held(self) -> list[Request]:
        held, self._held, self._held_bytes = self._held, [], 0
        return held

    def suspend(self) -> None:
        """Also refuse what waits for the next epoch: it is not logged."""
        super().suspend()
        self._refuse_held(Code.NOTPRIMARY if self.resigned else Code.NOQUORUM)

    def stand_down(self) -> None:
        """Also refuse what waits for the next epoch; go on fetching its log."""
        fetching = (self.repair, self._repaired) if self.entering else (None, None)
        super().stand_down()
        self.repair, self._repaired = fetching
        self._refuse_held(Code.NOTPRIMARY)

    def give_up(self) -> None:
        """Also enter no epoch; who tells of it again begins anew."""
        self._entering = None
        super().give_up()

    def release_held(self) -> None:
        """Go on with what waited: the epoch goes on."""
        for request in self._take_held():
            self.on_request(request)

    def _refuse_held(self, code: Code) -> None:
        for request in self._take_held():
            self.reply(request.ticket, code)

    def end_epoch(self, closing: Entry) -> None:
        """Tell everybody that the epoch is over; begin the next one if a member of it."""
        self._next, self._started = successor(self.configuration, closing), set()
        self._send_start()
        if self.id in self._next.members:
            self._enter(self._next)
        else:
            self.refuse_reads(Code.NOTPRIMARY)
            self._refuse_held(Code.NOTPRIMARY)

    def _send_start(self) -> None:
        assert self._next is not None
        for member in self._next.everybody:
            if member != self.id and member not in self._started:
                self.send(member, StartEpoch(self._next))

    # ---- entering an epoch

    def _enter(self, configuration: Configuration, giver: bytes = b"") -> None:
        if self._entering is not None and self._entering.epoch >= configuration.epoch:
            return
        self.giver = giver
        leads = configuration.primary(configuration.first_view) == self.id and self.leading
        held: list[Request] = self._take_held() if leads else []
        reads: list[Asked] = self.take_reads() if leads else []
        self._entering, self.entered_view = configuration, configuration.first_view
        self.stand_down()
        self.repair = Repair(
            self.log, configuration.closed_lsn, configuration.closed_hash, self.spare
        )
        self._repaired = lambda: self._install_epoch(configuration, held, reads)
        if self.status not in (Status.RETIRED, Status.LOST):
            self.status = Status.GAP if self.members else Status.INITIALIZATION
        self.go_on_repairing()

    def _install_epoch(
        self, configuration: Configuration, held: list[Request], reads: list[Asked]
    ) -> None:
        assert self.repair is not None
        if not self.keeps(configuration.closed_lsn):
            return
        suffix = self.repair.result()
        self.spare.clear()
        self._entering = None
        self.stand_down()
        self.belong_to(configuration)
        self.view = self.entered_view
        self.last_normal = (configuration.epoch, configuration.first_view)
        self.retired = None
        self.begin_epochs()
        self.begin_learning()
        self.begin_views()
        self.status = Status.GAP
        self.flip(lambda: self._begin(held, reads), suffix)

    def _begin(self, held: list[Request], reads: list[Asked]) -> None:
        self._why = "a new epoch began"
        self.durable_lsn = self.log.op_lsn
        for member in self.configuration.old:
            if member != self.id:
                self.send(member, EpochStarted(self.epoch))
        if not self.current or (self.primary == self.id and not self.has_state):
            return None
        if self.primary != self.id:
            return self.follow_on(self.configuration.closed_lsn)
        self.lead(self.configuration.closed_lsn)
        for request in held:
            self.on_request(request)
        for read in reads:
            self.on_read(read)
        return None

    # ---- hearing of epochs

    def on_start_epoch(self, envelope: Envelope, start: StartEpoch) -> None:
        """Enter the epoch, or learn that it goes on without this member."""
        configuration = start.configuration
        if not self.members and self.id not in configuration.members:
            return
        if configuration.epoch <= self.epoch:
            if configuration.epoch == self.epoch and self.id in self.members:
                self.send(envelope.sender, EpochStarted(self.epoch))
            self.answer_lower_epoch(envelope.sender, configuration.epoch)
        elif self.id in configuration.members:
            if configuration.closed_lsn >= self.commit_lsn:
                self._enter(configuration, envelope.sender)
        elif configuration.epoch > self.newest.epoch:
            self._next, self._started = configuration, set()
            self.refuse_reads(Code.NOTPRIMARY)
            self._refuse_held(Code.NOTPRIMARY)
            if configuration.epoch > self.epoch + 1:
                self._retire()

    def answer_lower_epoch(self, sender: bytes, epoch: int) -> None:
        """Tell who speaks of an old epoch which one there is."""
        if self.members and epoch < self.newest.epoch and not self.newest.is_hearsay:
            self.send(sender, StartEpoch(self.newest))

    def ask_epoch(self, sender: bytes) -> None:
        """Ask who speaks of an unknown epoch what it is."""
        self.send(sender, GetEpoch())

    def on_superseded(self, heard: Superseded) -> None:
        """Ask for an epoch that this member has not heard of; leave a group that has forked."""
        if heard.epoch <= self.newest.epoch:
            return
        for member in heard.members:
            if member != self.id:
                self.ask_epoch(member)
        is_fork = generation(heard.epoch) > generation(self.newest.epoch)
        if is_fork and self.members and self.id not in heard.members:
            journalled = self.configuration.journalled
            self._next = heard_of(heard.epoch, heard.members, journalled)
            self._started = set()
            self.refuse_reads(Code.NOTPRIMARY)
            self._refuse_held(Code.NOTPRIMARY)
            self._retire()

    def on_epoch_started(self, envelope: Envelope, started: EpochStarted) -> None:
        """Count the new members that have begun without this one."""
        later = self._next
        if later is None or started.started != later.epoch or self.id in later.members:
            return
        self._started.add(envelope.sender)
        if self.has_begun:
            self._retire()

    def _retire(self) -> None:
        if self.status is Status.RETIRED:
            return
        self._entering = None
        self.stand_down()
        self.status, self.retired = Status.RETIRED, self._next
        self.flip(lambda: None)

    def tick_epoch(self) -> None:
        """Tell those who have not begun."""
        if self._next is not None:
            self._send_start()
