"""Writing through a real session to a real node: batches, restarts, failing commits, kills."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from millstream.wire.mcbp import Opcode
from node_process import NodeProcess
from spark_bucket import TIMEOUT_S, BucketUnderTest

ROWS = 600
KEYS = 50


def everything(spark: Any, bucket: BucketUnderTest) -> dict[str, Any]:
    """Key -> value of the documents of users, by a batch read."""
    rows = bucket.batch(spark, "op string, key string, value binary").collect()
    return {r.key: json.loads(r.value) for r in rows if r.op == "put" and r.key[0] != "_"}


def save(frame: Any, bucket: BucketUnderTest, mode: str, **more: object) -> None:
    frame.write.format("millstream").options(**bucket.options(**more)).mode(mode).save()


def test_a_dataframe_is_inserted_upserted_and_replaces_what_was_there(
    spark: Any, bucket: BucketUnderTest
) -> None:
    pairs = spark.range(ROWS).selectExpr("concat('k', id) key", "concat('[', id, ']') value")
    save(pairs, bucket, "append")
    save(pairs, bucket, "append")  # a job that is repeated finds its own documents
    assert everything(spark, bucket) == {f"k{n}": [n] for n in range(ROWS)}
    with pytest.raises(Exception, match=r"'k7': .* that stays") as failed:
        save(spark.sql("select 'k7' key, '0' value"), bucket, "append")
    assert "ConditionError" in str(failed.value)
    rows = spark.sql(
        "select 'k7' name, 1.5BD price, timestamp'2026-01-02 03:04:05' at, "
        "named_struct('a', array(1, null)) nested, map('x', true) flags, cast(null as int) none"
    )
    save(rows, bucket, "overwrite", idField="name")
    found = everything(spark, bucket)
    assert found["k7"].pop("at").startswith("2026-01-0")
    assert found["k7"] == {
        "name": "k7", "price": 1.5, "nested": {"a": [1, None]}, "flags": {"x": True}, "none": None,
    }  # fmt: skip
    assert len(found) == ROWS
    save(pairs.limit(10), bucket, "overwrite", truncate=True)
    assert everything(spark, bucket) == {f"k{n}": [n] for n in range(10)}
    other = bucket.batch(spark).where("key = 'k3'").selectExpr("key", "'true' value", "cas")
    save(other, bucket, "overwrite", cas=True)
    with pytest.raises(Exception, match="key_exists|was changed since its CAS"):
        save(spark.sql("select 'k3' key, 'false' value, 1L cas"), bucket, "overwrite", cas=True)
    assert everything(spark, bucket)["k3"] is True


def test_what_cannot_be_written_is_said(spark: Any, bucket: BucketUnderTest) -> None:
    for frame, options, said in (
        ("select 'a' key, '{' value", {}, "row 'a': value is no JSON"),
        ("select cast(null as string) key, '1' value", {}, "a row has no key"),
        ("select 1 n", {}, "name the column of keys with option idField"),
        ("select 1 n", {"idfield": "n", "sinkId": "s"}, "only where a stream is written"),
        ("select 1 n", {"idField": "n", "topic": "t"}, "unknown option topic"),
    ):
        with pytest.raises(Exception, match=said):
            save(spark.sql(frame), bucket, "overwrite", **options)
    assert everything(spark, bucket) == {}


def changes(spark: Any, folder: Path) -> Any:
    """A stream of the files in a folder, one a batch: the newest value of keys of a small set."""
    stream = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1)
    return stream.json(str(folder))


def give(folder: Path, number: int) -> dict[str, Any]:
    """Add one batch of rows to a folder; return what it sets."""
    folder.mkdir(exist_ok=True)
    rows = {f"k{(number * 7 + n) % KEYS}": number * 1000 + n for n in range(KEYS // 2)}
    text = "\n".join(json.dumps({"key": k, "value": str(v)}) for k, v in rows.items())
    made = folder / f".{number}"
    made.write_text(text)
    os.utime(made, (1_700_000_000 + number, 1_700_000_000 + number))
    made.rename(folder / f"{number:04}.json")
    return rows


def start(frame: Any, bucket: BucketUnderTest, checkpoint: Path, **more: object) -> Any:
    writer = frame.writeStream.format("millstream").options(**bucket.options(**more))
    return (
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    )


def run(*args: Any, **more: object) -> None:
    query = start(*args, **more)
    try:
        assert query.awaitTermination(TIMEOUT_S), "the query does not end"
    finally:
        query.stop()


def lose_commit_log(checkpoint: Path) -> None:
    """Take away the newest entry of Spark's commit log: killed before it was written."""
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def test_an_upsert_stream_goes_on_from_its_checkpoint(
    spark: Any, bucket: BucketUnderTest, tmp_path: Path
) -> None:
    expected: dict[str, Any] = {}
    for turn in range(2):
        for number in range(turn * 2, turn * 2 + 2):
            expected |= give(tmp_path / "in", number)
        run(changes(spark, tmp_path / "in"), bucket, tmp_path / "checkpoint")
        assert everything(spark, bucket) == expected
        lose_commit_log(tmp_path / "checkpoint")
    run(changes(spark, tmp_path / "in"), bucket, tmp_path / "checkpoint")
    assert everything(spark, bucket) == expected
    with bucket.client() as client:
        assert not client.get("_millstream/sink/s")


