"""Elements of coordination by command, against a false client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Self

import pytest

from millstream.cli.coordination import coord_commands
from millstream.coordination.core.client.errors import LockedError, MissingError
from millstream.coordination.core.client.resumed_subscription import Change
from millstream.errors import AccessError, UsageError
from millstream.vsr.core.versions import Version


class FalseClient:
    """Elements by path; data that is an error is raised."""

    def __init__(self, elements: dict[str, Any]) -> None:
        self.elements = elements
        self.changes: list[Change] = []
        self.subscribed: tuple[Any, ...] = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def list(self, path: str) -> AsyncIterator[str]:
        parent = "" if path == "/" else path
        if parent and parent not in self.elements:
            raise MissingError("none", code="error_does_not_exists")
        for name in sorted(self.elements):
            head, _, last = name.rpartition("/")
            if head == parent:
                yield last

    async def execute_at(self, path: str, *_: bytes, is_change: bool) -> dict[bytes, Any]:
        assert not is_change
        if path not in self.elements:
            raise MissingError("there is no such element", code="error_does_not_exists")
        data = self.elements[path]
        if isinstance(data, Exception):
            raise data
        children = sum(name.startswith(f"{path}/") for name in self.elements)
        return {b"type": b"BINARY", b"version": b"0:1:2", b"ts": 5, b"nchildren": children,
                b"data": data}  # fmt: skip

    def subscribe(self, *words: Any, **options: Any) -> Any:
        self.subscribed = (*words, options)
        client = self

        class Changes:
            lsn = 4

            async def __aenter__(self) -> Self:
                return self

            async def __aexit__(self, *_: object) -> None: ...

            async def __aiter__(self) -> AsyncIterator[Change]:
                for change in client.changes:
                    yield change

        return Changes()


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FalseClient:
    made = FalseClient(
        {"/app": b"", "/app/a": b"1", "/app/a/x": b"\xff", "/app/a-b": [b"i", b"j"], "/apple": 7}
    )
    monkeypatch.setattr(coord_commands, "AsyncClient", lambda *_, **__: made)
    return made


@pytest.fixture
def run(call: Any) -> Any:
    return lambda *words: call("coord", *words, "--coord", "h:1")


def lines(outcome: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in outcome.out.splitlines()]


def test_an_element_is_one_line(run: Any, client: FalseClient) -> None:
    outcome = run("get", "/app/a")
    assert outcome.code == 0
    assert lines(outcome) == [
        {"path": "/app/a", "type": "BINARY", "version": "0:1:2", "ts": 5, "children": 1,
         "data": "1"}
    ]  # fmt: skip
    assert lines(run("get", "/app/a/x"))[0]["data_base64"] == "/w=="
    assert lines(run("get", "/app/a-b"))[0]["data"] == ["i", "j"]
    outcome = run("get", "/none")
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    ("prefix", "paths"),
    [
        ("/", ["/app", "/app/a", "/app/a/x", "/app/a-b", "/apple"]),
        ("/app", ["/app", "/app/a", "/app/a/x", "/app/a-b", "/apple"]),
        ("/app/", ["/app/a", "/app/a/x", "/app/a-b"]),
        ("/app/a/", ["/app/a/x"]),
        ("/none/a", []),
    ],
)
def test_a_prefix_is_all_that_begins_so(
    run: Any, client: FalseClient, prefix: str, paths: list[str]
) -> None:
    outcome = run("get", prefix, "--prefix")
    assert outcome.code == 0
    assert [one["path"] for one in lines(outcome)] == paths


@pytest.mark.parametrize("error", [AccessError("NOPERM", code="noperm"), LockedError("LOCKED")])
def test_what_may_not_be_read_is_told_and_the_rest_is_read(
    run: Any, client: FalseClient, error: Exception
) -> None:
    client.elements["/app/a"] = error
    outcome = run("get", "/app/", "--prefix")
    assert outcome.code == 1
    found = lines(outcome)
    assert [one["path"] for one in found] == ["/app/a", "/app/a-b"]
    assert found[0]["error"] == str(error)


def test_a_path_without_a_slash_is_used_wrongly(run: Any, client: FalseClient) -> None:
    assert run("get", "app", "--prefix").code == 2


def test_changes_are_lines_behind_the_one_that_says_where_the_watch_began(
    run: Any, client: FalseClient
) -> None:
    version = Version(0, 1, 9)
    client.changes = [
        Change(9, version, "put", "/app/a", "", "BINARY", 5, "c", b"\xff", 0, 1),
        Change(10, version, "move", "/app/a", "/app/b", "BINARY", 5, "c", None, 1, 2),
    ]
    outcome = run("watch", "/app", "--data", "--scope", "children", "--after", "4")
    assert outcome.code == 0
    start, put, move = lines(outcome)
    assert start == {"op": "start", "lsn": 4}
    assert (put["op"], put["data_base64"], put["version"]) == ("put", "/w==", "0:1:9")
    assert (move["to"], move["part"], move["parts"]) == ("/app/b", 1, 2)
    assert client.subscribed == ("/app", "CHILDREN", {"with_data": True, "after": 4})


def test_a_watch_goes_on_after_a_version_or_an_lsn() -> None:
    assert coord_commands._position("42") == 42
    assert coord_commands._position("458752:0:34") == Version(458752, 0, 34)
    for text in ("-1", "x9", "1:2", ""):
        with pytest.raises(UsageError, match="neither a version"):
            coord_commands._position(text)
