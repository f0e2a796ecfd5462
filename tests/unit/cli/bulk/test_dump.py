"""Dumps by command, of a real node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.client.blobs import BlobClient
from millstream.client.bulk import BulkReader
from millstream.client.dump_file import DumpFile
from millstream.client.dump_lines import DocumentLine, SettingsLine
from millstream.errors import StreamError, UnavailableError
from millstream.node.embedded import EmbeddedNode
from support.http.http_calls import call


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    path: Path = tmp_path_factory.mktemp("dump") / "d"
    with EmbeddedNode(path, buckets=["b:4", "attached:4"]) as node:
        with millstream.connect(str(node.kv), bucket="b") as client:
            for number in range(40):
                client.upsert(f"k{number}", {"n": number})
            client.remove("k39")
        document = {"_attachments": {"note": {"data": "aGVsbG8="}}}
        assert call(f"http://{node.http}", "PUT", "/attached/doc", document)[0] == 201
        yield node


@pytest.fixture
def run(node: EmbeddedNode, request: pytest.FixtureRequest) -> Any:
    command = request.getfixturevalue("call")
    return lambda *words: command("dump", *map(str, words), "--connect", str(node.kv))


def keys_in(path: Path) -> list[str]:
    with DumpFile(path) as dump:
        return sorted(line.key for line in dump.lines() if isinstance(line, DocumentLine))


def test_a_dump_has_each_document_once_and_says_how_many(run: Any, tmp_path: Path) -> None:
    outcome = run("b", tmp_path / "f", "--json")
    assert outcome.code == 0
    told = json.loads(outcome.out)
    assert (told["documents"], told["deletions"], told["missing_attachments"]) == (39, 1, 0)
    assert keys_in(tmp_path / "f") == sorted(f"k{number}" for number in range(40))
    assert "39 documents, 1 deletions" in run("b", tmp_path / "g").err


@pytest.mark.parametrize("error", [StreamError("x", code="lease_lost"), UnavailableError("gone")])
def test_a_partition_that_is_not_read_to_its_end_is_read_anew(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    read, failures = BulkReader.read, [error, error]

    def read_some(self: BulkReader, ranges: Any) -> Iterator[bytes]:
        for chunk in read(self, ranges):
            yield chunk
            if failures:
                raise failures.pop()

    monkeypatch.setattr(BulkReader, "read", read_some)
    outcome = run("b", tmp_path / "f")
    assert outcome.code == 0
    assert failures == []
    assert keys_in(tmp_path / "f") == sorted(f"k{number}" for number in range(40))


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_dump_that_fails_leaves_no_file(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_begun: bool
) -> None:
    begun = []

    def fail(*_: Any) -> Iterator[bytes]:
        begun.append(1)
        if is_begun:
            yield b""
        raise StreamError("the stream ended", code="stream_ended")

    monkeypatch.setattr("millstream.cli.bulk.dump.TRIES_MAX", 3)
    monkeypatch.setattr("millstream.cli.bulk.dump.AWAY_S", 60.0 if is_begun else 0.0)
    monkeypatch.setattr(BulkReader, "read", fail)
    outcome = run("b", tmp_path / "f")
    assert outcome.code == 1
    assert outcome.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    assert len(begun) == (3 if is_begun else 1)


@pytest.mark.parametrize("words", [("none", "f"), ("b", "none/f")])
def test_what_cannot_be_dumped_is_one_line(
    run: Any, tmp_path: Path, words: tuple[str, str]
) -> None:
    outcome = run(words[0], tmp_path / words[1])
    assert outcome.code in (1, 2)
    assert outcome.err.count("\n") == 1


def test_an_attachment_that_the_node_has_not_got_is_counted_and_told(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any) -> Iterator[tuple[int, bytes]]:
        yield 9, b"some"
        raise UnavailableError("it is not there", code="blob_missing")

    monkeypatch.setattr(BlobClient, "sized_pieces", missing)
    outcome = run("attached", tmp_path / "f")
    assert outcome.code == 0
    assert "1 attachments are not on the node" in outcome.err
    with DumpFile(tmp_path / "f") as dump:
        assert (dump.end.attachments, dump.end.missing_attachments) == (0, 1)
        assert [type(line) for line in dump.lines()] == [SettingsLine, DocumentLine]


def test_an_attachment_whose_bytes_are_other_ones_ends_the_dump(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlobClient, "sized_pieces", lambda *_: iter([(5, b"hullo")]))
    outcome = run("attached", tmp_path / "f")
    assert outcome.code == 1
    assert "other bytes" in outcome.err
    assert list(tmp_path.iterdir()) == []
