"""Nodes in memory with the pages that a promotion asks, true to what real ones answer.

A copy has a history of writes by seqno and follows nobody by itself. `calls` has every request; a
hook may run something in between, cut a request off before or after it is done, or hang a node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from millstream.errors import ConditionError, UnavailableError
from millstream.model.bucket_map import (
    BucketMap,
    NodeAddress,
    bucket_map_from_json,
    bucket_map_to_json,
)
from millstream.model.partitions import PartitionState
from millstream.model.standing import Standing, standing_to_json

ACTIVE, REPLICA, DEAD, ABSENT = (
    PartitionState[name] for name in ("ACTIVE", "REPLICA", "DEAD", "ABSENT")
)
UUID = "b" * 32
Hook = Callable[[int, str, str], None]
"""(number of the request, name of the node, page): raises to cut it off before it is done."""


def standing(p: int, end: int, **others: Any) -> Standing:
    made = Standing(p, REPLICA, 1, 1, end, end, 1, True, True)
    return made._replace(**others)


class FalseNode:
    def __init__(self, name: str, bucket_map: BucketMap | None, ends: list[int]) -> None:
        self.name = name
        self.map = bucket_map
        self.copies = [standing(p, end) for p, end in enumerate(ends)]
        self.is_up = True
        self.others: list[FalseNode] = []
        if bucket_map is not None:
            for p, row in enumerate(bucket_map.rows):
                if row[0] == name:
                    self.copies[p] = self.copies[p]._replace(state=ACTIVE)

    @property
    def states(self) -> list[str]:
        return [copy.state.name.lower() for copy in self.copies]

    def ask(self, method: str, page: str, content: Any) -> dict[str, Any]:
        if self.map is None and (method, page) != ("PUT", "map"):
            raise ConditionError("no bucket", code="bucket_not_found")
        kind, _, number = page.partition("/")
        if number:
            return self._put_partition(int(number), content)
        found: dict[str, Any] = getattr(self, f"_{method.lower()}_{kind}")(content)
        return found

    def _get_map(self, _: Any) -> dict[str, Any]:
        assert self.map is not None
        return {**bucket_map_to_json(self.map), "uuid": UUID, "this": self.name}

    def _put_map(self, content: Any) -> dict[str, Any]:
        new = bucket_map_from_json(content)
        assert content["this"] == self.name
        assert (content["uuid"], content["partitions"]) == (UUID, len(new.rows))
        if self.map is not None and new.revision < self.map.revision:
            raise ConditionError("older", code="older_map")
        if self.map is not None and new.revision == self.map.revision and new != self.map:
            raise ConditionError("other", code="other_map")
        if self.map is None:
            lost = {"last_branch": 0, "branch": 0, "branch_at_end": 0, "is_whole": False}
            self.copies = [
                standing(p, 0, state=ABSENT if row[0] == self.name else REPLICA, **lost)
                for p, row in enumerate(new.rows)
            ]
        self.map = new
        return {}

    def _get_standings(self, _: Any) -> dict[str, Any]:
        return {"standings": list(map(standing_to_json, self.copies))}

    def _shown(self, numbers: list[int]) -> list[dict[str, Any]]:
        return [standing_to_json(self.copies[p]) for p in numbers]

    def _post_promises(self, content: Any) -> dict[str, Any]:
        branch, done = content["branch"], []
        for p in content["partitions"]:
            copy = self.copies[p]
            if branch > copy.last_branch:
                state = REPLICA if copy.state is ACTIVE else copy.state
                self.copies[p] = copy._replace(state=state, last_branch=branch)
                done.append(p)
        return {"promised": self._shown(done)}

    def _post_activations(self, content: Any) -> dict[str, Any]:
        branch, done = content["branch"], []
        for p, end in ((one["partition"], one["complete_end"]) for one in content["partitions"]):
            copy = self.copies[p]
            is_promised = copy.branch < branch == copy.last_branch and copy.complete_end >= end
            if copy.state is not ACTIVE and is_promised:
                self.copies[p] = copy._replace(state=ACTIVE, branch=branch)
            copy = self.copies[p]
            if copy.state is ACTIVE and copy.branch == branch:
                done.append(p)
        return {"active": self._shown(done)}

    def _put_partition(self, p: int, content: Any) -> dict[str, Any]:
        """Follow, or take over from whoever is active and not ahead."""
        mine = self.copies[p]
        if content == {"state": "replica"}:
            self.copies[p] = mine._replace(state=REPLICA)
            return {}
        assert content == {"state": "active", "take_over": True}
        for other in self.others:
            copy = other.copies[p]
            if copy.state is ACTIVE and other.is_up and copy.last_branch >= mine.last_branch:
                other.copies[p] = copy._replace(state=DEAD)
                self.copies[p] = copy
                return {}
        raise UnavailableError("nobody hands it over", code="not_taken_over")


class FalseNodes:
    """The nodes of a bucket, of which each partition has copies on all; the first is active."""

    def __init__(
        self, rows: tuple[tuple[str | None, ...], ...], ends: dict[str, list[int]]
    ) -> None:
        addresses = tuple(NodeAddress(n, "h", 2 * i + 1, 2 * i + 2) for i, n in enumerate(ends))
        self.map = BucketMap(3, addresses, rows)
        self.nodes = {name: FalseNode(name, self.map, own) for name, own in ends.items()}
        for node in self.nodes.values():
            node.others = [other for other in self.nodes.values() if other is not node]
        self.calls: list[tuple[str, str]] = []
        self.before: Hook = lambda number, name, page: None
        self.after: Hook = lambda number, name, page: None
        self._lock = threading.Lock()

    def down(self, *names: str) -> None:
        for name in names:
            self.nodes[name].is_up = False

    def open_pages(self, address: NodeAddress) -> Any:
        return _FalsePages(self, address.name)

    def ask(self, name: str, method: str, page: str, content: Any) -> dict[str, Any]:
        with self._lock:
            number = len(self.calls)
            self.calls.append((name, f"{method} {page}"))
        self.before(number, name, page)
        if not self.nodes[name].is_up:
            raise UnavailableError(f"{name} does not answer", code="unreachable")
        with self._lock:
            answer = self.nodes[name].ask(method, page, content)
        self.after(number, name, page)
        return answer


class _FalsePages:
    def __init__(self, nodes: FalseNodes, name: str) -> None:
        self._nodes, self._name = nodes, name

    def ask(
        self, method: str, page: str, content: Any = None, *, timeout_s: float = 1
    ) -> dict[str, Any]:
        return self._nodes.ask(self._name, method, page, content)
