"""Restores by command, into a real node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.cli.bulk import restore
from millstream.client import writes
from millstream.client.databases import Database
from millstream.client.dump_file import DumpFile, DumpWriter
from millstream.client.dump_lines import AttachmentLine, DocumentLine, Line
from millstream.client.kv import Client
from millstream.errors import AccessError
from millstream.model.lineage import born
from millstream.node.embedded import EmbeddedNode
from support.http.http_calls import call


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    path: Path = tmp_path_factory.mktemp("restore") / "d"
    with EmbeddedNode(path, buckets=["b:4"]) as node:
        yield node


@pytest.fixture
def client(node: EmbeddedNode) -> Iterator[Client]:
    with millstream.connect(str(node.kv), bucket="b") as client:
        yield client


@pytest.fixture
def run(node: EmbeddedNode, request: pytest.FixtureRequest) -> Any:
    command_line = request.getfixturevalue("call")

    def run(command: str, *words: object) -> Any:
        return command_line(command, *map(str, words), "--connect", str(node.kv))

    return run


@pytest.fixture
def dumped(run: Any, client: Client, tmp_path: Path) -> Path:
    """A dump of two documents and a deletion."""
    client.apply_many((f"k{number}", None) for number in range(10))
    client.upsert("k1", {"n": 1})
    client.upsert("k2", {"n": 2})
    client.upsert("k3", {"n": 3})
    client.remove("k3")
    assert run("dump", "b", tmp_path / "f").code == 0
    return tmp_path / "f"


def changed(path: Path, lines: list[Line]) -> Path:
    """Write the lines of a dump and some more as another one."""
    other = path.with_name("other")
    with DumpFile(path) as dump, DumpWriter(other, overwrites=True) as writer:
        writer.write(dump.header)
        for line in [*dump.lines(), *lines]:
            writer.write(line)
        writer.finish()
    return other


def test_what_is_there_stays_unless_it_is_to_be_replaced(
    run: Any, client: Client, dumped: Path
) -> None:
    client.upsert("k1", {"n": "newer"})
    client.remove("k2")
    client.upsert("k3", {"n": "made again"})
    told = json.loads(run("restore", "b", dumped, "--json").out)
    assert (told["documents"], told["deletions"]) == (1, 0)
    values = {key: found.value["n"] for key, found in client.get_many(["k1", "k2", "k3"]).items()}
    assert values == {"k1": "newer", "k2": 2, "k3": "made again"}
    told = json.loads(run("restore", "b", dumped, "--overwrite", "--json").out)
    assert (told["documents"], told["kept"]) == (2, 0)
    values = {key: found.value["n"] for key, found in client.get_many(["k1", "k2", "k3"]).items()}
    assert values == {"k1": 1, "k2": 2}


@pytest.mark.parametrize("batch_rows", [1, 2, 1000])
def test_a_restore_may_be_repeated(
    run: Any, client: Client, dumped: Path, monkeypatch: pytest.MonkeyPatch, batch_rows: int
) -> None:
    monkeypatch.setattr(restore, "BATCH_ROWS", batch_rows)
    run("bucket", "drop", "new", "--yes")
    assert run("restore", "new", dumped, "--create").code == 0
    told = json.loads(run("restore", "new", dumped, "--create", "--json").out)
    assert (told["documents"], told["deletions"]) == (0, 0)
    assert json.loads(run("bucket", "info", "new", "--json").out)["partitions"] == 4


def test_a_file_that_was_cut_restores_nothing(run: Any, client: Client, dumped: Path) -> None:
    client.remove("k1")
    whole = dumped.read_bytes()
    for size in (0, 100, len(whole) // 2, len(whole) - 1):
        dumped.write_bytes(whole[:size])
        outcome = run("restore", "b", dumped)
        assert outcome.code in (1, 2)
        assert outcome.err.count("\n") == 1
        assert not client.exists("k1")


def test_what_has_expired_since_is_not_written(run: Any, client: Client, dumped: Path) -> None:
    old = DocumentLine("old", "put", 5, 1, 1, 0, 0, born(7, 9))
    old.value_base64 = b"x"
    told = json.loads(run("restore", "b", changed(dumped, [old]), "--json").out)
    assert told["expired"] == 1
    assert client.get_versioned("old") is None


def test_attachments_that_end_in_the_middle_end_the_restore(run: Any, dumped: Path) -> None:
    for lines in (
        [AttachmentLine("k", "ab" * 32, 10, 0, b"12345")],
        [
            AttachmentLine("k", "ab" * 32, 10, 0, b"12"),
            AttachmentLine("k", "ab" * 32, 10, 5, b"1"),
        ],
        [AttachmentLine("k", "ab" * 32, 2, 0, b"12")],
    ):
        outcome = run("restore", "b", changed(dumped, list(lines)))
        assert outcome.code == 1
        assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("words", [("none", "f"), ("b", "nothing")])
def test_what_cannot_be_restored_is_one_line(
    run: Any, dumped: Path, words: tuple[str, str]
) -> None:
    outcome = run("restore", words[0], dumped.with_name(words[1]))
    assert outcome.code in (1, 2)
    assert outcome.err.count("\n") == 1


def test_a_document_too_large_for_one_request_is_brought_leaf_by_leaf(
    run: Any, tmp_path: Path, node: EmbeddedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = f"http://{node.http}"
    leaves = []
    for c in "abc":
        ancestry = {"start": 2, "ids": [c * 32, "f" * 32]}
        leaves.append({"_id": "doc", "_rev": f"2-{c * 32}", "_revisions": ancestry, "c": c})
    leaves[-1]["_deleted"] = True
    assert run("bucket", "create", "large").code == 0
    call(base, "POST", "/large/_bulk_docs", {"new_edits": False, "docs": leaves})
    call(base, "PUT", "/large/held", {"_attachments": {"note": {"data": "aGk="}}})
    call(base, "PUT", "/large/k1", {"n": 1})
    assert run("dump", "large", tmp_path / "f").code == 0
    monkeypatch.setattr(writes, "WRITE_BYTES_MAX", 3)
    asked = {"docs": [{"id": "doc"}, {"id": "k1"}]}
    path = "/_bulk_get?revs=true"
    for _ in range(2):
        outcome = run("restore", "copy", tmp_path / "f", "--create")
        assert outcome.code == 1
        assert "1 documents were not written" in outcome.err
        assert "held" in outcome.err
        found = [call(base, "POST", f"/{name}{path}", asked) for name in ("large", "copy")]
        assert found[0] == found[1]


def test_settings_are_restored_into_a_bucket_that_was_empty_or_is_replaced(
    run: Any, tmp_path: Path, node: EmbeddedNode
) -> None:
    base = f"http://{node.http}"
    for name in ("set", "other"):
        assert run("bucket", "create", name).code == 0
        call(base, "PUT", f"/{name}/_revs_limit", 77)
        call(base, "PUT", f"/{name}/doc", {})
    assert run("dump", "set", tmp_path / "f").code == 0
    assert run("restore", "fresh", tmp_path / "f", "--create").code == 0
    assert call(base, "GET", "/fresh/_revs_limit") == (200, 77)
    call(base, "PUT", "/other/_revs_limit", 88)
    assert run("restore", "other", tmp_path / "f").code == 0
    assert call(base, "GET", "/other/_revs_limit") == (200, 88)
    assert run("restore", "other", tmp_path / "f", "--overwrite").code == 0
    assert call(base, "GET", "/other/_revs_limit") == (200, 77)


def test_settings_that_may_not_be_set_are_told_and_the_documents_restored(
    run: Any, client: Client, dumped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AccessError("only an administrator may")

    monkeypatch.setattr(Database, "set", refuse)
    outcome = run("restore", "b", dumped, "--overwrite")
    assert outcome.code == 0
    assert "were not restored: only an administrator may" in outcome.err
    assert client.exists("k1")
