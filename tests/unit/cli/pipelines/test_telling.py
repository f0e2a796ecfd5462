"""What a run tells its node: seldom, at its end always, and never at the cost of the run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from millstream.cli.pipelines.telling import AGAIN_S, EVERY_S, NodeTeller
from millstream.errors import UnavailableError
from millstream.pipelines.runs import RunProgress, RunRecord

RECORD = RunRecord(
    name="lake-b", kind="lake", bucket="a/b", address="h:1", checkpoint="/c", pid=1,
    started=5, subject="/lake",
)  # fmt: skip


class HttpDouble:
    def __init__(self) -> None:
        self.opened = 0
        self.is_away = False
        self.told: list[tuple[str, str, dict[str, Any]]] = []

    def open(self) -> HttpDouble:
        self.opened += 1
        return self

    def request(self, method: str, path: str, body: bytes) -> dict[str, Any]:
        if self.is_away:
            raise UnavailableError("away")
        self.told.append((method, path, msgspec.json.decode(body)))
        return {}


@pytest.fixture
def http() -> HttpDouble:
    return HttpDouble()


@pytest.fixture
def clock() -> list[float]:
    return [100.0]


@pytest.fixture
def teller(http: HttpDouble, clock: list[float]) -> NodeTeller:
    return NodeTeller(RECORD, "host", http.open, lambda: clock[0])  # type: ignore[arg-type]


def test_it_is_told_at_once_then_seldom_and_at_the_end(
    teller: NodeTeller, http: HttpDouble, clock: list[float]
) -> None:
    teller(RunProgress(row_count=1))
    teller(RunProgress(row_count=2))
    clock[0] += EVERY_S
    teller(RunProgress(row_count=3))
    teller(RunProgress(row_count=4, is_over=True, error="full"))
    assert [content["row_count"] for _, _, content in http.told] == [1, 3, 4]
    method, path, content = http.told[-1]
    assert (method, path) == ("PUT", "/a%2Fb/_local/pipeline%3Alake-b%40host")
    wanted = {"name": "lake-b", "subject": "/lake", "started_s": 5, "error": "full"}
    assert wanted.items() <= content.items()
    assert http.opened == 1


def test_a_node_that_is_away_is_left_alone_for_a_while(
    teller: NodeTeller, http: HttpDouble, clock: list[float]
) -> None:
    http.is_away = True
    teller(RunProgress())
    http.is_away = False
    clock[0] += AGAIN_S - 1
    teller(RunProgress(row_count=1))
    assert http.told == []
    clock[0] += 1
    teller(RunProgress(row_count=2))
    assert [content["row_count"] for _, _, content in http.told] == [2]
    assert http.opened == 2
