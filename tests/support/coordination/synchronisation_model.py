"""Locks, semaphores and barriers as plainly as they can be said: lists that are gone through.

Invariants:
1. Every wait is looked at after every entry, in order; nothing is indexed.
2. A command returns the first word of its reply; `finals` has those of requests that waited.

Elsewhere: the machine that this is compared with (`holders` and its commands).
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["LAPSING", "Element", "Model", "Wait"]

LAPSING = ("READ", "WRITE", "UNIT")
"""What is offered for a time only."""


def covers(above: str, path: str) -> bool:
    return path == above or path.startswith(above + "/")


def overlap(one: str, other: str) -> bool:
    return covers(one, other) or covers(other, one)


@dataclass(eq=False)
class Element:
    path: str
    holders: dict[int, tuple[str, int]] = field(default_factory=dict)
    units: dict[int, int] = field(default_factory=dict)
    size: int = 0
    is_barrier: bool = False
    is_ending: bool = False


@dataclass(eq=False)
class Wait:
    kind: str
    session: int
    elements: list[Element]
    csns: list[int]
    is_first: bool = False
    offer: int = 0


class Model:
    def __init__(self) -> None:
        self.lsn = 0
        self.elements: dict[str, Element] = {}
        self.waits: list[Wait] = []
        self.finals: dict[tuple[int, int], str] = {}
        self.session = self.csn = 0
        self.is_claim = False

    # ---- entries

    def do(self, session: int, csn: int, *words: str, is_claim: bool = False) -> str:
        self.lsn += 1
        self.session, self.csn, self.is_claim = session, csn, is_claim
        open_wait = next((w for w in self.waits if w.session == session and csn in w.csns), None)
        if open_wait:
            can = is_claim and open_wait.offer
            reply = self.claim(open_wait) if can else self.pending(open_wait)
        else:
            name = words[0].lower()
            if name in ("lock", "semaphore", "barrier") and len(words) > 2:
                if words[1] in ("READ", "WRITE"):
                    reply = self.lock(words[1], [w for w in words[2:] if w[0] == "/"], words[-1])
                else:
                    reply = getattr(self, f"{name}_{words[1].lower()}")(*words[2:])
            else:
                reply = getattr(self, name)(*words[1:])
        self.serve()
        return reply

    def end(self, session: int) -> None:
        self.lsn += 1
        self.waits = [w for w in self.waits if w.session != session]
        for e in self.elements.values():
            e.holders.pop(session, None)
            e.units.pop(session, None)
        self.serve()

    def lapse(self, wait: Wait) -> None:
        """End an offer, and those of the same entry, session and first element."""
        self.lsn += 1
        alike = [w for w in self.waits if w.session == wait.session and w.offer == wait.offer
                 and w.kind in LAPSING and w.elements[0] is wait.elements[0]]  # fmt: skip
        self.waits = [w for w in self.waits if w not in alike]
        self.serve()

    # ---- waits

    def mine(self, kind: str, elements: list[Element]) -> Wait | None:
        return next((w for w in self.waits if w.session == self.session and w.kind == kind
                     and w.elements == elements), None)  # fmt: skip

    def join(self, wait: Wait) -> str:
        wait.csns.append(self.csn)
        if len(wait.csns) > 2:
            self.finals[self.session, wait.csns.pop(1)] = "PENDING"
        return self.pending(wait)

    def pending(self, wait: Wait) -> str:
        return "PENDING"

    def queue(self, kind: str, elements: list[Element], *, is_first: bool = False) -> str:
        wait = Wait(kind, self.session, elements, [self.csn], is_first)
        at = sum(w.is_first for w in self.waits) if is_first else len(self.waits)
        self.waits.insert(at, wait)
        return "PENDING"

    def finish(self, wait: Wait, reply: str) -> str:
        self.waits.remove(wait)
        for csn in wait.csns:
            if (wait.session, csn) != (self.session, self.csn):
                self.finals[wait.session, csn] = reply
        return reply

    def claim(self, wait: Wait) -> str:
        if wait.kind in ("READ", "WRITE"):
            self.hold(wait.kind, wait.elements)
        elif wait.kind == "UNIT":
            wait.elements[0].units[wait.session] = self.lsn
        return self.finish(wait, "OK")

    def serve(self) -> None:
        for i, w in enumerate(self.waits):
            if w.offer:
                continue
            e = w.elements[0]
            earlier = self.waits[:i]
            if w.kind in ("READ", "WRITE"):
                if self.fits(w.kind, w.session, w.elements, [] if w.is_first else earlier):
                    w.offer = self.lsn
            elif w.kind == "UNIT":
                ahead = [v for v in earlier if v.kind == "UNIT" and v.elements[0] is e]
                offered = sum(bool(v.offer) for v in self.on(e, "UNIT"))
                if all(v.offer for v in ahead) and len(e.units) + offered < e.size:
                    w.offer = self.lsn
        for e in self.elements.values():
            if e.is_ending and not e.units and not self.on(e, "UNIT"):
                e.size, e.is_ending = 0, False
                self.session = self.csn = 0
                for w in self.on(e, "END"):
                    self.finish(w, "OK")

    def on(self, e: Element, kind: str) -> list[Wait]:
        return [w for w in self.waits if w.kind == kind and e in w.elements]

    # ---- locks

    def fits(self, mode: str, who: int, elements: list[Element], earlier: list[Wait]) -> bool:
        rivals = [(w.kind, e.path) for w in self.waits for e in w.elements
                  if w.kind in ("READ", "WRITE") and w.session != who
                  and (w.offer or w in earlier)]  # fmt: skip
        rivals += [(m, e.path) for e in self.elements.values()
                   for s, (m, _) in e.holders.items() if s != who]  # fmt: skip
        return not any("WRITE" in (mode, other) and overlap(e.path, path)
                       for other, path in rivals for e in elements)  # fmt: skip

    def lock(self, mode: str, paths: list[str], last: str) -> str:
        who = self.session
        if any(path not in self.elements for path in paths):
            return "ERROR_DOES_NOT_EXISTS"
        elements = [self.elements[path] for path in paths]
        if any(e.size for e in elements):
            return "SYNCTYPE"
        wait = self.mine(mode, elements)
        if wait and wait.offer:
            self.join(wait)
            return self.claim(wait)
        covered = all(self.covered(who, e, mode) for e in elements)
        is_upgrade = not covered and any(who in e.holders for e in elements)
        if covered or self.fits(mode, who, elements, [] if is_upgrade else self.waits):
            self.hold(mode, elements)
            return self.finish(wait, "OK") if wait else "OK"
        if last == "NOWAIT":
            return "LOCKED"
        if wait:
            return self.join(wait)
        if self.waits_for_itself(mode, elements, is_first=is_upgrade):
            return "DEADLOCK"
        return self.queue(mode, elements, is_first=is_upgrade)

    def waits_for_itself(self, mode: str, elements: list[Element], *, is_first: bool) -> bool:
        """Whether a wait for this closes a cycle through a lock that the session holds."""
        new = Wait(mode, self.session, elements, [self.csn], is_first)
        behind, seen = [new], []
        while behind:
            wait = behind.pop()
            seen.append(wait)
            at = self.waits.index(wait) if wait in self.waits else len(self.waits)
            holders = {
                s for e in self.elements.values() for s, (m, _) in e.holders.items()
                if s != wait.session and self.meets(wait, m, e)
            }  # fmt: skip
            if wait is not new and self.session in holders:
                return True
            before = [] if wait.is_first else self.waits[:at]
            met = [w for w in self.waits if w.session not in (wait.session, self.session)
                   and w.kind in ("READ", "WRITE") and (w.offer or w in before)
                   and any(self.meets(wait, w.kind, e) for e in w.elements)]  # fmt: skip
            next_ones = [w for w in met if not w.offer]
            owners = holders | {w.session for w in met if w.offer}
            next_ones += [w for w in self.waits if w.session in owners and not w.offer
                          and w.kind in ("READ", "WRITE")]  # fmt: skip
            behind += [w for w in next_ones if w not in seen]
        return False

    def meets(self, wait: Wait, mode: str, element: Element) -> bool:
        return "WRITE" in (wait.kind, mode) and any(
            overlap(element.path, e.path) for e in wait.elements
        )

    def covered(self, who: int, element: Element, mode: str) -> bool:
        held = [o.holders[who][0] for o in self.elements.values()
                if who in o.holders and covers(o.path, element.path)]  # fmt: skip
        return "WRITE" in held or (mode == "READ" and "READ" in held)

    def hold(self, mode: str, elements: list[Element]) -> None:
        for e in elements:
            if e.holders.get(self.session, ("",))[0] not in ("WRITE", mode):
                e.holders[self.session] = mode, self.lsn

    def lock_release(self, path: str) -> str:
        e = self.elements.get(path)
        return "OK" if e and e.holders.pop(self.session, None) else "NOTHELD"

    def lock_cancel(self, path: str) -> str:
        return self.cancel(path, ("READ", "WRITE"))

    def cancel(self, path: str, kinds: tuple[str, ...]) -> str:
        mine = [w for w in self.waits if w.session == self.session and w.kind in kinds
                and any(e.path == path for e in w.elements)
                and not (w.kind == "PLACE" and w.offer)]  # fmt: skip
        for w in mine:
            self.finish(w, "NOTHELD")
        return "OK" if mine else "NOTHELD"

    # ---- semaphores and barriers

    def begin(self, size: str, path: str, *, is_barrier: bool) -> str:
        e = self.elements.get(path)
        if not e:
            return "ERROR_DOES_NOT_EXISTS"
        if e.is_ending:
            return "DESTROYING"
        if e.size:
            return "EXISTS" if (e.size, e.is_barrier) == (int(size), is_barrier) else "SYNCTYPE"
        if e.holders or self.on(e, "READ") or self.on(e, "WRITE"):
            return "SYNCTYPE"
        e.size, e.is_barrier = int(size), is_barrier
        return "OK"

    def semaphore_init(self, size: str, path: str) -> str:
        return self.begin(size, path, is_barrier=False)

    def barrier_init(self, size: str, path: str) -> str:
        return self.begin(size, path, is_barrier=True)

    def semaphore_acquire(self, path: str, last: str = "") -> str:
        e = self.elements.get(path)
        if not e:
            return "ERROR_DOES_NOT_EXISTS"
        if not e.size or e.is_barrier:
            return "SYNCTYPE"
        if self.session in e.units:
            return "OK"
        wait = self.mine("UNIT", [e])
        if wait and (last != "NOWAIT" or wait.offer):
            self.join(wait)
            return self.claim(wait) if wait.offer else "PENDING"
        if e.is_ending:
            return "DESTROYING"
        if len(e.units) + len(self.on(e, "UNIT")) < e.size:
            e.units[self.session] = self.lsn
            return "OK"
        return "LOCKED" if last == "NOWAIT" else self.queue("UNIT", [e])

    def semaphore_release(self, path: str) -> str:
        e = self.elements.get(path)
        return "OK" if e and e.units.pop(self.session, None) else "NOTHELD"

    def semaphore_cancel(self, path: str) -> str:
        return self.cancel(path, ("UNIT",))

    def semaphore_destroy(self, path: str) -> str:
        e = self.elements.get(path)
        if not e or not e.size or e.is_barrier:
            return "OK"
        if not e.units and not self.on(e, "UNIT"):
            e.size = 0
            return "OK"
        e.is_ending = True
        wait = self.mine("END", [e])
        return self.join(wait) if wait else self.queue("END", [e])

    def barrier_wait(self, path: str) -> str:
        e = self.elements.get(path)
        if not e:
            return "ERROR_DOES_NOT_EXISTS"
        wait = self.mine("PLACE", [e])
        if wait:
            self.join(wait)
            return self.claim(wait) if wait.offer else "PENDING"
        if not e.size or not e.is_barrier:
            return "SYNCTYPE"
        arrived = [w for w in self.on(e, "PLACE") if not w.offer]
        if len(arrived) + 1 < e.size:
            return self.queue("PLACE", [e])
        for w in arrived:
            w.offer = self.lsn
        return "GO"

    def barrier_cancel(self, path: str) -> str:
        return self.cancel(path, ("PLACE",))

    def barrier_destroy(self, path: str) -> str:
        e = self.elements.get(path)
        if e and e.is_barrier and e.size:
            e.size, e.is_barrier = 0, False
            for w in [w for w in self.on(e, "PLACE") if not w.offer]:
                self.finish(w, "DESTROYED")
        return "OK"

    # ---- elements

    def locked(self, path: str, *, offers: bool = False, below: bool = False) -> bool:
        who = self.session
        above = [e for e in self.elements.values() if covers(e.path, path)]
        under = [e for e in self.elements.values() if covers(path, e.path)] if below else []
        owns = any(e.holders.get(who, ("",))[0] == "WRITE" for e in above)
        if any(s != who or (m == "READ" and not owns)
               for e in above + under for s, (m, _) in e.holders.items()):  # fmt: skip
            return True
        if any(s != who for e in under for s in e.units):
            return True
        offered = [w for w in self.waits if w.offer and w.session != who]
        return any(
            (w.kind in ("READ", "WRITE") and (e in under or (offers and e in above)))
            or (w.kind == "UNIT" and e in under)
            for w in offered for e in w.elements
        )  # fmt: skip

    def put(self, path: str, _data: str) -> str:
        if path not in self.elements:
            return "ERROR_DOES_NOT_EXISTS"
        return "LOCKED" if self.locked(path) else "OK"

    def create(self, _type: str, path: str) -> str:
        parent = path.rpartition("/")[0]
        if path in self.elements:
            return "EXISTS"
        if parent not in self.elements:
            return "ERROR_DOES_NOT_EXISTS"
        if self.locked(parent):
            return "LOCKED"
        self.elements[path] = Element(path)
        return "OK"

    def createnamespace(self, path: str) -> str:
        self.elements[path] = Element(path)
        return "OK"

    def delete(self, path: str, _recursive: str) -> str:
        if path not in self.elements:
            return "ERROR_DOES_NOT_EXISTS"
        if self.locked(path.rpartition("/")[0]) or self.locked(path, offers=True, below=True):
            return "LOCKED"
        gone = [e for p, e in self.elements.items() if covers(path, p)]
        self.elements = {p: e for p, e in self.elements.items() if e not in gone}
        for w in [w for w in self.waits if any(e in gone for e in w.elements)]:
            self.finish(w, "ERROR_DOES_NOT_EXISTS")
        return "OK"

    def move(self, source: str, target: str) -> str:
        parent = target.rpartition("/")[0]
        if source not in self.elements:
            return "ERROR_DOES_NOT_EXISTS"
        if self.locked(source.rpartition("/")[0]) or self.locked(source, offers=True, below=True):
            return "LOCKED"
        if source == target:
            return "OK"
        if covers(source, target):
            return "LOOP"
        if parent not in self.elements:
            return "ERROR_DOES_NOT_EXISTS"
        if self.locked(parent, offers=True):
            return "LOCKED"
        if target in self.elements:
            return "NAME_CONFLICT"
        moved = {}
        for e in self.elements.values():
            if covers(source, e.path):
                e.path = target + e.path[len(source) :]
            moved[e.path] = e
        self.elements = moved
        return "OK"
