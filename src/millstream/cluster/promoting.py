"""Runs a promotion over the nodes of a bucket: survey, promises, activation, publishing the map.

Each step asks all nodes concurrently, and each node for all its partitions in one request.
Completed steps remain valid if this process dies, and a second run continues from there: promises
only have to be larger, the active copies are surveyed again, and the map follows from them.

Invariants:
1. No promise is requested before enough copies have reported their standing.
2. A copy is activated only by standings reported with promises, in the branch of these promises.
3. Every wait is bounded: by the time limit of a request, and by `ROUNDS_MAX`.
4. A served partition that is requested on another node is handed over, in the same history.

Elsewhere: the decisions (`cluster.core`), requests (`cluster.pages`), what nodes do
(`kv.aio.copies`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from millstream.cluster.core.promotion import Answers, next_branch, without_node
from millstream.cluster.core.survey import (
    Outcome,
    Survey,
    Winner,
    choose,
    fences,
    idle_copies,
    map_after,
    sort_out,
)
from millstream.cluster.pages import Pages
from millstream.errors import (
    MillstreamError,
    RemoteProtocolError,
    UnavailableError,
    UsageError,
)
from millstream.model.bucket_map import (
    BucketMap,
    NodeAddress,
    bucket_map_from_json,
    bucket_map_to_json,
)
from millstream.model.standing import Standing, standing_from_json

__all__ = ["Promoter", "Report"]

ROUNDS_MAX: Final = 3
"""Rounds in one run, if another promotion interferes."""
HAND_OVERS_MAX: Final = 4
"""Number of partitions that one node takes over concurrently."""
WRITE_S: Final = 60.0
"""Longest wait for promises and activations of a node that has just answered: its disk may be
slow, and a promotion that gives up half way leaves no copy active."""
HAND_OVER_S: Final = 310.0
"""Longest wait for one of them; the node's own time limit is shorter."""
_FOLLOW: Final = {"state": "replica"}
_TAKE_OVER: Final = {"state": "active", "take_over": True}
_T = TypeVar("_T")
_OLD_MAP: Final = ("older_map", "other_map")
_NOBODY: Final[Mapping[str, str]] = {}
_NO_MAP: Final = ("bucket_not_found", "map_not_found")


class Report(NamedTuple):
    """Result of a run; `silent`: why a node took no part."""

    revision: int
    outcomes: list[Outcome]
    silent: Mapping[str, str]


