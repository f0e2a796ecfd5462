"""Hypothesis against the whole view engine: every query equals a recomputation from the documents.

The engine is `simulated_views.SimulatedViews`: real maps, index, trees and queries over a store in
memory; documents change, are deleted and forgotten, sources fail over, partitions come and go, the
store is killed or full, and snapshots are read long after they were opened.

`support.machines` runs the examples (`make soak-views` runs others).
"""

from __future__ import annotations

from functools import partial

import msgspec
import pytest
from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from millstream.errors import MillstreamError, UsageError
from millstream.trees.core.reader import TreeReader
from millstream.views.aio.indexing.index_mapping import IndexMapper
from millstream.views.aio.serving import answering
from millstream.views.core.index import commits, index, rollback
from millstream.views.core.query import executor
from millstream.views.core.query.parameters import MISSING, Query
from millstream.views.core.reduce.reductions import ViewReducer
from support.machines import run_examples, run_rounds
from support.views.simulated_views import FOLDS, KEY_VALUES, KEYS, VIEWS, SimulatedViews

EXAMPLES_A_ROUND = 25
EXAMPLES_FOR_A_PLANT = 400
STEPS = 40
HELD_MAX = 4

P = st.integers(0, 2)
N = st.integers(0, 9)
VIEW = st.sampled_from(VIEWS)
ASKED = st.sampled_from((None, None, 0b1, 0b10, 0b101))
STATES = st.sampled_from(("active", "active", "passive", "cleanup"))
KEY = st.sampled_from((MISSING, MISSING, *KEY_VALUES))
FLAG = st.booleans()


@st.composite
def queries(draw, view):
    """Any query of that view which is not refused."""
    how = draw(st.integers(0, 3))
    options = {
        "descending": draw(FLAG),
        "skip": draw(st.sampled_from((0, 0, 1, 5))),
        "limit": draw(st.sampled_from((None, None, 0, 2, 9))),
    }
    if view not in FOLDS or draw(FLAG):
        options["reduce"] = False if view in FOLDS else None
    elif draw(FLAG):
        options["group_level"] = draw(st.integers(0, 3))
    else:
        options["group"] = True if how == 1 else draw(FLAG)
    is_reduced = view in FOLDS and options.get("reduce") is None
    if how == 1 and (not is_reduced or options.get("group")):
        return Query(
            keys=tuple(draw(st.lists(st.sampled_from(KEY_VALUES), max_size=3))), **options
        )
    if how == 2:
        return Query(key=draw(st.sampled_from(KEY_VALUES)), **options)
    query = Query(
        startkey=draw(KEY), endkey=draw(KEY), inclusive_end=draw(FLAG),
        startkey_docid=draw(st.sampled_from((None, None, "p0-3"))),
        endkey_docid=draw(st.sampled_from((None, None, "p1-2"))), **options,
    )  # fmt: skip
    return query if _is_in_order(query, view in FOLDS) else Query(**options)


def _is_in_order(query, has_reduce):
    try:
        query.check(has_reduce)
    except UsageError:
        return False
    return True


ASKS = VIEW.flatmap(lambda view: st.tuples(st.just(view), queries(view)))


