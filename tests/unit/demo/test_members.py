"""What is waited for of a cluster, over a false node; real nodes run in tests/e2e."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.demo import members
from millstream.demo.members import Members, wait_until
from millstream.errors import UnavailableError


def test_a_wait_that_is_over_says_what_for():
    with pytest.raises(UnavailableError, match="waited 0 s for: the moon"):
        wait_until(lambda: False, "the moon", 0.0)


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    monkeypatch.setattr(members, "SETTLED_S", 0.0)
    made = Members(tmp_path, "b:4")
    made.told: Any = {}
    monkeypatch.setattr(made, "status", lambda at: made.told)
    monkeypatch.setattr(members.wait_until, "__defaults__", (0.0,))
    return made


def status(**counts: int) -> dict[str, Any]:
    bucket = {"name": "b", "partitions": 4, "whole": 4, "served": 4, "indexed": 4} | counts
    return {"plan": None, "buckets": [bucket], "nodes": []}


@pytest.mark.parametrize("lacking", ["whole", "served", "indexed"])
def test_a_bucket_is_whole_with_all_copies_and_index_parts(nodes, lacking):
    nodes.told = status()
    nodes.until_whole("n1", "b")
    nodes.told = status(**{lacking: 3})
    with pytest.raises(UnavailableError):
        nodes.until_whole("n1", "b")
    nodes.told = {}
    with pytest.raises(UnavailableError, match="all its copies"):
        nodes.until_whole("n1", "b")


def test_partitions_are_served_without_a_node_once_it_has_none_active(nodes):
    nodes.told = status() | {"nodes": [{"name": "n2", "active": 1, "state": "failed"}]}
    with pytest.raises(UnavailableError, match="without n2"):
        nodes.until_served("n1", "b", "n2")
    nodes.told["nodes"][0]["active"] = 0
    nodes.until_served("n1", "b", "n2")
    with pytest.raises(UnavailableError, match="n2 is out"):
        nodes.until_out("n2", "n1")
    nodes.told["nodes"][0]["state"] = "out"
    nodes.until_out("n2", "n1")


def test_a_command_that_fails_tells_what_it_wrote(tmp_path):
    nodes = Members(tmp_path, "b:4")
    nodes._ready["n1"] = {"kv": "127.0.0.1:1"}
    with pytest.raises(UnavailableError, match="failed with code 2") as caught:
        nodes.command("n1", "no-such-command")
    assert caught.value.code == "command_failed"
