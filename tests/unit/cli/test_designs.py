"""Design documents by command, on a real node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.cli.designs import is_design
from millstream.node.embedded import EmbeddedNode

DESIGN = {"views": {"by": {"map": "d => emit(d._id, 1.0)"}}}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    path: Path = tmp_path_factory.mktemp("designs") / "d"
    with EmbeddedNode(path, buckets=["b:4"]) as node:
        yield node


@pytest.fixture
def run(node: EmbeddedNode, call: Any) -> Any:
    def run(*words: str, **options: Any) -> Any:
        return call(*words, "--connect", str(node.kv), **options)

    return run


def test_a_design_document_is_put_shown_and_deleted(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "d.json"
    file.write_text(json.dumps(DESIGN))
    assert run("put", "b", "_design/x", str(file)) == (0, b"", "")
    code, out, _ = run("put", "b", "_design/x", "--json", stdin=json.dumps(DESIGN).encode())
    put = json.loads(out)
    assert (code, put["key"], put["rev"][:2]) == (0, "_design/x", "2-")
    assert json.loads(run("get", "b", "_design/x").out) == {
        "_id": "_design/x", "_rev": put["rev"], **DESIGN,
    }  # fmt: skip
    found = json.loads(run("get", "b", "_design/x", "--json").out)
    assert (found["rev"], found["value"]["views"]) == (put["rev"], DESIGN["views"])
    code, out, _ = run("delete", "b", "_design/x", "--json")
    assert (code, json.loads(out)["rev"][:2]) == (0, "3-")
    for words in (("get", "b", "_design/x"), ("delete", "b", "_design/x")):
        code, out, err = run(*words)
        assert (code, out) == (1, b"")
        assert err


def test_a_revision_that_is_not_the_present_one_is_a_conflict(run: Any) -> None:
    old = json.dumps(DESIGN | {"_rev": "1-abc"}).encode()
    code, _, err = run("put", "b", "_design/old", stdin=old)
    assert code == 1
    assert "conflict" in err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"function (doc) {}", "is JSON"),
        (b"[]", "is a JSON object"),
        (b'{"views": {"by": {"map": "function ("}}}', "does not compile"),
        (b'{"views": {"by": {"map": 1}}}', "by"),
        (b'{"language": "python", "views": {"by": {"map": "registered:no"}}}', "no"),
    ],
)
def test_what_is_no_design_document_is_said(run: Any, content: bytes, words: str) -> None:
    code, out, err = run("put", "b", "_design/bad", stdin=content)
    assert (code, out) == (2, b"")
    assert words in err
    assert run("get", "b", "_design/bad").code == 1


@pytest.mark.parametrize(
    "words",
    [
        ("put", "b", "_design/x", "--cas", "5"),
        ("put", "b", "_design/x", "--expiry", "5"),
        ("put", "b", "_design/x", "--durability", "memory"),
        ("delete", "b", "_design/x", "--cas", "5"),
    ],
)
def test_options_of_other_documents_are_refused(run: Any, words: tuple[str, ...]) -> None:
    code, _, err = run(*words, stdin=b"{}")
    assert code == 2
    assert words[3] in err


def test_keys() -> None:
    assert is_design("_design/x")
    assert not is_design("design")
