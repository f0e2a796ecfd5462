from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator

import pytest

from millstream.client.documents import Stored
from millstream.client.writes import Write
from millstream.errors import CorruptionError, UnavailableError, UsageError
from millstream.pipelines.sinks import bucket_target, companions, writing
from millstream.pipelines.sinks.bucket_target import BucketTarget
from millstream.pipelines.sinks.repairing import (
    OP_ROLLBACK,
    OP_SWEEP,
    KeyedTarget,
    RepairingSink,
    Row,
)
from simulators.pipeline_world import World
from support.budget import budget
from support.kv.bucket_double import FalseBucket
from support.pipelines.node_double import FalseNode
from support.streams.keyed_double import FalseOrigin, false_row, name_of

SCHEDULES = budget(500)
OPTIONS = {"bucket": "copy"}
HEADS = ["_millstream:sink:-1", "_millstream:sink:0"]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> FalseBucket:
    bucket = FalseBucket()
    monkeypatch.setattr(bucket_target, "open_again", lambda _: bucket)
    monkeypatch.setattr(bucket_target, "live_keys", bucket.live_keys)
    return bucket


def documents(bucket: FalseBucket) -> dict[str, bytes]:
    return {k: found[0] for k, found in bucket.documents.items() if not k.startswith("_mill")}


class CrashingWorld(World):
    """Connections break between any two writes, the target's node dies, the driver restarts."""

    bucket: FalseBucket

    def make_target(self) -> KeyedTarget:
        return BucketTarget(OPTIONS)

    def drop_tombstones(self, p: int, seqno: int) -> None:
        self.origin.durable[p] = seqno

    def apply(self, rows: list[Row]) -> bool:
        self.bucket.fail_after = self.rng.randrange(12) if self.rng.random() < 0.3 else None
        try:
            self.sink.apply(rows)
        except UnavailableError:
            if self.rng.random() < 0.5:
                self.bucket.crash()
            if self.rng.random() < 0.5:
                self.target = self.make_target()
                self.sink = self.make_sink()
            return False
        finally:
            self.bucket.fail_after = None
        if self.rng.random() < 0.1:
            self.bucket.crash()  # after the end of a batch nothing is lost
        return True

    def live(self, p: int) -> dict[str, bytes | None]:
        count = len(self.node.partitions)
        names = {name_of(p, key, count) for key in range(4)}
        return {key: data for key, data in documents(self.bucket).items() if key in names}


def test_the_target_equals_the_source_after_random_faults(bucket: FalseBucket) -> None:
    for seed in range(SCHEDULES):
        bucket.__init__()  # type: ignore[misc]
        CrashingWorld.bucket = bucket
        try:
            CrashingWorld(seed, repairs=True).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        size = sum(len(found[0]) for k, found in bucket.documents.items() if k.startswith("_mill"))
        assert size < 20_000


class DocumentsFirst(BucketTarget):
    """Companions are written when documents are: what a crash leaves may be named nowhere."""

    def commit(self, batch_id: int) -> None:
        write_heads = self._write_heads
        self._write_heads = lambda _: None  # type: ignore[method-assign]
        super().commit(batch_id)
        write_heads(self._states)


class NewestEntry(BucketTarget):
    """A rollback concerns a key by its newest entry alone."""

    def keys_above(self, partition: int, branch: int, seqno: int) -> list[str]:
        ring = self._rings[partition]
        newest = ring.newest(ring.keys_above(branch, seqno))
        return [k for k, entry in newest.items() if entry.branch < branch and entry.seqno > seqno]


@pytest.mark.parametrize("planted", [DocumentsFirst, NewestEntry])
def test_a_planted_mistake_is_found(bucket: FalseBucket, planted: type[BucketTarget]) -> None:
    class PlantedWorld(CrashingWorld):
        def make_target(self) -> KeyedTarget:
            return planted(OPTIONS)

    for seed in range(4_000):
        bucket.__init__()  # type: ignore[misc]
        PlantedWorld.bucket = bucket
        try:
            PlantedWorld(seed).run()
        except AssertionError:
            return
    raise AssertionError("not found")


