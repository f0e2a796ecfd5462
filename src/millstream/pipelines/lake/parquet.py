"""The Parquet files of a backup: one for each partition.

Invariants:
1. All files have the columns of `SCHEMA`, zstd-compressed; the partition is in the path.
2. When `close` returns, the file's content is durable, and its checksum is of the bytes written.
3. A row group holds at most `GROUP_ROWS` rows or `GROUP_BYTES` and one chunk.

Elsewhere: which rows (`increment`), which files (`directory`).
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from millstream.client.columns import Columns
from millstream.errors import CorruptionError
from millstream.pipelines.lake.manifest import DataFile

__all__ = ["SCHEMA", "PartWriter", "file_digest", "read_batches"]

GROUP_ROWS: Final = 65_536
GROUP_BYTES: Final = 16 * 1024 * 1024
READ_ROWS: Final = 8_192
_DIGEST_BYTES: Final = 1024 * 1024
SCHEMA: Final = pa.schema(
    [
        pa.field("op", pa.string(), nullable=False),
        pa.field("branch", pa.int64(), nullable=False),
        pa.field("seqno", pa.int64(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("cas", pa.int64()),
        pa.field("rev", pa.int64()),
        pa.field("expiry", pa.int64()),
        pa.field("flags", pa.int64()),
        pa.field("datatype", pa.int32()),
        pa.field("value", pa.binary()),
        pa.field("meta", pa.binary()),
    ]
)
_CUT: Final = tuple(name for name in SCHEMA.names if name != "branch")


class _Sink:
    """A new file that knows the checksum of what went into it; pyarrow writes it front to back."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self.closed = False
        self.digest = hashlib.sha256()
        self.byte_count = 0

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self.digest.update(view)
        self.byte_count += view.nbytes
        return self._file.write(view)

    def tell(self) -> int:
        return self.byte_count

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.closed = True

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        self._file.close()


class PartWriter:
    """Writes the file of one partition; a file without rows is not kept.

        with PartWriter(root, data, partition_id) as writer:
            writer.add(columns, branch)
            files = writer.close()

    Args:
        root: of the backup.
        data: name of this backup's data directory.
        partition_id: which partition.
    """

    def __init__(self, root: Path, data: str, partition_id: int) -> None:
        folder = root / data / f"partition={partition_id}"
        folder.mkdir(exist_ok=True)
        self._path = folder / f"{secrets.token_hex(8)}.parquet"
        self._name = self._path.relative_to(root).as_posix()
        self._sink = _Sink(self._path)
        self._writer = pq.ParquetWriter(self._sink, SCHEMA, compression="zstd")
        self._waiting: list[pa.RecordBatch] = []
        self._row_count = self._is_closed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_closed:
            self._drop()

    def add(self, columns: Columns, branch: int, rows: Sequence[int] | None = None) -> None:
        """Add changes, all or those of some indices."""
        batch = _batch(columns, branch)
        self.add_batch(batch if rows is None else batch.take(pa.array(rows, pa.int64())))

    def add_marks(
        self, op: str, branch: int, seqno: int, keys: Sequence[str | None] = (None,)
    ) -> None:
        """Add rows that are no changes of a stream: a mark, or deletions of keys."""
        count = len(keys)
        given = {
            "op": [op] * count, "branch": [branch] * count, "seqno": [seqno] * count,
            "key": list(keys),
        }  # fmt: skip
        arrays = [pa.array(given.get(f.name, [None] * count), f.type) for f in SCHEMA]
        self.add_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Add rows of `SCHEMA`."""
        if not batch.num_rows:
            return
        self._waiting.append(batch)
        rows = sum(waiting.num_rows for waiting in self._waiting)
        if rows >= GROUP_ROWS or sum(w.nbytes for w in self._waiting) >= GROUP_BYTES:
            self._flush()

    def close(self) -> list[DataFile]:
        """Finish and sync the file; return it, or nothing where there were no rows."""
        self._flush()
        if not self._row_count:
            self._drop()
            return []
        self._is_closed = True
        self._writer.close()
        self._sink.sync()
        return [
            DataFile(
                path=self._name, row_count=self._row_count, byte_count=self._sink.byte_count,
                sha256=self._sink.digest.hexdigest(),
            )
        ]  # fmt: skip

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._row_count += table.num_rows
            self._waiting = []

    def _drop(self) -> None:
        self._is_closed = True
        self._writer.close()
        self._sink.abandon()
        self._path.unlink()


def _batch(columns: Columns, branch: int) -> pa.RecordBatch:
    arrays = {name: pa.array(getattr(columns, name), SCHEMA.field(name).type) for name in _CUT}
    arrays["branch"] = pa.array([branch] * len(columns), pa.int64())
    return pa.RecordBatch.from_arrays([arrays[n] for n in SCHEMA.names], schema=SCHEMA)


def read_batches(
    root: Path, file: DataFile, names: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, all columns or some.

    Raises:
        CorruptionError: `damaged_file`.
    """
    row_count = 0
    try:
        with pq.ParquetFile(root / file.path) as reader:
            for batch in reader.iter_batches(READ_ROWS, columns=names):
                row_count += batch.num_rows
                yield batch
    except (OSError, pa.ArrowException) as error:
        raise _damaged(file, str(error)) from error
    if row_count != file.row_count:
        raise _damaged(file, f"{row_count} rows, its manifest says {file.row_count}")


def file_digest(root: Path, file: DataFile) -> str:
    """Return the SHA-256 of a file as it is on the disk.

    Raises:
        CorruptionError: `damaged_file`: it cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with (root / file.path).open("rb") as stream:
            while data := stream.read(_DIGEST_BYTES):
                digest.update(data)
    except OSError as error:
        raise _damaged(file, error.strerror or str(error)) from error
    return digest.hexdigest()


def _damaged(file: DataFile, reason: str) -> CorruptionError:
    return CorruptionError(
        f"{file.path} of the backup is damaged: {reason}; use a manifest that does not need it, "
        "or make a new backup",
        code="damaged_file",
    )
