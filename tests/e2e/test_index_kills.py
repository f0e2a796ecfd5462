"""Processes of a node killed at random while documents change: views agree with the documents.

MILLSTREAM_KILLS sets how often (4), MILLSTREAM_SEED repeats a run.
"""

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.errors import MillstreamError
from support.http.http_calls import call
from support.node.node_process import NodeProcess
from support.node.waiting import until

KILLS = int(os.environ.get("MILLSTREAM_KILLS", "4"))
SEED = int(os.environ.get("MILLSTREAM_SEED") or random.randrange(2**32))
KEYS = [f"k{n}" for n in range(3000)]
DESIGN = {
    "views": {
        "sums": {"map": "function (doc) { emit(doc.kind, doc.n); }", "reduce": "_sum"},
        "all": {"map": "function (doc) { emit([doc.n, doc.kind], null); }", "reduce": "_count"},
    }
}
MakeNode = Callable[..., NodeProcess]


def of_family(node: NodeProcess, module: str) -> list[int]:
    """Return the processes of a node that run a module."""
    found = []
    for pid in node.pids():
        try:
            if module in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
        except OSError:  # it has just ended
            continue
    return found


class Writer:
    """Changes documents until it is told to stop, whatever becomes of the node."""

    def __init__(self, node: NodeProcess, chance: random.Random) -> None:
        self._node, self._chance = node, chance
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with millstream.connect(self._node.ready["kv"], bucket="default") as client:
                    self._write(client)
            except MillstreamError:
                self._stop.wait(0.05)

    def _write(self, client: Any) -> None:
        chance = self._chance
        while not self._stop.is_set():
            some = chance.sample(KEYS, 200)
            client.upsert_many(
                (
                    key,
                    json.dumps({"kind": chance.choice("abc"), "n": chance.randrange(99)}).encode(),
                )
                for key in some[20:]
            )
            gone = client.get_many(some[:20])
            for key in gone:
                client.remove(key)


def documents(node: NodeProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def is_read() -> bool:
        try:
            with millstream.connect(node.ready["kv"], bucket="default") as client:
                found[:] = [json.loads(each.value) for each in client.get_many(KEYS).values()]
        except MillstreamError:
            return False
        return True

    until(is_read)
    return found


def rows(node: NodeProcess, view: str) -> list[dict[str, Any]]:
    answers: list[Any] = []

    def is_answered() -> bool:
        status, answer = call(node.http, "GET", f"/default/_design/d/_view/{view}?group=true")
        answers.append((status, answer))
        return status != 503

    until(is_answered)
    status, answer = answers[-1]
    assert status == 200, answer
    found: list[dict[str, Any]] = answer["rows"]
    return found


def check(node: NodeProcess) -> None:
    """Nobody writes: the views are what the documents are."""
    found = documents(node)
    sums: Counter[str] = Counter()
    for document in found:
        sums[document["kind"]] += document["n"]
    counts = Counter((document["n"], document["kind"]) for document in found)
    where = f"seed {SEED}"
    assert {row["key"]: row["value"] for row in rows(node, "sums")} == dict(sums), where
    assert {tuple(row["key"]): row["value"] for row in rows(node, "all")} == dict(counts), where


@pytest.mark.slow
def test_views_agree_with_the_documents_after_any_kill(make_node: MakeNode) -> None:
    chance = random.Random(SEED)
    interval = str(chance.choice([20, 2000]))
    node = make_node("--bucket", "default:8", "--flush-interval", interval).start()
    status, answer = call(node.http, "PUT", "/default/_design/d", DESIGN)
    assert status == 201, answer
    for _ in range(KILLS):
        with Writer(node, chance):
            time.sleep(chance.uniform(0.1, 1))  # somewhere in the course of things
            what = chance.choice(["index", "engine", "both", "node", "stop", "compact"])
            if what in ("index", "both"):
                for pid in of_family(node, "node.processes.index_child"):
                    os.kill(pid, signal.SIGKILL)
            if what in ("engine", "both"):
                for pid in of_family(node, "node.engine_process"):
                    os.kill(pid, signal.SIGKILL)
            if what == "compact":
                call(node.http, "POST", "/default/_compact/d", {})
            if what == "node":
                node.kill()
                node.start()
            if what == "stop":
                assert node.stop() == 0
                node.start()
            time.sleep(chance.uniform(0, 0.5))  # the writer goes on meanwhile
        check(node)
    assert "Traceback" not in node.log()
    assert node.stop() == 0
