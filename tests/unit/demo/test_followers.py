"""Steps of the load, and who asks for views; Spark runs in tests/e2e."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest

from millstream.demo import followers
from millstream.demo.followers import Loader, ViewAsker, steps_of
from millstream.errors import UnavailableError
from support.node.waiting import until


def test_a_step_has_each_key_once_and_all_changes_in_order(monkeypatch):
    monkeypatch.setattr(followers, "STEP_MAX", 3)
    changes = [("a", 1), ("b", 1), ("a", 2), ("c", 1), ("d", 1), ("e", 1)]
    steps = [*steps_of(iter(changes))]
    assert steps == [changes[:2], changes[2:5], changes[5:]]


class FalseClient:
    """Refuses the first tries."""

    def __init__(self, refusals: int) -> None:
        self.refusals, self.steps = refusals, list[Any]()

    def apply_many(self, step: Any, *, durability: str) -> FalseClient:
        assert durability == "majority"
        self.steps.append(step)
        return self

    def raise_first(self) -> None:
        self.refusals -= 1
        if self.refusals >= 0:
            raise UnavailableError("away")


class Replay(list[Any]):
    def changes(self, start: int, stop: int) -> Any:
        return iter(self[start:stop])


def loaded(
    monkeypatch: pytest.MonkeyPatch, refusals: int
) -> tuple[FalseClient, Loader, list[str]]:
    client, errors = FalseClient(refusals), list[str]()

    @contextmanager
    def connect(*_: object, **__: object) -> Any:
        yield client

    monkeypatch.setattr(followers.millstream, "connect", connect)
    monkeypatch.setattr(followers, "_PAUSE_S", 0.0)
    replay: Any = Replay([("a", 1), ("a", 2)])
    loader = Loader("h:1", "b", replay, 0.0, lambda who, _: errors.append(who))
    with loader:
        until(lambda: loader.is_over)
    return client, loader, errors


def test_what_was_not_acknowledged_is_written_again_before_what_follows(monkeypatch):
    client, loader, errors = loaded(monkeypatch, 2)
    loader.check()
    assert client.steps == [[("a", 1)]] * 3 + [[("a", 2)]]
    assert (loader.written, errors) == (2, ["write", "write"])


def test_a_step_that_fails_for_too_long_ends_the_load(monkeypatch):
    monkeypatch.setattr(followers, "TRIES_S_MAX", -1.0)
    _, loader, _ = loaded(monkeypatch, 9)
    with pytest.raises(UnavailableError):
        loader.check()
    assert loader.written == 0


class FalseHttp:
    """A node that answers what it is told to."""

    address = "h:2"

    def __init__(self, say: Callable[[], int]) -> None:
        self.say = say

    def request(self, method: str, path: str) -> dict[str, Any]:
        assert path.endswith("?update=false")
        return {"rows": [{"value": self.say()}]}


def test_an_answer_without_what_was_shown_is_short_and_a_refusal_is_an_error(monkeypatch):
    monkeypatch.setattr(followers, "_PAUSE_S", 0.0)
    said, errors = [5, 9, UnavailableError("moves"), 8, 7, 9], list[str]()

    def say() -> int:
        one = said.pop(0) if said else 9
        if isinstance(one, UnavailableError):
            raise one
        return one

    node: Any = FalseHttp(say)
    path = "/b/_design/d/_view/v"
    asker = ViewAsker(lambda: [node], path, 1, lambda who, _: errors.append(who))
    with asker:
        until(lambda: asker.answers > 5)
    asker.check()
    assert asker.flights == asker.most == 9
    assert (asker.short, errors) == ({"h:2": 1}, ["view"])
