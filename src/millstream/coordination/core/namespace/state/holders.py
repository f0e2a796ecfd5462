"""Locks, semaphores and barriers of a state: who holds them, who waits, and who is next.

Invariants:
1. No two sessions hold or are offered conflicting locks: one of them WRITE, on the same element or
   one above the other. No session gets a lock before one that conflicts with it and has waited
   longer.
2. The token of a lock is the version of the entry that made its session the holder. It only grows.
3. After every entry, each session that can have what it waits for has an offer.
4. An element has locks, or a semaphore, or a barrier.
5. A semaphore or a barrier does not restrict access to its element. But the element cannot be
   deleted while another session holds a unit there or is offered one.

Elsewhere: claims and waits (`claims`, `waits`), commands (`locks`, `semaphores`, `barriers`,
`elections`).

Source: V2R2, "LOCK", "SEMAPHORE", "Barriers".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from struct import Struct
from typing import Final, NamedTuple, NoReturn

from millstream.coordination.core.namespace.paths import Path
from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.claims import (
    LOCKS,
    Claim,
    Claims,
    Hold,
    Mode,
    Phase,
    Rival,
)
from millstream.coordination.core.namespace.state.data import Data
from millstream.coordination.core.namespace.state.elements import OWNED_MAX, Elements, key_of
from millstream.coordination.core.namespace.state.family import Family, Want
from millstream.coordination.core.namespace.state.run import Run
from millstream.coordination.core.namespace.state.waits import PENDING, Wait, Waits
from millstream.coordination.core.namespace.tables import Tables
from millstream.vsr.core.values import NULL, OK, array, bulk, error, integer, mapping
from millstream.vsr.core.versions import Version

__all__ = ["DEADLOCK_WORK_MAX", "SHOWN_MAX", "Primitive", "Synchronisation", "granted"]

SHOWN_MAX: Final = 1000
"""Holders, and those who wait, that are shown of one element."""
DEADLOCK_WORK_MAX: Final = 10_000
"""Claims that are looked at to find out whether a session would wait for itself."""
_PRIMITIVE: Final = Struct(">?Q?Q")
_HAD: Final = (Phase.HELD, Phase.OFFERED)


class Primitive(NamedTuple):
    """A semaphore or a barrier. `generation`: how often a barrier has let its sessions go."""

    is_barrier: bool
    size: int
    is_ending: bool = False
    generation: int = 0


def granted(token: Version, *, asked: bool) -> bytes:
    """Return what a session is told that has got what it asked for."""
    return array((bulk(b"OK"), bulk(token.text))) if asked else OK


class Synchronisation(Family):
    """What sessions claim on elements."""

    def __init__(self, tables: Tables, elements: Elements, data: Data) -> None:
        self._elements, self._data = elements, data
        self.claims = Claims(tables, elements)
        self.waits = Waits(tables, elements, self.claims)
        self._primitives = tables.add(
            lambda one: _PRIMITIVE.pack(*one), lambda text: Primitive(*_PRIMITIVE.unpack(text))
        )
        self.ready: Callable[[int], int] = lambda _element: 0
        """How many items of a queue can be taken."""
        self.is_read_open: Callable[[int], bool] = lambda _element: False
        """Whether those without a lock may read what others have a READ lock on."""

    def primitive(self, element: int) -> Primitive | None:
        """Return the semaphore or barrier of an element."""
        return self._primitives.get(key_of(element))

    def set_primitive(self, element: int, one: Primitive | None) -> None:
        """Give an element this semaphore or barrier, or none."""
        if one is None:
            self._primitives.delete(key_of(element))
        else:
            self._primitives.put(key_of(element), one)

    # ---- who may

    def guard(self, run: Run, element: int, want: Want) -> None:
        """Refuse as LOCKED what the locks of others forbid; only a WRITE lock allows writing."""
        if want in (Want.SYNC, Want.LOOK) or run.passes_locks or not len(self.claims):
            return
        claims, session = self.claims, run.asker.session
        line = self._elements.line(element)
        if want in (Want.PLACE, Want.TREE):
            self._refuse_offered(line, LOCKS, session)
        if want is Want.TREE:
            self._guard_tree(element, session)
        self._refuse_others(line, Phase.HELD, Mode.WRITE, session)
        if not any(claims.number(number, Phase.HELD, Mode.READ) for number in line):
            return
        if want is Want.READ:
            if not (self._holds(session, line, LOCKS) or self.is_read_open(element)):
                self._refuse_others(line, Phase.HELD, Mode.READ, session)
        elif not self._holds(session, line, (Mode.WRITE,)):
            self._refuse_others(line, Phase.HELD, Mode.READ, None)

    def _holds(self, session: int, line: Iterable[int], modes: Sequence[Mode]) -> bool:
        holds = (self.claims.held_by(session, number) for number in line)
        return any(hold is not None and hold.mode in modes for hold in holds)

    def _guard_tree(self, element: int, session: int) -> None:
        line = self._elements.line(element)
        holder = None if not self._holds(session, line, (Mode.WRITE,)) else session
        for number in (element, *self.claims.below(element)):
            self._refuse_others((number,), Phase.HELD, Mode.WRITE, session)
            self._refuse_others((number,), Phase.HELD, Mode.READ, holder)
            self._refuse_others((number,), Phase.HELD, Mode.UNIT, session)
            self._refuse_offered((number,), (*LOCKS, Mode.UNIT), session)

    def _refuse_offered(self, line: Iterable[int], modes: Sequence[Mode], session: int) -> None:
        numbers = tuple(line)
        for mode in modes:
            self._refuse_others(numbers, Phase.OFFERED, mode, session)

    def _refuse_others(
        self, line: Iterable[int], phase: Phase, mode: Mode, session: int | None
    ) -> None:
        for number in line:
            for _, claim in self.claims.of(number, phase, mode):
                if claim.session != session:
                    self.refuse(Rival(number, phase, mode, claim))

    def refuse(self, rival: Rival) -> NoReturn:
        """Raise LOCKED, with path, mode and client of the claim that is in the way, and its token.

        The token is a hyphen of what nobody holds yet.
        """
        path, claim = self._elements.path(rival.element), rival.claim
        token = claim.token.text if rival.phase is Phase.HELD else b"-"
        text = b" ".join((path, rival.mode.name.encode(), claim.client, token))
        raise Refused("LOCKED", text.decode())

    def writer(self, element: int) -> bytes:
        """Return the client that has a WRITE lock on an element or above it, if any has."""
        if len(self.claims):
            for number in self._elements.line(element):
                for _, claim in self.claims.of(number, Phase.HELD, Mode.WRITE):
                    return claim.client
        return b""

    def check_token(self, token: Version) -> None:
        """Raise FENCED unless this is the token of what is held now, by anybody, anywhere."""
        if not self.claims.is_current(token):
            raise Refused("FENCED", "the lock of this token is no longer held")

    # ---- getting, giving back

    def weight(self, session: int) -> int:
        """Return how many claims a session has: held, offered or waiting."""
        return self.claims.number_held(session) + self.waits.number_awaited(session)

    def _check_room(self, session: int, more: int) -> None:
        """Raise Refused (QUOTA) if a session would have too many claims; so its end is bounded."""
        if self.weight(session) + more > OWNED_MAX:
            raise Refused("QUOTA", f"a session holds or awaits {OWNED_MAX} things at most")

    def take(self, run: Run, elements: Sequence[int], mode: Mode) -> Version:
        """Make the session hold what is free (`hold`).

        Raises:
            Refused: QUOTA.
        """
        session = run.asker.session
        new = [each for each in elements if self.claims.held_by(session, each) is None]
        if new:
            self._check_room(session, len(new))
        return self.hold(run, elements, mode)

    def hold(self, run: Run, elements: Iterable[int], mode: Mode) -> Version:
        """Make the session hold this; return the newest token of what it holds now."""
        session, tokens = run.asker.session, []
        for element in elements:
            hold = self.claims.held_by(session, element)
            if hold is None or hold.mode > mode:
                hold = Hold(mode, run.version)
                self.claims.hold(element, mode, Claim(session, run.client, run.version))
                if mode in LOCKS:
                    self._elements.tell(run, b"lock", element)
            tokens.append(hold.token)
        return max(tokens)

    def release(self, run: Run, session: int, element: int) -> bool:
        """Release what a session holds on an element. Return whether it held anything."""
        hold = self.claims.release(session, element)
        if hold is None:
            return False
        if hold.mode in LOCKS:
            self._elements.tell(run, b"unlock", element)
        self.waits.free(element)
        return True

    def claim(self, run: Run, name: bytes) -> bytes:
        """Give the session what it was offered. Return the reply."""
        wait = self.waits.there(name)
        if wait.mode is Mode.ITEM and not self.ready(wait.elements[0]):
            return self.waits.withdraw(name)  # others were quicker
        if wait.mode in (Mode.PLACE, Mode.ITEM, Mode.END):
            return self.waits.finish(run, name, lambda _asked: OK)
        token = self.hold(run, wait.elements, wait.mode)
        if wait.data is not None:
            self.put_data(run, wait.elements[0], wait.data)
        return self.waits.finish(run, name, lambda asked: granted(token, asked=asked))

    def put_data(self, run: Run, element: int, data: bytes) -> None:
        """Store an element's data. It stays unchanged if a limit forbids it."""
        mark = run.mark()
        try:
            self._data.put(run, element, data)
        except Refused:
            run.roll_back(mark)
        else:
            # ELECT LEADER shows it to everybody who may read the element.
            self._elements.tell(run, b"put", element, data, is_public=True)

    def come_again(self, run: Run, name: bytes) -> bytes:
        """Answer a request that waits and was logged again."""
        wait = self.waits.there(name)
        if run.asker.is_claim and wait.offer:
            return self.claim(run, name)
        return self.pending(wait)

    def pending(self, wait: Wait) -> bytes:
        """Return what a session that waits is told: of a group, what is contended."""
        if len(wait.elements) < 2:
            return PENDING
        rival = self.claims.rival(wait.elements, wait.mode, wait.session)
        element = wait.elements[0] if rival is None else rival.element
        path = self._elements.path(element)
        return array((bulk(b"PENDING"), bulk(path), bulk(b"LOCKED")))

    def wait(
        self, run: Run, mode: Mode, elements: tuple[int, ...], *, is_first: bool = False,
        token: bool = False, data: bytes | None = None,
    ) -> bytes:  # fmt: skip
        """Let the session wait for this. Return the reply.

        Raises:
            Refused: QUOTA; DEADLOCK.
        """
        asker = run.asker
        self._check_room(asker.session, len(elements))
        if mode in LOCKS:
            self._refuse_cycle(run, mode, elements, is_first=is_first)
        wait = Wait(mode, asker.session, run.client, elements, data=data)
        self.waits.begin(run, wait, is_first=is_first, token=token)
        return self.pending(wait)

    def _refuse_cycle(
        self, run: Run, mode: Mode, elements: tuple[int, ...], *, is_first: bool
    ) -> None:
        """Raise DEADLOCK if somebody who is in the way of this waits for this session's locks.

        A cycle can only begin with a wait: what is granted at once is in nobody's way. At most
        `DEADLOCK_WORK_MAX` claims are looked at; a cycle beyond them ends with a time-out.
        """
        me, left = run.asker.session, DEADLOCK_WORK_MAX
        seen: set[bytes] = set()
        found: list[tuple[tuple[int, ...], Mode, int, bytes | None]]
        found = [(elements, mode, me, b"" if is_first else None)]
        while found:
            for rival in self.claims.rivals(*found.pop()):
                left -= 1
                if left < 0:
                    return
                is_waiting, other = rival.phase is Phase.WAITING, rival.claim.session
                if other == me:
                    if rival.phase is not Phase.HELD:
                        continue  # it may cancel what it awaits, and an offer lapses
                    path = self._elements.path(rival.element).decode()
                    raise Refused(
                        "DEADLOCK",
                        f"a holder of the requested lock waits for this session's lock on {path}",
                    )
                for name in [rival.name] if is_waiting else self.waits.names_of(other):
                    wait = self.waits.there(name)
                    if name not in seen and wait.mode in LOCKS and not wait.offer:
                        seen.add(name)
                        before = b"" if self.waits.is_first_in_line(name) else name
                        found.append((wait.elements, wait.mode, other, before))

    def cancel(self, run: Run, elements: Sequence[int], modes: Sequence[Mode]) -> None:
        """End what the session waits for on each of these elements, and offers, too.

        Raises:
            Refused: NOTHELD, if it is nothing on one of them.
        """
        names = self.waits.names_of(run.asker.session)
        mine = [(name, self.waits.there(name)) for name in names]
        found = {
            name: wait
            for name, wait in mine
            if wait.mode in modes and not (wait.mode is Mode.PLACE and wait.offer)
        }
        for element in elements:
            if not any(element in wait.elements for wait in found.values()):
                path = self._elements.path(element).decode()
                raise Refused("NOTHELD", f"this session does not wait for {path}")
        answer = error("NOTHELD", "it was cancelled")
        for name, wait in found.items():
            if set(elements) & set(wait.elements):
                self.waits.finish(run, name, lambda _asked: answer)

    def queue_wait(self, run: Run, element: int) -> bytes:
        """Let the session wait until the queue has items. Return the reply: OK or PENDING."""
        name = self.waits.mine(run.asker.session, Mode.ITEM, (element,))
        if name is not None:
            self.waits.join(run, name)
            return self.claim(run, name) if self.waits.there(name).offer else PENDING
        if self.ready(element):
            return OK
        return self.wait(run, Mode.ITEM, (element,))

    # ---- offers that nobody comes for

    def lapse(self, session: int, path: Path, offer: int) -> None:
        """End an offer, if it is still there: the wait ends without an answer."""
        element = self._elements.find(path)
        for name in self.waits.names_of(session):
            wait = self.waits.there(name)
            if wait.may_lapse and (wait.elements[0], wait.offer) == (element, offer):
                self.waits.drop(name)

    # ---- what others do

    def moved(self, run: Run, element: int) -> None:
        """Who waits where it was, or is, may get it now."""
        before = self.claims.moved(element)
        if before is not None:
            if run.passes_locks:
                self._refuse_meeting(element)
            self.waits.free_above(before)
            self.waits.free(element)

    def _refuse_meeting(self, element: int) -> None:
        """Raise LOCKED if locks came to where locks of others forbid them, held or offered."""
        above = self._elements.line(element)[1:]
        for number in (element, *self.claims.below(element)):
            for mode, phase in product(LOCKS, _HAD):
                for _, claim in self.claims.of(number, phase, mode):
                    self._refuse_above(above, mode, claim.session)

    def _refuse_above(self, line: Iterable[int], mode: Mode, session: int) -> None:
        for other in (Mode.WRITE,) if mode is Mode.READ else LOCKS:
            for phase in _HAD:
                self._refuse_others(line, phase, other, session)

    def deleted(self, run: Run, element: int) -> None:
        """End all that was claimed here."""
        self.set_primitive(element, None)
        if not self.claims.any_on(element):
            return
        text = self._elements.path(element).decode()
        answer = error("ERROR_DOES_NOT_EXISTS", text)
        for name in self.claims.waits_on(element):
            self.waits.finish(run, name, lambda _asked: answer, with_notice=True)
        for mode in (*LOCKS, Mode.UNIT):
            for _, claim in list(self.claims.of(element, Phase.HELD, mode)):
                self.release(run, claim.session, element)

    def is_wanted(self, element: int) -> bool:
        """Whether anybody holds or awaits something here."""
        return self.claims.any_on(element)

    def session_ended(self, run: Run, session: int) -> None:
        """End the session's waits, then release all that it holds."""
        for name in self.waits.names_of(session):
            self.waits.drop(name)
        held = [
            (self._elements.path(element), element) for element in self.claims.elements_of(session)
        ]
        for _, element in sorted(held):
            self.release(run, session, element)

    # ---- who is next

    def finished(self, run: Run) -> None:
        """Offer what has become free."""
        waits = self.waits
        while len(waits.freed) and (freed := waits.take_freed()):
            if len(waits):
                self._offer_locks(run, freed)
            for element in freed:
                if len(waits):
                    self._offer_units(run, element)
                self._end_if_unused(run, element)
                if len(waits):
                    self._offer_first(run, element, Mode.ITEM, self.ready(element))
            for element in freed:
                self._elements.drop_orphan(run, element)

    def _offer_locks(self, run: Run, freed: Mapping[int, bool]) -> None:
        claims, stuck = self.claims, dict[int, int]()
        for name in sorted(self._lock_waits(freed)):
            wait = self.waits.there(name)
            is_first = self.waits.is_first_in_line(name)
            if not is_first and any(
                stuck.get(e, wait.session) != wait.session for e in wait.elements
            ):
                continue
            before = b"" if is_first else name
            if claims.rival(wait.elements, wait.mode, wait.session, before) is None:
                self.waits.offer(run, name)
            elif wait.mode is Mode.WRITE:
                for element in wait.elements:
                    stuck.setdefault(element, wait.session)  # all who come later stay behind it

    def _lock_waits(self, freed: Mapping[int, bool]) -> set[bytes]:
        claims = self.claims
        near = set(freed)
        for element, around in freed.items():
            near.update(claims.around(element) if around else ())
        return {
            name
            for number in near
            for mode in LOCKS
            for name, _ in claims.of(number, Phase.WAITING, mode)
        }

    def _offer_units(self, run: Run, element: int) -> None:
        semaphore = self.primitive(element)
        if semaphore is not None and not semaphore.is_barrier:
            held = self.claims.number(element, Phase.HELD, Mode.UNIT)
            self._offer_first(run, element, Mode.UNIT, semaphore.size - held)

    def _offer_first(self, run: Run, element: int, mode: Mode, number: int) -> None:
        while number > self.claims.number(element, Phase.OFFERED, mode):
            first = next(self.claims.of(element, Phase.WAITING, mode), None)
            if first is None:
                break
            self.waits.offer(run, first[0])

    def is_used(self, element: int) -> bool:
        """Whether a session holds a unit of a semaphore, or is to get one."""
        return any(self.claims.number(element, phase, Mode.UNIT) for phase in Phase)

    def _end_if_unused(self, run: Run, element: int) -> None:
        semaphore = self.primitive(element)
        if semaphore is None or not semaphore.is_ending or self.is_used(element):
            return
        self.set_primitive(element, None)
        for name in [name for name, _ in self.claims.of(element, Phase.WAITING, Mode.END)]:
            self.waits.finish(run, name, lambda _asked: OK, with_notice=True)

    # ---- what is shown

    def attributes(self, run: Run, element: int) -> Iterable[tuple[bytes, bytes]]:
        """Give `sync`."""
        return ((b"sync", self.shown(element)),)

    def shown(self, element: int) -> bytes:
        """Return what there is on an element: kind, state, size, generation, holders, waiting."""
        claims, primitive = self.claims, self.primitive(element)
        if primitive is not None:
            modes: tuple[Mode, ...] = (
                (Mode.PLACE,) if primitive.is_barrier else (Mode.UNIT, Mode.END)
            )
        elif any(claims.number(element, phase, mode) for phase in Phase for mode in LOCKS):
            modes = LOCKS
        else:
            return NULL
        offers, waiting = (
            self._clients(element, Phase.OFFERED, modes),
            self._clients(element, Phase.WAITING, modes),
        )
        if primitive is not None and primitive.is_barrier:
            offers = []
        kind = (
            b"lock"
            if primitive is None
            else (b"barrier" if primitive.is_barrier else b"semaphore")
        )
        holders = list(self._holders(element, modes))
        state = (
            b"ending"
            if primitive is not None and primitive.is_ending
            else (b"held" if holders else b"offered" if offers else b"free")
        )
        pairs = [
            (b"kind", bulk(kind)), (b"state", bulk(state)),
            (b"size", NULL if primitive is None else integer(primitive.size)),
            (b"generation", NULL if primitive is None else integer(primitive.generation)),
            (b"holders", array(holders)),
            (b"waiting", array([bulk(client) for client in (*offers, *waiting)[:SHOWN_MAX]])),
        ]  # fmt: skip
        return mapping(pairs)

    def _holders(self, element: int, modes: Iterable[Mode]) -> Iterator[bytes]:
        found = (
            (mode, claim)
            for mode in modes
            for _, claim in self.claims.of(element, Phase.HELD, mode)
        )
        for _, (mode, claim) in zip(range(SHOWN_MAX), found, strict=False):
            yield mapping((
                (b"client", bulk(claim.client)), (b"mode", bulk(mode.name.encode())),
                (b"token", bulk(claim.token.text)),
            ))  # fmt: skip

    def _clients(self, element: int, phase: Phase, modes: Iterable[Mode]) -> list[bytes]:
        """Return who waits, in order of the waits."""
        found = sorted(
            (name, claim.client)
            for mode in modes
            for name, claim in self.claims.of(element, phase, mode)
        )
        return [client for _, client in found[:SHOWN_MAX]]
