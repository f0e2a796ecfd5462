"""How the engines of a machine become one cluster, as their pages see it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.access.users import NODE_USER
from millstream.errors import ConditionError, UnavailableError
from millstream.node import forming
from millstream.node.forming import form, http_of
from millstream.node.settings import Address, BucketSpec, Settings


@dataclasses.dataclass
class Cluster:
    buckets: dict[str, int] = dataclasses.field(default_factory=dict)
    nodes: list[Engine] = dataclasses.field(default_factory=list)
    asked: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)
    unserved: Iterator[int] = dataclasses.field(default_factory=lambda: iter(()))

    def status(self) -> dict[str, Any]:
        away = next(self.unserved, 0)
        return {
            "nodes": [node.shown() for node in self.nodes],
            "buckets": [
                {"name": name, "partitions": count, "served": max(0, count - away)}
                for name, count in self.buckets.items()
            ],
        }


@dataclasses.dataclass
class Engine:
    """Stands for the HTTP port of an engine."""

    name: str
    cluster: Cluster
    is_member: bool = False
    copies: int = 0
    state: str = "in"

    @property
    def address(self) -> str:
        return f"{self.name}:1"

    def shown(self) -> dict[str, Any]:
        has = self.copies
        same: dict[str, Any] = {"id": self.name, "name": self.name, "state": self.state}
        same["ports"] = {"http": 1}
        return {**same, "is_admitted": True, "active": has, "replica": 0}

    def request(self, method: str, path: str, content: Any = None) -> dict[str, Any]:
        page = path.removeprefix("/_millstream/")
        if (method, page) == ("GET", "cluster"):
            if not self.is_member:
                raise ConditionError("it is in no cluster", code="not_managed")
            return self.cluster.status()
        if (method, page) == ("GET", "node"):
            return {"uuid": self.name}
        self.cluster.asked.append((self.name, page, content))
        if page in ("cluster/init", "cluster/join"):
            self.is_member = True
            self.cluster.nodes.append(self)
        elif method == "PUT":
            self.cluster.buckets[page.removeprefix("buckets/")] = content["partitions"]
            for node in self.cluster.nodes:
                node.copies += 1
        return {}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forming, "POLL_S", 0.0)


def engines(count: int, **fields: Any) -> tuple[Cluster, list[Any]]:
    cluster = Cluster(**fields)
    return cluster, [Engine(f"e{number}", cluster) for number in range(1, count + 1)]


ZONES = ("e1", "cluster/requests", {"op": "settings", "args": {"auto_failover_zones": True}})
JOIN = {"address": "e1:1", "roles": ["data", "index"]}


def test_new_engines_are_one_cluster_with_a_bucket_on_all_and_one_vote() -> None:
    cluster, made = engines(3)
    form(made, Settings(engines=3))
    assert cluster.asked == [
        ("e1", "cluster/init", {}),
        ("e2", "cluster/join", JOIN),
        ("e3", "cluster/join", JOIN),
        ZONES,
        ("e1", "buckets/default", {"partitions": 64, "replicas": 0}),
    ]
    cluster.asked.clear()
    form(made, Settings(engines=3))
    assert cluster.asked == []


def test_buckets_that_must_exist_are_made_if_they_are_missing() -> None:
    cluster, made = engines(2)
    specs = (BucketSpec("orders", 8), BucketSpec("a/b"))
    form(made, Settings(engines=2, buckets=specs))
    assert cluster.buckets == {"orders": 8, "a%2Fb": 64}


def test_a_further_engine_joins_and_gets_its_share() -> None:
    cluster, made = engines(3, buckets={"default": 64})
    for one in made[:2]:
        one.is_member, one.copies = True, 32
        cluster.nodes.append(one)
    form(made, Settings(engines=3))
    rebalance = ("e1", "cluster/requests", {"op": "rebalance", "args": {}})
    assert cluster.asked == [("e3", "cluster/join", JOIN), ZONES, rebalance]


def test_an_engine_that_leaves_or_is_out_gets_nothing(caplog: pytest.LogCaptureFixture) -> None:
    cluster, made = engines(2, buckets={"default": 64})
    form(made, Settings(engines=2))
    cluster.asked.clear()
    made[0].copies = 64
    for state in ("leaving", "out"):
        made[1].state = state
        assert "was removed" not in caplog.text
        form(made, Settings(engines=2))
        assert cluster.asked == []
    assert "e2 at port 1 was removed" in caplog.text


def test_engines_join_another_cluster_if_that_is_asked_for_and_make_no_bucket() -> None:
    cluster, made = engines(2)
    form(made, Settings(engines=2, join=Address("other", 5984)))
    assert cluster.asked == [
        ("e1", "cluster/join", {"address": "other:5984"}),
        ("e2", "cluster/join", JOIN),
        ZONES,
    ]


def test_they_are_formed_once_everything_is_served_or_that_takes_too_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, made = engines(2, buckets={"default": 64})
    cluster.unserved = iter([3, 2, 1])
    form(made, Settings(engines=2))
    assert next(cluster.unserved, None) is None
    monkeypatch.setattr(forming, "SERVED_S", 0.05)
    cluster.unserved = iter(lambda: 1, 0)
    form(made, Settings(engines=2))
    assert "bucket default: 63 of 64" in caplog.text


def test_an_engine_that_cannot_be_reached_ends_it() -> None:
    _, made = engines(2)

    def away(*_: Any) -> None:
        raise UnavailableError("nobody listens", code="unreachable")

    made[1].request = away
    with pytest.raises(UnavailableError, match="nobody listens"):
        form(made, Settings(engines=2))


def test_engines_are_asked_as_nodes_ask_each_other() -> None:
    http = http_of(Settings(advertise="db1", cluster_secret="secret"), "0.0.0.0:77")
    assert http.address == "db1:77"
    assert NODE_USER == "@node"
    assert http._headers["Authorization"] == "Basic QG5vZGU6c2VjcmV0"
    assert "Authorization" not in http_of(Settings(), "127.0.0.1:77")._headers
