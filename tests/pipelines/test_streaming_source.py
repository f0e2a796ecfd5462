"""Streaming reads through a real session from a real node: restarts, limits, lost histories."""

import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from millstream.pipelines.change_stream.offsets import OffsetEntry
from millstream.pipelines.checkpoints import read_checkpoint, reset_checkpoint
from millstream.pipelines.monitoring import Figures, monitor
from millstream.pipelines.runs import lag_of_report
from support.node.node_process import NodeProcess
from support.pipelines.spark_bucket import TIMEOUT_S, BucketUnderTest, KeyedState

NO_FLUSH = ("--flush-interval", "600000")


def present(bucket: BucketUnderTest, keys: Any) -> dict[str, bytes]:
    with bucket.client() as client:
        found = client.get_many(list(keys))
    return {key: bytes(document.data) for key, document in found.items()}


def wait_until(holds: Callable[[], bool], query: Any = None) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline, "not in time"
        if query is not None and query.exception() is not None:
            raise query.exception()
        time.sleep(0.05)  # Spark tells nobody: asked again


def test_available_now_runs_keep_the_state(
    spark: Any, bucket: BucketUnderTest, tmp_path: Path
) -> None:
    """Exactly the newest state after each run, writers going on during the runs or not."""
    rng, keys, state = random.Random(1), [f"k{n}" for n in range(500)], KeyedState()
    for turn in range(3):
        bucket.write(dict.fromkeys(rng.sample(keys, 400), b"%d" % turn))
        bucket.write(dict.fromkeys(rng.sample(keys, 100)))
        other = threading.Thread(target=bucket.write, args=(dict.fromkeys(keys[:100], b"during"),))
        other.start()
        state.run_to_end(bucket.stream(spark), tmp_path / "checkpoint")
        other.join()
    state.run_to_end(bucket.stream(spark, maxRowsPerBatch=200), tmp_path / "checkpoint")
    assert state.live() == present(bucket, keys)
    count = len(state.batches)
    state.run_to_end(bucket.stream(spark), tmp_path / "checkpoint")
    assert len(state.batches) == count  # nothing new, no batch


def test_batches_keep_to_the_limit(spark: Any, bucket: BucketUnderTest, tmp_path: Path) -> None:
    bucket.write({f"k{n}": b"1" for n in range(5_000)})
    state = KeyedState()
    frame = bucket.stream(spark, "op string, partition int, branch long, seqno long, key string, "
                          "value binary", maxRowsPerBatch=1_000)  # fmt: skip
    state.run_to_end(frame, tmp_path / "checkpoint")
    sizes = [len([row for row in rows if row.op == "put"]) for _, rows in state.batches]
    assert sum(sizes) == 5_000
    assert max(sizes) <= 1_000
    assert len([size for size in sizes if size]) <= 6
    assert len(state.live()) == 5_000


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_superseded_changes_fill_no_batches(
    spark: Any, own_node: Callable[..., NodeProcess], tmp_path: Path, is_on_disk: bool
) -> None:
    """Loaded four times, caught up in batches that are as full as those of one load."""
    node = own_node("--bucket", "twice:4")
    bucket = BucketUnderTest(node.ready["kv"], "twice")
    for turn in range(4):
        bucket.write({f"k{n}": b"%d" % turn for n in range(2_000)})
    if is_on_disk:
        node.stop()
        node.start()
    state = KeyedState()
    state.run_to_end(bucket.stream(spark, maxRowsPerBatch=500), tmp_path / "checkpoint")
    sizes = [sum(row.op == "put" for row in rows) for _, rows in state.batches]
    assert sum(sizes) == 2_000
    assert max(sizes) <= 500
    assert len(sizes) <= 6  # the last one closes the snapshots
    assert len(state.live()) == 2_000


