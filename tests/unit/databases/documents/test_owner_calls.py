from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from millstream.cluster.cluster_state import NodeAt
from millstream.databases.documents import owner_calls as document_owners
from millstream.databases.documents.owner_calls import TRIES_MAX, ambiguous, at_owner, has_moved
from millstream.errors import ConditionError, OutcomeUnknownError, UnavailableError
from millstream.model.partitions import PartitionState
from support.http.sharing_nodes import SpreadNodes, sharing_nodes


@pytest.fixture
async def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SpreadNodes]:
    monkeypatch.setattr(document_owners, "PAUSE_S", 0)
    async with sharing_nodes(tmp_path) as found:
        yield found


class Doing:
    """Fails with what is left in `failures`; remembers where it was done."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.done: list[str] = []

    async def here(self) -> str:
        return await self.there(NodeAt("here", 1))

    async def there(self, node: NodeAt) -> str:
        self.done.append(node.host)
        if self.failures:
            raise self.failures.pop(0)
        return node.host


async def do(nodes: SpreadNodes, owner: str, doing: Doing, *, is_harmless: bool = True) -> str:
    bucket, doc_id = nodes["a"].running.bucket, nodes.id_at(owner)
    return await at_owner(bucket, doc_id, doing.here, doing.there, is_harmless=is_harmless)


MOVED = UnavailableError("it moved", code="not_my_partition")
LOST = OutcomeUnknownError("lost", code="node_failed")


async def test_it_is_done_once_where_the_document_is(nodes: SpreadNodes) -> None:
    assert await do(nodes, "a", Doing()) == "here"
    assert await do(nodes, "b", Doing()) == "b"


async def test_who_has_it_no_more_is_asked_again(nodes: SpreadNodes) -> None:
    for owner in "ab":
        doing = Doing(MOVED, MOVED)
        await do(nodes, owner, doing, is_harmless=False)
        assert len(doing.done) == 3
        doing = Doing(*[MOVED] * TRIES_MAX)
        with pytest.raises(UnavailableError, match="it moved"):
            await do(nodes, owner, doing)
        assert len(doing.done) == TRIES_MAX


async def test_what_was_lost_is_repeated_once_if_that_is_harmless(nodes: SpreadNodes) -> None:
    doing = Doing(LOST)
    assert await do(nodes, "b", doing) == "b"
    with pytest.raises(OutcomeUnknownError):
        await do(nodes, "b", Doing(LOST, LOST))
    doing = Doing(LOST)
    with pytest.raises(UnavailableError) as caught:
        await do(nodes, "b", doing, is_harmless=False)
    assert caught.value.code == "ambiguous"
    assert doing.done == ["b"]


async def test_other_refusals_are_told(nodes: SpreadNodes) -> None:
    with pytest.raises(ConditionError):
        await do(nodes, "b", Doing(ConditionError("no", code="conflict")))


async def test_nobody_has_it(nodes: SpreadNodes) -> None:
    partition = nodes["a"].running.bucket.partition_for(nodes.id_at("a").encode())
    await nodes.set_state("a", partition.partition_id, PartitionState.DEAD)
    with pytest.raises(UnavailableError) as caught:
        await do(nodes, "a", Doing())
    assert has_moved(caught.value)


def test_what_is_not_known_says_what_happened() -> None:
    error = ambiguous("x", LOST)
    assert (error.code, "'x'" in str(error), "lost" in str(error)) == ("ambiguous", True, True)
