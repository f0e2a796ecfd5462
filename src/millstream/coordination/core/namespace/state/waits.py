"""What sessions wait for: in order, offered when free, answered on the next request.

    begin -> (join ...) -> offer -> (join ...) -> finish       drop, at any time: no answer

Invariants:
1. A wait keeps the numbers of its first and its newest request. Both get its final reply. A
   request between them has ended with PENDING. A session has at most `OPEN_MAX` such numbers.
2. A session has one wait for one thing: a further request joins it and keeps its place.
3. Waits are in the order of their beginning. A session that upgrades its lock to WRITE comes
   first.

Elsewhere: claims on elements (`claims`), conflicts (`holders`), the time of an offer (the
primary).

Source: V2R2, "LOCK"; the numbers of requests: `client_table`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.refused import Refused
from millstream.coordination.core.namespace.state.claims import LOCKS, Claim, Claims, Mode, Phase
from millstream.coordination.core.namespace.state.elements import Elements, key_of
from millstream.coordination.core.namespace.state.run import Answer, Notice, Run
from millstream.coordination.core.namespace.tables import Tables, as_bytes
from millstream.vsr.core.values import status

__all__ = ["OPEN_MAX", "PENDING", "Wait", "Waits"]

OPEN_MAX: Final = 256
"""Requests of one session that have no final reply yet."""
PENDING: Final = status(b"PENDING")
_WAIT: Final = Struct(">BQQHBBBI")
_CSN: Final = Struct(">Q?")
_NUMBER: Final = Struct(">Q")
_COMMANDS: Final = {
    Mode.WRITE: b"LOCK", Mode.READ: b"LOCK", Mode.UNIT: b"SEMAPHORE ACQUIRE",
    Mode.PLACE: b"BARRIER WAIT", Mode.ITEM: b"QUEUE WAIT", Mode.END: b"SEMAPHORE DESTROY",
}  # fmt: skip
_AROUND: Final = b"+"
_ALONE: Final = b"-"
_LAPSING: Final = (Mode.WRITE, Mode.READ, Mode.UNIT, Mode.ITEM)


class Wait(NamedTuple):
    """One wait. `offer`: the LSN of the entry that made it be offered, 0 before.

    `csns`: number and whether the token is asked for, of the first and the newest request. `data`:
    what the first element is to hold once the wait has come to its end; None: what it holds.
    """

    mode: Mode
    session: int
    client: bytes
    elements: tuple[int, ...]
    csns: tuple[tuple[int, bool], ...] = ()
    offer: int = 0
    data: bytes | None = None

    @property
    def may_lapse(self) -> bool:
        """Whether it is an offer that ends if it is not taken."""
        return bool(self.offer) and self.mode in _LAPSING


def _encode(wait: Wait) -> bytes:
    data = b"" if wait.data is None else wait.data
    return b"".join((
        _WAIT.pack(
            wait.mode, wait.session, wait.offer, len(wait.elements), len(wait.csns),
            len(wait.client), wait.data is not None, len(data),
        ),
        wait.client, data, *map(_NUMBER.pack, wait.elements),
        *(_CSN.pack(*csn) for csn in wait.csns),
    ))  # fmt: skip


def _decode(text: bytes) -> Wait:
    mode, session, offer, elements, csns, client, has_data, data = _WAIT.unpack_from(text)
    sizes = client, data, elements * _NUMBER.size, csns * _CSN.size
    parts, at = [], _WAIT.size
    for size in sizes:
        parts.append(text[at : at + size])
        at += size
    if at != len(text):
        raise ValueError("a wait has a wrong length")
    return Wait(
        Mode(mode), session, parts[0], tuple(one for (one,) in _NUMBER.iter_unpack(parts[2])),
        tuple((csn, asked) for csn, asked in _CSN.iter_unpack(parts[3])), offer,
        parts[1] if has_data else None,
    )  # fmt: skip


class Waits:
    """All waits of a state, by name: names are in the order of the waits."""

    def __init__(self, tables: Tables, elements: Elements, claims: Claims) -> None:
        self._elements, self._claims = elements, claims
        self._waits = tables.add(_encode, _decode)
        self.open = tables.add(as_bytes, as_bytes)
        """Session and request number -> name of the wait."""
        self._offers = tables.add(as_bytes, as_bytes)
        """Names of offers that may lapse -> nothing."""
        self.freed = tables.add(as_bytes, as_bytes)
        """Elements near which somebody may have got what it waits for; none between entries."""

    def __len__(self) -> int:
        return len(self._waits)

    # ---- finding

    def there(self, name: bytes) -> Wait:
        """Return a wait; there has to be one of this name."""
        found = self._waits.get(name)
        assert found is not None
        return found

    def opened(self, session: int, csn: int) -> bytes | None:
        """Return the name of the wait that a request has begun or joined."""
        if not len(self.open):
            return None
        return self.open.get(key_of(session) + key_of(csn))

    def names_of(self, session: int) -> list[bytes]:
        """Return the waits of a session, in order."""
        if not len(self.open):
            return []
        return sorted({name for _, name in self.open.under(key_of(session))})

    def mine(self, session: int, mode: Mode, elements: tuple[int, ...]) -> bytes | None:
        """Return what a session waits with for just this."""
        for name in self.names_of(session):
            wait = self.there(name)
            if wait.mode is mode and wait.elements == elements:
                return name
        return None

    def number_awaited(self, session: int) -> int:
        """Return how many elements the waits of a session are about, one by one."""
        if not len(self.open):
            return 0
        return sum(len(self.there(name).elements) for name in self.names_of(session))

    def offers(self, start: bytes = b"") -> Iterator[tuple[bytes, Wait]]:
        """Yield names from one on, with the waits whose offers end if they are not taken."""
        for name, _ in self._offers.after(start):
            yield name, self.there(name)

    def is_first_in_line(self, name: bytes) -> bool:
        """Return whether it is one that comes before those that began before it."""
        return not name[0]

    # ---- its way

    def begin(self, run: Run, wait: Wait, *, is_first: bool = False, token: bool = False) -> bytes:
        """Let the session wait. Return the reply.

        Raises:
            Refused: WOULDBLOCK within a transaction, QUOTA if it waits for too much.
        """
        if run.is_in_transaction:
            raise Refused("WOULDBLOCK", "a command cannot wait in a transaction")
        assert not wait.offer, "a wait begins without an offer"
        name = bytes((not is_first,)) + _NUMBER.pack(run.version.lsn)
        self._waits.put(name, wait)
        claim = Claim(wait.session, wait.client)
        for element in wait.elements:
            self._claims.put(element, Phase.WAITING, wait.mode, name, claim)
        return self.join(run, name, token=token)

    def join(self, run: Run, name: bytes, *, token: bool = False) -> bytes:
        """Let another request wait with the others. Return its reply.

        Raises:
            Refused: QUOTA.
        """
        wait, csn = self.there(name), run.asker.csn
        csns = (*wait.csns, (csn, token))
        if len(csns) > 2:
            self._close(wait.session, csns[1][0])
            run.answers.append(Answer(wait.session, csns[1][0], PENDING))
            csns = csns[0], csns[2]
        elif sum(1 for _ in self.open.under(key_of(wait.session))) >= OPEN_MAX:
            raise Refused("QUOTA", f"{OPEN_MAX} requests of this session wait; cancel some")
        self.open.put(key_of(wait.session) + key_of(csn), name)
        self._waits.put(name, wait._replace(csns=csns))
        return PENDING

    def offer(self, run: Run, name: bytes) -> None:
        """Reserve for the session what it waits for, and tell it."""
        wait = self.there(name)
        assert not wait.offer, "an offer is made once"
        for element in wait.elements:
            claim = self._claims.remove(element, Phase.WAITING, wait.mode, name)
            self._claims.put(element, Phase.OFFERED, wait.mode, name, claim)
        wait = wait._replace(offer=run.version.lsn)
        self._waits.put(name, wait)
        if wait.may_lapse:
            self._offers.put(name, b"")
        self._notify(run, wait)

    def withdraw(self, name: bytes) -> bytes:
        """Turn an offer into a wait again, in its old place. Return the reply."""
        wait = self.there(name)
        assert wait.offer, "only an offer can be withdrawn"
        for element in wait.elements:
            claim = self._claims.remove(element, Phase.OFFERED, wait.mode, name)
            self._claims.put(element, Phase.WAITING, wait.mode, name, claim)
        self._waits.put(name, wait._replace(offer=0))
        self._offers.delete(name)
        return PENDING

    def _notify(self, run: Run, wait: Wait) -> None:
        path = self._elements.path(wait.elements[0])
        run.notices.append(Notice(wait.session, path, _COMMANDS[wait.mode]))

    def finish(
        self, run: Run, name: bytes, reply: Callable[[bool], bytes], *, with_notice: bool = False
    ) -> bytes:
        """End a wait and return the reply to the request at work, if it is one of the wait's.

        The others of the wait get theirs, too. `reply` takes whether the token was asked for.
        """
        wait = self.there(name)
        if with_notice:
            self._notify(run, wait)
        self.drop(name)
        answer = PENDING
        for csn, token in wait.csns:
            if (wait.session, csn) == (run.asker.session, run.asker.csn):
                answer = reply(token)
            else:
                run.answers.append(Answer(wait.session, csn, reply(token)))
        return answer

    def drop(self, name: bytes) -> None:
        """End a wait; its requests are as if they had never been."""
        wait = self.there(name)
        phase = Phase.OFFERED if wait.offer else Phase.WAITING
        for element in wait.elements:
            self._claims.remove(element, phase, wait.mode, name)
            self.free(element)
        for csn, _ in wait.csns:
            self._close(wait.session, csn)
        self._waits.delete(name)
        self._offers.delete(name)

    def _close(self, session: int, csn: int) -> None:
        self.open.delete(key_of(session) + key_of(csn))

    # ---- what has become free

    def free(self, element: int) -> None:
        """Note that less is claimed on an element, so that waits around it are checked.

        Those above it are noted separately: the element may be moved or deleted in a moment.
        """
        if len(self._waits):
            self.free_above(self._elements.line(element)[1:])
        self.freed.put(key_of(element), _AROUND)

    def free_above(self, line: Iterable[int]) -> None:
        """Note that what is below these elements is less than before."""
        for number in line:
            if self.freed.get(key_of(number)) is None and self._is_locked_for(number):
                self.freed.put(key_of(number), _ALONE)

    def _is_locked_for(self, element: int) -> bool:
        return any(self._claims.number(element, Phase.WAITING, mode) for mode in LOCKS)

    def take_freed(self) -> dict[int, bool]:
        """Return the noted elements that still exist, and forget all notes.

        True: waits above and below it have to be checked, too.
        """
        noted = list(self.freed.after(b""))
        for key, _ in noted:
            self.freed.delete(key)
        found = {_NUMBER.unpack(key)[0]: how == _AROUND for key, how in noted}
        return {one: how for one, how in found.items() if self._elements.get(one) is not None}