@pytest.fixture
def node() -> FalseNode:
    node = FalseNode(1)
    for key in range(3):
        node.write(0, key, key)
    return node


def sink_of(node: FalseNode) -> RepairingSink:
    return RepairingSink(BucketTarget(OPTIONS), FalseOrigin(node))


def test_flags_expiry_and_datatype_are_kept(bucket: FalseBucket, node: FalseNode) -> None:
    row = false_row(0, 1, 1, 0, 0)._replace(flags=7, expiry=2_000_000_000, datatype=1)
    sink_of(node).apply([row])
    assert bucket.documents["0"] == (b"0", 7, 2_000_000_000, 1)


def test_documents_of_others_are_neither_copied_nor_swept(
    bucket: FalseBucket, node: FalseNode
) -> None:
    others = ("_design/d", "_local/l", "_millstream:other:0", "_millstream/sink/s")
    bucket.documents.update(dict.fromkeys((*others, "left"), (b"mine", 0, 0, 0)))
    rows = [false_row(0, 1, n, 0, 0)._replace(key=key) for n, key in enumerate(others, 1)]
    load = [Row(OP_ROLLBACK, 0, 1, 0, rev=2), Row(OP_SWEEP, 0, 1, 3, rev=2)]
    sink_of(node).apply([*load, *rows, false_row(0, 1, 4, 4, 4)])
    assert {bucket.documents[key][0] for key in others} == {b"mine"}
    assert documents(bucket).keys() == {"_design/d", "_local/l", "4"}


def test_a_sweep_that_is_cut_off_is_made_again(bucket: FalseBucket, node: FalseNode) -> None:
    bucket.documents["left"] = (b"", 0, 0, 0)
    batch = [
        Row(OP_ROLLBACK, 0, 1, 0, rev=2), Row(OP_SWEEP, 0, 1, 3, rev=2), false_row(0, 1, 1, 0, 0)
    ]  # fmt: skip
    bucket.fail_after = 2  # the head, made durable; not the first deletion
    with pytest.raises(UnavailableError):
        sink_of(node).apply(batch)
    assert "left" in bucket.documents
    sink_of(node).apply(batch)
    assert documents(bucket) == {"0": b"0"}


