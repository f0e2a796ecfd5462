"""Backups of a real node in a real session: kill -9 with a lost tail, a torn backup, restores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.lake.backup import back_up, compact
from millstream.pipelines.lake.directory import BackupDirectory
from millstream.pipelines.lake.restore import restore
from millstream.pipelines.lake.verify import verify_bucket, verify_files
from support.http.attached_documents import files_of, fill, shown
from support.node.node_process import NodeProcess
from support.pipelines.spark_bucket import BucketUnderTest

KEYS = [f"k{n}" for n in range(400)]


def documents(bucket: BucketUnderTest) -> dict[str, Any]:
    """What documents have that a restore keeps; seqno, uuid and branch are the bucket's own."""
    with bucket.client() as client:
        found = {key: client.get_versioned(key) for key in KEYS}
    return {
        key: (d.value, d.cas, d.flags, d.rev, d.expiry)
        for key, d in found.items()
        if d is not None and not d.is_deleted
    }


@pytest.mark.slow
def test_every_backup_restores_its_state_after_a_lost_tail(
    spark: Any, own_node: Callable[..., NodeProcess], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    node = own_node("--bucket", "b:4", "--flush-interval", "600000")
    target = own_node("--bucket", "wide:16", "--bucket", "narrow:1", name="target")
    source = BucketUnderTest(node.ready["kv"], "b")
    directory = BackupDirectory(tmp_path / "backup")

    def options(bucket: str) -> SourceOptions:
        asked = node if bucket == "b" else target
        return SourceOptions(hosts=asked.ready["kv"], bucket=bucket)

    def backed_up(*, is_incremental: bool = True) -> Any:
        return back_up(spark, options("b"), directory, is_incremental=is_incremental)

    with source.client() as client:
        written = client.upsert_many({key: {"n": 1} for key in KEYS[:300]}, durability="persisted")
        assert written.done == 300
    assert backed_up(is_incremental=False).row_count == 300
    # A tail that only memory has: changes, deletions, documents that are born.
    source.write({key: {"n": 2} for key in KEYS[:100]} | dict.fromkeys(KEYS[100:150]))
    source.write({key: {"n": 3} for key in KEYS[300:]})
    second, had = backed_up(), documents(source)
    assert (second.parent, second.row_count) == (1, 250)
    node.kill()
    node.start()
    assert len(documents(source)) == 300
    source.write({key: {"n": 4} for key in KEYS[90:110]})

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(BackupDirectory, "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            backed_up()
    third, has = backed_up(), documents(source)
    assert third.parent == 2
    assert {part.kind for part in third.parts} == {"branched"}
    assert len(list(directory.path.glob("data-*"))) == 3  # nothing of the torn one
    compacted = compact(spark, directory)
    source.write({"k0": {"n": 5}, "k1": None})

    assert verify_files(spark, directory)[1] == []
    here = verify_bucket(spark, options("b"), directory)
    assert (here.is_equal, here.equal, here.changed, here.incomparable) == (True, 298, 2, 0)
    assert verify_bucket(spark, options("b"), directory, manifest=2).incomparable == 4
    for bucket, manifest, expected in (("wide", 2, had), ("narrow", compacted.id, has)):
        done = restore(spark, options(bucket), directory, manifest=manifest)
        assert (done.written, done.kept) == (len(expected), 0)
        assert documents(BucketUnderTest(target.ready["kv"], bucket)) == expected
        found = verify_bucket(spark, options(bucket), directory, manifest=manifest)
        assert (found.is_equal, found.equal) == (True, len(expected))
    again = restore(spark, options("narrow"), directory, key_prefix="k29")
    assert (again.written, again.kept) == (0, 11)


def test_attachments_and_conflicts_come_back(
    spark: Any, own_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = own_node("--bucket", "b:4", "--bucket", "r:2")
    directory = BackupDirectory(tmp_path / "backup")
    fill(node, "b")
    had = shown(node, "b", "large", "one", "two", "plain")
    back_up(spark, SourceOptions(hosts=node.ready["kv"], bucket="b"), directory)
    assert len(files_of(directory.path)) == 3
    assert verify_files(spark, directory)[1] == []
    done = restore(spark, SourceOptions(hosts=node.ready["kv"], bucket="r"), directory)
    assert (done.written, done.missing_blobs) == (4, frozenset())
    assert shown(node, "r", *had) == had
    rows = spark.read.parquet(*map(str, directory.path.glob("data-*")))
    assert rows.count() == 4, "lists of attachments are no rows"
