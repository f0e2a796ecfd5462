"""A name lives in one group, whatever comes late, twice or never."""

from __future__ import annotations

import random

import pytest

from millstream.coordination.core.namespace import names as steps
from millstream.coordination.core.namespace.names import (
    STEPS_MAX,
    UNDO_MS,
    Answer,
    Do,
    Name,
    NameKeeper,
    NameStatus,
    Step,
    step_after,
    step_of,
)
from millstream.vsr.core.versions import NEVER, Version


def version(lsn: int) -> Version:
    return Version(0, 1, lsn)


class Target:
    """A group with roots; those with elements are not removed without force."""

    def __init__(self) -> None:
        self.roots: dict[bytes, Version] = {}
        self.refused: dict[Version, Answer] = {}
        self.filled: set[bytes] = set()

    def id_of(self, root: bytes) -> Version | None:
        return self.roots.get(root)

    def refusal_of(self, refused: Version) -> Answer | None:
        return self.refused.get(refused)

    def refuse(self, refused: Version, answer: Answer) -> None:
        self.refused[refused] = answer

    def create(self, root: bytes, reservation: Version) -> None:
        assert root not in self.roots
        self.roots[root] = reservation

    def remove(self, root: bytes, is_forced: bool) -> Answer:
        if root in self.filled and not is_forced:
            return Answer.NOTEMPTY
        del self.roots[root]
        self.filled.discard(root)
        return Answer.GONE


class Table(dict[bytes, Name]):
    def put(self, key: bytes, name: Name, /) -> None:
        self[key] = name

    def delete(self, key: bytes, /) -> None:
        del self[key]


def do(asked: Step, names: Table, targets: dict[int, Target]) -> Answer | None:
    """Carry out a step in the group that it is for."""
    root, reservation = asked.root, asked.id
    match asked.do:
        case Do.CREATE:
            return steps.create(targets[asked.gid or 0], root, reservation)
        case Do.UNDO:
            return steps.undo(targets[asked.gid or 0], root, reservation)
        case Do.DROP:
            target = targets[asked.gid or 0]
            return steps.drop(target, root, reservation, asked.deletion, asked.is_forced)
        case Do.CONFIRM:
            steps.confirm(names, root, reservation)
        case Do.FREE:
            steps.free(names, root, reservation)
        case Do.KEEP:
            steps.keep(names, root, reservation, asked.deletion)
    return None


