"""Made-up mistakes of a cluster: a run with one of them must find it.

Elsewhere: who finds them (`run`, `askers`).
"""

from __future__ import annotations

from typing import Any

from simulators.cluster_faults.truth import Truth

__all__ = ["PLANTS", "Plants"]

PLANTS = ("lost write", "short view", "short _all_docs", "missed change")
EVERY = 50
"""Of so many answers one is changed."""


class Plants:
    """Changes what clients are told: one of `every` answers; `name` empty: nothing."""

    def __init__(self, name: str, every: int = EVERY) -> None:
        self._name, self._every = name, every
        self._seen = 0

    def answer(self, path: str, answer: Any) -> Any:
        """Return an answer of a node, or what a mistake would make of it."""
        rows = {
            "short view": "rows" if "/_view/" in path else "",
            "short _all_docs": "rows" if "/_all_docs" in path else "",
            "missed change": "results" if "feed=" in path else "",
        }.get(self._name, "")
        if rows and answer[rows]:
            self._seen += 1
            if self._seen % self._every == 0:
                return {**answer, rows: answer[rows][1:]}
        return answer

    def lose(self, collection: Any, truth: Truth) -> None:
        """Delete a document that was acknowledged, and tell nobody."""
        if self._name == "lost write":
            for key in truth.floors():
                if collection.exists(key).exists:
                    collection.remove(key)
                    return
