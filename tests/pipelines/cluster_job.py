"""What the tests of clusters run as a driver of its own: reads, writes and follows a bucket.

    cluster_job.py MASTER HOSTS BUCKET TARGET CHECKPOINT [NAME=VALUE ...]

MASTER is `remote:` and an address for Spark Connect. The settings are Spark's. Prints one JSON
object.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession


def main(
    master: str, hosts: str, bucket: str, target: str, checkpoint: str, *settings: str
) -> None:
    builder: Any = SparkSession.builder
    is_remote = master.startswith("remote:")
    builder = builder.remote(master[7:]) if is_remote else builder.master(master)
    for setting in settings:
        builder = builder.config(*setting.split("=", 1))
    spark = builder.getOrCreate()
    from millstream.pipelines import register

    register(spark)
    options = {"hosts": hosts, "bucket": bucket, "numPartitions": "2"}
    changes = spark.read.format("millstream").options(**options).load().select("key", "value")
    changes.write.format("millstream").options(hosts=hosts, bucket=target).mode("append").save()
    stream = spark.readStream.format("millstream").options(**options).load()
    query = (
        stream.where("op = 'put'").select("key", "value")
        .writeStream.format("millstream").options(hosts=hosts, bucket=target)
        .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    partitions = spark.read.format("millstream.meta").options(hosts=hosts, bucket=bucket).load()
    found = {"partitions": partitions.count(), "has_failed": query.exception() is not None}
    spark.stop()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
