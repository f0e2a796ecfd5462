"""Backups of a bucket on two real nodes through fail-overs that lose changes; no Spark."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.errors import CorruptionError
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.lake.backup import back_up, compact
from millstream.pipelines.lake.directory import BackupDirectory
from millstream.pipelines.lake.restore import restore
from millstream.pipelines.lake.verify import verify_bucket, verify_files
from support.http.attached_documents import LARGE, SMALL, attached, files_of, fill, put, shown
from support.kv.bucket_nodes import BUCKET, BucketNodes
from support.node.node_process import NodeProcess
from support.pipelines.backup_double import FalseSpark

KEYS = [f"k{n}" for n in range(120)]
LATER = 4_000_000_000
SPARK: Any = FalseSpark()
Documents = dict[str, tuple[object, ...]]


def documents(client: Any) -> Documents:
    """What documents have that a restore keeps."""
    found = {key: client.get_versioned(key) for key in KEYS}
    return {
        key: (d.value, d.cas, d.flags, d.rev, d.expiry)
        for key, d in found.items()
        if d is not None and not d.is_deleted
    }


class BackedUp:
    """A bucket on two nodes, a and b, its backup, and what it was at each manifest."""

    def __init__(self, make: Callable[..., NodeProcess], path: Path) -> None:
        nodes = [make("--no-memcached", name=name) for name in "ab"]
        self.cluster = BucketNodes(nodes, ["ab"] * 4)
        self.cluster.promote("a")
        self.cluster.until_whole("a", "b")
        self.directory = BackupDirectory(path)
        self.had: dict[int, Documents] = {}

    def client(self) -> Any:
        """A client that begins with whichever node runs."""
        running = [node for node in self.cluster.nodes.values() if node.is_running]
        return millstream.connect(running[0].ready["kv"], bucket=BUCKET)

    def write(self, documents: dict[str, Any], **options: Any) -> None:
        with self.client() as client:
            client.apply_many(documents.items(), **options).raise_first()

    def options(self) -> SourceOptions:
        hosts = ",".join(node.ready["kv"] for node in self.cluster.nodes.values())
        return SourceOptions(hosts=hosts, bucket=BUCKET)

    def run(self, *, is_incremental: bool = True) -> list[str]:
        """Back up; return the kinds of its parts."""
        made = back_up(SPARK, self.options(), self.directory, is_incremental=is_incremental)
        with self.client() as client:
            self.had[made.id] = documents(client)
        return [part.kind for part in made.parts]


def test_increments_are_right_across_fail_overs_and_restore_anywhere(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    backup = BackedUp(make_node, tmp_path / "backup")
    cluster = backup.cluster
    backup.write({key: {"n": 1} for key in KEYS[:80]}, durability="majority_persisted")
    with backup.client() as client:
        client.upsert("k0", {"n": 1}, expiry=LATER, durability="majority_persisted")
    cluster.until_level("a", "b")
    assert backup.run(is_incremental=False) == ["full"] * 4

    # What only a has is backed up, and lost with it.
    cluster.nodes["b"].kill()
    backup.write({key: {"n": 2} for key in KEYS[:40]} | dict.fromkeys(KEYS[40:60]))
    backup.write({key: {"n": 2} for key in KEYS[80:100]})
    assert backup.run() == ["changes"] * 4
    cluster.nodes["a"].kill()
    cluster.nodes["b"].start()
    cluster.promote("b", "--force")
    backup.write({key: {"n": 3} for key in KEYS[30:50]} | dict.fromkeys(KEYS[10:15]))
    assert backup.run() == ["branched"] * 4
    assert set(backup.had[3]) == set(KEYS[:80]) - set(KEYS[10:15])

    # A fail-over that loses nothing.
    cluster.nodes["a"].start()
    cluster.promote("b")
    cluster.until_level("a", "b")
    cluster.nodes["b"].kill()
    cluster.promote("a")
    backup.write({key: {"n": 4} for key in KEYS[95:]})
    assert backup.run() == ["changes"] * 4

    compacted = compact(SPARK, backup.directory).id
    backup.had[compacted] = backup.had[4]
    assert verify_files(SPARK, backup.directory)[1] == []
    assert verify_bucket(SPARK, backup.options(), backup.directory).is_equal
    buckets = [f"r{id_}" for id_ in backup.had]
    words = [f"--bucket={name}:{2**n}" for n, name in enumerate(buckets, 1)]
    other = make_node("--no-memcached", *words, name="other").start()
    for id_, name in zip(backup.had, buckets, strict=True):
        options = SourceOptions(hosts=other.ready["kv"], bucket=name)
        for prefix in ("k1", ""):
            restore(SPARK, options, backup.directory, manifest=id_, key_prefix=prefix)
            expected = {k: d for k, d in backup.had[id_].items() if k.startswith(prefix)}
            with millstream.connect(other.ready["kv"], bucket=name) as client:
                assert documents(client) == expected
        found = verify_bucket(SPARK, options, backup.directory, manifest=id_)
        assert (found.is_equal, found.equal) == (True, len(backup.had[id_]))


def test_attachments_and_conflicts_are_carried_each_once(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = make_node("--no-memcached", "--bucket", "b:4", name="source").start()
    target = make_node("--no-memcached", "--bucket", "r1:2", "--bucket", "r2:8", name="target")
    target.start()
    directory = BackupDirectory(tmp_path / "backup")
    options = SourceOptions(hosts=node.ready["kv"], bucket="b")
    revs = fill(node, "b")
    first = back_up(SPARK, options, directory)
    had = shown(node, "b", "large", "one", "two", "plain")
    assert all(base64.b64encode(SMALL).decode() in "".join(had[one]) for one in ("one", "two"))
    assert len(files_of(directory.path)) == 3, "the same bytes are there once"
    assert sum(part.blobs.row_count for part in first.parts if part.blobs) >= 3

    put(node, "b", "one", {"_rev": revs["one"], "_attachments": {"t": attached(b"another")}})
    second = back_up(SPARK, options, directory, is_incremental=True)
    assert len(files_of(directory.path)) == 4
    has = shown(node, "b", "large", "one", "two", "plain")
    assert verify_files(SPARK, directory)[1] == []
    for bucket, id_, expected in (("r1", first.id, had), ("r2", second.id, has)):
        restored = SourceOptions(hosts=target.ready["kv"], bucket=bucket)
        done = restore(SPARK, restored, directory, manifest=id_)
        assert (done.written, done.missing_blobs) == (4, frozenset())
        assert done.blobs >= 3
        assert shown(target, bucket, *expected) == expected
        again = restore(SPARK, restored, directory, manifest=id_, overwrites=True)
        assert (again.written, again.blobs) == (4, 0), "what the node has is not sent again"

    compacted = compact(SPARK, directory)
    for old in (first, second):
        (directory.path / f"manifest-{old.id:06d}.json").unlink()
    assert back_up(SPARK, options, directory, is_incremental=True).parent == compacted.id
    assert len(files_of(directory.path)) == 4
    assert verify_files(SPARK, directory)[1] == []


def test_missing_and_damaged_parts_of_a_backup_are_reported(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = make_node("--no-memcached", *(f"--bucket={name}:1" for name in "brq")).start()
    directory = BackupDirectory(tmp_path / "backup")
    options = SourceOptions(hosts=node.ready["kv"], bucket="b")
    target = SourceOptions(hosts=node.ready["kv"], bucket="r")
    fill(node, "b")
    [kept] = [one for one in node.data_dir.glob("**/blobs/??/*") if one.read_bytes() == SMALL]
    name = bytes.fromhex(kept.parent.name + kept.name)
    kept.unlink()
    made = back_up(SPARK, options, directory)
    assert (made.missing_blobs, len(files_of(directory.path))) == (1, 2)
    assert "lacks 1 attachments" in verify_files(SPARK, directory)[1][0]
    done = restore(SPARK, target, directory)
    assert (done.written, done.missing_blobs) == (4, frozenset([name]))

    [large] = [one for one in directory.path.glob("blobs/??/*") if one.read_bytes() == LARGE]
    large.write_bytes(LARGE[:-1] + b"x")
    assert any("is damaged" in problem for problem in verify_files(SPARK, directory)[1])
    with pytest.raises(CorruptionError) as damaged:
        restore(SPARK, SourceOptions(hosts=node.ready["kv"], bucket="q"), directory)
    assert damaged.value.code == "damaged_file"
