"""What is printed of a cluster: numbers, and what is not known as `?`."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.cli.serving.cluster_output import left_of, moves_text, show_status, unserved_of
from support.cluster_double import ClusterDouble, bucket_shown, node_shown

MOVES = {"partitions": 1, "copies": 1, "active": 1, "index": 0, "fewer": 1, "one_zone": 0}
SIZED = MOVES | {"bytes": 2_254_857_830}


def test_moves_are_one_line() -> None:
    assert moves_text({"moves": MOVES}) == (
        "1 partition: 1 copy to build (of unknown size), 1 active copy moves, 0 index parts "
        "move; 1 partition with fewer copies than now"
    )
    assert "1 copy to build (2.1 GiB), 1 active" in moves_text({"moves": SIZED})
    assert "0 copies to build, 1 active" in moves_text({"moves": SIZED | {"copies": 0}})
    assert "status" in moves_text({"changed": True})  # what would be moved is not known


def shown(capsys: pytest.CaptureFixture[str], **others: Any) -> list[str]:
    show_status(ClusterDouble().shown | others)
    return capsys.readouterr().out.splitlines()


def test_what_is_not_known_is_a_question_mark(capsys: pytest.CaptureFixture[str]) -> None:
    silent = node_shown("n1", answers=False, active=None, replica=None, index=None)
    lines = shown(capsys, nodes=[silent], coordination=None, orchestrator=None)
    assert lines[1] == "orchestrator none  coordination ?"
    assert ["n1", "data,index", "in", "?", "?", "?", "?"] in [line.split() for line in lines]


def test_a_node_that_is_not_admitted_yet_waits(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [node_shown("n1", is_admitted=False), node_shown("n2", roles=["coord"])]
    words = [line.split() for line in shown(capsys, nodes=nodes)]
    assert ["n1", "data,index", "in", "8", "8", "8", "waits"] in words
    assert ["n2", "coord", "in", "8", "8", "8", "ok"] in words


def test_partitions_that_are_not_served_or_not_known_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    buckets = [
        bucket_shown("b", unserved=[1], unknown=[2, 3]),
        bucket_shown("c", state="dropping"),
    ]
    found = ClusterDouble().shown | {"buckets": buckets}
    assert unserved_of(found) == "3 partitions of b"
    lines = shown(capsys, buckets=buckets)
    assert any("1 not served, 2 not known" in line for line in lines)
    assert "bucket c  dropping" in lines
    assert left_of(found) == "bucket c is dropping"
    assert left_of(ClusterDouble().shown) == ""


def test_copies_for_which_there_are_too_few_nodes_are_not_waited_for() -> None:
    found = ClusterDouble().shown
    count = len(found["nodes"])
    lacking = bucket_shown("orders", whole=3, replicas=count - 1)
    assert left_of(found | {"buckets": [lacking]}) == "bucket orders: 3 of 16 have all copies"
    failed = node_shown("n1", state="failed")
    nodes = [failed, *found["nodes"][1:]]
    assert left_of(found | {"buckets": [lacking], "nodes": nodes}), "it may come back"
    nodes = [node_shown("n1", state="out"), *found["nodes"][1:]]
    assert left_of(found | {"buckets": [lacking], "nodes": nodes}) == ""
