"""Waiting for a cluster: until nothing is under way, it stands still, or time is up."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.cli.serving import cluster_asking
from millstream.cli.serving.cluster_asking import ask_cluster, settled
from millstream.errors import UnavailableError
from support.cluster_double import ClusterDouble, bucket_shown, node_shown

PLAN = {
    "id": 7, "kind": "rebalance", "by": "", "started_ms": 0, "is_cancelled": False,
    "partitions": 64, "done": 12, "index_parts": 64, "index_done": 64, "copied": 45,
    "total": 100, "unknown": 0, "left_s": 80, "stalled": None,
}  # fmt: skip


class FalseHttp:
    """Answers one status after the other; the last one for ever."""

    def __init__(self, *states: Any) -> None:
        self.states = list(states)
        self.asked: list[tuple[str, str, Any]] = []

    def request(self, method: str, path: str, content: Any = None, **_: Any) -> dict[str, Any]:
        self.asked.append((method, path, content))
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(state, Exception):
            raise state
        return ClusterDouble().shown | state


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_asking, "POLL_S", 0.0)


def test_a_wait_ends_when_nothing_is_under_way(capsys: pytest.CaptureFixture[str]) -> None:
    http = FalseHttp(
        {"plan": PLAN},
        UnavailableError("no quorum", code="no_quorum"),
        {"nodes": [node_shown("n1", state="joining")]},
        {"nodes": [node_shown("n1", state="leaving")]},
        {"buckets": [bucket_shown("orders", served=3)]},
        {"buckets": [bucket_shown("orders", whole=3)]},
        {"buckets": [bucket_shown("orders", state="dropping")]},
        {"notes": ["the end"]},
    )
    assert settled(http)["notes"] == ["the end"]  # type: ignore[arg-type]
    told = capsys.readouterr().err.splitlines()
    assert told == [
        "rebalance 7: 12 of 64 partitions, 45 % copied, 80 s left",
        "no quorum",
        "n1 is joining",
        "n1 is leaving",
        "bucket orders: 3 of 16 partitions are served",
        "bucket orders: 3 of 16 have all copies",
        "bucket orders is dropping",
    ]


def test_a_wait_is_bounded_and_ends_with_what_is_watched() -> None:
    http = FalseHttp({"plan": PLAN})
    with pytest.raises(UnavailableError, match="12 of 64") as caught:
        settled(http, timeout_s=0)  # type: ignore[arg-type]
    assert caught.value.code == "timeout"

    def ended() -> None:
        raise UnavailableError("a node has ended")

    with pytest.raises(UnavailableError, match="has ended"):
        settled(http, watch=ended)  # type: ignore[arg-type]


def test_what_stands_still_is_not_waited_for() -> None:
    stalled = [{"bucket": "orders", "partition": 3, "why": "n2 does not answer"}]
    with pytest.raises(UnavailableError, match="partition 3: n2") as caught:
        settled(FalseHttp({"plan": PLAN | {"stalled": stalled}}))  # type: ignore[arg-type]
    assert caught.value.code == "stalled"


def test_a_request_names_the_longest_wait() -> None:
    http = FalseHttp({})
    ask_cluster(http, "reset", {})  # type: ignore[arg-type]
    (method, path, content) = http.asked[0]
    assert (method, path) == ("POST", "/_millstream/cluster/requests")
    assert content == {"op": "reset", "args": {}, "timeout_s": cluster_asking.ANSWER_S}