def test_a_rollback_row_is_no_document(
    spark: Any, bucket: BucketUnderTest, tmp_path: Path
) -> None:
    frame = changes(spark, tmp_path / "in").selectExpr(
        "'rollback' op", "3 partition", "2L branch", "9L seqno", "cast(null as string) key", "value"
    )
    give(tmp_path / "in", 0)
    with pytest.raises(StreamingQueryException, match="apply_changes"):
        run(frame, bucket, tmp_path / "checkpoint")


def test_a_transactional_stream_survives_failing_commits_and_kills(
    spark: Any, own_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = own_node("--bucket", "b:4")
    bucket = BucketUnderTest(node.ready["kv"], "b")
    how = {"transactional": True, "sinkId": "s"}
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    expected = give(folder, 0)
    run(changes(spark, folder), bucket, checkpoint, **how)
    assert everything(spark, bucket) == expected
    with bucket.client() as client:  # a document nobody can change: the rows cannot be applied
        key = next(iter(give(folder, 1)))
        lock(client, key)
        with pytest.raises(StreamingQueryException, match=rf"write '{key}' in bucket 'b'"):
            run(changes(spark, folder), bucket, checkpoint, **how)
        header = client.get("_millstream/sink/s").value
        assert (header["batch"], header["is_applied"]) == (1, False)
    assert node.stop() == 0  # locks end with the node, what was staged does not
    node.start()
    expected |= {f"k{(7 + n) % KEYS}": 1000 + n for n in range(KEYS // 2)}
    run(changes(spark, folder), bucket, checkpoint, **how)
    assert everything(spark, bucket) == expected
    lose_commit_log(checkpoint)
    expected |= give(folder, 2)
    run(changes(spark, folder), bucket, checkpoint, **how)
    assert everything(spark, bucket) == expected
    with bucket.client() as client:
        header = client.get("_millstream/sink/s").value
        assert (header["batch"], header["is_applied"]) == (2, True)
    staged = bucket.batch(spark, "op string, key string").where("op = 'put'").collect()
    assert [row.key for row in staged if row.key[0] == "_"] == ["_millstream/sink/s"]
    with pytest.raises(StreamingQueryException, match="its checkpoint is another one"):
        run(changes(spark, folder), bucket, tmp_path / "new checkpoint", **how)


def lock(client: Any, key: str) -> None:
    """Lock a document for as long as a node grants it."""
    client.upsert(key, 0)
    packet = client._call(Opcode.GET_LOCKED, key, extras=(30).to_bytes(4, "big"))[1]
    assert packet.status == 0
