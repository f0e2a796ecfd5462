"""The clients of one kind of port, and who of them goes when there are too many.

Or when too much is held for them.

Each kind of port has a crowd of its own, so that a crowd at one does not cost clients of another.

Invariants:
1. Where log-ins are asked for, who has none after `LOGIN_S_MAX` and asks for nothing is cut off,
   and of more than `STRANGERS_MAX`, or than half of the places, who has been here longest, the
   idle ones first.
2. When all places are taken, a stranger goes for a newcomer, else who has been idle longest. A
   newcomer is turned away only where everybody is busy.
3. When more than `USER_BYTES_MAX` are held for a user, or `CLIENT_BYTES_MAX` for all, those for
   whom something is held go, who have been idle longest first. Small amounts are not told here:
   see `model.limits.NOTED_BYTES_MIN`.

Elsewhere: what is held for a connection (`kv.aio.server`, `gateway.aio.server`), the same for
coordination (`coordination.aio.resp_server`).
"""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable
from typing import Final, Protocol

__all__ = [
    "CLIENT_BYTES_MAX",
    "CONNECTIONS_MAX",
    "DESCRIPTORS_KEPT",
    "LOGIN_S_MAX",
    "LOOK_S",
    "STRANGERS_MAX",
    "USER_BYTES_MAX",
    "Clock",
    "Guest",
    "Guests",
    "places",
]

_LOG = logging.getLogger(__name__)
CONNECTIONS_MAX: Final = 10_000
"""Most connections of clients to one kind of port. For a further one, an idle one is closed, or it
is refused."""
DESCRIPTORS_KEPT: Final = 512
"""File descriptors that are kept for files and other nodes. The clients of a kind of port get at
most half of the rest."""
LOGIN_S_MAX: Final = 30.0
"""How long a client may be connected without a log-in, where there are users. On a busy machine an
SDK may need more than 10 s to start and to compute its proof of the password."""
STRANGERS_MAX: Final = 1000
"""Clients without a log-in, where there are users, or half of the places if those are fewer; for a
further one the oldest is cut off."""
CLIENT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes held for all clients together: requests that are not whole, or not answered
yet, and replies that were not taken."""
USER_BYTES_MAX: Final = 192 * 1024 * 1024
"""The same for all connections of one user."""
LOOK_S: Final = 1.0
"""How often it is looked at who is idle and who has logged in."""


def places() -> int:
    """Return how many clients of a kind of port the descriptors of this process are enough for."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(1, min(CONNECTIONS_MAX, max(descriptors - DESCRIPTORS_KEPT, descriptors // 2) // 2))


class Guest(Protocol):
    """A connection of a client."""

    is_active: bool
    """The client has sent or taken something since this was last set to False."""

    @property
    def is_busy(self) -> bool:
        """Whether a request of it is being answered."""

    def cut(self) -> None:
        """Close at once, whatever waits."""


class Clock(Protocol):
    """What is needed of an event loop."""

    def time(self) -> float:
        """Return seconds of a monotonic clock."""

    def call_later(self, delay: float, callback: Callable[[], None], /) -> object:
        """Call back after this many seconds."""


class _Seat:
    """What is known of a guest."""

    __slots__ = ("entered_s", "held", "idle_s", "user")

    def __init__(self, now_s: float) -> None:
        self.entered_s = self.idle_s = now_s
        self.held = 0
        self.user = ""


