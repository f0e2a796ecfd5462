"""The database of jobs: which documents are jobs, on doubles of the node and its scheduler."""

from __future__ import annotations

import asyncio

from false_documents import FalseDocuments
from millstream.node.replicator import ReplicatorDocuments, utc_text


async def test_the_database_is_made_once() -> None:
    names: set[str] = set()
    made: list[str] = []

    async def make() -> None:
        await asyncio.sleep(0)
        made.append("_replicator")
        names.add("_replicator")

    documents = ReplicatorDocuments(
        FalseDocuments(names),
        None,  # type: ignore[arg-type]
        names.__contains__,
        make,
        lambda: 1,
    )
    await asyncio.gather(documents.prepare(), documents.prepare())
    await documents.prepare()
    assert made == ["_replicator"]
    assert documents.of("nothing") is None


def test_times() -> None:
    assert utc_text(0) == "1970-01-01T00:00:00Z"
