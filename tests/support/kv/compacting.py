"""Compacting a store step by step, as the engine does, in one thread."""

from collections.abc import Callable, Iterator, Sequence

from millstream.storage.core.compaction import Compaction
from millstream.storage.core.store import LogStore

Chooser = Callable[[list[int]], Sequence[int]]


def everything(numbers: list[int]) -> list[int]:
    return numbers


def mark(store: LogStore) -> Iterator[str]:
    """Mark what low points let go, and count."""
    reclaiming = store.reclaiming
    marking = reclaiming.begin_marking()
    for _ in marking.steps():
        yield "mark"
    reclaiming.end_marking(marking)
    for _ in reclaiming.count_steps():
        yield "count"


def rewrite(
    store: LogStore, run: Sequence[int], on_begun: Callable[[Compaction], None] = lambda _: None
) -> Iterator[str]:
    """Rewrite a run; what happens in the loop happens between two yields.

    What comes after "rest" is done while by-id is not being applied.
    """
    reclaiming = store.reclaiming
    compaction = reclaiming.begin_run(run)
    on_begun(compaction)
    for _ in compaction.steps():
        yield "copy"
    for batch in compaction.gone_keys():
        yield "rest"
        reclaiming.forget(compaction, batch)
        yield "forget"
    compaction.swap()
    yield "swap"
    yield "rest"
    reclaiming.install(compaction)
    yield "install"
    compaction.remove_old()
    yield "remove"
    for batch in compaction.moved_keys():
        yield "rest"
        reclaiming.move(compaction, batch)


def compacting(
    store: LogStore, choose: Chooser = everything, *, is_applied: bool = True
) -> Iterator[str]:
    """Mark, and rewrite one run of what may be rewritten."""
    if is_applied:
        store.commit_by_id()
    yield from mark(store)
    numbers = [counts.number for counts in store.reclaiming.may_rewrite()]
    if numbers:
        yield from rewrite(store, choose(numbers))


def compact(store: LogStore, choose: Chooser = everything) -> None:
    """Do it at once."""
    for _ in compacting(store, choose):
        pass