def test_a_target_that_lost_a_batch_gets_it_again(
    bucket: FalseBucket, node: FalseNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_each = bucket.write_each

    def crash_after(writes: Iterable[Write]) -> Iterator[tuple[Write, Stored]]:
        yield from write_each(writes)
        bucket.crash()

    monkeypatch.setattr(bucket, "write_each", crash_after)
    with pytest.raises(UnavailableError, match="began a new history"):
        sink_of(node).apply([false_row(0, 1, 1, 0, 0)])


def test_a_batch_that_only_the_active_copy_has_on_disk_has_not_ended(
    bucket: FalseBucket, node: FalseNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "PERSIST_S", 0.0)
    bucket.is_replicating = False
    with pytest.raises(UnavailableError, match="majority of the copies") as failed:
        sink_of(node).apply([false_row(0, 1, 1, 0, 0)])
    assert failed.value.code == "timeout"


def test_an_unserved_partition_is_not_skipped(
    bucket: FalseBucket, node: FalseNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_each = bucket.write_each

    def lose_owner_after(writes: Iterable[Write]) -> Iterator[tuple[Write, Stored]]:
        yield from write_each(writes)
        bucket.owned = []

    monkeypatch.setattr(bucket, "write_each", lose_owner_after)
    with pytest.raises(UnavailableError) as failed:
        sink_of(node).apply([false_row(0, 1, 1, 0, 0)])
    assert failed.value.code == "history_lost"


def test_a_sweep_needs_all_partitions(bucket: FalseBucket, node: FalseNode) -> None:
    bucket.partition_count = 2  # the second has no owner: what it has is not seen
    load = [Row(OP_ROLLBACK, 0, 1, 0, rev=2), Row(OP_SWEEP, 0, 1, 3, rev=2)]
    with pytest.raises(UnavailableError, match="no node serves") as failed:
        sink_of(node).apply(load)
    assert failed.value.code == "partition_inactive"
    sink_of(node).apply([false_row(0, 1, 1, 0, 0)])
    bucket.owned = [0, 1]
    sink_of(node).apply(load)


def test_documents_without_values_are_refused(bucket: FalseBucket, node: FalseNode) -> None:
    row = false_row(0, 1, 1, 0, 0)
    with pytest.raises(UsageError, match="'0' has no value") as failed:
        sink_of(node).apply([row._replace(value=None)])
    assert failed.value.code == "bad_schema"
    assert not bucket.documents
    sink_of(node).apply([row._replace(value=b""), false_row(0, 1, 2, 1, None)])
    assert documents(bucket) == {"0": b""}


def test_chunks_that_a_crash_left_are_removed_by_the_next_batch(
    bucket: FalseBucket, node: FalseNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(companions, "CHUNK_ENTRIES", 2)
    origin = FalseOrigin(node)
    rows = [false_row(0, 1, n, n, n) for n in range(1, 6)]
    RepairingSink(BucketTarget(OPTIONS), origin).apply(rows)
    origin.durable[0] = 4
    next_rows = [false_row(0, 1, 6, 6, 6)]
    bucket.fail_after = 2  # the head, made durable; no chunk is removed
    with pytest.raises(UnavailableError):
        RepairingSink(BucketTarget(OPTIONS), origin).apply(next_rows)
    assert len([key for key in bucket.documents if key.startswith("_mill")]) == 5
    sink = RepairingSink(BucketTarget(OPTIONS), origin)
    sink.apply(next_rows)
    assert sorted(k for k in bucket.documents if k.startswith("_mill")) == HEADS
    assert sorted(sink_keys(sink, 0)) == ["5", "6"]


def test_durable_entries_are_forgotten_and_rings_are_bounded(
    bucket: FalseBucket, node: FalseNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(companions, "CHUNK_ENTRIES", 2)
    origin = FalseOrigin(node)
    sink = RepairingSink(BucketTarget(OPTIONS), origin)
    sink.apply([false_row(0, 1, n, n, n) for n in range(1, 6)])
    chunks = [key for key in bucket.documents if key.startswith("_millstream:sink:0:")]
    assert len(chunks) == 3
    sink = RepairingSink(BucketTarget(OPTIONS), origin)
    assert sorted(sink_keys(sink, 3)) == ["4", "5"]
    origin.durable[0] = 4
    sink.apply([false_row(0, 1, 6, 6, 6)])
    assert sorted(k for k in bucket.documents if k.startswith("_mill")) == HEADS
    assert sorted(sink_keys(sink, 0)) == ["5", "6"]


def sink_keys(sink: RepairingSink, seqno: int) -> list[str]:
    target = sink._target
    target.begin([0], 1)
    return list(target.keys_above(0, 9, seqno))


def test_damaged_companions_are_an_error(bucket: FalseBucket, node: FalseNode) -> None:
    bucket.documents["_millstream:sink:0"] = (b"\xc1", 0, 0, 0)
    with pytest.raises(CorruptionError, match="_millstream:sink:0"):
        sink_of(node).apply([false_row(0, 1, 1, 0, 0)])


def test_a_pickled_target_connects_again(bucket: FalseBucket, node: FalseNode) -> None:
    target = pickle.loads(pickle.dumps(BucketTarget(OPTIONS)))
    RepairingSink(target, FalseOrigin(node)).apply([false_row(0, 1, 1, 0, 0)])
    assert documents(bucket).keys() == {"0"}
