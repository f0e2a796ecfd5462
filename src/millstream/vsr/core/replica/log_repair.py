"""Fetching what is missing of a log: entries by hash, from members that have them.

Invariants:
1. One log is fetched at a time, and what it is for is done once nothing of it is missing.
2. More is asked for only if something came that was wanted, or after a time: copies of answers
   breed no further questions.
3. Who has just shown to have the log is asked first, else one member after the other.

Elsewhere: what is missing (`repair`), whose log it is (`view_change`, `recovery`,
`reconfiguration`), snapshots (`state_transfer`).

Source: Alagappan et al., "Protocol-Aware Recovery for Consensus-Based Storage", 2018.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.vsr.core.entries import Entry
from millstream.vsr.core.messages import Entries, Envelope, GetEntries
from millstream.vsr.core.replica.member import ReplicaState
from millstream.vsr.core.replica.repair import NewEnd, Repair
from millstream.vsr.core.replica.upcalls import Upcalls
from millstream.vsr.core.snapshots import Snapshot

__all__ = ["LogRepair"]


class LogRepair:
    """Fetches a log: asks GetEntries, takes Entries."""

    def __init__(self, state: ReplicaState, up: Upcalls) -> None:
        self.state, self.up = state, up
        self.repair: Repair | None = None
        self.then: Callable[[], None] | None = None
        """What to do once nothing is missing."""
        self.begin()
        self.begin_epoch()

    def begin(self) -> None:
        """Fetch nothing, and forget what was fetched."""
        self.forget()
        self.spare: dict[int, Entry] = {}
        """Fetched entries of a log that outlive the view: the next log may need them, too."""

    def begin_epoch(self) -> None:
        """Fetch nothing, and forget who has what is missing."""
        self.then = None
        self._asked = 0
        self.got_ms = self.state.now_ms
        """When the last missing entries, or a part of a snapshot, arrived."""
        self.giver = b""
        """The member that last showed to have what is missing here."""

    def forget(self) -> None:
        """Stop fetching. What has arrived is kept."""
        self.repair, self.then = None, None

    def fetch(self, lsn: int, digest: bytes, then: Callable[[], None]) -> None:
        """Fetch what is missing of the log that ends there, then call `then`. `go_on` begins."""
        self.repair = Repair(self.state.log, lsn, digest, self.spare)
        self.then = then

    def fetch_instead(self, lsn: int, digest: bytes) -> None:
        """Fetch the log that ends there for the same purpose instead."""
        self.repair = Repair(self.state.log, lsn, digest, self.spare)

    def begin_at(self, snapshot: Snapshot | None) -> None:
        """Replace everything up to the LSN of a snapshot, if there is one, by the snapshot."""
        assert self.repair is not None
        if snapshot is not None:
            self.repair.use(snapshot)

    def take_result(self) -> NewEnd:
        """Return how the log is to be changed, and forget what was fetched for it."""
        assert self.repair is not None
        end = self.repair.result()
        self.spare.clear()
        self.forget()
        return end

    def on_entries(self, envelope: Envelope, entries: Entries) -> None:
        """Take the wanted entries.

        Ask for more only if any was wanted: copies must not multiply requests.
        """
        if self.repair is not None:
            wanted = self.repair.wanted
            self.repair.offer(entries.entries)
            if wanted is None or self.repair.wanted != wanted:
                self.got_ms = self.state.now_ms
                self.giver = envelope.sender
                self.go_on()

    def go_on(self) -> None:
        """Ask for what is missing next if it is time. If nothing is missing, finish."""
        assert self.repair is not None
        if self.repair.is_of_another_log:
            if self.repair.snapshot_lsn is None:
                # Else a later view dropped the end that is fetched.
                self.state.contradict("a log lacks what a snapshot stands for")
            return self.up.give_up()
        wanted = self.repair.wanted
        if wanted is None:
            assert self.then is not None
            return self.then()
        if self.repair.asking.is_due(wanted[:2], self.state.now_ms):
            number = min(wanted.number, self.state.tuning.batch_entries_max)
            self._ask(GetEntries(wanted.lsn, wanted.hash, number))
        return None

    def _ask(self, asked: GetEntries) -> None:
        others = [member for member in self.up.sources if member != self.state.id]
        giver, self.giver = self.giver, b""
        if giver in others:
            self.state.send(giver, asked)
        elif others:
            self.state.send(self.next_of(others), asked)

    def next_of(self, others: list[bytes]) -> bytes:
        """Return whom of these to ask now: one after the other."""
        self._asked += 1
        return others[self._asked % len(others)]
