"""What a part of a replica asks of the parts above it.

A part knows only the parts below it. Whatever it needs from above is an upcall: something that
happened, or a question.

Elsewhere: who answers, and in which order parts hear of what happened (`parts`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from millstream.vsr.core.effects import Request
from millstream.vsr.core.entries import Entry
from millstream.vsr.core.messages import Envelope
from millstream.vsr.core.snapshots import Snapshot, SnapshotId

__all__ = ["Upcalls"]


class Upcalls(Protocol):
    """The events of a replica that one part notices and others act on."""

    # ---- the log is executed

    def committed(self) -> None:
        """Something was committed here."""

    def end_epoch(self, closing: Entry) -> None:
        """The entry that ends this epoch is committed."""

    def touch(self, session: int) -> None:
        """The client of a session lives."""

    def ended(self, sessions: Iterable[int]) -> None:
        """These sessions are over."""

    def take_snapshot(self, asked: Entry) -> None:
        """The log asks for a snapshot of the state of this moment."""

    def hold_stable(self, named: Entry) -> None:
        """The log names the snapshot that all agree on."""

    def take_state(self, found: SnapshotId, snapshot: Snapshot | None) -> None:
        """The state has to become that of a snapshot; None: it has to be fetched."""

    def lose_state(self, right: SnapshotId) -> None:
        """The own state is wrong from this snapshot on."""

    # ---- requests

    @property
    def holding(self) -> bool:
        """Whether requests wait instead of being logged."""

    @property
    def full(self) -> bool:
        """Whether to refuse requests."""

    def hold(self, request: Request) -> None:
        """Keep a request until the next epoch runs."""

    def look_again(self, request: Request) -> None:
        """Answer a request that waits like a read: nothing is logged as long as it does."""

    # ---- other members

    def heard_from(self, member: bytes) -> None:
        """A member answered this primary."""

    def acknowledge(self) -> None:
        """More of the log is durable here."""

    def offer_snapshot(self, receiver: bytes) -> None:
        """Offer a snapshot in place of entries that are no longer in the log."""

    def found_snapshot(self, named: SnapshotId, giver: bytes) -> Snapshot | None:
        """Return what was fetched if it may stand for this; else fetch it, to be asked again."""

    @property
    def sources(self) -> tuple[bytes, ...]:
        """Who may have entries that are missing here."""

    def defer(self, envelope: Envelope) -> None:
        """Receive this again once the disk is done."""

    # ---- views

    def follows(self, envelope: Envelope) -> bool:
        """Return whether a primary's message is of this view, with the log of this view."""

    def propose(self) -> None:
        """No quorum answers: ask the others for a new view."""

    def begin_to_lead(self) -> None:
        """This member is about to lead a view."""

    def view_entered(self) -> None:
        """This member is in another view."""

    def suspend(self) -> None:
        """No quorum answers this primary, or it leads for the last moments: take nothing more."""

    def resumed(self) -> None:
        """A quorum is in this suspended primary's view."""

    def stand_down(self) -> None:
        """This member leads no more, and fetches nothing more but the log of a later epoch."""

    # ---- logs that cannot be had, or are not what they were taken for

    def give_up(self) -> None:
        """Fetch no more what was fetched."""

    def lose_log(self, what: str) -> None:
        """The own log differs from another one where none may."""

    # ---- epochs

    @property
    def entering(self) -> bool:
        """Whether the log of a later epoch is being fetched: this one is over."""

    def ask_epoch(self, sender: bytes) -> None:
        """Somebody speaks of an unknown epoch: ask what it is."""
