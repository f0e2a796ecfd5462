"""Writing through a real session to a real node: batches, restarts, failing commits, kills."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from millstream.wire.mcbp import Opcode
from support.node.node_process import NodeProcess
from support.pipelines.spark_bucket import TIMEOUT_S, BucketUnderTest

ROWS = 200
KEYS = 50
HEADER = "_millstream:transaction/s"
TRANSACTIONAL = {"transactional": True, "sinkId": "s"}


def everything(bucket: BucketUnderTest) -> dict[str, Any]:
    """Key -> value of the documents k0, k1, ..."""
    with bucket.client() as client:
        found = client.get_many([f"k{n}" for n in range(ROWS)])
        return {key: document.value for key, document in found.items()}


def save(frame: Any, bucket: BucketUnderTest, mode: str, **more: object) -> None:
    frame.write.format("millstream").options(**bucket.options(**more)).mode(mode).save()


def test_a_dataframe_is_inserted_upserted_and_replaces_what_was_there(
    spark: Any, bucket: BucketUnderTest
) -> None:
    pairs = spark.range(ROWS).selectExpr("concat('k', id) key", "concat('[', id, ']') value")
    save(pairs, bucket, "append")
    assert everything(bucket) == {f"k{n}": [n] for n in range(ROWS)}
    with pytest.raises(Exception, match=r"'k7': .* that stays") as failed:
        save(spark.sql("select 'k7' key, '0' value"), bucket, "append")
    assert "ConditionError" in str(failed.value)
    rows = spark.sql(
        "select 'k7' name, 1.5BD price, timestamp'2026-01-02 03:04:05' at, "
        "named_struct('a', array(1, null)) nested, map('x', true) flags, cast(null as int) none"
    )
    save(rows, bucket, "overwrite", idField="name", truncate=True)
    written = {
        "name": "k7", "price": 1.5, "at": "2026-01-02T03:04:05Z", "nested": {"a": [1, None]},
        "flags": {"x": True}, "none": None,
    }  # fmt: skip
    assert everything(bucket) == {"k7": written}
    read = bucket.batch(spark).where("op = 'put'").selectExpr("key", "'true' value", "cas")
    save(read, bucket, "overwrite", cas=True)
    assert everything(bucket) == {"k7": True}


def changes(spark: Any, folder: Path) -> Any:
    """A stream of the files in a folder, one a batch."""
    stream = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1)
    return stream.json(str(folder))


def give(folder: Path, number: int) -> dict[str, Any]:
    """Add one batch of rows to a folder; return what it sets."""
    folder.mkdir(exist_ok=True)
    rows = {f"k{(number * 7 + n) % KEYS}": number * 1000 + n for n in range(KEYS // 2)}
    made = folder / f".{number}"
    made.write_text("\n".join(json.dumps({"key": k, "value": str(v)}) for k, v in rows.items()))
    os.utime(made, (1_700_000_000 + number, 1_700_000_000 + number))
    made.rename(folder / f"{number:04}.json")
    return rows


def run(frame: Any, bucket: BucketUnderTest, checkpoint: Path, **more: object) -> None:
    """Run a query over what is available now."""
    writer = frame.writeStream.format("millstream").options(**bucket.options(**more))
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writer.start()
    try:
        assert query.awaitTermination(TIMEOUT_S), "the query does not end"
    finally:
        query.stop()


def lose_commit_log(checkpoint: Path) -> None:
    """Take away the newest entry of Spark's commit log, as a kill before it was written does."""
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def test_an_upsert_stream_repeats_a_batch_without_harm_and_refuses_rollbacks(
    spark: Any, bucket: BucketUnderTest, tmp_path: Path
) -> None:
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    expected = give(folder, 0) | give(folder, 1)
    run(changes(spark, folder), bucket, checkpoint)
    assert everything(bucket) == expected
    lose_commit_log(checkpoint)
    expected |= give(folder, 2)
    run(changes(spark, folder), bucket, checkpoint)
    assert everything(bucket) == expected
    rollback = changes(spark, folder).selectExpr(
        "'rollback' op",
        "3 partition",
        "2L branch",
        "9L seqno",
        "cast(null as string) key",
        "value",
    )
    with pytest.raises(StreamingQueryException, match="apply_changes"):
        run(rollback, bucket, tmp_path / "other checkpoint")


def test_a_transactional_stream_survives_failing_commits_and_kills(
    spark: Any, own_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = own_node("--bucket", "b:4")
    bucket = BucketUnderTest(node.ready["kv"], "b")
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    expected = give(folder, 0)
    run(changes(spark, folder), bucket, checkpoint, **TRANSACTIONAL)
    assert everything(bucket) == expected
    added = give(folder, 1)
    with bucket.client() as client:
        key = next(iter(added))
        lock(client, key)  # nobody can change it: the rows cannot all be applied
        with pytest.raises(StreamingQueryException, match=f"write '{key}' in bucket 'b'"):
            run(changes(spark, folder), bucket, checkpoint, **TRANSACTIONAL)
        header = client.get(HEADER).value
    assert (header["batch"], header["is_applied"]) == (1, False)
    node.kill()  # locks end with the node; what is committed does not
    node.start()
    expected |= added
    run(changes(spark, folder), bucket, checkpoint, **TRANSACTIONAL)
    assert everything(bucket) == expected
    lose_commit_log(checkpoint)
    expected |= give(folder, 2)
    run(changes(spark, folder), bucket, checkpoint, **TRANSACTIONAL)
    assert everything(bucket) == expected
    with bucket.client() as client:
        header = client.get(HEADER).value
    assert (header["batch"], header["is_applied"]) == (2, True)
    left = bucket.batch(spark, "op string, key string").where("op = 'put'").collect()
    assert [row.key for row in left if row.key.startswith("_")] == [HEADER]
    with pytest.raises(StreamingQueryException, match="which has another checkpoint"):
        run(changes(spark, folder), bucket, tmp_path / "new checkpoint", **TRANSACTIONAL)


def lock(client: Any, key: str) -> None:
    """Lock a document for as long as a node grants it."""
    client.upsert(key, 0)
    assert client._call(Opcode.GET_LOCKED, key, extras=(30).to_bytes(4, "big"))[1].status == 0