class World:
    """The system group, two targets, and a network that loses, doubles and delays."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.names, self.targets = Table(), {1: Target(), 2: Target()}
        self.lsn = 0
        self.network: list[Step] = []
        self.answered: dict[Version, Answer] = {}

    def run(self) -> None:
        for _ in range(80):
            self.act(self.chance.choice(("reserve", "create", "late", "delete", "fill")))
            self.deliver_some()
            self.check_one_group()
        keeper, now_ms = NameKeeper(), 0.0
        for _ in range(40):
            now_ms += UNDO_MS
            unfinished = [
                (root, name)
                for root, name in sorted(self.names.items())
                if name.status is not NameStatus.CONFIRMED
            ]
            self.network += keeper.tick(unfinished, now_ms)
            while self.network:
                self.deliver(self.network.pop(0))
        self.check_finished()

    def act(self, what: str) -> None:
        self.lsn += 1
        root = self.chance.choice((b"/n", b"/m"))
        known = self.names.get(root)
        if what == "reserve":
            steps.reserve(self.names, root, self.chance.choice((1, 2)), version(self.lsn))
        elif what == "create" and known and known.status is NameStatus.RESERVED:
            self.network.append(Step(known.gid, Do.CREATE, root, known.id))
        elif what == "late" and known and (step := step_of(root, known, is_late=True)):
            self.network.append(step)
        elif what == "delete":
            is_forced = self.chance.random() < 0.3
            steps.begin_deletion(self.names, root, is_forced, version(self.lsn))
        elif what == "fill":
            target = self.targets[self.chance.choice((1, 2))]
            target.filled ^= {root} & target.roots.keys()

    def deliver_some(self) -> None:
        if self.network and self.chance.random() < 0.7:
            message = self.network.pop(self.chance.randrange(len(self.network)))
            if self.chance.random() < 0.2:
                self.network.append(message)
            if self.chance.random() < 0.85:
                self.deliver(message)

    def deliver(self, asked: Step) -> None:
        answer = do(asked, self.names, self.targets)
        if asked.do is Do.DROP and answer is not None:
            assert answer is self.answered.setdefault(asked.deletion, answer)
        if answer is not None:
            self.network.append(step_after(asked, answer))

    def check_one_group(self) -> None:
        assert not self.targets[1].roots.keys() & self.targets[2].roots.keys()

    def check_finished(self) -> None:
        roots = {
            (root, gid, reservation)
            for gid, target in self.targets.items()
            for root, reservation in target.roots.items()
        }
        assert roots == {(root, name.gid, name.id) for root, name in self.names.items()}
        assert all(name.status is NameStatus.CONFIRMED for name in self.names.values())


def wrong_seeds(seeds: range) -> int:
    wrong = 0
    for seed in seeds:
        try:
            World(seed).run()
        except AssertionError:
            wrong += 1
    return wrong


def test_a_name_lives_in_one_group_and_nothing_stays_half_done() -> None:
    assert wrong_seeds(range(400)) == 0


@pytest.mark.parametrize("mistake", ["undo_refuses_nothing", "drop_refuses_nothing", "no_id"])
def test_the_search_finds_mistakes(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mistake == "undo_refuses_nothing":
        monkeypatch.setattr(steps, "undo", lambda *_: Answer.GONE)
    elif mistake == "drop_refuses_nothing":
        right = steps._refuse

        def forgets(roots: Target, refused: Version, answer: Answer) -> Answer:
            return (
                answer
                if answer in (Answer.GONE, Answer.DELETED)
                else right(roots, refused, answer)
            )

        monkeypatch.setattr(steps, "_refuse", forgets)
    else:
        right_drop = steps.drop

        def forgetting(
            roots: Target, root: bytes, reservation: Version, deletion: Version, is_forced: bool
        ) -> Answer:
            roots.refused.pop(deletion, None)
            return right_drop(roots, root, reservation, deletion, is_forced)

        monkeypatch.setattr(steps, "drop", forgetting)
    assert wrong_seeds(range(400)) > 0


def test_a_name_is_reserved_once() -> None:
    names = Table()
    first = steps.reserve(names, b"/n", 1, version(5))
    assert first == Name(1, version(5), NameStatus.RESERVED)
    assert steps.reserve(names, b"/n", 2, version(6)) == first
    assert steps.begin_deletion(names, b"/n", True, version(7)) == first


def test_an_entry_of_another_reservation_changes_nothing() -> None:
    names = Table()
    steps.reserve(names, b"/n", 1, version(5))
    steps.confirm(names, b"/n", version(4))
    steps.free(names, b"/n", version(4))
    steps.keep(names, b"/n", version(4), NEVER)
    assert names[b"/n"].status is NameStatus.RESERVED
    assert steps.confirm(names, b"/m", version(5)) is None


def test_a_refused_deletion_leaves_the_name_as_it_was() -> None:
    names, target = Table(), Target()
    steps.reserve(names, b"/n", 1, version(1))
    assert steps.create(target, b"/n", version(1)) is Answer.CREATED
    assert steps.create(target, b"/n", version(1)) is Answer.CREATED
    steps.confirm(names, b"/n", version(1))
    target.filled.add(b"/n")
    name = steps.begin_deletion(names, b"/n", False, version(2))
    assert name is not None
    asked = step_of(b"/n", name, is_late=False)
    assert asked == Step(1, Do.DROP, b"/n", version(1), version(2))
    assert do(asked, names, {1: target}) is Answer.NOTEMPTY
    target.filled.clear()
    assert do(asked, names, {1: target}) is Answer.NOTEMPTY
    assert do(step_after(asked, Answer.NOTEMPTY), names, {}) is None
    assert names[b"/n"].status is NameStatus.CONFIRMED
    assert target.roots == {b"/n": version(1)}


def test_unfinished_steps_are_repeated_not_all_at_once() -> None:
    keeper = NameKeeper()
    deleting = [
        (b"/%04d" % n, Name(1, version(n), NameStatus.DELETING, version(9999)))
        for n in range(STEPS_MAX + 1)
    ]
    assert len(keeper.tick(deleting, 0.0)) == STEPS_MAX
    assert len(keeper.tick(deleting, 1.0)) == 1
    assert not keeper.tick(deleting, 2.0)
    assert len(keeper.tick(deleting, 5000.0)) == STEPS_MAX


def test_a_reservation_has_its_time() -> None:
    keeper = NameKeeper()
    reserved = [(b"/n", Name(1, version(1), NameStatus.RESERVED))]
    assert keeper.tick(reserved, 100.0) == []
    assert keeper.tick(reserved, 99.0 + UNDO_MS) == []
    assert keeper.tick(reserved, 100.0 + UNDO_MS) == [Step(1, Do.UNDO, b"/n", version(1))]