def test_batches_keep_to_bytes(spark: Any, bucket: BucketUnderTest, tmp_path: Path) -> None:
    large = {f"large{n}": bytes(400_000) for n in range(3)}
    bucket.write({f"k{n}": bytes(10_000) for n in range(100)} | large)
    state = KeyedState()
    frame = bucket.stream(spark, maxBytesPerBatch=300_000)
    state.run_to_end(frame, tmp_path / "checkpoint")
    batches = [[row for row in rows if row.op == "put"] for _, rows in state.batches]
    sizes = [sum(len(row.value) for row in rows) for rows in batches]
    assert sum(sizes) == 100 * 10_000 + 3 * 400_000
    alone = [rows for rows, size in zip(batches, sizes, strict=True) if size > 300_000]
    assert [len(rows) for rows in alone] == [1, 1, 1]
    assert len(batches) <= 10


def test_a_query_follows_and_goes_on_from_its_checkpoint(
    spark: Any, bucket: BucketUnderTest, tmp_path: Path
) -> None:
    state = KeyedState()
    bucket.write({f"k{n}": b"1" for n in range(100)})
    query = state.start(bucket.stream(spark), tmp_path / "checkpoint")
    try:
        wait_until(lambda: len(state.rows) == 100, query)
        bucket.write({f"k{n}": b"2" for n in range(50)} | {"k99": None})
        wait_until(lambda: len(state.live()) == 99 and state.live()["k0"] == b"2", query)
        query.processAllAvailable()  # stopped in the middle, the last batch would come again
        sources = query.lastProgress["sources"]
        assert '"bucket": "' + bucket.name in str(sources[0]["latestOffset"])
    finally:
        query.stop()
    bucket.write({f"k{n}": b"3" for n in range(10)})
    rows_before = sum(len(rows) for _, rows in state.batches)
    state.run_to_end(bucket.stream(spark), tmp_path / "checkpoint")
    assert state.live() == present(bucket, [f"k{n}" for n in range(100)])
    again = [row for _, rows in state.batches for row in rows][rows_before:]
    assert {row.key for row in again if row.op == "put"} == {f"k{n}" for n in range(10)}


def test_a_checkpoint_is_read_reset_and_its_lag_told(
    spark: Any, bucket: BucketUnderTest, tmp_path: Path
) -> None:
    bucket.write({f"k{n}": b"1" for n in range(1_000)})
    checkpoint, state = tmp_path / "checkpoint", KeyedState()

    def sizes() -> list[int]:
        return [sum(row.op == "put" for row in rows) for _, rows in state.batches]

    first = state.run_to_end(bucket.stream(spark, maxRowsPerBatch=400), checkpoint)
    assert sum(sizes()) == 1_000
    assert 300 < max(sizes()) <= 400
    reports = [report for report in first.recentProgress if report["numInputRows"]]
    lags = [sum((lag_of_report(report) or {}).values()) for report in reports]
    assert lags[0] > 400
    assert lags == sorted(lags, reverse=True)
    found = read_checkpoint(checkpoint)
    assert found.offset is not None
    assert sum(entry.seqno for entry in found.offset.entries.values()) == 1_000
    nothing = found.offset._replace(entries={p: OffsetEntry() for p in range(4)})
    number = reset_checkpoint(checkpoint, nothing)
    state.batches.clear()
    state.run_to_end(bucket.stream(spark), checkpoint)
    assert state.batches[0][0] == number + 1
    assert sum(sizes()) == 1_000


def test_a_query_is_monitored(spark: Any, bucket: BucketUnderTest, tmp_path: Path) -> None:
    bucket.write({f"k{n}": b"1" for n in range(1_000)})
    told: list[Figures] = []
    listener = monitor(spark, told.append)
    try:
        frame = bucket.stream(spark, maxRowsPerBatch=400)
        KeyedState().run_to_end(frame, tmp_path / "checkpoint")
        wait_until(lambda: bool(told) and told[-1].lag_changes == 0)
    finally:
        spark.streams.removeListener(listener)
    lags = [figures.lag_changes or 0 for figures in told]
    assert lags == sorted(lags, reverse=True)
    assert 600 <= lags[0] < 1_000
    assert {figures.bucket for figures in told} == {bucket.name}
    assert max(figures.rows_per_s for figures in told) > 0
    assert told[1].lag_s is not None
    assert told[1].lag_s > 0