class Promoter:
    """Promotions in one bucket.

    Args:
        uuid: of the bucket.
        open_pages: opens the pages of a node of the map.
        new_branch: returns a branch from the clock.
        pause: waits before a further round; called with its number.
    """

    def __init__(
        self,
        uuid: str,
        open_pages: Callable[[NodeAddress], Pages],
        *,
        new_branch: Callable[[], int],
        pause: Callable[[int], None],
    ) -> None:
        self._uuid = uuid
        self._open_pages = open_pages
        self._new_branch = new_branch
        self._pause = pause

    def run(
        self, bucket_map: BucketMap, wanted: Collection[int], to: str | None, *, is_forced: bool,
        drop: str | None = None,
    ) -> Report:  # fmt: skip
        """Promote the requested partitions that are not served, or not by `to`.

        `drop`: a lost node to be removed from the map once every partition is served.

        Raises:
            UsageError: as `without_node`; `node_answers`: the node to drop is not lost.
        """
        outcomes: dict[int, Outcome] = {}
        for number in range(ROUNDS_MAX):
            if number:
                self._pause(number)
            survey = self._survey(bucket_map)
            bucket_map = survey.bucket_map
            plan = sort_out(survey, wanted, to, is_forced=is_forced)
            done = self._promote(survey, plan.promotions, to, is_forced=is_forced)
            if to is not None:
                done += self._hand_over(survey, plan.hand_overs, to)
            outcomes |= {one.partition: one for one in (*plan.decided, *done)}
            wanted = [one.partition for one in done if one.what == "failed"]
            if not wanted:
                break
        away = {n: why for n, why in survey.silent.items() if n not in survey.without}
        revision, silent = self._publish(bucket_map, away, drop)
        return Report(revision, [outcomes[p] for p in sorted(outcomes)], silent)

    # -- the steps

    def _survey(self, bucket_map: BucketMap, away: Mapping[str, str] = _NOBODY) -> Survey:
        """Ask all reachable nodes for map and standings; repeat if one knows a newer map."""
        for _ in range(ROUNDS_MAX):
            asked = [node for node in bucket_map.nodes if node.name not in away]
            maps, no_map = self._each(asked, self._map_of)
            newest = max([bucket_map, *maps.values()], key=lambda one: one.key)
            if newest.nodes == bucket_map.nodes:
                bucket_map = newest
                break
            bucket_map = newest
        ours = [node for node in bucket_map.nodes if node.name in maps]
        count = len(bucket_map.rows)
        standings, unheard = self._each(ours, lambda node: self._standings_of(node, count))
        without = frozenset(name for name, error in no_map.items() if error.code in _NO_MAP)
        silent = dict(away) | {name: str(error) for name, error in (no_map | unheard).items()}
        return Survey(bucket_map, maps, standings, silent, without)

    def _map_of(self, node: NodeAddress) -> BucketMap:
        content = self._open_pages(node).ask("GET", "map")
        if content.get("uuid") != self._uuid:
            raise UnavailableError(f"node {node.name} has another bucket of that name")
        return bucket_map_from_json(content)

    def _standings_of(self, node: NodeAddress, count: int) -> list[Standing]:
        found = _standings(self._open_pages(node).ask("GET", "standings"), "standings")
        if [one.partition for one in found] != list(range(count)):
            raise RemoteProtocolError(
                f"node {node.name} does not report the position of each copy"
            )
        return found

    def _promote(
        self, survey: Survey, partitions: Collection[int], to: str | None, *, is_forced: bool
    ) -> list[Outcome]:
        if not partitions:
            return []
        every = [one for p in partitions for one in survey.answers(p).values()]
        branch = next_branch(every, self._new_branch())
        promised = self._promises(survey, partitions, branch)
        failed, winners = choose(survey, promised, to, is_forced=is_forced)
        active = self._activate(survey, winners, branch)
        return failed + [
            _outcome(survey, p, winner, branch, is_active=p in active)
            for p, winner in winners.items()
        ]

    def _promises(
        self, survey: Survey, partitions: Collection[int], branch: int
    ) -> Mapping[int, Answers]:
        rows = survey.bucket_map.rows
        asked = {
            name: [p for p in partitions if name in rows[p]] for name in survey.standings
        }  # fmt: skip

        def ask(node: NodeAddress) -> list[Standing]:
            content = {"branch": branch, "partitions": asked[node.name]}
            pages = self._open_pages(node)
            done = pages.ask("POST", "promises", content, timeout_s=WRITE_S)
            return _standings(done, "promised")

        answered, _ = self._each(_nodes(survey, [n for n in asked if asked[n]]), ask)
        promised: dict[int, dict[str, Standing]] = {p: {} for p in partitions}
        for name, every in answered.items():
            for one in every:
                promised[one.partition][name] = one
        return promised

    def _activate(self, survey: Survey, winners: Mapping[int, Winner], branch: int) -> set[int]:
        by_node: dict[str, list[dict[str, int]]] = defaultdict(list)
        for p, winner in winners.items():
            end = winner.standing.complete_end
            by_node[winner.name].append({"partition": p, "complete_end": end})

        def ask(node: NodeAddress) -> list[Standing]:
            content = {"branch": branch, "partitions": by_node[node.name]}
            pages = self._open_pages(node)
            done = pages.ask("POST", "activations", content, timeout_s=WRITE_S)
            return _standings(done, "active")

        answered, _ = self._each(_nodes(survey, by_node), ask)
        return {one.partition for every in answered.values() for one in every}

    def _hand_over(self, survey: Survey, partitions: Collection[int], to: str) -> list[Outcome]:
        """Let a node take partitions over from the nodes that serve them, a few at a time."""
        pages = self._open_pages(survey.bucket_map.node(to))

        def ask(p: int) -> Outcome:
            was, at = survey.bucket_map.rows[p][0], survey.serving(p)
            try:
                pages.ask("PUT", f"partitions/{p}", _TAKE_OVER, timeout_s=HAND_OVER_S)
            except MillstreamError as error:
                return Outcome(p, "failed", was, at, reason=str(error))
            return Outcome(p, "handed_over", was, to, survey.standings[to][p].branch)

        with ThreadPoolExecutor(HAND_OVERS_MAX, "hand over") as threads:
            return list(threads.map(ask, partitions))

    # -- afterwards

    def _publish(
        self, bucket_map: BucketMap, away: Mapping[str, str], drop: str | None
    ) -> tuple[int, dict[str, str]]:
        """Send all nodes the map with the active copies, and fence copies that were unreachable.

        Nodes that did not answer in this run are not waited for: the copies of the others follow
        and acknowledge only once they have the map.
        """
        for number in range(ROUNDS_MAX):
            if number:
                self._pause(number)
            survey = self._survey(bucket_map, away)
            every = range(len(survey.bucket_map.rows))
            found = {p: survey.serving(p) for p in every}
            bucket_map = map_after(survey, {p: at for p, at in found.items() if at is not None})
            if drop is not None and bucket_map.has_node(drop):
                if drop not in survey.silent:
                    raise UsageError(f"{drop} answers: it is not lost", code="node_answers")
                bucket_map = without_node(bucket_map, drop)
            behind = [
                node
                for node in bucket_map.nodes
                if survey.maps.get(node.name) != bucket_map
                and (node.name in survey.maps or node.name in survey.without)
            ]
            _, refused = self._each(behind, partial(self._tell, bucket_map))
            if not any(error.code in _OLD_MAP for error in refused.values()):
                break
        told = self._survey(bucket_map, away) if survey.without else survey
        silent = {**told.silent, **{name: str(error) for name, error in refused.items()}}
        return bucket_map.revision, silent | self._fence(told)

    def _tell(self, bucket_map: BucketMap, node: NodeAddress) -> None:
        content = bucket_map_to_json(bucket_map) | {
            "uuid": self._uuid, "partitions": len(bucket_map.rows), "this": node.name,
        }  # fmt: skip
        self._open_pages(node).ask("PUT", "map", content)

    def _fence(self, survey: Survey) -> dict[str, str]:
        """Make sure that no copy follows or serves a history older than the current one."""
        wanted: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for name, branch, p in fences(survey):
            wanted[name][branch].append(p)

        idle = defaultdict[str, list[int]](list)
        for name, p in idle_copies(survey):
            idle[name].append(p)

        def ask(node: NodeAddress) -> None:
            pages = self._open_pages(node)
            for branch, partitions in wanted[node.name].items():
                pages.ask("POST", "promises", {"branch": branch, "partitions": partitions})
            for p in idle[node.name]:
                pages.ask("PUT", f"partitions/{p}", _FOLLOW)

        _, failed = self._each(_nodes(survey, {*wanted, *idle}), ask)
        return {name: str(error) for name, error in failed.items()}

    def _each(
        self, nodes: Collection[NodeAddress], ask: Callable[[NodeAddress], _T]
    ) -> tuple[dict[str, _T], dict[str, MillstreamError]]:
        """Ask nodes concurrently; return their answers, and the errors of the others."""
        answers: dict[str, _T] = {}
        errors: dict[str, MillstreamError] = {}
        if nodes:
            with ThreadPoolExecutor(len(nodes), "promotion") as threads:
                asked = {node.name: threads.submit(ask, node) for node in nodes}
                for name, future in asked.items():
                    try:
                        answers[name] = future.result()
                    except MillstreamError as error:
                        errors[name] = error
        return answers, errors


def _nodes(survey: Survey, names: Iterable[str]) -> list[NodeAddress]:
    return [survey.bucket_map.node(name) for name in names]


def _outcome(survey: Survey, p: int, winner: Winner, branch: int, *, is_active: bool) -> Outcome:
    was, risk, standing = survey.bucket_map.rows[p][0], winner.at_risk, winner.standing
    if is_active:
        return Outcome(p, "promoted", was, winner.name, branch, standing.complete_end, risk)
    reason = f"{winner.name} did not say that it is active: run this again"
    return Outcome(p, "failed", was, None, at_risk=risk, reason=reason)


def _standings(content: Mapping[str, Any], member: str) -> list[Standing]:
    try:
        return [standing_from_json(one) for one in content[member]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RemoteProtocolError(f"a node answers no standings: {error}") from error
