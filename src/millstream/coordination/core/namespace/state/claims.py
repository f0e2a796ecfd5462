"""Claims of sessions on elements, and which of them conflict with a lock.

A claim is something that a session holds, is offered or waits for on one element. A lock also
covers everything below its element. A unit of a semaphore, a place at a barrier and the other
claims do not.

Invariants:
1. A session holds at most one claim on an element.
2. `_nodes` has every element with claims on it or below it, with their number. So a search below
   an element visits only those. Elements that move take their entries with them.
3. `number` is the number of claims that `of` returns.
4. The current tokens are known without a search, unless changes were undone since.

Elsewhere: waits (`waits`), what happens to claims (`holders`).

Source: V2R2, "LOCK".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from itertools import chain
from struct import Struct
from typing import Final, NamedTuple

from millstream.coordination.core.namespace.state.elements import Elements, key_of
from millstream.coordination.core.namespace.tables import Tables, as_bytes
from millstream.vsr.core.versions import NEVER, Version

__all__ = ["LOCKS", "Claim", "Claims", "Hold", "Mode", "Phase", "Rival"]

_NUMBER: Final = Struct(">Q")
_CLAIM: Final = Struct(">QIIQ")
_HOLD: Final = Struct(">BIIQ")
_NODE: Final = Struct(">QQQ")
_HELD: Final = Struct(">QQ")
_AT: Final = Struct(">QBB")
_ABOVE_ALL: Final = key_of(0)


class Mode(IntEnum):
    """What is claimed."""

    WRITE = 0
    READ = 1
    UNIT = 2
    """A unit of a semaphore."""
    PLACE = 3
    """A place at a barrier."""
    ITEM = 4
    """An item of a queue: to be told that there is one."""
    END = 5
    """The end of a semaphore that is being destroyed."""


LOCKS: Final = (Mode.WRITE, Mode.READ)


class Phase(IntEnum):
    """How far a claim is."""

    HELD = 0
    OFFERED = 1
    """Reserved for the session, which has yet to come for it."""
    WAITING = 2


class Claim(NamedTuple):
    """Whose it is; `token` is the version that made it be held."""

    session: int
    client: bytes
    token: Version = NEVER


class Hold(NamedTuple):
    """What a session holds on an element."""

    mode: Mode
    token: Version


class Rival(NamedTuple):
    """A claim that is in another one's way; `name`: of its wait, or the session that holds it."""

    element: int
    phase: Phase
    mode: Mode
    claim: Claim
    name: bytes = b""


class _Node(NamedTuple):
    """How many claims there are on an element and below it; `writes`: of WRITE."""

    parent: int
    claims: int
    writes: int


def _encode_claim(claim: Claim) -> bytes:
    return _CLAIM.pack(claim.session, *claim.token) + claim.client


def _decode_claim(text: bytes) -> Claim:
    session, *token = _CLAIM.unpack_from(text)
    return Claim(session, text[_CLAIM.size :], Version(*token))


def _decode_hold(text: bytes) -> Hold:
    mode, *token = _HOLD.unpack(text)
    return Hold(Mode(mode), Version(*token))


def _at(element: int, phase: Phase, mode: Mode) -> bytes:
    return _AT.pack(element, phase, mode)


