from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from millstream.client.columns import Columns, encode_meta
from millstream.errors import CorruptionError
from millstream.pipelines.lake import parquet
from millstream.pipelines.lake.parquet import SCHEMA, PartWriter, file_digest, read_batches


def columns(*keys: str) -> Columns:
    count = len(keys)
    return Columns(
        op=["put"] * count, partition=[3] * count, seqno=list(range(1, count + 1)),
        rev=[1] * count, cas=[-1] * count, flags=[2**32 - 1] * count, expiry=[7] * count,
        datatype=[1] * count, key=list(keys), value=[key.encode() for key in keys],
        meta=[encode_meta(b"\1\1")] * count,
    )  # fmt: skip


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with PartWriter(tmp_path, "data", 3) as writer:
        writer.add_marks("rollback", 5, 2)
        writer.add(columns("a", "b", "c"), 5, [0, 2])
        writer.add_marks("delete", 5, 2, ["y", "z"])
        [file] = writer.close()
    content = (tmp_path / file.path).read_bytes()
    assert file.path.startswith("data/partition=3/")
    assert (file.row_count, file.byte_count) == (5, len(content))
    assert file.sha256 == hashlib.sha256(content).hexdigest() == file_digest(tmp_path, file)
    [batch] = read_batches(tmp_path, file)
    assert batch.schema == SCHEMA
    rows = batch.to_pylist()
    assert [(r["op"], r["branch"], r["seqno"], r["key"]) for r in rows] == [
        ("rollback", 5, 2, None), ("put", 5, 1, "a"), ("put", 5, 3, "c"),
        ("delete", 5, 2, "y"), ("delete", 5, 2, "z"),
    ]  # fmt: skip
    assert rows[1]["value"] == b"a"
    assert (rows[1]["cas"], rows[1]["flags"]) == (-1, 2**32 - 1)
    [keys] = read_batches(tmp_path, file, ["key"])
    assert keys.schema.names == ["key"]


def test_the_size_of_a_row_group_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "GROUP_ROWS", 4)
    (tmp_path / "data").mkdir()
    with PartWriter(tmp_path, "data", 0) as writer:
        for _ in range(5):
            writer.add(columns("a", "b"), 1)
        [file] = writer.close()
    with parquet.pq.ParquetFile(tmp_path / file.path) as reader:
        groups = [reader.metadata.row_group(n).num_rows for n in range(reader.num_row_groups)]
    assert groups == [4, 4, 2]


def test_without_rows_or_end_there_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with PartWriter(tmp_path, "data", 0) as writer:
        writer.add(columns(), 1)
        assert writer.close() == []
    with PartWriter(tmp_path, "data", 0) as writer:
        writer.add(columns("a"), 1)  # and something goes wrong
    assert list((tmp_path / "data" / "partition=0").iterdir()) == []


def test_damage_is_reported(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with PartWriter(tmp_path, "data", 0) as writer:
        writer.add(columns("a"), 1)
        [file] = writer.close()

    def refused() -> str:
        with pytest.raises(CorruptionError) as refusal:
            list(read_batches(tmp_path, file))
        assert refusal.value.code == "damaged_file"
        return str(refusal.value)

    path, content = tmp_path / file.path, (tmp_path / file.path).read_bytes()
    other = parquet.DataFile(path=file.path, row_count=9, byte_count=1, sha256="")
    with pytest.raises(CorruptionError, match="1 rows, its manifest says 9"):
        list(read_batches(tmp_path, other))
    path.write_bytes(content[:-3])
    assert file_digest(tmp_path, file) != file.sha256
    assert file.path in refused()
    path.unlink()
    assert "No such file" in refused()
    with pytest.raises(CorruptionError):
        file_digest(tmp_path, file)
