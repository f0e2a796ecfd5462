"""Lines of a dump."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.client.databases import DatabaseSettings
from millstream.client.dump_lines import (
    AttachmentLine,
    DesignLine,
    DocumentLine,
    EndLine,
    HeaderLine,
    SettingsLine,
    decode_line,
    document_line,
    encode_line,
    write_of,
)
from millstream.documents.stored import Content, StoredDocument, load, pack
from millstream.documents.tree import EMPTY
from millstream.errors import CorruptionError
from millstream.model.lineage import born
from millstream.model.sides import side_of
from millstream.wire.frames import deletion, mutation

LINEAGE = born(7, 9)
OURS, OTHER = "aa", "bb"
VALUES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"", b"{}", b' {"a":1}', b'{"a":\n1}', b'{"a" : 1.0e2}', b"1, 2", b'1,"b":2', b"nul",
            b"[" * 2000 + b"]" * 2000, b"[" * 950 + b"]" * 950, b'"\xff"', b"\xef\xbb\xbf{}",
        ]
    ),
)  # fmt: skip


def line_of(key: bytes, value: bytes, side: bytes = LINEAGE) -> DocumentLine:
    line = document_line(OURS, mutation(3, key, value, 9, 1, 1234, 5, 0, 1), side)
    assert line is not None
    found = decode_line(encode_line(line))
    assert isinstance(found, DocumentLine)
    return found


@given(st.binary(min_size=1, max_size=250), VALUES)
def test_key_and_value_come_back_byte_for_byte_from_one_line(key: bytes, value: bytes) -> None:
    line = line_of(key, value)
    assert encode_line(line).count(b"\n") == 1
    write = write_of(line, OURS, OURS, is_insert=True)
    assert write == (key, value, 5, 1, 0, 1234, 1, LINEAGE, True, b"")


def test_json_stands_as_it_is_and_anything_else_in_base64() -> None:
    assert b'"value":{"a" : 1.0e2}' in encode_line(line_of(b"k", b'{"a" : 1.0e2}'))
    assert b'"value_base64":"AP8="' in encode_line(line_of(b"k", b"\0\xff"))


def test_a_document_keeps_its_computed_revisions_in_another_bucket() -> None:
    frame = mutation(0, b"k", b"{}", 9, 3, 1234, 0, 0, 1)
    line = document_line(OURS, frame, LINEAGE)
    assert line is not None
    assert write_of(line, OURS, OURS, is_insert=True).sidecar == b""
    write = write_of(line, OURS, OTHER, is_insert=True)
    there = load(OTHER, b"k", frame, side_of(LINEAGE, write.sidecar))
    assert there.tree.winner_path() == load(OURS, b"k", frame, LINEAGE).tree.winner_path()
    assert line.leaves == [there.winner.rev]


def test_a_deletion_has_no_value_and_keeps_its_revisions_too() -> None:
    frame = deletion(0, b"k", 9, 2, 1234, 77)
    line = document_line(OURS, frame, LINEAGE)
    assert line is not None
    assert (line.op, line.expiry) == ("delete", 77)
    write = write_of(line, OURS, OTHER, is_insert=False)
    assert write.value is None
    assert load(OTHER, b"k", frame, side_of(LINEAGE, write.sidecar)).winner.is_deleted


def test_all_leaves_are_named_and_the_sidecar_is_kept() -> None:
    tree = EMPTY.extended(None, "a" * 32).extended(None, "b" * 32)
    document = StoredDocument(tree, {f"1-{c * 32}": Content(b"{}", {}) for c in "ab"})
    packed = pack(document)
    assert packed.value is not None
    line = line_of(b"k", packed.value, side_of(LINEAGE, packed.sidecar))
    assert line.leaves == ["1-" + "b" * 32, "1-" + "a" * 32]
    assert write_of(line, OURS, OTHER, is_insert=True).sidecar == packed.sidecar


def test_a_document_of_which_a_purge_left_nothing_has_no_line() -> None:
    packed = pack(StoredDocument(EMPTY, {}, is_purged=True))
    frame = deletion(0, b"k", 9, 2, 1234, 77)
    assert document_line(OURS, frame, side_of(LINEAGE, packed.sidecar)) is None


@pytest.mark.parametrize(
    "line",
    [
        HeaderLine("millstream-dump", 1, "b", "aa", 4, "2026-01-01T00:00:00+00:00"),
        SettingsLine(DatabaseSettings({"admins": {}}, 7)),
        AttachmentLine("k", "ab" * 32, 3, 0, b"\0\n\xff"),
        DesignLine("_design/a", []),
        EndLine(12, "ab", 1, 2, 3, 4, 5),
    ],
)
def test_every_kind_of_line_comes_back(line: Any) -> None:
    assert decode_line(encode_line(line)) == line


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"{}", b'{"line":"other"}', b'{"line":"document","key":1}', b"\xff", b"[" * 5000],
)
def test_what_is_no_line_is_an_error(data: bytes) -> None:
    with pytest.raises(CorruptionError) as failed:
        decode_line(data)
    assert failed.value.code == "bad_dump"


def test_a_put_without_a_value_is_an_error() -> None:
    with pytest.raises(CorruptionError):
        write_of(DocumentLine("k", "put", 1, 1, 0, 0, 0, LINEAGE), OURS, OURS, is_insert=True)
