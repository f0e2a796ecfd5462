"""The section of documents over HTTP in docs/benchmarks.md."""

from collections.abc import Iterator
from typing import Any

Figures = dict[str, Any]
_ROWS = {
    "bulk": "documents/s in `_bulk_docs`, 1,000 each, 4 at a time",
    "put": "documents/s put one by one, 16 connections",
    "get": "documents/s read one by one, 16 connections",
    "changes": "rows/s of `_changes`, one reader",
    "replicate": "documents/s replicated within the server",
    "nothing": "seconds of a replication with nothing to do",
    "one": "seconds of a replication of one document",
    "transitive": "seconds of A to C after A to B and B to C",
}


def lines(found: Figures) -> Iterator[str]:
    """Yield what documents.py measured."""
    servers = list(found["rows"])
    yield (
        f"Documents of some 200 bytes over HTTP, {found['documents']:,} in a database, and "
        f"replications of {found['replicated']:,}. A node has written a change to its disk when "
        "it answers; PouchDB's server keeps all in memory. Each server has one processor, the "
        "client the other one."
    )
    yield ""
    yield "| what | " + " | ".join(servers) + " |"
    yield "| --- |" + " --- |" * len(servers)
    for key, words in _ROWS.items():
        figures = [found["rows"][server][key] for server in servers]
        shown = [f"{one:,.0f}" if one >= 100 else f"{one:.3f}" for one in figures]
        yield f"| {words} | " + " | ".join(shown) + " |"
    yield ""
