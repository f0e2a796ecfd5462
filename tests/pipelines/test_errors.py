"""What Spark shows to whom something goes wrong, and that the same checkpoint goes on afterwards.

Each cause one by one, without Spark: tests/e2e/test_spark_faults and test_spark_sink_faults.
"""

import io
from collections.abc import Callable
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException

import millstream
from millstream.pipelines import BucketTarget, apply_changes
from support.kv.nodes_with_map import ask
from support.node.node_process import NodeProcess
from support.pipelines.spark_bucket import TIMEOUT_S

FIRST, SECOND = "the first word of it", "the second word of it"


class Copying:
    """A query that copies a bucket of a node with users into another one, run to its end."""

    def __init__(self, spark: Any, node: NodeProcess, folder: Path) -> None:
        self.spark, self.node = spark, node
        self.secret, self.checkpoint = folder / "secret", folder / "checkpoint"
        self.secret.write_text(FIRST)

    def options(self, bucket: str) -> dict[str, str]:
        kv = str(self.node.ready["kv"])
        return {"hosts": kv, "bucket": bucket, "user": "ada", "passwordFile": str(self.secret)}

    def client(self, bucket: str) -> Any:
        kv, password = self.node.ready["kv"], self.secret.read_text()
        return millstream.connect(kv, bucket=bucket, user="ada", password=password)

    def write(self, documents: dict[str, bytes]) -> None:
        with self.client("from") as client:
            client.apply_many(documents.items()).raise_first()

    def copied(self, count: int) -> dict[str, bytes]:
        with self.client("to") as client:
            found = client.get_many([f"k{n}" for n in range(count)])
        return {key: bytes(document.data) for key, document in found.items()}

    def page(self, method: str, path: str, content: Any = None) -> None:
        login = ("ada", self.secret.read_text())
        status, said = ask(self.node, method, path, content, login=login)
        assert status in (200, 201), said

    def run(self, before_apply: Callable[[], object] = lambda: None) -> str:
        """Run; return what the query failed with, nothing if it did not."""
        source = {**self.options("from"), "rollback": "rows"}

        def apply(batch: Any, batch_id: int) -> None:
            with closing(BucketTarget(self.options("to"))) as target:
                before_apply()
                apply_changes(batch, batch_id, target, source)

        frame = self.spark.readStream.format("millstream").options(**source).load()
        writer = frame.writeStream.foreachBatch(apply).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.checkpoint)).start()
        try:
            assert query.awaitTermination(TIMEOUT_S), "the query does not end"
        except StreamingQueryException as failed:
            return str(failed)
        finally:
            query.stop()
        return ""


@pytest.mark.slow
def test_each_failure_says_what_to_do_and_the_checkpoint_goes_on(
    spark: Any, own_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    node = own_node("--user", f"ada:{FIRST}", "--bucket", "from:2", "--bucket", "to:2")
    copying = Copying(spark, node, tmp_path)
    expected = {f"k{n}": b"0" for n in range(50)}
    copying.write(expected)
    assert copying.run() == ""
    assert copying.copied(50) == expected

    # the password is changed in the middle of a batch
    copying.write({f"k{n}": b"1" for n in range(10)})
    user = {"password": SECOND, "roles": ["admin"]}
    told = copying.run(lambda: copying.page("PUT", "/users/ada", user))
    assert "AccessError" in told
    assert "does not accept user 'ada' with this password" in told
    assert "write the new one to passwordFile" in told
    assert FIRST not in told
    copying.secret.write_text(SECOND)
    expected |= {f"k{n}": b"1" for n in range(10)}
    assert copying.run() == ""
    assert copying.copied(50) == expected

    # the target is dropped, and made anew under this name
    copying.write({"k0": b"2"})
    told = copying.run(lambda: copying.page("DELETE", "/buckets/to"))
    assert "has no bucket 'to'" in told
    assert "If it was dropped while a query ran" in told
    copying.page("POST", "/buckets", {"name": "to", "partitions": 2})
    told = copying.run()
    assert "the target has nothing of the batches before" in told
    assert "begin a new checkpoint with the empty target" in told
    assert copying.copied(50) == {}
    copying.checkpoint = tmp_path / "new checkpoint"
    expected["k0"] = b"2"
    assert copying.run() == ""
    assert copying.copied(50) == expected

    # a wrong schema, and a password that nobody may see
    with pytest.raises((PySparkException, Py4JJavaError), match="column rev string is not one of"):
        spark.read.format("millstream").options(**copying.options("from")).schema(
            "key string, rev string"
        ).load().count()
    given = {**copying.options("from"), "password": SECOND}
    frame = spark.read.format("millstream").options(**given).load().where("op = 'put'")
    assert frame.count() == 50
    plans = io.StringIO()
    with redirect_stdout(plans):
        frame.explain(mode="extended")
        frame.explain(mode="formatted")
    assert "millstream" in plans.getvalue()
    assert SECOND not in plans.getvalue() + frame._jdf.queryExecution().toString()

    # the source is made anew
    copying.page("DELETE", "/buckets/from")
    told = copying.run()
    assert "has no bucket 'from'" in told
    copying.page("POST", "/buckets", {"name": "from", "partitions": 2})
    told = copying.run()
    assert "another bucket, or one that was created anew. Start with a new checkpoint" in told
    assert copying.copied(50) == expected
