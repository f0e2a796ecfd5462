"""A cluster as pages and commands see it: requests are carried out on a small state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millstream.errors import ConditionError

NODES = ("n1", "n2")


def node_shown(name: str, **others: Any) -> dict[str, Any]:
    """Return a healthy node of a status."""
    return {
        "id": f"{name}{'0' * 30}", "name": name, "host": "127.0.0.1", "ports": {"http": 1},
        "roles": ["data", "index", "coord"], "zone": "", "state": "in", "by": "", "leaves": False,
        "since_ms": 0, "version": "1", "has_session": True, "answers": True, "is_admitted": True,
        "has_space": True, "active": 8, "replica": 8, "index": 8, "note": "",
    } | others  # fmt: skip


def bucket_shown(name: str, uuid: str = "u1", **others: Any) -> dict[str, Any]:
    """Return a bucket of a status that is served with all copies."""
    return {
        "uuid": uuid, "name": name, "state": "open", "partitions": 16, "replicas": 1,
        "index_replicas": 0, "settings": {}, "generation": 2, "revision": 41, "served": 16,
        "unserved": [], "unknown": [], "whole": 16, "moving": 0, "indexed": 16,
        "indexed_by": {},
    } | others  # fmt: skip


class ClusterDouble:
    """A `ClusterApi`."""

    def __init__(self, *, is_managed: bool = True) -> None:
        self.is_managed = is_managed
        self.has_nothing = True
        self.shown: dict[str, Any] = {
            "cluster": {"uuid": "5c1e" + "0" * 28, "name": "flights", "generation": 2},
            "orchestrator": {"node": f"n1{'0' * 30}", "name": "n1", "token": "3:1:884"},
            "coordination": {"members": list(NODES), "may_fail": 0},
            "nodes": [node_shown(name) for name in NODES],
            "buckets": [bucket_shown("orders")],
            "plan": None,
            "failovers": {"count": 0, "max": 1, "last": []},
            "settings": {"moves": 2},
            "notes": [],
        }
        self.asked: list[tuple[Any, ...]] = []
        self.answer: dict[str, Any] = {"changed": True}
        self.refusal: Exception | None = None
        self.on_request: Callable[[str, Mapping[str, Any]], None] = lambda _, __: None

    def _check(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def status(self) -> Mapping[str, Any]:
        self._check()
        return self.shown

    async def init(self, name: str, coordinators: int) -> Mapping[str, Any]:
        self._check()
        if self.is_managed and name != self.shown["cluster"]["name"]:
            raise ConditionError("a member of flights", code="other_cluster")
        self.asked.append(("init", name, coordinators))
        self.is_managed = True
        return {"cluster": self.shown["cluster"]["uuid"], "name": name, "node": "n1"}

    async def join(self, address: str, *, zone: str, roles: tuple[str, ...]) -> Mapping[str, Any]:
        self._check()
        self.asked.append(("join", address, zone, roles))
        self.is_managed = True
        found = {"cluster": self.shown["cluster"]["uuid"], "name": "flights", "node": "n2"}
        return {**found, "has_nothing": self.has_nothing}

    async def request(
        self, op: str, args: Mapping[str, Any], by: str, *, timeout_s: float
    ) -> Mapping[str, Any]:
        self._check()
        self.asked.append((op, dict(args), by))
        self.on_request(op, args)
        return self.answer

    async def recover(
        self, *, without: tuple[str, ...], from_nodes: bool, is_trial: bool
    ) -> Mapping[str, Any]:
        self._check()
        self.asked.append(("recover", without, from_nodes, is_trial))
        return {
            "cluster": self.shown["cluster"]["uuid"], "name": "flights", "generation": 3,
            "is_done": not is_trial,
            "nodes": [{"id": "1", "name": "n1", "address": "h:1", "is_given_up": "n1" in without}],
            "buckets": [{"name": "orders", "partitions": 16}],
            "may_be_lost": ["bucket orders: some"] if without else [],
        }  # fmt: skip

    async def orders(self, content: bytes) -> bytes:
        return content
