"""Coordination over HTTP, as the console asks: sessions, locks, watches, users."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from support.http.raw_http import RawHttp, request
from support.node.node_process import FREE, NodeProcess

COMMAND = "/_millstream/coordination/command"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    directory = tmp_path_factory.mktemp("coordination-http") / "node"
    options = ("--coord", FREE, "--peer", FREE, "--user", "ada:secret")
    with NodeProcess(directory, *options) as running:
        yield running


def basic(user: str) -> dict[str, str]:
    return {"Authorization": "Basic " + b64encode(user.encode()).decode()}


def say(node: NodeProcess, *words: str, session: str = "", user: str = "ada:secret") -> Any:
    """Return the status and the answer to a command."""
    headers = {"Content-Type": "application/json"} | (basic(user) if user else {})
    content = json.dumps({"words": words, "session": session}).encode()
    with RawHttp(node.address("http")) as http:
        answer = http.ask("POST", COMMAND, content, headers)
    return answer.status, answer.json


def test_a_session_keeps_its_lock_and_others_see_it(node: NodeProcess) -> None:
    done = (200, {"reply": "OK"})
    assert say(node, "CREATENAMESPACE", "/locks") == done
    assert say(node, "CREATE", "BINARY", "/locks/a", "text") == done
    assert say(node, "LOCK", "WRITE", "/locks/a", session="one") == done
    found = say(node, "LOCK", "INFO", "/locks/a", session="two")[1]["reply"]
    assert [one["mode"] for one in found["holders"]] == ["WRITE"]
    refused = say(node, "LOCK", "WRITE", "/locks/a", "NOWAIT", session="two")
    assert refused[1]["error"] == "locked"
    assert say(node, "LOCK", "RELEASE", "/locks/a", session="one") == done
    assert say(node, "GET", "/locks/a", session="two") == (200, {"reply": "text"})


def test_commands_about_the_node_are_answered_by_it(node: NodeProcess) -> None:
    status = say(node, "ADMIN", "STATUS")[1]["reply"]
    assert status["groups"]["1"]["is_quorum_ok"] is True


def test_who_asks_is_who_says_it(node: NodeProcess) -> None:
    assert say(node, "GET", "/a", user="")[0] == 401
    assert say(node, "GET", "/a", user="ada:wrong")[0] == 401
    assert "ada" in json.dumps(say(node, "ACL", "WHOAMI"))


def test_a_watch_tells_what_happens(node: NodeProcess) -> None:
    say(node, "CREATENAMESPACE", "/watched")
    path = "/_millstream/coordination/watch?path=/watched&scope=TREE"
    with RawHttp(node.address("http")) as http:
        http.send(request("GET", path, None, basic("ada:secret")))
        assert http.head()[0] == 200
        pieces = http.chunks()
        assert next(pieces).startswith(b": begins")
        assert say(node, "CREATE", "BINARY", "/watched/b", "new")[1] == {"reply": "OK"}
        event = next(piece for piece in pieces if piece.startswith(b"event: change"))
    change = json.loads(event.partition(b"data: ")[2])
    assert (change["op"], change["path"]) == ("create", "/watched/b")
