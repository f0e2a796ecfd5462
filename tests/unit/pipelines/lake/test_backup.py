"""Whole backups of a false node into real files, with everything but Spark and sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import (
    CorruptionError,
    MillstreamError,
    StreamError,
    UnavailableError,
    UsageError,
)
from millstream.pipelines.change_stream.options import SourceOptions
from millstream.pipelines.lake import backup
from millstream.pipelines.lake.backup import ROUNDS_MAX, back_up, compact
from millstream.pipelines.lake.chain import chain_of, parts_of
from millstream.pipelines.lake.copying import newest_batches
from millstream.pipelines.lake.directory import BackupDirectory
from support.pipelines.backup_double import FalseControl, FalseKeeper, FalseSource, FalseSpark
from support.pipelines.node_double import FalseNode

OPTIONS = SourceOptions(hosts="h", bucket="b")


class World:
    def __init__(self, root: Path) -> None:
        self.node = FalseNode(3)
        self.control = FalseControl(self.node)
        self.directory = BackupDirectory(root / "backup")
        self.spark: Any = FalseSpark()

    def back_up(self, *, is_incremental: bool = True) -> int:
        return back_up(self.spark, OPTIONS, self.directory, is_incremental=is_incremental).id

    def state(self, id_: int) -> dict[int, dict[int, int]]:
        chain = chain_of(self.directory.manifests(), id_)
        found: dict[int, dict[int, int]] = {}
        for p in self.node.partitions:
            batches = newest_batches(
                self.directory.path, parts_of(chain, p), ["op", "key", "value"]
            )
            rows = [row for batch in batches for row in batch.to_pylist()]
            found[p] = {int(r["key"]): int(r["value"]) for r in rows if r["op"] == "put"}
        return found

    def truth(self) -> dict[int, dict[int, int]]:
        return {p: part.live() for p, part in self.node.partitions.items()}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path)
    monkeypatch.setattr(backup, "NodeControl", lambda options: made.control)
    monkeypatch.setattr(backup, "NodeRanges", lambda *_, **__: FalseSource(made.node))
    monkeypatch.setattr(backup, "LeaseKeeper", FalseKeeper)
    yield made
    assert not any(part.leases for part in made.node.partitions.values()), "leases were left"


def test_full_increments_and_compaction_restore_to_their_states(world: World) -> None:
    truths = {}
    for key in range(6):
        world.node.write(key % 3, key, key)
    truths[world.back_up()] = world.truth()
    world.node.write(0, 0, None)
    world.node.write(1, 7, 77)
    truths[world.back_up()] = world.truth()
    world.node.partitions[1].fail_over(1)
    truths[world.back_up()] = world.truth()
    truths[compact(world.spark, world.directory).id] = world.truth()
    world.node.write(2, 2, 22)
    truths[world.back_up()] = world.truth()
    truths[world.back_up(is_incremental=False)] = world.truth()
    assert {id_: world.state(id_) for id_ in truths} == truths
    manifests = world.directory.manifests()
    assert [m.parent for m in manifests.values()] == [None, 1, 2, None, 4, None]
    assert [p.kind for p in manifests[3].parts] == ["changes", "branched", "changes"]
    assert [p.row_count for p in manifests[3].parts] == [0, 3, 0]


def test_a_lease_lost_or_a_history_changed_meanwhile_is_planned_anew(world: World) -> None:
    world.node.write(0, 0, 5)
    world.node.write(1, 1, 6)
    lost = [lambda: world.node.partitions[0].leases.clear(),
            lambda: world.node.partitions[0].fail_over(1)]  # fmt: skip

    def disturb() -> None:
        if lost:
            lost.pop()()

    world.control.on_lease = disturb
    assert world.state(world.back_up()) == world.truth()
    assert lost == []


def test_a_partition_that_never_holds_still_fails_the_backup(world: World) -> None:
    world.node.write(0, 0, 5)
    part, calls = world.node.partitions[0], []
    world.control.on_lease = lambda: (calls.append(1), part.leases.clear())[0]
    with pytest.raises(StreamError):
        world.back_up()
    assert len(calls) == ROUNDS_MAX
    world.control.on_lease = lambda: part.fail_over(1)
    with pytest.raises(UnavailableError, match="histories"):
        world.back_up()
    world.control.on_lease = lambda: None
    assert world.directory.manifests() == {}
    assert world.back_up() == 1  # of the torn ones nothing is left
    assert len(list(world.directory.path.glob("data-*"))) == 1


def test_an_increment_belongs_to_its_bucket(world: World) -> None:
    world.node.write(0, 0, 5)
    world.back_up()
    world.control.bucket_uuid = "b1"
    with pytest.raises(UsageError) as refusal:
        world.back_up()
    assert refusal.value.code == "other_bucket"
    assert world.back_up(is_incremental=False) == 2


def test_a_damaged_chain_fails_what_builds_on_it(world: World) -> None:
    with pytest.raises(UsageError):
        compact(world.spark, world.directory)
    world.node.write(0, 0, 5)
    world.back_up()
    [path] = world.directory.path.glob("data-*/partition=0/*")
    path.write_bytes(b"PAR1")
    with pytest.raises(MillstreamError) as damage:
        compact(world.spark, world.directory)
    world.node.partitions[0].fail_over(0)
    world.node.write(0, 1, 5)
    assert damage.value.code == "damaged_file"
    assert world.back_up() == 2  # fell to zero: needs nothing of the chain


def test_a_damaged_manifest_or_a_broken_chain_fails_only_what_needs_it(world: World) -> None:
    world.node.write(0, 0, 5)
    assert [world.back_up(), world.back_up(), world.back_up()] == [1, 2, 3]
    second = world.directory.path / "manifest-000002.json"
    second.write_bytes(second.read_bytes()[:-20])
    for _ in range(2):
        with pytest.raises(CorruptionError):
            world.back_up()
        with pytest.raises(CorruptionError):
            compact(world.spark, world.directory)
        assert world.state(1) == world.truth()
        second.unlink(missing_ok=True)  # from now on the chain is broken
    full = world.back_up(is_incremental=False)
    assert world.state(full) == world.state(1) == world.truth()
    assert world.back_up() == full + 1


def test_a_damaged_newest_manifest_needs_a_full_backup(world: World) -> None:
    world.back_up()
    (world.directory.path / "manifest-000001.json").write_bytes(b"{")
    with pytest.raises(CorruptionError):
        world.back_up()
    assert world.back_up(is_incremental=False) == 2
