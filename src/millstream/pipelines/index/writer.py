"""The cycle of a pipeline that keeps an index: where it stands, read, map, commit, again.

    with IndexWriter(spec_of(...), run_tasks) as writer:
        writer.take_over()
        while writer.cycle() is not None: ...       # None: there is nothing new

Invariants:
1. What is read starts at the header's position; nothing that this process remembers is needed to
   go on after a kill, and what it remembers (leases) is checked against the header each time.
2. A part counts as whole only if its lease is still held when everything was read.
   Partitions that nobody serves at present wait; the others go on.
3. An index has one writer: whoever took over later is not disturbed, this one ends
   (`index_fenced`).
4. Tasks, and who renews leases, are told the nodes that are known by then: all those that were
   given may be replaced.
5. What tasks staged stays while others are at work, however long: the node hears of this writer.
   Should it be gone all the same, the tasks that it was of run once more, before the commit.

Elsewhere: the tasks (`mapping`), the rule of publishing (`views.core.index.publishing`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple, Self

import msgspec

from millstream.client.extensions import LeaseHold
from millstream.errors import ConditionError, MillstreamError, UsageError
from millstream.model.position import FailoverLog, Position, position_to_json
from millstream.pipelines.change_stream.control import LeaseKeeper, NodeControl
from millstream.pipelines.index.mapping import Failures, MapSpec, TaskDone
from millstream.pipelines.index.nodes import hosts_of
from millstream.pipelines.index.planning import (
    Held,
    PartPlan,
    complete_of,
    is_past_pieces,
    plan_parts,
    wants_lease,
)
from millstream.pipelines.index.shard import IndexShard, IndexState
from millstream.views.core.index.header import MAP_ERRORS_KEPT_MAX, MapFailure
from millstream.views.core.index.indexer import Place, is_worth_building
from millstream.wire.cluster_map import ClusterMap

__all__ = [
    "KEEP_S", "ROWS_PER_COMMIT", "ROWS_PER_COMMIT_MAX", "Cycle", "IndexWriter", "RunTasks",
    "rows_per_commit",
]  # fmt: skip

ROWS_PER_COMMIT: Final = 20_000
"""Changes of one commit after the first: it is what queries wait for."""
ROWS_PER_COMMIT_MAX: Final = 240_000
"""Most rows of one commit. With repeated rows, and one more change of each partition, it stays
below the documents that a node takes in one commit."""
KEEP_S: Final = 20.0
"""How often the node is told, while tasks run, that their files are to stay. An index part is
handed over without this index if nothing is heard for `OUTSIDE_MS_MAX` of the cluster."""

RunTasks = Callable[[MapSpec, Sequence[Sequence[PartPlan]]], list[TaskDone]]
"""Runs tasks and returns what they did, in any order."""


def rows_per_commit(given: int | None) -> int:
    """Return how many changes a later commit may have.

    Raises:
        UsageError: `bad_rows_per_commit`.
    """
    if given is not None and not 0 < given <= ROWS_PER_COMMIT_MAX:
        raise UsageError(
            f"{given:,} changes in one commit: write 1 to {ROWS_PER_COMMIT_MAX:,}",
            code="bad_rows_per_commit",
        )
    return given or ROWS_PER_COMMIT


class Cycle(NamedTuple):
    """What one commit did."""

    state: IndexState
    changes: int
    parts: int
    is_first: bool


class IndexWriter:
    """Keeps one index; used within `with`.

    Args:
        spec: of the index; its fence and `is_first` are set here.
        run_tasks: how tasks are run: here, or on Spark.
        name: what this writer calls itself.
        task_count: tasks that a first build is divided into.
        rows_max: changes of one later commit.
    """

    def __init__(
        self,
        spec: MapSpec,
        run_tasks: RunTasks,
        *,
        name: str,
        task_count: int = 2,
        rows_max: int = ROWS_PER_COMMIT,
    ) -> None:
        self._spec = spec
        self._run_tasks = run_tasks
        self._name = name
        self._task_count = task_count
        self._rows_max = rows_max
        self._given_hosts = spec.source.hosts
        self._shard = IndexShard(spec.address)
        self._control = NodeControl(spec.source)
        self._keeper = LeaseKeeper(spec.source, self._leases)
        self._held: dict[int, Held] = {}
        self._logs: dict[int, tuple[int, FailoverLog]] = {}
        self._uuids: dict[int, int] = {}
        """The uuid of each partition's newest history, as seen in the last cycle."""
        self._highs: dict[int, int] = {}
        self._was_built_in_vain = False
        """A build was not taken: changes are brought in one by one."""
        self.state: IndexState | None = None
        """The last reported state."""
        self.is_waiting = False
        """There is more than the last cycle found to commit, which cannot be read now."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hold nothing more."""
        self._keeper.stop()
        self._control.close()

    def take_over(self) -> IndexState:
        """Become the writer of the index.

        Raises:
            ConditionError: `not_spark_engine`; `other_index`: the design document has changed.
        """
        self.state = self._shard.take_over(self._name)
        if self.state.signature != self._spec.signature:
            raise ConditionError(
                "the design document was changed: start the pipeline again", code="other_index"
            )
        self._spec = msgspec.structs.replace(self._spec, fence=self.state.fence)
        return self.state

    def is_behind(self) -> bool:
        """Return whether the source has what the index lacks, as far as it was told last."""
        assert self.state is not None
        where = self.state.where
        return any(
            position.high_seqno > where[p].seqno or position.uuid != self._uuids.get(p)
            for p, position in self._control.positions_now(where).items()
        )

    def was_made_anew(self) -> bool:
        """Return whether this index was recreated, with its fencing numbers."""
        return self._shard.state().fence < self._spec.fence

    @property
    def cluster_map(self) -> ClusterMap:
        """The newest known map of the bucket."""
        return self._control.cluster_map

    def lag(self) -> dict[int, int]:
        """Return how many seqnos the index lacked of each partition when the last cycle began."""
        assert self.state is not None
        where = self.state.where
        return {p: max(0, high - where[p].seqno) for p, high in self._highs.items() if p in where}

    def cycle(self, *, is_build: bool = False) -> Cycle | None:
        """Make one commit; None where there is nothing to commit.

        Args:
            is_build: read everything, whatever is there.

        Raises:
            ConditionError: `index_fenced`.
            UnavailableError: node or executors cannot be reached; try again.
        """
        state = self.state = self._shard.judge(self._spec.fence)
        highs = self._look(state.where)
        self._follow_nodes()
        is_first = is_build or self._is_to_be_built(state, highs)
        where = dict.fromkeys(state.where, Position()) if is_first else state.where
        self._hold(where, highs)
        held = {p: held for p, held in self._held.items() if p in highs}
        plans = plan_parts(where, held, None if is_first else self._rows_max)
        if not plans:
            self.is_waiting = any(
                p not in highs or complete_of(here) < highs[p] for p, here in where.items()
            )
            return None
        spec = msgspec.structs.replace(self._spec, is_first=is_first)
        tasks = divided(plans, self._task_count)
        with self._at_work():
            done = self._run_tasks(spec, tasks)
            try:
                state = self._commit(spec, plans, done, state.trees)
            except ConditionError as error:
                if error.code != "run_missing":
                    raise
                done = self._again(spec, tasks, done)
                state = self._commit(spec, plans, done, state.trees)
        if is_first:
            self._was_built_in_vain = not state.published
        self._after(plans, state)
        self.state = state
        return Cycle(state, sum(each.changes for each in done), len(state.published), is_first)

    # -- leases

    def _leases(self) -> Mapping[int, Sequence[int]]:
        found: dict[int, list[int]] = {}
        for partition, held in dict(self._held).items():
            found.setdefault(held.lease.lease_id, []).append(partition)
        return found

    def _look(self, partitions: Collection[int]) -> Mapping[int, int]:
        """Return the newest seqno of each partition that can be read now."""
        found = self._control.positions_now(partitions)
        self._uuids = {p: position.uuid for p, position in found.items()}
        self._highs = {p: position.high_seqno for p, position in found.items()}
        return self._highs

    def _follow_nodes(self) -> None:
        """Pass the current nodes to the tasks and to the keeper of leases."""
        hosts = hosts_of(self._given_hosts, self._control.cluster_map)
        if hosts != self._spec.source.hosts:
            source = replace(self._spec.source, hosts=hosts)
            self._spec = msgspec.structs.replace(self._spec, source=source)
            self._keeper.options = source

    def _is_to_be_built(self, state: IndexState, highs: Mapping[int, int]) -> bool:
        """Whether everything is read from 0.

        It is new, or lacks far more than it has; or a lease was lost too far inside a snapshot to
        go on in pieces, which is so after a build in vain, too: there is no other way.
        """
        where = state.where
        if is_past_pieces(where, self._held, highs.keys()):
            return True
        if self._was_built_in_vain:
            return False
        if state.is_empty and not any(position.seqno for position in where.values()):
            return True
        places = {p: Place(position) for p, position in where.items()}
        return is_worth_building(places, highs)

    def _hold(self, where: Mapping[int, Position], highs: Mapping[int, int]) -> None:
        """Hold the ranges to be read. Release those that are not needed any more."""
        self._release([p for p in self._held if p not in where])
        wanted = [
            p
            for p, here in where.items()
            if p in highs and wants_lease(here, self._held.get(p), highs[p])
        ]
        self._release([p for p in wanted if p in self._held])
        if wanted:
            for p, lease in self._control.open_lease(wanted).items():
                self._held[p] = Held(lease, self._log_of(lease))

    def _log_of(self, lease: LeaseHold) -> FailoverLog:
        known = self._logs.get(lease.partition_id)
        if known is None or known[0] != lease.uuid:
            known = (lease.uuid, self._control.failover_log(lease.partition_id))
            self._logs[lease.partition_id] = known
        return known[1]

    def _release(self, partitions: Iterable[int]) -> None:
        by_lease: dict[int, list[int]] = {}
        for partition in partitions:
            held = self._held.pop(partition, None)
            if held is not None:
                by_lease.setdefault(held.lease.lease_id, []).append(partition)
        for lease_id, mine in by_lease.items():
            self._control.let_go(lease_id, mine)

    def _still_held(self, plans: Iterable[PartPlan]) -> set[int]:
        found: set[int] = set()
        by_lease: dict[int, list[int]] = {}
        for plan in plans:
            by_lease.setdefault(plan.lease_id, []).append(plan.partition)
        for lease_id, partitions in by_lease.items():
            for partition, lease in self._control.renew_lease(lease_id, partitions).items():
                if lease.uuid == self._held[partition].lease.uuid:
                    found.add(partition)
        return found

    # -- commits

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Within `with`, what tasks stage stays."""
        is_over = threading.Event()

        def keep() -> None:
            while not is_over.wait(KEEP_S):
                with suppress(MillstreamError):  # the commit says what is the matter
                    self._shard.keep(self._spec.fence)

        thread = threading.Thread(target=keep, name="millstream-staged", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _again(
        self, spec: MapSpec, tasks: Sequence[Sequence[PartPlan]], done: Sequence[TaskDone]
    ) -> list[TaskDone]:
        """Run the tasks again whose files are gone; return what all did."""
        staged = set(self._shard.keep(spec.fence))
        kept = [each for each in done if staged.issuperset(each.runs)]
        there = {partition for each in kept for partition in each.partitions}
        gone = [task for task in tasks if any(plan.partition not in there for plan in task)]
        return [*kept, *self._run_tasks(spec, gone)]

    def _commit(
        self, spec: MapSpec, plans: Sequence[PartPlan], done: Sequence[TaskDone], tree_count: int
    ) -> IndexState:
        parts = self._parts(plans, done)
        if spec.is_first:
            return self._shard.load(spec.fence, _load(parts, done, tree_count))
        names = [name for each in done for name in each.documents]
        return self._shard.publish(spec.fence, {"parts": parts, "documents": names})

    def _parts(
        self, plans: Sequence[PartPlan], done: Sequence[TaskDone]
    ) -> dict[str, dict[str, Any]]:
        lost = {partition for each in done for partition in each.lost}
        whole = self._still_held(plans) - lost
        # A part that is not whole is left out, and its failures are found again with it.
        failures = _bounded(
            {p: found for each in done for p, found in each.failures.items() if p in whole}
        )
        parts = {}
        for plan in plans:
            failed = failures.get(plan.partition, Failures())
            parts[str(plan.partition)] = {
                "start": position_to_json(plan.start),
                "end": position_to_json(plan.end),
                "is_whole": plan.partition in whole,
                "failures": failed.last,
                "failures_before": failed.before,
            }
        return parts

    def _after(self, plans: Sequence[PartPlan], state: IndexState) -> None:
        """Store how far was read under which lease; left out parts are read again."""
        published = set(state.published)
        over = []
        for plan in plans:
            if plan.partition not in published or plan.end.is_closed:
                over.append(plan.partition)
            else:
                held = self._held[plan.partition]
                self._held[plan.partition] = held._replace(read_to=plan.end)
        self._release(over)


def _bounded(failures: Mapping[int, Failures]) -> dict[int, Failures]:
    """Return the last failures of each tree over all partitions; the others are counted only."""
    left: dict[int, int] = {}
    bounded = {}
    for partition in sorted(failures, reverse=True):
        last: list[MapFailure] = []
        before = dict(failures[partition].before)
        for failure in reversed(failures[partition].last):
            tree = failure.tree
            if left.setdefault(tree, MAP_ERRORS_KEPT_MAX):
                left[tree] -= 1
                last.append(failure)
            else:
                before[tree] = before.get(tree, 0) + 1
        bounded[partition] = Failures(last[::-1], before)
    return bounded


def divided(plans: Sequence[PartPlan], task_count: int) -> list[list[PartPlan]]:
    """Return the plans in tasks of about equal size."""
    tasks: list[list[PartPlan]] = [[] for _ in range(task_count)]
    weights = [0] * task_count
    for plan in sorted(plans, key=lambda plan: plan.rows_max, reverse=True):
        lightest = weights.index(min(weights))
        tasks[lightest].append(plan)
        weights[lightest] += plan.rows_max
    return [task for task in tasks if task]


def _load(parts: Any, done: Sequence[TaskDone], tree_count: int) -> dict[str, Any]:
    trees: list[list[str]] = [[] for _ in range(tree_count)]
    for each in done:
        for names, more in zip(trees, each.trees, strict=False):
            names += more
    return {"parts": parts, "back": [name for each in done for name in each.back], "trees": trees}
