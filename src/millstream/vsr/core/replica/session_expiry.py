"""Session expiry: the primary ends the sessions of clients that were silent for too long.

Invariants:
1. Only an entry of the log ends a session. The order in the log decides, not two clocks, and a
   deposed primary ends no session.
2. Silence is measured by the primary's monotonic clock, and only while the primary works. A pause
   of its process, and time without a quorum, do not count.
3. A new primary begins to count at its first entry: every session gets its full time again.
4. The same holds for offers. An offer that nobody took within its session's time-out ends by an
   entry, too.

Elsewhere: what ends with a session (`client_table`, the state machine), who reports that a client
lives (the owner of its connection).

Source: V2R2, "Sessions and Heartbeating".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, chain, dropwhile, islice, takewhile
from typing import Final, NamedTuple

from millstream.vsr.core.client_table import TIME_OUT_MS_MIN, ClientTable
from millstream.vsr.core.entries import Body, Kind
from millstream.vsr.core.replica.member import ReplicaState
from millstream.vsr.core.replica.normal_case import NormalCase
from millstream.vsr.core.replica.reads import Reads
from millstream.vsr.core.replica.requested_changes import RequestedChanges
from millstream.vsr.core.state_machine import Offer
from millstream.vsr.core.tuning import HEARTBEAT_MS

__all__ = [
    "ENDED_MAX",
    "EXPIRED_MAX",
    "EXPIRED_WEIGHT_MAX",
    "LIST_MAX",
    "LOOK_AGAIN_MS",
    "STEP_MS_MAX",
    "SWEEP_MAX",
    "SessionExpiry",
    "Shown",
    "Silence",
]

SWEEP_MAX: Final = 10_000
"""Sessions looked at in one heartbeat; all that there may be are looked at within a second."""
LOOK_AGAIN_MS: Final = 1000.0
"""A session that is silent, but not for too long, is looked at again after so long at the latest:
by then what is set for it may be another time-out."""
EXPIRED_MAX: Final = 1000
"""Sessions that one entry ends."""
EXPIRED_WEIGHT_MAX: Final = 5000
"""What ends with them: beyond that the others wait for another entry. One session alone may have
more."""
ENDED_MAX: Final = 1000
"""Offers looked at in one heartbeat, and so ended by one entry at most. Whoever there are more of
is looked at in turn."""
LIST_MAX: Final = 500
"""Sessions that are shown at once."""
STEP_MS_MAX: Final = 2.0 * HEARTBEAT_MS
"""More than this between two heartbeats is a pause, and the rest of it is not counted."""


class Shown(NamedTuple):
    """A session as its primary knows it."""

    number: int
    instance: bytes
    time_out_ms: int
    highest: int
    silent_ms: float


class Silence:
    """Who was heard when, in time during which the primary worked."""

    def __init__(self) -> None:
        self.begin(0.0)

    def begin(self, now_ms: float) -> None:
        """Count the silence of all sessions from now on."""
        self._worked_ms = 0.0
        self._last_ms = now_ms
        self._heard: dict[int, float] = {}
        self._later: dict[int, float] = {}
        """When to look again at who was silent for a while."""
        self._ending: set[int] = set()
        self._sweep: Iterator[int] = iter(())
        self._offered: dict[Offer, float] = {}
        """Since when an offer is there."""
        self._met: dict[Offer, float] = {}
        """The same, for the offers that the current pass has reached."""
        self._offers_from = b""
        """The name at which the pass continues."""

    def hear(self, session: int, now_ms: float) -> None:
        """Note that a client lives."""
        self._heard[session] = self._worked_ms + min(now_ms - self._last_ms, STEP_MS_MAX)

    def forget(self, sessions: Iterable[int]) -> None:
        """Note that these have ended."""
        for session in sessions:
            self._heard.pop(session, None)
            self._later.pop(session, None)
            self._ending.discard(session)

    def pass_time(self, now_ms: float, works: bool) -> None:
        """Count the time since the last call, if the primary worked in it."""
        if works:
            self._worked_ms += min(now_ms - self._last_ms, STEP_MS_MAX)
        self._last_ms = now_ms

    def silent_ms(self, session: int) -> float:
        """Return for how long nothing was heard of it."""
        return max(0.0, self._worked_ms - self._heard.get(session, 0.0))

    def silent(
        self, table: ClientTable, time_out_ms: Callable[[int], int], weigh: Callable[[int], int]
    ) -> list[int]:
        """Return sessions that are to end now, each once; `weigh`: how much ends with one."""
        looked_at = list(islice(self._sweep, SWEEP_MAX))
        if len(looked_at) < SWEEP_MAX:
            self._sweep = iter(list(table))
            looked_at += islice(self._sweep, SWEEP_MAX - len(looked_at))
        found = []
        worked_ms, heard, later = self._worked_ms, self._heard, self._later
        for session in dict.fromkeys(looked_at):
            silent_ms = worked_ms - heard.get(session, 0.0)
            if silent_ms < TIME_OUT_MS_MIN or session not in table or session in self._ending:
                continue
            if worked_ms < later.get(session, 0.0):
                continue
            left_ms = time_out_ms(session) - silent_ms
            if left_ms < 0:
                found.append(session)
            else:
                later[session] = worked_ms + min(left_ms, LOOK_AGAIN_MS)
        found = _light(found[:EXPIRED_MAX], weigh)
        self._ending.update(found)
        return found

    def late(
        self,
        offers: Callable[[bytes], Iterable[Offer]],
        table: ClientTable,
        time_out_ms: Callable[[int], int],
    ) -> list[Offer]:
        """Return which offers are to end now: since when each is there is counted here.

        `offers`: yields them from a name on; some are looked at with each call, all in turn.
        """
        worked_ms, known = self._worked_ms, self._offered
        looked_at = list(islice(offers(self._offers_from), ENDED_MAX))
        met = {offer: known.get(offer, worked_ms) for offer in looked_at}
        found = [
            offer
            for offer, since_ms in met.items()
            if worked_ms - since_ms > TIME_OUT_MS_MIN
            and offer.session in table
            and worked_ms - since_ms > time_out_ms(offer.session)
        ]
        met.update(dict.fromkeys(found, worked_ms))
        self._met.update(met)
        if len(looked_at) < ENDED_MAX:
            self._offered, self._met, self._offers_from = self._met, {}, b""
        else:
            self._offers_from = looked_at[-1].name + b"\0"
        return found


def _light(sessions: list[int], weigh: Callable[[int], int]) -> list[int]:
    """Return the first ones that are not too much together, one in any case."""
    sums = accumulate(map(weigh, sessions))
    within = sum(1 for _ in takewhile(EXPIRED_WEIGHT_MAX.__ge__, sums))
    return sessions[: max(1, within)]


class SessionExpiry:
    """Ends sessions and offers whose time is over."""

    def __init__(
        self, state: ReplicaState, normal: NormalCase, reads: Reads, changes: RequestedChanges
    ) -> None:
        self.state, self.normal, self.reads, self.changes = state, normal, reads, changes
        self.begin()

    def begin(self) -> None:
        """Start without having heard from any client."""
        self._silence = Silence()

    def touch(self, session: int) -> None:
        """Note that the client of a session lives, if this is the primary."""
        state = self.state
        if session and state.leading and not state.suspended and session in state.table:
            self._silence.hear(session, state.now_ms)

    def sessions_after(self, number: int) -> list[Shown]:
        """Return the first sessions that began later than that one, in their order."""
        later = islice(dropwhile(number.__ge__, self.state.table), LIST_MAX)
        return [self._shown(session) for session in later]

    def _shown(self, session: int) -> Shown:
        instance, _, highest = self.state.table.about(session)
        silent_ms = self._silence.silent_ms(session)
        return Shown(session, instance, self.reads.time_out_ms(session), highest, silent_ms)

    def ended(self, sessions: Iterable[int]) -> None:
        """Forget their time."""
        self._silence.forget(sessions)

    def begin_to_lead(self) -> None:
        """Give every session its full time."""
        self._silence.begin(self.state.now_ms)

    def tick_primary(self) -> None:
        """End the sessions of clients that were silent for too long."""
        state = self.state
        works = state.leading and not state.suspended and not state.is_short
        self._silence.pass_time(state.now_ms, works)
        if works and not self.changes.holding and not self.normal.swamped and len(state.table):
            silent = self._silence.silent(
                state.table, self.reads.time_out_ms, state.machine.weight
            )
            if silent:
                self.normal.add(Kind.SESSION_EXPIRE, Body(argv=tuple(b"%d" % n for n in silent)))
            late = self._silence.late(state.machine.offers, state.table, self.reads.time_out_ms)
            if late:
                named = [(path, b"%d" % session, b"%d" % lsn) for path, session, lsn, _ in late]
                self.normal.add(Kind.TICK, Body(argv=tuple(chain.from_iterable(named))))
