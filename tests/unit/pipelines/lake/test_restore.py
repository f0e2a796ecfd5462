from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from millstream.client.columns import Columns, encode_meta
from millstream.client.documents import Stored
from millstream.client.extensions import PartitionPosition
from millstream.client.writes import GivenWrite
from millstream.errors import (
    AccessError,
    ConditionError,
    CorruptionError,
    UnavailableError,
    UsageError,
)
from millstream.model.partitions import PartitionState
from millstream.model.position import FailoverEntry, Position
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.lake import backup, restore
from millstream.pipelines.lake.backup import back_up
from millstream.pipelines.lake.directory import BackupDirectory
from millstream.pipelines.lake.manifest import Part
from millstream.pipelines.lake.parquet import PartWriter
from millstream.pipelines.lake.restore import RestoreTask, writes_of
from millstream.pipelines.lake.tasks import Watch
from support.pipelines.backup_double import (
    LINEAGE,
    FalseControl,
    FalseKeeper,
    FalseSource,
    FalseSpark,
)
from support.pipelines.node_double import FalseNode

OPTIONS = SourceOptions(hosts="h", bucket="b")
SPARK: Any = FalseSpark()
NOW_S = 5000


class Target:
    """A `client.kv.Client` that keeps what it is given."""

    def __init__(self) -> None:
        self.documents: dict[bytes, GivenWrite] = {}
        self.refusal: AccessError | None = None
        self.bucket, self.partition_count = "b", 2
        self.uuid = 5
        self.dies_after: int | None = None
        self.is_persisted = False
        self.durable_seqno = 9
        self.on_look: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def write_each(self, writes: Iterable[GivenWrite]) -> Iterator[tuple[GivenWrite, Any]]:
        for write in writes:
            if self.refusal is not None:
                yield write, self.refusal
            elif write.is_insert and write.key in self.documents:
                yield write, ConditionError("there", code="key_exists")
            else:
                self.documents[write.key] = write
                if len(self.documents) == self.dies_after:
                    self.uuid += 1
                yield write, Stored(1, 0, 0, 1)

    def positions(self, partition_ids: Sequence[int] = (0, 1)) -> list[PartitionPosition]:
        self.is_persisted = bool(self.documents)
        self.on_look()
        durable = self.durable_seqno
        return [
            PartitionPosition(p, PartitionState.ACTIVE, self.uuid, 1, 9, 9, 9, 9, durable, 0)
            for p in partition_ids
        ]


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    made = Target()
    monkeypatch.setattr(restore, "open_again", lambda _: made)
    return made


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BackupDirectory:
    """Two backups of two partitions: 1, 2, 3; then 2 is deleted and 3 changed."""
    node = FalseNode(2)
    monkeypatch.setattr(backup, "NodeControl", lambda options: FalseControl(node))
    monkeypatch.setattr(backup, "NodeRanges", lambda *_, **__: FalseSource(node))
    monkeypatch.setattr(backup, "LeaseKeeper", FalseKeeper)
    made = BackupDirectory(tmp_path / "backup")
    for key in (1, 2, 3):
        node.write(key % 2, key, key * 10)
    back_up(SPARK, OPTIONS, made)
    node.write(0, 2, None)
    node.write(1, 3, 31)
    back_up(SPARK, OPTIONS, made, is_incremental=True)
    return made


def held(target: Target) -> dict[str, str]:
    return {k.decode(): (w.value or b"").decode() for k, w in target.documents.items()}


def test_any_manifest_is_written_with_what_documents_had(
    directory: BackupDirectory, target: Target
) -> None:
    done = restore.restore(SPARK, OPTIONS, directory, manifest=1)
    assert (done.manifest, done.written, done.kept) == (1, 3, 0)
    assert held(target) == {"1": "10", "2": "20", "3": "30"}
    assert target.documents[b"3"][5:8] == (2, 1, LINEAGE)
    assert target.is_persisted
    target.documents.clear()
    assert restore.restore(SPARK, OPTIONS, directory).manifest == 2
    assert held(target) == {"1": "10", "3": "31"}


