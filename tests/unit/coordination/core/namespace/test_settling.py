"""Schedules over the real driver and tables: lost, late, doubled steps, primaries that change."""

from __future__ import annotations

import random

import pytest

from millstream.coordination.core.namespace import names as steps
from millstream.coordination.core.namespace.commands.naming import answer_in
from millstream.coordination.core.namespace.names import (
    UNDO_MS,
    Answer,
    Name,
    NameKeeper,
    NameStatus,
)
from millstream.coordination.core.namespace.settling import (
    CHAINS_MAX,
    SETTLE_MS,
    WAITERS_MAX,
    Ask,
    Settled,
    Settler,
    wanted_of,
)
from millstream.vsr.core.versions import Version
from support.budget import budget
from support.coordination.namespace_machine import Tree

SEEDS = 150
ROOTS = ("/n", "/m")


class Op:
    """A request of a client under one number: it is repeated until it is answered, or lost."""

    def __init__(self, words: tuple[str, ...], *, is_lost: bool) -> None:
        self.words, self.is_lost = words, is_lost
        self.stored: bytes | None = None
        self.answers: set[bytes] = set()


class World:
    """A system group and two others, a settler that may go at any time, a bad network."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.groups = {None: Tree(), 2: Tree(), 3: Tree()}
        self.settler, self.now_ms = Settler(), 0.0
        self.asked: list[tuple[Settler, Ask]] = []
        self.replies: list[tuple[Settler, int, bytes]] = []
        self.ops: list[Op] = []
        self.gone: set[tuple[int, bytes, Version]] = set()
        self.there: set[tuple[int, bytes, Version]] = set()
        self.ever: set[Version] = set()

    def run(self) -> None:
        for _ in range(120):
            self.now_ms += self.chance.choice((1.0, 100.0, 3000.0, UNDO_MS / 4))
            self.act()
            self.check()
        for _ in range(60):
            self.now_ms += UNDO_MS / 2
            self.tick()
            self.repeat()
            while self.asked or self.replies:
                self.deliver(0)
        self.check_finished()

    def act(self) -> None:
        what = self.chance.random()
        root = self.chance.choice(ROOTS)
        if what < 0.12:
            group = self.chance.choice(("0", "2", "3"))
            option = () if group == "0" else ("GROUP", group)
            self.begin(("CREATENAMESPACE", root, *option))
        elif what < 0.22:
            word, option = (
                self.chance.choice(((), ("FORCE",))),
                self.chance.choice(((), ("FORCE",))),
            )
            self.begin((*word, "DELETENAMESPACE", root, *option))
        elif what < 0.3 and self.ops:
            self.say(self.chance.choice(self.ops))
        elif what < 0.34:
            self.settler = Settler()  # another primary: whoever waited asks again
        elif what < 0.4:
            self.groups[self.chance.choice((2, 3))].do("CREATE", "BINARY", root + "/a")
        elif what < 0.44:
            lock = self.chance.choice((("LOCK",), ("LOCK", "RELEASE"), ("DELETE",)))
            self.groups[self.chance.choice((2, 3))].do(*lock, root + "/a", session=9)
        elif what < 0.6:
            self.tick()
        elif self.asked or self.replies:
            self.deliver(self.chance.randrange(len(self.asked) + len(self.replies)))

    # ---- clients

    def begin(self, words: tuple[str, ...]) -> None:
        self.ops.append(Op(words, is_lost=self.chance.random() < 0.3))
        self.say(self.ops[-1])

    def say(self, op: Op) -> None:
        if op.stored is None:  # the client table: executed once, then the reply is kept
            op.stored = self.groups[None].do(*op.words)
        words = tuple(word.encode() for word in op.words)
        wanted = wanted_of(words, b"", op.stored)
        if wanted is None:
            op.answers.add(op.stored)
        else:
            self.settler.ask(self.ops.index(op), wanted, self.now_ms)
        self.take()

    def repeat(self) -> None:
        for op in self.ops:
            if not op.answers and not op.is_lost:
                self.say(op)

    # ---- the settler and the network

    def tick(self) -> None:
        registry = self.groups[None].machine.state.registry
        self.settler.tick(registry.unfinished(), registry.names.get, self.now_ms)
        self.take()

    def take(self) -> None:
        for effect in self.settler.take():
            if isinstance(effect, Ask):
                self.asked.append((self.settler, effect))
            elif effect.value is not None:
                self.ops[effect.ticket].answers.add(effect.value)

    def deliver(self, which: int) -> None:
        lossy = self.chance.random()
        if which < len(self.asked):
            settler, asked = self.asked.pop(which)
            if lossy < 0.1:
                self.asked.append((settler, asked))
            if lossy < 0.9 or which == 0:
                reply = self.groups[asked.gid].do(*asked.words)
                self.replies.append((settler, asked.number, reply))
        else:
            settler, number, reply = self.replies.pop(which - len(self.asked))
            if settler is self.settler and (lossy < 0.9 or which == 0):
                settler.answered(number, reply, self.now_ms)
                self.take()

    # ---- what has to hold

    def roots(self) -> set[tuple[int, bytes, Version]]:
        found = set()
        for gid, tree in self.groups.items():
            state = tree.machine.state
            for root, number in state.elements.children(0):
                made = state.registry.id_of(number)
                assert made is not None
                found.add((gid or 0, root, made))
        return found

    def check(self) -> None:
        roots = self.roots()
        names = [root for _, root, _ in roots]
        assert len(names) == len(set(names)), "a name is in two groups"
        assert not roots & self.gone, "what was deleted is there again"
        self.gone |= self.there - roots
        self.there = roots
        self.ever |= {made for _, _, made in roots}
        for op in self.ops:
            assert len(op.answers) < 2 or not op.answers & {b"+OK"}, "told two things"
            self.check_creation(op)

    def check_creation(self, op: Op) -> None:
        """Who is told that a namespace was made made it, and else made none."""
        begun = (op.stored or b"").split(b" ")
        if begun[0] == b"+RESERVED" and op.answers:
            made = Version(*map(int, begun[2].split(b":")))
            assert (made in self.ever) == (b"+OK" in op.answers), "a creation was told wrong"

    def check_finished(self) -> None:
        self.check()
        assert all(op.answers or op.is_lost for op in self.ops), "somebody still waits"
        names = list(self.groups[None].machine.state.registry.names.after(b""))
        assert all(name.status is NameStatus.CONFIRMED for _, name in names)
        assert self.roots() == {(name.gid, root, name.id) for root, name in names}


def is_wrong(seed: int) -> bool:
    try:
        World(seed).run()
    except AssertionError:
        return True
    return False


def test_a_name_lives_in_one_group_and_clients_are_told_the_truth() -> None:
    assert not any(map(is_wrong, range(budget(SEEDS))))


@pytest.mark.slow
@pytest.mark.parametrize(
    "mistake", ["undo", "drop", "keeper", "lost_is_gone", "deleted_is_gone", "early", "no_word"]
)
def test_the_schedules_find_mistakes(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "millstream.coordination.core.namespace.settling"
    match mistake:
        case "undo":  # it is undone in the system group only
            monkeypatch.setattr(steps, "undo", lambda *_: Answer.GONE)
        case "drop":  # the target refuses nothing after a deletion
            monkeypatch.setattr(steps, "_refuse", lambda _roots, _refused, answer: answer)
        case "keeper":  # a new primary goes on with nothing
            monkeypatch.setattr(NameKeeper, "tick", lambda *_: [])
        case "lost_is_gone":  # an error is taken for a refusal
            monkeypatch.setattr(f"{module}.answer_in", lambda value: Answer.GONE)
        case "deleted_is_gone":  # a repeat does not know that it was created and deleted since

            def forgetful(value: bytes) -> Answer | None:
                answer = answer_in(value)
                return Answer.GONE if answer is Answer.DELETED else answer

            monkeypatch.setattr(f"{module}.answer_in", forgetful)
        case "early":  # the client is told before the target has answered
            monkeypatch.setattr(f"{module}._value_of", lambda *_: b"+OK")
        case _:  # a deletion is not noted before the target acts
            monkeypatch.setattr(steps, "begin_deletion", lambda names, root, *_: names.get(root))
    assert any(map(is_wrong, range(SEEDS)))


def begun(settler: Settler, ticket: int = 1, lsn: int = 5) -> list[Ask | Settled]:
    words = (b"CREATENAMESPACE", b"/n", b"data", b"GROUP", b"2")
    wanted = wanted_of(words, b"ann", b"+RESERVED 2 1:2:%d" % lsn)
    assert wanted is not None
    settler.ask(ticket, wanted, 0.0)
    return settler.take()


def test_a_name_is_created_and_confirmed_before_the_client_is_told() -> None:
    settler = Settler()
    [asked] = begun(settler)
    words = (b"NAMESPACE", b"CREATE", b"/n", b"1:2:5", b"ann", b"data")
    assert asked == Ask(1, 2, words)
    settler.answered(1, b"+CREATED", 1.0)
    assert settler.take() == [Ask(2, None, (b"NAMESPACE", b"CONFIRM", b"/n", b"1:2:5"))]
    settler.answered(2, b"*", 2.0)
    assert settler.take() == [Settled(1, b"+OK")]
    assert not settler.is_busy


def test_a_group_that_refuses_a_root_is_asked_to_refuse_it_for_ever() -> None:
    settler = Settler()
    begun(settler)
    settler.answered(1, b"-QUOTA full", 1.0)
    assert settler.take() == [Ask(2, 2, (b"NAMESPACE", b"UNDO", b"/n", b"1:2:5"))]
    settler.answered(2, b"+GONE", 2.0)
    settler.answered(3, b"_", 2.0)
    assert settler.take()[1:] == [Settled(1, b"-QUOTA full")]


def test_unanswered_steps_are_repeated_at_growing_intervals() -> None:
    settler, asked = Settler(), []
    begun(settler)
    for now_ms in range(0, 20_000, 50):
        settler.tick([], lambda _: None, float(now_ms))
        asked += [now_ms for effect in settler.take() if isinstance(effect, Ask)]
    assert asked == [250, 750, 1750, 3750, 7750, 12_750, 17_750]


def test_waiting_too_long_or_too_many_is_an_unknown_outcome() -> None:
    settler = Settler()
    begun(settler)
    settler.tick([], lambda _: None, SETTLE_MS)
    assert Settled(1, None) in settler.take()
    for number in range(CHAINS_MAX - 1):
        begun(settler, 2 + number, 6 + number)
    assert begun(settler, 9999, 9999) == [Settled(9999, None)]
    for ticket in range(20_000, 20_000 + WAITERS_MAX - CHAINS_MAX + 1):
        assert begun(settler, ticket) == []
    assert begun(settler, 10_000) == [Settled(10_000, None)]


def test_a_later_request_waits_for_an_earlier_one() -> None:
    awaited = wanted_of((b"CREATENAMESPACE", b"/n"), b"", b"+AWAITED 2 1:2:5")
    deletion = wanted_of((b"DELETENAMESPACE", b"/n"), b"", b"+AWAITED 2 1:2:5")
    assert awaited is not None
    assert deletion is not None
    reserved = Name(2, Version(1, 2, 5), NameStatus.RESERVED)
    for name, told in (
        (reserved._replace(status=NameStatus.CONFIRMED), [b"+EXISTS", b"-CONFLICT"]),
        (None, [b"-CONFLICT", b"-ERROR_DOES_NOT_EXISTS"]),
    ):
        settler = Settler()
        settler.ask(1, awaited, 0.0)
        settler.ask(2, deletion, 0.0)
        settler.tick([], lambda _: reserved, 1.0)
        assert settler.take() == []
        settler.tick([], lambda _, name=name: name, 2.0)  # type: ignore[misc]
        values = [effect.value for effect in settler.take() if isinstance(effect, Settled)]
        assert [value.split(b" ")[0] for value in values if value] == told


@pytest.mark.parametrize("reply", [b"+OK", b"+EXISTS", b"-QUOTA x", b"+RESERVED x", b"*"])
def test_other_replies_are_final(reply: bytes) -> None:
    assert wanted_of((b"CREATENAMESPACE", b"/n"), b"", reply) is None