def test_a_failed_batch_is_read_again(spark: Any, bucket: BucketUnderTest, tmp_path: Path) -> None:
    keys = [f"k{n}" for n in range(300)]
    bucket.write(dict.fromkeys(keys, b"1"))
    state = KeyedState()
    state.fail_at_batch = 0
    frame = bucket.stream(spark, maxRowsPerBatch=100)
    with pytest.raises(StreamingQueryException, match="told to fail"):
        state.run_to_end(frame, tmp_path / "checkpoint")
    bucket.write(dict.fromkeys(keys[:50], b"2"))
    state.run_to_end(frame, tmp_path / "checkpoint")
    assert [number for number, _ in state.batches][:2] == [0, 0]
    assert state.live() == present(bucket, keys)


def test_latest_means_what_comes_after_the_start(
    spark: Any, bucket: BucketUnderTest, tmp_path: Path
) -> None:
    bucket.write({"before": b"1"})
    state = KeyedState()
    query = state.start(bucket.stream(spark, startingOffsets="latest"), tmp_path / "checkpoint")
    try:
        wait_until(lambda: bool(state.batches), query)
        bucket.write({"after": b"1"})
        wait_until(lambda: bool(state.rows), query)
    finally:
        query.stop()
    assert set(state.live()) == {"after"}


def test_a_read_begins_at_the_first_change_since_a_time(
    spark: Any, bucket: BucketUnderTest, tmp_path: Path
) -> None:
    bucket.write({f"k{n}": b"1" for n in range(200)})
    with bucket.client() as client:
        before_ms = since_ms = client.upsert("k5", b"2").cas // 10**6
        while since_ms == before_ms:  # the option counts milliseconds
            since_ms = client.upsert("k6", b"2").cas // 10**6
    bucket.write({"k7": None, "new": b"1"})
    expected = {"k6": "put", "k7": "delete", "new": "put"}
    state = KeyedState()
    frame = bucket.stream(spark, startingTimestamp=since_ms)
    state.run_to_end(frame, tmp_path / "checkpoint")
    assert {key: row.op for (_, key), row in state.rows.items()} == expected
    read = bucket.batch(spark, startingTimestamp=since_ms).collect()
    assert {row.key: row.op for row in read} == expected
    assert bucket.batch(spark, startingTimestamp="2999-01-01").count() == 0
    assert bucket.batch(spark, startingTimestamp="2000-01-01", tombstones="false").count() == 200


def test_few_changes_wait_for_more_or_for_their_time(
    spark: Any, bucket: BucketUnderTest, tmp_path: Path
) -> None:
    bucket.write({f"k{n}": b"1" for n in range(5)})
    state = KeyedState()
    frame = bucket.stream(spark, minRowsPerBatch=10, maxTriggerDelay="1h")
    query = state.start(frame, tmp_path / "checkpoint")
    try:
        wait_until(lambda: len(state.live()) == 5, query)  # the first batch does not wait
        bucket.write({"few": b"1"})
        query.processAllAvailable()
        assert "few" not in state.live()
        bucket.write({f"m{n}": b"1" for n in range(9)})
        wait_until(lambda: len(state.live()) == 15, query)
    finally:
        query.stop()
    full = [rows for _, rows in state.batches if any(row.op == "put" for row in rows)]
    assert [len(rows) for rows in full[1:]] == [10]
    bucket.write({"last": b"1"})
    frame = bucket.stream(spark, minRowsPerBatch=10, maxTriggerDelay="100ms")
    query = state.start(frame, tmp_path / "checkpoint")
    try:
        wait_until(lambda: "last" in state.live(), query)
        bucket.write({"after": b"1"})
        wait_until(lambda: "after" in state.live(), query)
    finally:
        query.stop()


def waits_for(query: Any) -> str:
    """Return what the progress of a query says that it waits for; empty: nothing."""
    progress = query.lastProgress
    newest = progress["sources"][0]["latestOffset"] if progress else None
    form = json.loads(newest) if isinstance(newest, str) else newest
    return str((form or {}).get("waiting", ""))


