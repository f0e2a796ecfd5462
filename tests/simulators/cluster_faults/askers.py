"""Whoever asks nodes over HTTP: views, all documents, changes; an answer with 200 must be whole.

Invariants:
1. A refusal is right at any time while there are faults; it is counted.
2. Documents `p...` never change. They are in the index before faults begin, so an answer that
   takes the index as it is has all of them, too.

Elsewhere: what may be seen (`truth`).
"""

from __future__ import annotations

import json
import random
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any

from millstream.client.http import HttpClient
from millstream.errors import MillstreamError
from simulators.cluster_faults.truth import Client, Stop, Truth, repeated

__all__ = ["DESIGN", "STILL", "Asker", "ChangesReader", "number_of"]

STILL = 200
"""Documents that never change."""
DESIGN = {
    "views": {
        "still": {"map": "function (d) { if (d.still >= 0) emit(d.still, null) }"},
        "written": {"map": "function (d) { if (d.n) emit(d.k, d.n) }"},
    }
}
ANSWER_S = 10.0
PAUSE_S = (0.05, 0.4)
FEED_MS = 3_000
_VIEWS = "/default/_design/watched/_view"
Plant = Callable[[str, Any], Any]
"""Changes an answer, to see whether that is found."""


def number_of(document: Mapping[str, Any]) -> int:
    """Return the write that a document is of; 0: of none."""
    return int(document.get("n", 0))


class Asker(Client):
    """Asks one node after the other, one question after the other."""

    def __init__(
        self, nodes: Callable[[], Mapping[int, HttpClient]], truth: Truth, stop: Stop,
        seed: str, plant: Plant,
    ) -> None:  # fmt: skip
        super().__init__("asker", stop)
        self._nodes, self._truth, self._plant = nodes, truth, plant
        self._rng = random.Random(seed)
        self._questions = {
            "still, stale=ok": self._still,
            "written, update=true": self._written,
            "written, stale=ok": self._taken,
            "_all_docs": self._all,
            "_changes": self._changes,
        }

    def work(self) -> None:
        """Ask until all have to stop."""
        while not self._stop_all.event.wait(self._rng.uniform(*PAUSE_S)):
            nodes = self._nodes()
            if nodes:
                self.ask(self._rng.choice(sorted(nodes)), self._rng.choice([*self._questions]))

    def ask(self, node: int, question: str) -> bool:
        """Ask a node a question; False if it was refused, or is no member any more."""
        http = self._nodes().get(node)
        if http is None:
            self._stop_all.count(f"{question}: the node is gone")
            return False
        try:
            wrong = self._questions[question](http)
        except MillstreamError as error:
            self._stop_all.count(f"{question}: refused {error.code}")
            return False
        self._stop_all.count(f"{question}: answered")
        self._stop_all.tell(f"{question} at node {node}", wrong)
        return True

    def ask_all(self, node: int) -> list[str]:
        """Ask a node all questions; return which it refused."""
        return [question for question in self._questions if not self.ask(node, question)]

    def _get(self, http: HttpClient, path: str) -> Any:
        return self._plant(path, http.request("GET", path, timeout_s=ANSWER_S))

    def _still(self, http: HttpClient) -> list[str]:
        keys = [row["key"] for row in self._get(http, f"{_VIEWS}/still?stale=ok")["rows"]]
        return [] if keys == [*range(STILL)] else [f"{len(keys)} rows of {STILL}"]

    def _written(self, http: HttpClient) -> list[str]:
        floors = self._truth.floors()
        rows = self._get(http, f"{_VIEWS}/written")["rows"]
        wrong = repeated(row["id"] for row in rows)
        return wrong + self._truth.judge(floors, {row["id"]: row["value"] for row in rows})

    def _taken(self, http: HttpClient) -> list[str]:
        """The index as it is may be behind, but has no row that nobody wrote, and none twice."""
        rows = self._get(http, f"{_VIEWS}/written?stale=ok")["rows"]
        wrong = repeated(row["id"] for row in rows)
        return wrong + self._truth.judge({}, {row["id"]: row["value"] for row in rows})

    def _all(self, http: HttpClient) -> list[str]:
        floors = self._truth.floors()
        rows = self._get(http, "/default/_all_docs?include_docs=true")["rows"]
        return self._documents(floors, [row["doc"] for row in rows])

    def _changes(self, http: HttpClient) -> list[str]:
        floors = self._truth.floors()
        # Changes are shown once a majority has them on disk; some writers do not wait for that.
        http.request("POST", "/default/_ensure_full_commit", timeout_s=ANSWER_S)
        found = self._get(http, "/default/_changes?include_docs=true")["results"]
        # A document that is written meanwhile may come again with its next revision.
        wrong = repeated(f"{one['id']} {one['changes'][0]['rev']}" for one in found)
        if repeated(one["id"] for one in found):
            self._stop_all.count("_changes: an id with two revisions")
        last = {one["id"]: one for one in found}
        docs = [one["doc"] for one in last.values() if not one.get("deleted")]
        return wrong + self._documents(floors, docs)

    def _documents(self, floors: Mapping[str, int], docs: list[dict[str, Any]]) -> list[str]:
        still = sum("still" in doc for doc in docs)
        seen = {doc["_id"]: number_of(doc) for doc in docs if "k" in doc}
        wrong = repeated(doc["_id"] for doc in docs) + self._truth.judge(floors, seen)
        return wrong if still == STILL else [f"{still} rows of {STILL}", *wrong]


class ChangesReader(Client):
    """Follows `_changes` as a replicator does, at any node, from where it was."""

    def __init__(
        self, nodes: Callable[[], Mapping[int, HttpClient]], stop: Stop, seed: str, plant: Plant
    ) -> None:
        super().__init__("changes", stop)
        self._nodes, self._plant = nodes, plant
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}
        self._since: str | int = 0
        self.is_over = threading.Event()

    def work(self) -> None:
        """Follow until told to end."""
        while not self.is_over.is_set():
            nodes = self._nodes()
            if not nodes:
                self.is_over.wait(0.1)
                continue
            http = nodes[self._rng.choice(sorted(nodes))]
            try:
                self._read(http)
            except MillstreamError as error:
                self._stop_all.count(f"feed: {error.code}")
                self.is_over.wait(self._rng.uniform(*PAUSE_S))

    def _read(self, http: HttpClient) -> None:
        since = urllib.parse.quote(json.dumps(self._since).strip('"'))
        path = f"/default/_changes?feed=longpoll&include_docs=true&timeout={FEED_MS}&since={since}"
        found = self._plant(path, http.request("GET", path, timeout_s=ANSWER_S))
        with self._lock:
            for one in found["results"]:
                if one.get("deleted"):
                    self._held.pop(one["id"], None)
                elif "k" in one["doc"]:
                    self._held[one["id"]] = number_of(one["doc"])
            self._since = found["last_seq"]
        self._stop_all.count("feed: answered")

    def state(self) -> dict[str, int]:
        """Return key -> number, as this reader has it."""
        with self._lock:
            return dict(self._held)
