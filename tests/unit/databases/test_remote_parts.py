"""Another node, asked for its partitions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream.cluster.cluster_state import NodeAt
from millstream.databases import remote_parts as part_links
from millstream.databases.remote_parts import HttpPartLink
from millstream.errors import (
    AccessError,
    MillstreamError,
    RoutingError,
    UnavailableError,
)
from millstream.gateway.core.bucket_parts import (
    Ended,
    Failed,
    Found,
    WantedChanges,
    WantedDocuments,
    WantedHistories,
    WantedPart,
    framed,
)
from millstream.model.position import Position

AT = NodeAt("b", 2)
CHANGES = WantedChanges("u1", [0], [Position()], restarts=False)
DOCUMENTS = WantedDocuments("u1", [0], b"", b"\xff")


class Answering:
    """A node that answers `data`, raises `error`, or never ends."""

    def __init__(self, data: bytes = b"", error: MillstreamError | None = None) -> None:
        self.data, self.error = data, error
        self.hangs = False
        self.paths: list[str] = []
        self.headers: dict[str, str] = {}
        self.content = self
        self.is_closed = False

    async def _begin(self, path: str) -> None:
        self.paths.append(path)
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    async def ask(self, method: str, path: str, content: Any) -> bytes:
        await self._begin(path)
        return self.data

    async def opened(self, method: str, path: str, content: Any) -> Answering:
        await self._begin(path)
        return self

    async def iter_chunked(self, size: int) -> Any:
        if self.data:
            yield self.data

    def close(self) -> None:
        self.is_closed = True


def link_to(node: Answering) -> HttpPartLink:
    return HttpPartLink("a/b", AT, lambda at: node)  # type: ignore[arg-type,return-value]


async def failure(node: Answering) -> MillstreamError:
    """What both streams fail with."""
    with pytest.raises(MillstreamError) as caught:
        [one async for one in link_to(node).changes(CHANGES)]
    with pytest.raises(MillstreamError) as other:
        [one async for one in link_to(node).documents(DOCUMENTS)]
    assert other.value.code == caught.value.code
    return caught.value


async def test_pages_are_those_of_the_bucket() -> None:
    node = Answering(
        b'{"live":1,"deleted":0,"purge_seqno":0,"file_bytes":7,"active_bytes":5,"is_compacting":false}'
    )
    assert (await link_to(node).figures(WantedPart("u1", [0]))).file_bytes == 7
    await link_to(node).count_purge("u1", is_made=True)
    assert node.paths == [f"/_millstream/buckets/a%2Fb/parts/{p}" for p in ("figures", "purges")]


@pytest.mark.parametrize("data", [b"", framed(Found([b"x"])), b"\xff" * 8, b"\0\0\0\1\xc0"])
async def test_answers_that_are_none(data: bytes) -> None:
    node = Answering(data)
    assert (await failure(node)).code == "node_failed"
    assert node.is_closed
    with pytest.raises(UnavailableError, match="b:2"):
        await link_to(node).histories(WantedHistories("u1", [0]))


async def test_nothing_but_the_end_is_an_answer_for_documents_alone() -> None:
    node = Answering(framed(Ended()))
    assert [one async for one in link_to(node).documents(DOCUMENTS)] == []
    with pytest.raises(UnavailableError):
        [one async for one in link_to(node).changes(CHANGES)]


async def test_failures_arrive_with_their_codes() -> None:
    for code in ("not_my_partition", "bucket_not_found"):
        error = await failure(Answering(framed(Failed(code, "why"))))
        assert isinstance(error, RoutingError)
        assert error.code == "not_my_partition"
    error = await failure(Answering(framed(Failed("bucket_failed", "why"))))
    assert (error.code, str(error)) == ("bucket_failed", "node b:2: why")
    moved = RoutingError("gone", code="not_my_partition")
    assert await failure(Answering(error=moved)) is moved
    error = await failure(Answering(error=AccessError("no", code="forbidden")))
    assert error.code == "node_failed", "a node that refuses us is not the client's fault"


async def test_a_node_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_links, "ANSWER_S_MAX", 0.001)
    node = Answering()
    node.hangs = True
    assert (await failure(node)).code == "node_failed"
    with pytest.raises(UnavailableError, match="in time"):
        await link_to(node).figures(WantedPart("u1", [0]))
