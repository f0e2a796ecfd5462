"""Readers that keep a state, over real producers and consumers: random histories, kills, purges.

After every schedule the reader's state equals the source's. Each planted mistake is found: a test
that would not see the mistake it is there for is worth nothing. A failing seed is in the message;
`World(seed).run()` repeats it.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from millstream.errors import MillstreamError
from millstream.model.position import FailoverLog, Position
from millstream.upr.core.bookkeeper import (
    Answer,
    Apply,
    Bookkeeper,
    Document,
    Effect,
    Forget,
    Keep,
    Remember,
    Restore,
    Sweep,
)
from support.budget import budget
from support.streams.keeping_reader import World

SEEDS_PER_TEST = 250


@pytest.mark.parametrize("first_seed", range(0, budget(1000), SEEDS_PER_TEST))
def test_the_state_ends_up_equal(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        try:
            World(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


# -- mistakes, one each


class NoRefetch(Bookkeeper):
    """The ring is not fetched again when history is another one."""

    def on_opened(self, position: Position, log: FailoverLog) -> list[Effect]:
        if self._point is None and not self.kept.is_undoing and self.kept.failover_log:
            self.kept = replace(self.kept, failover_log=log, position=position)
        return super().on_opened(position, log)


class ForgetsUndoing(Bookkeeper):
    """A kill in the middle of undoing is taken for its end."""

    def on_opened(self, position: Position, log: FailoverLog) -> list[Effect]:
        effects = super().on_opened(position, log)
        return [
            Keep(e.partition_id, replace(e.kept, is_undoing=False)) if isinstance(e, Keep) else e
            for e in effects
        ]


class UndoesBelowThePurge(Bookkeeper):
    """The ring undoes below the purge seqno at which the load began."""

    def on_opened(self, position: Position, log: FailoverLog) -> list[Effect]:
        effects = super().on_opened(position, log)
        if position.seqno == 0:
            self.kept = replace(self.kept, loaded=self.kept.loaded._replace(floor=0))
        return effects


class UndoesBelowTheRing(Bookkeeper):
    """What left the ring by age is undone as if it were there."""

    def on_rollback(self, seqno: int) -> int:
        self._point = seqno
        return seqno


class FetchedNotRemembered(Bookkeeper):
    """A fetched document does not enter the ring."""

    def on_answer(self, answer: Answer) -> list[Effect]:
        before = list(self._ring.entries)
        effects = super().on_answer(answer)
        self._ring.drop(set(self._ring.entries) - set(before))
        return [effect for effect in effects if not isinstance(effect, Remember)]


class FetchedAtThePoint(Bookkeeper):
    """A fetched document enters the ring, but not with its own seqno."""

    def on_answer(self, answer: Answer) -> list[Effect]:
        seqno = self.kept.position.seqno
        documents = tuple(Document(d.key, d.value, seqno) for d in answer.documents)
        return super().on_answer(answer._replace(documents=documents))


class NeverSweeps(Bookkeeper):
    """A load from the beginning leaves what it did not see."""

    def on_moved(self, position: Position) -> list[Effect]:
        return [effect for effect in super().on_moved(position) if not isinstance(effect, Sweep)]


class SweepsByBranch(Bookkeeper):
    """Documents carry the branch instead of the load: a second load of a branch sweeps nothing."""

    def _load_anew(self, position: Position, log: FailoverLog) -> list[Effect]:
        effects = super()._load_anew(position, log)
        loaded = self.kept.loaded._replace(load=max(log[0].branch, 1))
        self.kept = replace(self.kept, loaded=loaded)
        return [Keep(self.partition_id, self.kept), *effects[1:]]


class SameLoad(Bookkeeper):
    """A new load has the number of the old one."""

    def _load_anew(self, position: Position, log: FailoverLog) -> list[Effect]:
        effects = super()._load_anew(position, log)
        loaded = self.kept.loaded
        self.kept = replace(self.kept, loaded=loaded._replace(load=loaded.load - 1))
        return [Keep(self.partition_id, self.kept), *effects[1:]]


class SweepsOnce(Bookkeeper):
    """A kill during a load forgets that a sweep is due."""

    def _load_anew(self, position: Position, log: FailoverLog) -> list[Effect]:
        effects = super()._load_anew(position, log)
        kept = replace(self.kept, loaded=self.kept.loaded.swept())
        return [Keep(self.partition_id, kept), *effects[1:]]


class EmptyIsNoSnapshot(Bookkeeper):
    """A partition without changes never ends a load."""

    def on_answer(self, answer: Answer) -> list[Effect]:
        return super().on_answer(answer._replace(high_seqno=answer.high_seqno or 1))


class BarePosition(Bookkeeper):
    """The snapshot's range is not kept."""

    def start_again(self) -> tuple[Position, FailoverLog]:
        (uuid, seqno, *_), log = super().start_again()
        return Position(uuid, seqno, seqno, seqno), log


