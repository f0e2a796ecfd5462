from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.model.partitions import partition_of
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.lake import backup, verify
from millstream.pipelines.lake.backup import back_up
from millstream.pipelines.lake.comparing import Compared
from millstream.pipelines.lake.directory import BackupDirectory
from millstream.pipelines.lake.verify import verify_bucket, verify_files
from support.pipelines.backup_double import FalseControl, FalseKeeper, FalseSource, FalseSpark
from support.pipelines.node_double import FalseNode

OPTIONS = SourceOptions(hosts="h", bucket="b")
SPARK: Any = FalseSpark()


class World:
    """A node that was backed up into `directory`; `show` another one instead."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = BackupDirectory(root / "backup")
        self.monkeypatch = monkeypatch
        self.node = filled(4)
        self.show(self.node)
        back_up(SPARK, OPTIONS, self.directory)

    def show(self, node: FalseNode, uuid: str = "b0") -> None:
        control = FalseControl(node)
        control.bucket_uuid = uuid
        for module in (backup, verify):
            self.monkeypatch.setattr(module, "NodeControl", lambda options: control)
            self.monkeypatch.setattr(module, "LeaseKeeper", FalseKeeper)
        self.monkeypatch.setattr(backup, "NodeRanges", lambda *_, **__: FalseSource(node))
        self.monkeypatch.setattr(verify, "NodeRanges", lambda *_, **__: FalseSource(node))

    def verify(self) -> Compared:
        found = verify_bucket(SPARK, OPTIONS, self.directory)
        assert not any(part.leases for part in self.node.partitions.values())
        return found


def filled(partition_count: int) -> FalseNode:
    node = FalseNode(partition_count)
    for key in range(40):
        node.write(partition_of(b"%d" % key, partition_count), key, key)
    return node


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_files_are_checked_against_their_manifests(world: World) -> None:
    assert verify_files(SPARK, world.directory) == (4, [])
    path = next(world.directory.path.glob("data-*/partition=0/*"))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    (count, [problem]) = verify_files(SPARK, world.directory)
    assert count == 4
    assert "partition=0" in problem
    world.node.write(0, 99, 1)
    back_up(SPARK, OPTIONS, world.directory, is_incremental=True)
    (world.directory.path / "manifest-000001.json").unlink()
    assert "needs manifest 1" in verify_files(SPARK, world.directory)[1][0]
    (world.directory.path / "manifest-000001.json").write_bytes(b"{")
    [damage] = verify_files(SPARK, world.directory)[1]
    assert "manifest-000001.json" in damage


def test_the_bucket_may_have_newer_changes(world: World) -> None:
    assert world.verify() == Compared(equal=40)
    p = partition_of(b"7", 4)
    world.node.write(p, 7, None)
    world.node.write(p, 1000, 5)
    assert world.verify() == Compared(equal=39, changed=2)


def test_another_history_is_not_compared(world: World) -> None:
    p = partition_of(b"7", 4)
    mine = len(world.node.partitions[p].live())
    world.node.partitions[p].fail_over(1)
    assert world.verify() == Compared(equal=40 - mine, incomparable=1)


@pytest.mark.parametrize("partition_count", [1, 2, 4, 16])
def test_another_bucket_is_compared_whatever_its_partitions(
    world: World, partition_count: int
) -> None:
    other = filled(partition_count)
    world.show(other, uuid="b1")
    found = world.verify()
    # The CAS of a false node is the seqno, so only documents with the same one are equal.
    ours = {key: n for part in world.node.partitions.values() for key, (n, _) in _newest(part)}
    theirs = {key: n for part in other.partitions.values() for key, (n, _) in _newest(part)}
    equal = sum(theirs[key] == n for key, n in ours.items())
    assert (found.equal, found.different) == (equal, 40 - equal)
    assert (found.missing, found.extra) == (0, 0)
    other.write(partition_of(b"3", partition_count), 3, None)
    other.write(partition_of(b"1000", partition_count), 1000, 1)
    found = world.verify()
    assert (found.missing, found.extra) == (1, 1)


def _newest(part: Any) -> Any:
    return part.newest().items()
