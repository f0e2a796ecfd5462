"""The last act: a node dies with changes that Spark has already applied, and all agrees again.

A node of its own flushes once only, so that what is written afterwards is lost when it is killed.
A table of Parquet files follows its bucket by `apply_changes`.

Invariants:
1. The table is ahead of the disk when the node is killed: that is looked at, not assumed.
2. In the end every document is compared, and the checkpoint is the one of the beginning.

Elsewhere: how a rollback is repaired (`pipelines.sinks.repairing`).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import millstream
from millstream.demo.checks import Check, check_number, check_that
from millstream.demo.children import Child, start_node
from millstream.pipelines import ParquetTarget, apply_changes, local_session

if TYPE_CHECKING:
    from millstream.demo.flights import Replay

__all__ = ["CrashAct", "errors_to", "play_crash"]

BUCKET: Final = "crash"
CHANGES_MAX: Final = 6_000
RUN_S: Final = 180.0
_STDERR: Final = 2
_NEVER_FLUSH: Final = ("--flush-interval", "600000")


class CrashAct(NamedTuple):
    """What happened: rows that were in the table and lost by the node, and the checks."""

    lost: int
    fetched: int
    checks: list[Check]


def play_crash(work_dir: Path, replay: Replay) -> CrashAct:
    """Play it on the first changes of `replay`; work_dir/crash is made, and removed."""
    directory = work_dir / "crash"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    node, address = start_node(directory, BUCKET, *_NEVER_FLUSH)
    try:
        with errors_to(work_dir / "crash.log"):
            session = local_session("millstream-demo", work_dir=directory)
        try:
            source = {"hosts": address, "bucket": BUCKET, "rollback": "rows"}
            return _Act(directory, session, source, replay).play(node)
        finally:
            session.stop()
    finally:
        node.stop()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def errors_to(file: Path) -> Iterator[None]:
    """Write the errors of processes started meanwhile to a file: Java and its children."""
    sys.stderr.flush()
    kept = os.dup(_STDERR)
    with file.open("ab") as opened:
        os.dup2(opened.fileno(), _STDERR)
    try:
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)


class _Act:
    def __init__(
        self, directory: Path, session: Any, source: Mapping[str, str], replay: Replay
    ) -> None:
        self._directory, self._session, self._source = directory, session, source
        self._replay = replay
        self._third = min(len(replay), CHANGES_MAX) // 3
        self._table = ParquetTarget(directory / "table")
        self._fetched = 0

    def play(self, node: Child) -> CrashAct:
        self._write(0, is_durable=True)
        self._write(1)
        self._follow()
        ahead = self._in_table()
        node.kill()
        address = self._source["hosts"]
        again, _ = start_node(self._directory, BUCKET, *_NEVER_FLUSH, address=address)
        try:
            kept = self._in_bucket(ahead)
            lost = [key for key, value in ahead.items() if kept.get(key) != value]
            self._write(2)
            self._follow()
            found = self._in_table()
            expected = self._in_bucket({**ahead, **found})
            wrong = sum(found.get(key) != expected.get(key) for key in {**found, **expected})
        finally:
            again.stop()
        return CrashAct(
            len(lost), self._fetched,
            [
                check_that(
                    "crash: rows of the table that the node lost", "at least 1", len(lost),
                    is_right=bool(lost),
                ),
                check_number("crash: rows that differ after the next batch", 0, wrong),
            ],
        )  # fmt: skip

    def _write(self, part: int, *, is_durable: bool = False) -> None:
        begin = part * self._third
        with millstream.connect(self._source["hosts"], bucket=BUCKET) as client:
            changes = list(self._replay.changes(begin, begin + self._third))
            client.apply_many(changes).raise_first()
            if is_durable:
                # One durable write takes everything along that was written before it.
                client.upsert("flushed", True, durability="persisted")

    def _follow(self) -> None:
        """Run the query over what is there, from its checkpoint."""

        def take(batch: Any, batch_id: int) -> None:
            self._fetched += apply_changes(batch, batch_id, self._table, self._source).fetched

        changes = self._session.readStream.format("millstream").options(**self._source).load()
        writer = changes.writeStream.foreachBatch(take).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._directory / "checkpoint")).start()
        try:
            query.awaitTermination(RUN_S)
        finally:
            query.stop()

    def _in_table(self) -> dict[str, bytes]:
        table = self._table.table().select(["key", "value"]).to_pydict()
        return dict(zip(table["key"], table["value"], strict=True))

    def _in_bucket(self, keys: Mapping[str, bytes]) -> dict[str, bytes]:
        with millstream.connect(self._source["hosts"], bucket=BUCKET) as client:
            written = (key for key, _ in self._replay.changes(0, 3 * self._third))
            wanted = {key if isinstance(key, str) else key.decode() for key in written}
            found = client.get_many([*wanted, *(keys.keys() - wanted)])
        return {str(key): document.data for key, document in found.items()}
