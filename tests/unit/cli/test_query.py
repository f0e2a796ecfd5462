"""Selectors by command, on a real node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.cli import query
from millstream.node.embedded import EmbeddedNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    path: Path = tmp_path_factory.mktemp("query") / "d"
    with EmbeddedNode(path, buckets=["b:4"]) as node:
        with millstream.connect(str(node.kv), bucket="b") as client:
            for number in range(7):
                client.upsert(f"k{number}", {"n": number})
        yield node


@pytest.fixture
def run(node: EmbeddedNode, call: Any) -> Any:
    return lambda *words: call("query", "b", *words, "--connect", str(node.kv))


@pytest.mark.parametrize("page_rows", [2, 7, 200])
def test_all_documents_of_a_selector_are_printed_over_any_number_of_pages(
    run: Any, monkeypatch: pytest.MonkeyPatch, page_rows: int
) -> None:
    monkeypatch.setattr(query, "PAGE_ROWS", page_rows)
    outcome = run('{"n": {"$gt": 0}}', "--field", "n")
    assert outcome.code == 0
    assert sorted(json.loads(line)["n"] for line in outcome.out.splitlines()) == [1, 2, 3, 4, 5, 6]
    assert len(run("{}", "--limit", "3").out.splitlines()) == 3


@pytest.mark.parametrize(
    ("selector", "codes"), [("{", {2}), ("[]", {2}), ('{"n": {"$no": 1}}', {1, 2})]
)
def test_a_bad_selector_is_one_line(run: Any, selector: str, codes: set[int]) -> None:
    outcome = run(selector)
    assert outcome.code in codes
    assert outcome.err.count("\n") == 1