class Claims:
    """All claims of a state. What is held is named by its session, the others by their wait."""

    def __init__(self, tables: Tables, elements: Elements) -> None:
        self._elements = elements
        self._claims = tables.add(_encode_claim, _decode_claim)
        """Element, phase, mode, name -> claim."""
        self._numbers = tables.add(_NUMBER.pack, lambda text: _NUMBER.unpack(text)[0])
        """Element, phase, mode -> how many."""
        self._held = tables.add(lambda hold: _HOLD.pack(hold.mode, *hold.token), _decode_hold)
        """Session, element -> hold."""
        self._nodes = tables.add(lambda node: _NODE.pack(*node), lambda t: _Node(*_NODE.unpack(t)))
        self._below = tables.add(as_bytes, as_bytes)
        """Parent, element -> nothing, for those of `_nodes`."""
        self._tokens: dict[Version, int] = {}
        self._tokens_as_of = 0
        """Number of elements held under a token, as of a number of changes of `_held`. Not part of
        the state."""

    def __len__(self) -> int:
        return len(self._claims)

    # ---- what there is

    def of(self, element: int, phase: Phase, mode: Mode) -> Iterator[tuple[bytes, Claim]]:
        """Yield name and claim, waits in their order; none may change meanwhile."""
        prefix = _at(element, phase, mode)
        for key, claim in self._claims.under(prefix):
            yield key[len(prefix) :], claim

    def number(self, element: int, phase: Phase, mode: Mode) -> int:
        """Return how many there are."""
        return self._numbers.get(_at(element, phase, mode)) or 0

    def any_on(self, element: int) -> bool:
        """Return whether there are any on this element."""
        if self._nodes.get(key_of(element)) is None:
            return False
        return next(self._claims.under(key_of(element)), None) is not None

    def held_by(self, session: int, element: int) -> Hold | None:
        """Return what a session holds on an element."""
        return self._held.get(_HELD.pack(session, element))

    def holds_any(self, session: int) -> bool:
        """Return whether a session holds something on any element."""
        return next(self._held.under(key_of(session)), None) is not None

    def is_current(self, token: Version) -> bool:
        """Return whether anybody holds something under this token."""
        if self._tokens_as_of != self._held.changes:
            self._tokens = {}
            for _, hold in self._held.after(b""):
                self._tokens[hold.token] = self._tokens.get(hold.token, 0) + 1
            self._tokens_as_of = self._held.changes
        return token in self._tokens

    def _count_token(self, token: Version, more: int) -> None:
        """Note the change of `_held` that was just made, if all before it are known."""
        if self._tokens_as_of != self._held.changes - 1:
            return
        number = self._tokens.pop(token, 0) + more
        if number:
            self._tokens[token] = number
        self._tokens_as_of += 1

    def elements_of(self, session: int) -> list[int]:
        """Return the elements on which a session holds something."""
        prefix = key_of(session)
        return [_NUMBER.unpack(key[len(prefix) :])[0] for key, _ in self._held.under(prefix)]

    def number_held(self, session: int) -> int:
        """Return on how many elements a session holds something."""
        return self._held.number_under(key_of(session))

    def waits_on(self, element: int) -> list[bytes]:
        """Return the names of waits that have an offer or wait here."""
        prefix = key_of(element)
        first = len(prefix) + 2
        return [key[first:] for key, _ in self._claims.under(prefix, bytes((Phase.OFFERED,)))]

    def below(self, element: int, *, only_writes: bool = False) -> Iterator[int]:
        """Yield what has claims below an element, not itself; none may change meanwhile."""
        heap = [element]
        while heap:
            above = key_of(heap.pop())
            for key, _ in self._below.under(above):
                node = self._nodes.get(key[len(above) :])
                assert node is not None
                if node.writes or not only_writes:
                    (found,) = _NUMBER.unpack(key[len(above) :])
                    yield found
                    heap.append(found)

    def around(self, element: int, *, only_writes: bool = False) -> Iterable[int]:
        """Yield an element, what is above it, and what has claims below it."""
        return chain(self._elements.line(element), self.below(element, only_writes=only_writes))

    def rival(
        self, elements: Iterable[int], mode: Mode, session: int, before: bytes | None = None
    ) -> Rival | None:
        """Return a claim of another session that forbids a lock on these elements (`rivals`)."""
        return next(self.rivals(elements, mode, session, before), None)

    def rivals(
        self, elements: Iterable[int], mode: Mode, session: int, before: bytes | None = None
    ) -> Iterator[Rival]:
        """Yield the claims of other sessions that forbid a lock on these elements.

        Of those that wait, only who waits for longer than the wait `before` counts; None: all.
        """
        modes = (Mode.WRITE,) if mode is Mode.READ else LOCKS
        for element in elements:
            for number in self.around(element, only_writes=mode is Mode.READ):
                if not self.any_on(number):
                    continue
                for phase in Phase:
                    for other in modes:
                        for name, claim in self.of(number, phase, other):
                            if phase is Phase.WAITING and before is not None and name >= before:
                                break
                            if claim.session != session:
                                yield Rival(number, phase, other, claim, name)

    def covers(self, session: int, element: int, mode: Mode) -> bool:
        """Return whether a session's own locks allow it as much already."""
        for number in self._elements.line(element):
            hold = self.held_by(session, number)
            if hold is not None and hold.mode in LOCKS and hold.mode <= mode:
                return True
        return False

    # ---- changing

    def put(self, element: int, phase: Phase, mode: Mode, name: bytes, claim: Claim) -> None:
        """Add a claim."""
        at = _at(element, phase, mode)
        assert name, "a claim has a name"
        self._claims.put(at + name, claim)
        self._numbers.put(at, (self._numbers.get(at) or 0) + 1)
        self._count(self._elements.line(element), 1, int(mode is Mode.WRITE))

    def remove(self, element: int, phase: Phase, mode: Mode, name: bytes) -> Claim:
        """Remove and return a claim."""
        at = _at(element, phase, mode)
        claim, left = self._claims.delete(at + name), (self._numbers.get(at) or 0) - 1
        assert claim is not None
        assert left >= 0, "more claims are removed than there are"
        if left:
            self._numbers.put(at, left)
        else:
            self._numbers.delete(at)
        self._count(self._elements.line(element), -1, -int(mode is Mode.WRITE))
        return claim

    def hold(self, element: int, mode: Mode, claim: Claim) -> None:
        """Set what a session holds on an element."""
        key = _HELD.pack(claim.session, element)
        if self._held.get(key) is not None:
            self.release(claim.session, element)
        self._held.put(key, Hold(mode, claim.token))
        self._count_token(claim.token, 1)
        self.put(element, Phase.HELD, mode, key_of(claim.session), claim)

    def release(self, session: int, element: int) -> Hold | None:
        """Release what a session holds on an element, and return it."""
        hold = self._held.delete(_HELD.pack(session, element))
        if hold is not None:
            self._count_token(hold.token, -1)
            self.remove(element, Phase.HELD, hold.mode, key_of(session))
        return hold

    def moved(self, element: int) -> tuple[int, ...] | None:
        """Count what moved with an element where it is now; return what it was below.

        None: there is no claim on it or below it.
        """
        key = key_of(element)
        node = self._nodes.get(key)
        if node is None:
            return None
        self._below.delete(key_of(node.parent) + key)
        before, number = [], node.parent
        while number:
            before.append(number)
            above = self._nodes.get(key_of(number))
            assert above is not None
            number = above.parent
        self._count(before, -node.claims, -node.writes)
        line = self._elements.line(element)
        parent = self._elements.there(element).parent
        self._nodes.put(key, node._replace(parent=parent))
        self._below.put(key_of(parent) + key, b"")
        self._count(line[1:], node.claims, node.writes)
        return tuple(before)

    def _count(self, line: Sequence[int], claims: int, writes: int) -> None:
        nodes, below = self._nodes, self._below
        parent, above = 0, _ABOVE_ALL
        for number in reversed(line):
            key = key_of(number)
            node = nodes.get(key)
            if node is None:
                below.put(above + key, b"")
                nodes.put(key, _Node(parent, claims, writes))
            elif node.claims + claims:
                nodes.put(key, _Node(parent, node.claims + claims, node.writes + writes))
            else:
                nodes.delete(key)
                below.delete(above + key)
            parent, above = number, key
