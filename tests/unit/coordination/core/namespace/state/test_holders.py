"""Locks, semaphores and barriers against a plain model of them, and what must hold in any case."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.coordination.core.namespace.state import holders as synchronisation
from millstream.coordination.core.namespace.state.claims import LOCKS, Mode, Phase
from simulators.namespace_clients import Client, Group, word
from support.budget import budget
from support.coordination.synchronisation_model import LAPSING, Model, overlap

PATHS = ("/n", "/n/a", "/n/a/x", "/n/a/y", "/n/b", "/n/b/x", "/n/b/x/z")
BASES = ("/n/a/x", "/n/a/y", "/n/b/x", "/n/b/x/z", "/n/b")
TARGETS = ("/n/a/w", "/n/b/w", "/n/b/x", "/n/a/x", "/n/c")
paths = st.sampled_from(PATHS)
sessions = st.integers(1, 4)


class Sync(RuleBasedStateMachine):
    """The same commands for both; all that a client sees is the same."""

    def __init__(self) -> None:
        super().__init__()
        self.group, self.model = Group(), Model()
        self.clients = {n: Client(self.group, n) for n in range(1, 5)}
        self.number = 4
        self.tokens: dict[int, set[int]] = {}
        self.gone = self.followed = 0

    @initialize(is_made=st.booleans())
    def begin(self, is_made: bool) -> None:
        for path in PATHS:
            words = ("CREATENAMESPACE", path) if path == "/n" else ("CREATE", "BINARY", path)
            self.group.do(*words, session=0)
            self.model.do(0, 0, *words)
        if is_made:
            self.do(1, "SEMAPHORE", "INIT", "2", "/n/b/x")
            self.do(1, "BARRIER", "INIT", "2", "/n/a/y")

    def do(self, session: int, *words: str) -> str:
        client = list(self.clients.values())[session - 1]
        got = word(client.do(*words))
        assert got == self.model.do(client.session, client.csn, *words), words
        return got

    @rule(session=sessions, mode=st.sampled_from(("READ", "WRITE")), path=paths)
    def lock(self, session: int, mode: str, path: str) -> None:
        self.do(session, "LOCK", mode, path)

    @rule(session=sessions, path=paths)
    def lock_at_once(self, session: int, path: str) -> None:
        self.do(session, "LOCK", "WRITE", path, "NOWAIT")

    @rule(session=sessions, mode=st.sampled_from(("READ", "WRITE")), one=paths, two=paths)
    def lock_group(self, session: int, mode: str, one: str, two: str) -> None:
        client = list(self.clients.values())[session - 1]
        got = word(client.do("LOCK", mode, "GROUP", *dict.fromkeys((one, two))))
        words = ("LOCK", mode, *dict.fromkeys((one, two)))
        assert got == self.model.do(client.session, client.csn, *words)

    @rule(session=sessions, what=st.sampled_from(("RELEASE", "CANCEL")), path=paths)
    def let_go(self, session: int, what: str, path: str) -> None:
        self.do(session, "LOCK", what, path)

    @rule(session=sessions)
    def release_all(self, session: int) -> None:
        client = list(self.clients.values())[session - 1]
        held = [e.path for e in self.model.elements.values() if client.session in e.holders]
        for path in held:
            assert self.do(session, "LOCK", "RELEASE", path) == "OK"

    @rule(session=sessions, path=st.sampled_from(BASES), data=st.booleans())
    def write_or_delete(self, session: int, path: str, data: bool) -> None:
        self.do(session, *(("PUT", path, "x") if data else ("DELETE", path, "RECURSIVE")))

    @rule(session=sessions, path=st.sampled_from((*BASES, "/n/a/w", "/n/b/w")))
    def create(self, session: int, path: str) -> None:
        self.do(session, "CREATE", "BINARY", path)

    @rule(session=sessions, source=st.sampled_from(BASES), to=st.sampled_from(TARGETS))
    def move(self, session: int, source: str, to: str) -> None:
        self.do(session, "MOVE", source, to)

    @rule(
        session=sessions,
        what=st.sampled_from(("INIT", *["ACQUIRE"] * 6, "RELEASE", "CANCEL", "DESTROY")),
    )
    def semaphore(self, session: int, what: str) -> None:
        self.do(session, "SEMAPHORE", what, *["2"] * (what == "INIT"), "/n/b/x")

    @rule(
        session=sessions,
        what=st.sampled_from(("INIT", "WAIT", "WAIT", "WAIT", "CANCEL", "DESTROY")),
    )
    def barrier(self, session: int, what: str) -> None:
        got = self.do(session, "BARRIER", what, *["2"] * (what == "INIT"), "/n/a/y")
        if what == "WAIT":
            self.gone += got == "GO"
            self.followed += got == "OK"

    @rule(session=sessions, is_claim=st.booleans())
    def repeat(self, session: int, is_claim: bool) -> None:
        client = list(self.clients.values())[session - 1]
        mine = [w for w in self.model.waits if w.session == client.session]
        if mine:
            csn = mine[0].csns[-1]
            is_place = mine[0].kind == "PLACE"
            got = word(client.repeat(csn, is_claim=is_claim))
            self.followed += is_place and got == "OK"
            assert got == self.model.do(client.session, csn, is_claim=is_claim)

    @rule(session=sessions)
    def end(self, session: int) -> None:
        client = list(self.clients.values())[session - 1]
        self.group.end(client.session)
        self.model.end(client.session)
        del self.clients[client.session]
        self.number += 1
        self.clients[self.number] = Client(self.group, self.number)

    @rule()
    def lapse(self) -> None:
        offers = [w for w in self.model.waits if w.offer and w.kind in LAPSING]
        if offers:
            first = offers[0]
            self.group.lapse(first.elements[0].path, first.session, first.offer)
            self.model.lapse(first)

    @rule()
    def go_on_from_a_snapshot(self) -> None:
        self.group.again()

    @invariant()
    def the_same_is_held_and_waited_for(self) -> None:
        state, model = self.group.machine.state, self.model
        for path, e in model.elements.items():
            number = state.elements.find(tuple(path[1:].encode().split(b"/")))
            assert number is not None
            for client in self.clients.values():
                hold = state.synchronisation.claims.held_by(client.session, number)
                held = e.holders.get(client.session)
                if client.session in e.units:
                    held = "UNIT", e.units[client.session]
                assert (hold and (hold.mode.name, hold.token.lsn)) == held
        waits = state.synchronisation.waits
        for client in self.clients.values():
            mine = [w for w in model.waits if w.session == client.session]
            found = [waits.there(name) for name in waits.names_of(client.session)]
            assert sorted((w.mode.name, w.offer, [c for c, _ in w.csns]) for w in found) == sorted(
                (w.kind, w.offer, w.csns) for w in mine
            )
        assert {k: word(v) for k, v in self.group.finals.items()} == model.finals

    @invariant()
    def no_two_are_in_each_others_way(self) -> None:
        held = [
            (s, m, e.path) for e in self.model.elements.values() for s, (m, _) in e.holders.items()
        ]
        held += [(w.session, w.kind, e.path) for w in self.model.waits for e in w.elements
                 if w.offer and w.kind in ("READ", "WRITE")]  # fmt: skip
        for i, (who, mode, path) in enumerate(held):
            for other, mode2, path2 in held[:i]:
                assert who == other or "WRITE" not in (mode, mode2) or not overlap(path, path2)

    @invariant()
    def tokens_grow_and_units_are_bounded(self) -> None:
        state = self.group.machine.state
        claims = state.synchronisation.claims
        for path in PATHS:
            number = state.elements.find(tuple(path[1:].encode().split(b"/")))
            if number is None:
                continue
            seen = self.tokens.setdefault(number, {0})
            held = {c.token.lsn for m in LOCKS for _, c in claims.of(number, Phase.HELD, m)}
            assert min(held - seen, default=max(seen) + 1) > max(seen)
            seen |= held
            units = sum(claims.number(number, p, Mode.UNIT) for p in (Phase.HELD, Phase.OFFERED))
            primitive = state.synchronisation.primitive(number)
            assert units <= (primitive.size if primitive else 0)

    @invariant()
    def one_goes_and_one_follows(self) -> None:
        assert self.followed <= self.gone

    @invariant()
    def claims_below_are_counted(self) -> None:
        state = self.group.machine.state
        claims = state.synchronisation.claims
        for path in self.model.elements:
            number = state.elements.find(tuple(path[1:].encode().split(b"/")))
            assert number is not None
            below = {
                other for other in state.elements.tree(number)
                if other != number and any(claims.any_on(n) for n in state.elements.tree(other))
            }  # fmt: skip
            assert set(claims.below(number)) == below


Sync.TestCase.settings = settings(max_examples=budget(60), stateful_step_count=60, deadline=None)
TestSync = Sync.TestCase


def test_offers_of_one_entry_lapse_together() -> None:
    """A short run of the machine above that it found; both offers name the same element."""
    sync = Sync()
    sync.begin(is_made=False)
    sync.lock(session=1, mode="WRITE", path="/n")
    sync.lock_group(session=2, mode="READ", one="/n", two="/n")
    sync.lock_group(session=2, mode="READ", one="/n", two="/n/a")
    sync.end(session=1)
    sync.lapse()
    sync.the_same_is_held_and_waited_for()


def test_no_more_is_held_and_awaited_than_one_entry_can_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(synchronisation, "OWNED_MAX", 4)
    group = Group()
    ann, bob = Client(group, 11), Client(group, 12)
    group.do("CREATENAMESPACE", "/n", session=0)
    for name in "abcdef":
        group.do("CREATE", "BINARY", f"/n/{name}", session=0)
    bob.do("LOCK", "/n/c")
    assert ann.do("LOCK", "READ", "GROUP", "/n/a", "/n/b") == b"+OK"
    assert word(ann.do("LOCK", "GROUP", "/n/c", "/n/d")) == "PENDING"
    assert word(ann.do("LOCK", "/n/e")) == "QUOTA"
    assert word(ann.do("LOCK", "/n/c")) == "QUOTA"
    assert bob.do("SEMAPHORE", "INIT", "1", "/n/f") == b"+OK"
    assert word(bob.do("SEMAPHORE", "ACQUIRE", "/n/f")) == "OK"
    assert word(ann.do("SEMAPHORE", "ACQUIRE", "/n/f")) == "QUOTA"
    assert ann.do("LOCK", "READ", "/n/a") == b"+OK"  # that it holds already
    assert ann.do("LOCK", "/n/a") == b"+OK"
    assert group.machine.weight(11) == 4
    bob.do("LOCK", "RELEASE", "/n/c")
    assert word(ann.do("LOCK", "GROUP", "/n/c", "/n/d")) == "OK"  # an offer was counted before
    assert word(ann.do("LOCK", "/n/e")) == "QUOTA"
    ann.do("LOCK", "RELEASE", "/n/c")
    assert ann.do("LOCK", "/n/e") == b"+OK"
