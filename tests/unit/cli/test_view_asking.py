"""Asking the views of a node whose index is played by the test."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.cli import view_asking
from millstream.cli.view_asking import ask_node
from millstream.errors import (
    ConditionError,
    MillstreamError,
    UnavailableError,
    UsageError,
)
from millstream.node.embedded import EmbeddedNode
from millstream.pipelines.change_stream.bucket_changes import Endpoint
from millstream.views.core.query.parameters import QUERY_TIMEOUT_MS_MAX


class FakeAnswer:
    def __init__(self, pieces: list[bytes]) -> None:
        self.head: dict[str, Any] = {}
        self.pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece

    async def close(self) -> None:
        pass


class FakeIndexes:
    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.refusal: MillstreamError | None = None
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.looked = threading.Event()

    async def query(
        self, bucket: str, design: str, view: str, options: dict[str, Any]
    ) -> FakeAnswer:
        self.asked.append({"of": (bucket, design, view), **options})
        if self.refusal is not None:
            raise self.refusal
        await asyncio.to_thread(self.goes_on.wait)
        return FakeAnswer([b'{"rows":[', b"x" * 100_000, b"]}"])

    async def tasks(self) -> list[dict[str, Any]]:
        self.looked.set()
        common = {"database": "a/b", "design_documents": ["_design/c", "_design/d"]}
        return [
            {
                "type": "indexer",
                "database": "other",
                "design_document": "_design/d",
                "progress": 1,
            },
            {"type": "view_compaction", **common, "progress": 2},
            {"type": "indexer", **common, "progress": 42},
        ]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    path: Path = tmp_path_factory.mktemp("asking") / "d"
    with EmbeddedNode(path, buckets=["a/b:4"], users=["ada:secret"]) as node:
        yield node


@pytest.fixture
def indexes(node: EmbeddedNode, monkeypatch: pytest.MonkeyPatch) -> FakeIndexes:
    fake = FakeIndexes()
    for name in ("query", "tasks"):
        monkeypatch.setattr(node._node.engine.indexes, name, getattr(fake, name))
    return fake


@pytest.fixture
def endpoint(node: EmbeddedNode) -> Endpoint:
    return Endpoint(str(node.kv), "ada", "secret", None)


def test_the_answer_comes_in_pieces(endpoint: Endpoint, indexes: FakeIndexes) -> None:
    pieces = ask_node(endpoint, "a/b", "d", "by day", {"key": [1], "descending": True})
    assert len(b"".join(pieces)) == 100_011
    assert indexes.asked == [
        {
            "of": ("a/b", "d", "by day"), "timeout": QUERY_TIMEOUT_MS_MAX, "key": [1],
            "descending": True,
        }
    ]  # fmt: skip
    ask_node(endpoint, "a/b", "d", "v", {"timeout": 5})
    assert indexes.asked[-1]["timeout"] == 5


def test_without_a_design_document_or_views_nothing_is_answered(
    endpoint: Endpoint, indexes: FakeIndexes, tmp_path: Path
) -> None:
    indexes.refusal = ConditionError("missing", code="missing")
    with pytest.raises(ConditionError, match="millstream put a/b _design/d FILE"):
        ask_node(endpoint, "a/b", "d", "v", {})
    indexes.refusal = UnavailableError("no", code="no_index_role")
    with pytest.raises(UnavailableError) as caught:
        ask_node(endpoint, "a/b", "d", "v", {})
    assert caught.value.code == "no_index_role"
    with EmbeddedNode(tmp_path, http=None) as other:
        with pytest.raises(UnavailableError) as caught:
            ask_node(Endpoint(str(other.kv)), "default", "d", "v", {})
        assert caught.value.code == "no_http"


@pytest.mark.parametrize(
    ("refusal", "kind", "code"),
    [
        (UsageError("x", code="query_parse_error"), UsageError, "query_parse_error"),
        (UsageError("x", code="missing_named_view"), UsageError, "missing_named_view"),
        (UnavailableError("x", code="timeout"), UnavailableError, "timeout"),
    ],
)
def test_refusals_are_those_of_the_node(
    endpoint: Endpoint,
    indexes: FakeIndexes,
    refusal: MillstreamError,
    kind: type[MillstreamError],
    code: str,
) -> None:
    indexes.refusal = refusal
    with pytest.raises(kind) as caught:
        ask_node(endpoint, "a/b", "d", "v", {})
    assert caught.value.code == code


def test_a_bar_on_terminals_while_the_index_is_built(
    endpoint: Endpoint, indexes: FakeIndexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_asking, "PATIENCE_S", 0.001)
    monkeypatch.setattr(view_asking, "POLL_S", 0.001)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    updates: list[Any] = []

    def update(bar: Any, task: Any, **members: Any) -> None:
        updates.append(members)
        indexes.goes_on.set()

    monkeypatch.setattr(view_asking.Progress, "update", update)
    indexes.goes_on.clear()
    ask_node(endpoint, "a/b", "d", "v", {})
    assert updates[0] == {"description": "building the index", "completed": 42.0, "total": 100}


def test_no_bar_elsewhere(endpoint: Endpoint, indexes: FakeIndexes) -> None:
    ask_node(endpoint, "a/b", "d", "v", {})
    assert not indexes.looked.is_set()
