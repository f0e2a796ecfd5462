"""Reads a bucket into Spark several times and prints the rows per second as one JSON line.

Every column of every row reaches the JVM: the sink is Spark's `noop`, which asks for all of them.
The first read, which starts the Python workers and warms up the JVM, is reported apart; then one
more warm-up, and three that count.
"""

import argparse
import json
import time

from millstream.pipelines import local_session, register


def main() -> None:
    """Read five times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True)
    options = parser.parse_args()
    spark = local_session("millstream-bench")
    register(spark)
    address = f"127.0.0.1:{options.port}"
    source = spark.read.format("millstream").option("hosts", address).option("bucket", "default")

    def read_s() -> float:
        started = time.perf_counter()
        source.load().write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started

    seconds = [read_s() for _ in range(5)]
    rows = source.load().count()
    assert rows == options.rows, f"{rows} rows of {options.rows}"
    print(
        json.dumps(
            {
                "rows": rows,
                "rows_read": rows * 6,
                "first_rows_per_s": rows / seconds[0],
                "best_rows_per_s": rows / min(seconds[2:]),
                "seconds": seconds,
            }
        )
    )
    spark.stop()


if __name__ == "__main__":
    main()