class ViewsMachine(RuleBasedStateMachine):
    example_count = 0
    engine: SimulatedViews | None = None

    @initialize(number=st.integers(0, 2**32 - 1), writes=st.integers(0, 9), is_loaded=FLAG)
    def begin(self, number, writes, is_loaded):
        ViewsMachine.example_count += 1
        self.engine = SimulatedViews(number)
        for _ in range(writes):
            self._write_some(20)
        if is_loaded:
            self.engine.first_build(0)

    def _write_some(self, most):
        engine = self.engine
        for _ in range(engine.rng.randint(1, most)):
            rng = engine.rng
            engine.write(rng.randrange(3), rng.randrange(KEYS), is_put=rng.random() < 0.8)

    # -- sources

    @rule(p=P, key=st.integers(0, KEYS - 1), is_put=FLAG)
    def write(self, p, key, is_put):
        self.engine.write(p, key, is_put=is_put)

    @rule(most=st.integers(2, 20))
    def burst(self, most):
        self._write_some(most)

    @rule(p=P, back=N)
    def fail_over(self, p, back):
        self.engine.fail_over(p, back)

    @rule(p=P, back=N)
    def purge(self, p, back):
        self.engine.purge(p, back)

    # -- the index

    @rule(n=st.integers(0, 1), steps=st.sampled_from(("plan", "read", "commit", "", "", "")))
    def work(self, n, steps):
        every = (steps,) if steps else ("plan", "read", "commit")
        self._attempt(partial(self.engine.work, n, every))

    @rule(n=st.integers(0, 1), p=P, back=N, after=st.integers(1, 2))
    def work_while_a_source_fails_over(self, n, p, back, after):
        every = ("plan", "read", "commit")
        self._attempt(partial(self.engine.work, n, every[:after]))
        self.engine.fail_over(p, back)
        self._attempt(partial(self.engine.work, n, every[after:]))

    @rule(n=st.integers(0, 1))
    def rebuild(self, n):
        self._attempt(partial(self.engine.rebuild, n))

    @rule(n=st.integers(0, 1))
    def take_over(self, n):
        self._attempt(partial(self.engine.take_over, n))

    @rule()
    def roll_back(self):
        self._attempt(self.engine.roll_back)

    @rule(p=P, state=STATES)
    def order(self, p, state):
        self._attempt(partial(self.engine.order, p, state))

    @rule(p=P, steps=st.integers(0, 2), nodes_max=st.integers(1, 4))
    def come_back(self, p, steps, nodes_max):
        """A partition goes, and is wanted again before it is clean."""
        self._attempt(partial(self.engine.order, p, "cleanup"))
        for _ in range(steps):
            self.clean(nodes_max)
        self._write_some(9)
        self._attempt(partial(self.engine.order, p, "active"))

    @rule(p=P)
    def lose_all(self, p):
        """No root is old enough."""
        self.engine.fail_over(p, 1000)
        self._attempt(self.engine.roll_back)

    @rule(nodes_max=st.integers(1, 4))
    def clean(self, nodes_max):
        engine = self.engine
        self._attempt(lambda: engine.index.clean_step(engine.now_ms, nodes_max))

    @rule(nodes_max=st.integers(1, 20))
    def compact(self, nodes_max):
        self._attempt(lambda: self.engine.index.compact_step(nodes_max))

    @rule()
    def first_build(self):
        self._attempt(partial(self.engine.first_build, 0))

    @rule()
    def catch_up(self):
        self._attempt(self.engine.catch_up)

    @rule()
    def open_again(self):
        self.engine.open_again()

    @rule(effects=st.integers(0, 4), is_full=FLAG)
    def arm(self, effects, is_full):
        self.engine.arm(effects, is_full=is_full)

    def _attempt(self, work):
        self.engine.now_ms += self.engine.rng.randint(0, 20)
        self.engine.attempt(work)

    # -- queries

    @rule(asks=st.lists(ASKS, min_size=1, max_size=5), asked=ASKED)
    def query(self, asks, asked):
        for ask in asks:
            self.engine.query(*ask, asked)

    @precondition(lambda self: len(self.engine.held) < HELD_MAX)
    @rule()
    def hold(self):
        self.engine.hold()

    @precondition(lambda self: self.engine.held)
    @rule(n=N, ask=ASKS)
    def query_held(self, n, ask):
        self.engine.query_held(n, *ask)

    @precondition(lambda self: len(self.engine.held) < HELD_MAX)
    @rule(most=st.integers(2, 20), turns=st.integers(1, 4), ask=ASKS)
    def commit_while_a_query_reads(self, most, turns, ask):
        self.engine.hold()
        for _ in range(turns):
            self._write_some(most)
            self._attempt(self.engine.catch_up)
        if self.engine.held:
            self.engine.query_held(-1, *ask)

    @invariant()
    def every_view_is_right(self):
        if self.engine is not None:
            self.engine.check()

    def teardown(self):
        if self.engine is not None:
            try:
                self.engine.finish()
            finally:
                self.engine.close()


@pytest.mark.timeout(0)
def test_every_query_equals_a_recomputation(record_property):
    run_rounds(ViewsMachine, STEPS, EXAMPLES_A_ROUND, record_property)


# -- mistakes, each of which must be found

PLANTS = {}


def plant(make):
    PLANTS[make.__name__] = make
    return make


@plant
def old_rows_of_a_changed_document_stay(patch):
    right = index.operations_of
    patch.setattr(
        index, "operations_of", lambda documents, trees, _: right(documents, trees, lambda _: {})
    )


@plant
def void_partitions_are_answered(patch):
    right = answering.wanted_partitions
    patch.setattr(answering, "wanted_partitions", lambda active, _, asked: right(active, 0, asked))


@plant
def refused_positions_are_not_seen(patch):
    patch.setattr(rollback, "refused_partitions", lambda header, judged: [])


@plant
def parts_are_published_unjudged(patch):
    patch.setattr(index, "why_left_out", lambda *_: None)


@plant
def a_rollback_keeps_the_newer_trees(patch):
    right = rollback.again

    def again(older, newest):
        header = right(older, newest)
        return msgspec.structs.replace(header, back=newest.back, trees=newest.trees)

    patch.setattr(rollback, "again", again)


@plant
def nodes_go_while_they_are_read(patch):
    patch.setattr(commits.Commits, "_oldest_needed", lambda self, kept, _: kept[-1].commit)


@plant
def documents_without_rows_are_not_told(patch):
    right = IndexMapper.map

    def told(self, changes):
        found = right(self, changes)
        return found._replace(documents=[each for each in found.documents if each.rows])

    patch.setattr(IndexMapper, "map", told)


@plant
def an_exclusive_end_is_answered(patch):
    right = executor._bound

    def bound(*args, is_within=True, **options):
        return right(*args, is_within=True, **options)

    patch.setattr(executor, "_bound", bound)


@plant
def reductions_count_every_partition(patch):
    right = TreeReader.reduce
    patch.setattr(TreeReader, "reduce", lambda self, low, high, _: right(self, low, high, None))


@plant
def a_partial_is_lost(patch):
    right = ViewReducer.rereduce

    def rereduce(self, groups):
        return right(self, [group[:-1] if len(group) > 3 else group for group in groups])

    patch.setattr(ViewReducer, "rereduce", rereduce)


@plant
def a_partition_that_comes_back_is_not_void(patch):
    right = index._with_states

    def with_states(header, wanted):
        return msgspec.structs.replace(right(header, wanted), void=header.void)

    patch.setattr(index, "_with_states", with_states)


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_mistake_is_found(name, monkeypatch):
    PLANTS[name](monkeypatch)
    with pytest.raises((AssertionError, MillstreamError)):
        run_examples(ViewsMachine, STEPS, EXAMPLES_FOR_A_PLANT, 0, (Phase.generate,))