def test_a_query_outlives_a_clean_restart_of_the_node(
    spark: Any, own_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = own_node("--bucket", "b:4")
    bucket = BucketUnderTest(node.ready["kv"], "b")
    bucket.write({f"k{n}": b"1" for n in range(200)})
    state = KeyedState()
    query = state.start(bucket.stream(spark), tmp_path / "checkpoint")
    try:
        wait_until(lambda: len(state.rows) == 200, query)
        query.processAllAvailable()  # its first snapshot is confirmed, so no lease is missed
        assert node.stop() == 0
        wait_until(lambda: node.ready["kv"] in waits_for(query), query)
        node.start()
        bucket.write({f"k{n}": b"2" for n in range(20)} | {"k30": None})
        wait_until(lambda: state.live().get("k19") == b"2" and "k30" not in state.live(), query)
        query.processAllAvailable()
    finally:
        query.stop()
    assert node.stop() == 0
    query = state.start(bucket.stream(spark), tmp_path / "checkpoint")
    try:
        wait_until(lambda: "offsets" in query.status["message"], query)
        node.start()
        bucket.write({"k40": b"3"})
        wait_until(lambda: state.live().get("k40") == b"3", query)
    finally:
        query.stop()
    assert state.live() == present(bucket, [f"k{n}" for n in range(200)])
    assert not [row for _, rows in state.batches for row in rows if row.op == "rollback"]


def test_a_lost_tail_fails_the_query_and_says_where(
    spark: Any, own_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = own_node("--bucket", "b:1", *NO_FLUSH)
    bucket = BucketUnderTest(node.ready["kv"], "b")
    with bucket.client() as client:
        for n in range(10):
            client.upsert(f"kept{n}", b"1", durability="persisted")
    state = KeyedState()
    state.run_to_end(bucket.stream(spark), tmp_path / "checkpoint")
    bucket.write({f"lost{n}": b"1" for n in range(5)})
    state.run_to_end(bucket.stream(spark), tmp_path / "checkpoint")
    assert len(state.live()) == 15
    node.kill()
    node.start()
    bucket.write({f"other{n}": b"1" for n in range(20)})
    with pytest.raises(StreamingQueryException) as failed:
        state.run_to_end(bucket.stream(spark), tmp_path / "checkpoint")
    assert "partition 0 of bucket 'b' must be rolled back to seqno 10:" in str(failed.value)
    fresh = KeyedState()
    fresh.run_to_end(bucket.stream(spark), tmp_path / "new checkpoint")
    assert len(fresh.live()) == 30


@pytest.mark.slow
def test_a_crash_that_lost_nothing_read_is_no_failure(
    spark: Any, own_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = own_node("--bucket", "b:1", *NO_FLUSH)
    bucket = BucketUnderTest(node.ready["kv"], "b")
    with bucket.client() as client:
        client.upsert("a", b"1", durability="persisted")
    state = KeyedState()
    state.run_to_end(bucket.stream(spark), tmp_path / "checkpoint")
    bucket.write({"b": b"1"})
    node.kill()
    node.start()
    bucket.write({"c": b"1"})
    state.run_to_end(bucket.stream(spark), tmp_path / "checkpoint")
    assert set(state.live()) == {"a", "c"}
    marks = [row for _, rows in state.batches for row in rows if row.op == "rollback"]
    assert [(row.partition, row.seqno, row.key) for row in marks] == [(0, 1, None)]


def test_a_checkpoint_of_another_bucket_is_refused(
    spark: Any,
    bucket: BucketUnderTest,
    make_bucket: Callable[[], BucketUnderTest],
    tmp_path: Path,
) -> None:
    bucket.write({"a": b"1"})
    state = KeyedState()
    state.run_to_end(bucket.stream(spark), tmp_path / "checkpoint")
    other = BucketUnderTest(bucket.address, "default-of-no-test")
    with pytest.raises(StreamingQueryException, match="no bucket 'default-of-no-test'"):
        state.run_to_end(other.stream(spark), tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException, match="the offset is one of bucket"):
        state.run_to_end(make_bucket().stream(spark), tmp_path / "checkpoint")


def test_wrong_options_fail_a_query(spark: Any, bucket: BucketUnderTest, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match="a stream has no end"):
        KeyedState().run_to_end(
            bucket.stream(
                spark, endingOffsets='{"v": 1, "bucket": "b", "bucket_uuid": "", "p": {}}'
            ),
            tmp_path / "checkpoint",
        )
