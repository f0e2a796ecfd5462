"""A bucket on a real disk, opened as a node does, and edits for its documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.purges import Purges
from millstream.databases.remote_node import RemoteNode
from millstream.databases.scans.feeds import NodeChanges
from millstream.documents.sent import parse_sent
from millstream.documents.stored import REVS_LIMIT_DEFAULT, StoredDocument
from millstream.documents.updating import interactive, replicated
from millstream.kv.aio.documents.revision_store import Decide
from millstream.kv.aio.engine import BucketEngine

NOW = 1_700_000_000_000_000_000
LIMIT = REVS_LIMIT_DEFAULT


async def opened(path: Path) -> BucketEngine:
    failures: list[Exception] = []
    return await BucketEngine.open(
        path, name="b", uuid="00", partition_count=4, flush_interval_ms=1,
        on_persisted=lambda: None, on_fatal=failures.append, on_corrupt=failures.append,
    )  # fmt: skip


def put(text: bytes = b"{}") -> Decide:
    """Return an edit as a client makes it."""

    def decide(document: StoredDocument | None) -> StoredDocument | None:
        return interactive(document, parse_sent(text), revs_limit=LIMIT).document

    return decide


def changes_here(running: BucketEngine) -> NodeChanges:
    """Return the changes of a node that has this bucket, and asks no node."""

    def nobody(name: str, node: NodeAt) -> RemoteNode:
        raise AssertionError(f"{node} is asked for {name}")

    here: Any = lambda name: None  # noqa: E731
    purges = Purges(lambda name: running, lambda: 0.0)
    return NodeChanges(lambda name: running, here, nobody, purges)


def conflicting(number: int, size: int = 0) -> Decide:
    """Return a peer's first revision of a document, another one for each number."""
    text = b'{"_rev":"1-%032x","a":"%b"}' % (number, b"x" * size)

    def decide(document: StoredDocument | None) -> StoredDocument | None:
        return replicated(document, parse_sent(text), revs_limit=LIMIT).document

    return decide