class TrimsAbovePosition(Bookkeeper):
    """The ring drops its oldest also above the position kept."""

    def on_changes(self, frames: Sequence[bytes], position: Position) -> list[Effect]:
        effects = super().on_changes(frames, position)
        applied = effects.index(next(e for e in effects if isinstance(e, Apply)))
        surplus = self._ring.entries[:-1]
        self._ring.drop(surplus)
        return [*effects[:applied], Forget(self.partition_id, surplus), *effects[applied:]]


class TrustsPositionZero(Bookkeeper):
    """A load killed before its first position goes on, though deletions were forgotten."""

    def _is_behind_a_purge(self, position: Position) -> bool:
        return False


class ForgetsFirst(Bookkeeper):
    """What is replaced leaves the ring before the documents fetched are in the state."""

    def on_opened(self, position: Position, log: FailoverLog) -> list[Effect]:
        effects = super().on_opened(position, log)
        if self._replaced:
            effects.append(Forget(self.partition_id, sorted(self._replaced)))
        return effects


def ring_after_state(effects: list[Effect]) -> list[Effect]:
    """The ring is written after what it names."""
    late = [effect for effect in effects if isinstance(effect, Remember)]
    return [*(effect for effect in effects if not isinstance(effect, Remember)), *late]


def place_before_state(effects: list[Effect]) -> list[Effect]:
    """The position is kept before the changes are in the state."""
    return sorted(effects, key=lambda effect: isinstance(effect, Apply | Restore))


MISTAKES = [
    NoRefetch, ForgetsUndoing, UndoesBelowThePurge, UndoesBelowTheRing, FetchedNotRemembered,
    FetchedAtThePoint, NeverSweeps, SweepsByBranch, SameLoad, SweepsOnce, EmptyIsNoSnapshot,
    BarePosition, TrimsAbovePosition, TrustsPositionZero, ForgetsFirst,
]  # fmt: skip
SEEDS_MAX = 1500
FIRST_SEEDS = {ForgetsUndoing: 900}
"""Where to begin for one that few schedules find."""


def seed_that_finds(make: type[Bookkeeper] = Bookkeeper, order: object = None) -> int:
    first = FIRST_SEEDS.get(make, 0)
    for seed in (*range(first, SEEDS_MAX), *range(first)):
        world = World(seed)
        world.line.make = make
        if order is not None:
            world.line.order = order  # type: ignore[assignment]
        world.line.start()
        try:
            world.run()
        except (AssertionError, MillstreamError):
            return seed
    pytest.fail(f"not found in {SEEDS_MAX} schedules")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: type[Bookkeeper]) -> None:
    seed_that_finds(mistake)


@pytest.mark.parametrize("order", [ring_after_state, place_before_state])
def test_a_wrong_order_is_found(order: object) -> None:
    seed_that_finds(order=order)
