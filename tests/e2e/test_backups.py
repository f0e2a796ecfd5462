"""Backups of a bucket on two real nodes through fail-overs that lose changes; no Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import millstream
from backup_double import FalseSpark
from bucket_nodes import BUCKET, BucketNodes
from millstream.pipelines.lake.backup import back_up, compact
from millstream.pipelines.lake.directory import BackupDirectory
from millstream.pipelines.lake.restore import restore
from millstream.pipelines.lake.verify import verify_bucket, verify_files
from millstream.pipelines.options import SourceOptions
from node_process import NodeProcess

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
    backup.write({key: {"n": 1} for key in KEYS[:80]}, durability="majority")
    with backup.client() as client:
        client.upsert("k0", {"n": 1}, expiry=LATER, durability="majority")
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