class Guests:
    """All clients of one kind of port.

    Args:
        asks: whether there are users, so that clients have to log in.
        loop: gives times, and calls `look` while there are guests.
        most: places; None: as many as there are descriptors for.
    """

    def __init__(self, asks: Callable[[], bool], loop: Clock, most: int | None = None) -> None:
        self._asks = asks
        self._loop = loop
        self._is_looking = False
        self._most = places() if most is None else most
        self._seats: dict[Guest, _Seat] = {}
        """The clients, in the order of their last activity."""
        self._strangers: dict[Guest, None] = {}
        self._held_by: dict[str, int] = {}
        self._untold: int | None = None
        """How many were cut off since the log was told of one; None: not since the last look."""
        self.held_bytes = 0
        self.cut_total = self.refused_total = 0

    def __len__(self) -> int:
        return len(self._seats)

    def enter(self, guest: Guest) -> bool:
        """Take a guest in; False: there is no place."""
        strangers_max = min(STRANGERS_MAX, max(1, self._most // 2))
        if self._asks() and len(self._strangers) >= strangers_max:
            self._cut_stranger("it has not logged in, and others come")
        elif len(self._seats) >= self._most:
            self._cut_idle()
        if len(self._seats) >= self._most:
            self.refused_total += 1
            return False
        self._seats[guest] = _Seat(self._loop.time())
        self._strangers[guest] = None
        if not self._is_looking:
            self._is_looking = True
            self._loop.call_later(LOOK_S, self.look)
        return True

    def recognise(self, guest: Guest, user: str) -> None:
        """A guest has logged in; what is held for it counts for this user from now on."""
        seat = self._seats.get(guest)
        self._strangers.pop(guest, None)
        if seat is not None and seat.user != user:
            held = seat.held
            self._count(seat, 0)
            seat.user = user
            self._count(seat, held)
            self._make_room_for(user)

    def hold(self, guest: Guest, size: int) -> None:
        """Set how many bytes are held for a client. It may be cut off before this returns."""
        seat = self._seats.get(guest)
        if seat is None:
            return
        has_grown = size > seat.held
        self._count(seat, size)
        if has_grown:
            seat.idle_s = self._loop.time()
            self._make_room_for(seat.user)

    def leave(self, guest: Guest) -> None:
        """A guest is gone; harmless if it never was here."""
        self._strangers.pop(guest, None)
        seat = self._seats.pop(guest, None)
        if seat is not None:
            self._count(seat, 0)

    def look(self) -> None:
        """Note who is idle; cut off who should have logged in. Every `LOOK_S` by itself."""
        now_s = self._loop.time()
        if self._untold:
            _LOG.warning("closed %d more clients", self._untold)
        self._untold = None
        self._is_looking = bool(self._seats)
        if self._is_looking:
            self._loop.call_later(LOOK_S, self.look)
        for guest in [one for one in self._seats if one.is_active]:
            guest.is_active = False
            seat = self._seats[guest] = self._seats.pop(guest)
            seat.idle_s = now_s
        if self._asks():
            for guest in list(self._strangers):
                if self._seats[guest].entered_s > now_s - LOGIN_S_MAX:
                    break
                if not guest.is_busy:
                    self._cut(guest, "it has not logged in")

    # -- inside

    def _count(self, seat: _Seat, size: int) -> None:
        self.held_bytes += size - seat.held
        if seat.user:
            left = self._held_by.get(seat.user, 0) + size - seat.held
            if left:
                self._held_by[seat.user] = left
            else:
                self._held_by.pop(seat.user, None)
        seat.held = size

    def _make_room_for(self, user: str) -> None:
        if self._held_by.get(user, 0) > USER_BYTES_MAX:
            self._cut_holders(user, lambda: self._held_by.get(user, 0) > USER_BYTES_MAX)
        if self.held_bytes > CLIENT_BYTES_MAX:
            self._cut_holders(None, lambda: self.held_bytes > CLIENT_BYTES_MAX)

    def _cut_holders(self, user: str | None, is_too_much: Callable[[], bool]) -> None:
        """Cut off who has been idle longest, the larger one of two, until it is little enough."""
        some = [
            (seat.idle_s, -seat.held, number, guest)
            for number, (guest, seat) in enumerate(self._seats.items())
            if seat.held and user in (None, seat.user)
        ]
        for _, _, _, guest in sorted(some, key=lambda one: one[:3]):
            if not is_too_much():
                return
            self._cut(guest, "too much is held for clients, and it has been idle longest")

    def _cut_idle(self) -> None:
        """Make place: a stranger goes, else who has been idle longest and is not busy."""
        if self._asks() and self._strangers:
            self._cut_stranger("all places are taken, and it has not logged in")
            return
        idle = next((guest for guest in self._seats if not guest.is_busy), None)
        if idle is not None:
            self._cut(idle, "all places are taken, and it has been idle longest")

    def _cut_stranger(self, reason: str) -> None:
        """Cut off who has been here longest, if possible one that asks for nothing."""
        idle = (guest for guest in self._strangers if not guest.is_busy)
        self._cut(next(idle, None) or next(iter(self._strangers)), reason)

    def _cut(self, guest: Guest, reason: str) -> None:
        self.leave(guest)
        self.cut_total += 1
        if self._untold is None:
            _LOG.warning("closed %s: %s", guest, reason)
            self._untold = 0
        else:
            self._untold += 1
        guest.cut()