def test_a_document_too_large_for_one_request_is_told_and_the_rest_written(
    directory: BackupDirectory, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "is_one_request", lambda write: write.key != b"3")
    done = restore.restore(SPARK, OPTIONS, directory, manifest=1)
    assert (done.written, done.too_large) == (2, ("3",))
    assert held(target) == {"1": "10", "2": "20"}


def test_existing_documents_stay_unless_replacing(
    directory: BackupDirectory, target: Target
) -> None:
    target.documents[b"1"] = GivenWrite(b"1", b"mine", 0, 0, 0, 1, 1, LINEAGE)
    done = restore.restore(SPARK, OPTIONS, directory)
    assert (done.written, done.kept, held(target)["1"]) == (1, 1, "mine")
    done = restore.restore(SPARK, OPTIONS, directory, overwrites=True)
    assert (done.written, done.kept, held(target)["1"]) == (2, 0, "10")


def test_only_some_keys(directory: BackupDirectory, target: Target) -> None:
    assert restore.restore(SPARK, OPTIONS, directory, key_prefix="3").written == 1
    assert held(target) == {"3": "31"}


def test_lost_writes_are_an_error(directory: BackupDirectory, target: Target) -> None:
    target.dies_after = 2
    with pytest.raises(UnavailableError) as lost:
        restore.restore(SPARK, OPTIONS, directory)
    assert lost.value.code == "history_lost"
    target.dies_after = None
    assert restore.restore(SPARK, OPTIONS, directory).kept == 2


def test_a_stop_is_seen_while_it_waits_for_disks(
    directory: BackupDirectory, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore, "PERSIST_S", 1.0)
    watch = Watch(advice="run it again")
    target.durable_seqno = 8
    target.on_look = lambda: watch.stop() if target.documents else None
    with pytest.raises(ConditionError, match="run it again") as caught:
        restore.restore(SPARK, OPTIONS, directory, watch=watch)
    assert caught.value.code == "stopped"
    assert len(target.documents) == 2


def test_a_refused_document_ends_it(directory: BackupDirectory, target: Target) -> None:
    target.refusal = AccessError("no right")
    with pytest.raises(AccessError):
        restore.restore(SPARK, OPTIONS, directory)
    with pytest.raises(UsageError, match="no manifest 7"):
        restore.restore(SPARK, OPTIONS, directory, manifest=7)


def writes(root: Path, **fields: Any) -> tuple[list[GivenWrite], dict[str, bytes]]:
    """What is written of one document with these columns."""
    row = {
        "op": "put", "partition": 0, "seqno": 1, "rev": -1, "cas": 5, "flags": 7, "expiry": 0,
        "datatype": 1, "key": "\\xff", "value": b"v", "meta": encode_meta(LINEAGE), **fields,
    }  # fmt: skip
    (root / "data").mkdir()
    with PartWriter(root, "data", 0) as writer:
        writer.add(Columns(**{name: [value] for name, value in row.items()}), 1)
        files = writer.close()
    part = Part(
        partition=0, kind="full", position=Position(1, 9, 9, 9), branch=1, purge_seqno=0,
        failover_log=(FailoverEntry(1, 0, 1),), files=tuple(files),
    )  # fmt: skip
    designs: dict[str, bytes] = {}
    task = RestoreTask(OPTIONS, root, (part,), "", False, NOW_S)
    return list(writes_of(task, designs)), designs


def test_columns_become_what_they_were(tmp_path: Path) -> None:
    ([write], designs) = writes(tmp_path)
    assert write == GivenWrite(b"\xff", b"v", 7, 1, 0, 5, 2**64 - 1, LINEAGE, is_insert=True)
    assert designs == {}


@pytest.mark.parametrize("fields", [{"op": "expire"}, {"expiry": NOW_S}])
def test_deleted_documents_are_not_written(tmp_path: Path, fields: dict[str, Any]) -> None:
    assert writes(tmp_path, **fields) == ([], {})


def test_design_documents_are_handed_to_the_caller(tmp_path: Path) -> None:
    assert writes(tmp_path, key="_design/d", value=b"{}") == ([], {"_design/d": b"{}"})


def test_a_document_without_lineage_is_damage(tmp_path: Path) -> None:
    with pytest.raises(CorruptionError) as damage:
        writes(tmp_path, meta=b"\x90")
    assert damage.value.code == "bad_meta"
