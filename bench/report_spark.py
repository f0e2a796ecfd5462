"""What docs/benchmarks.md says of Spark, from the figures of spark.py.

Elsewhere: the rest of the page (report.py).
"""

from collections.abc import Iterator
from typing import Any

Figures = dict[str, Any]
_SOURCES = {
    "node": 'node, `format("millstream")`',
    "parquet": "Parquet, the limit",
    "postgres": 'PostgreSQL, `format("jdbc")`',
}
_SINKS = {
    "upserts": "upserts",
    "transactions": "transactional",
    "copy": "`apply_changes`, a bucket",
    "parquet": "`apply_changes`, a Parquet table",
}
_STEPS = {
    "latestOffset": "where it ends",
    "walCommit": "offset log",
    "queryPlanning": "plan",
    "addBatch": "tasks and sink",
    "commitOffsets": "commit log",
}


def lines(results: Figures) -> Iterator[str]:
    """Yield the sections of all that was measured."""
    sections = {
        "spark": _rows,
        "spark_streams": _streams,
        "spark_sinks": _sinks,
        "spark_sql": _sql,
        "spark_views": _views,
    }
    for name, section in sections.items():
        if name in results:
            yield from section(results[name])


def _rows(spark: Figures) -> Iterator[str]:
    yield (
        f"Batch reads of {spark['rows']:,} rows into Spark, the same rows and columns from each "
        f"source; the very first read of the node, everything cold, came to "
        f"{spark['first_rows_per_s']:,.0f} rows/s. The ratio is the node's rows/s divided by the "
        "source's:"
    )
    yield ""
    yield "| read, warm, best of three | rows/s | ratio | Spark us/row | server us/row |"
    yield "| --- | --- | --- | --- | --- |"
    for name, title in _SOURCES.items():
        if name not in spark:
            continue
        row = spark[name]
        ratio = f"{spark['node']['rows_per_s'] / row['rows_per_s']:.2f}"
        costs = (f"{row[key]:.2f}" if row.get(key) else "" for key in _COSTS)
        yield f"| {title} | {row['rows_per_s']:,.0f} | {ratio} | {' | '.join(costs)} |"
    yield ""


_COSTS = ("spark_us_per_row", "server_us_per_row")


def _streams(spark: Figures) -> Iterator[str]:
    run, floor, seen = spark["catching_up"], spark["floor"], spark["seen"]
    yield (
        f"A stream of {spark['rows']:,} rows, {spark['tasks']} tasks, batches of "
        f"{spark['batch_rows']:,} rows and more into `noop`: {run['rows_per_s']:,.0f} rows/s from "
        f"trigger to commit, {spark['rows'] / run['run_s']:,.0f} rows/s of a whole run from its "
        f"start to its end; {run['spark_us_per_row']:.2f} us of Spark and "
        f"{run['server_us_per_row']:.2f} us of the node each."
    )
    yield ""
    steps = ", ".join(
        f"{title} {floor['steps_ms'][step]:.0f}"
        for step, title in _STEPS.items()
        if step in floor["steps_ms"]
    )
    yield (
        f"A batch of a few rows ({floor['rows_p50']:.0f}), one task: p50 {floor['p50_s']:.3f} s, "
        f"p90 {floor['p90_s']:.3f} s, at best {floor['min_s']:.3f} s; of these in ms: {steps}. "
        f"From a single write until `foreachBatch` has its row: p50 {seen['p50_s']:.3f} s, p90 "
        f"{seen['p90_s']:.3f} s."
    )
    yield ""


def _sinks(spark: Figures) -> Iterator[str]:
    yield (
        f"Streams of {spark['rows']:,} rows into sinks, batches of {spark['batch_rows']:,}, from "
        "trigger to commit, everything persisted; the node is source and, but for Parquet, target:"
    )
    yield ""
    yield "| sink | rows/s | Spark us/row | node us/row |"
    yield "| --- | --- | --- | --- |"
    for name, title in _SINKS.items():
        row = spark["sinks"][name]
        costs = (f"{row[key]:.1f}" for key in _COSTS)
        yield f"| {title} | {row['rows_per_s']:,.0f} | {' | '.join(costs)} |"
    yield ""


def _sql(sql: Figures) -> Iterator[str]:
    yield (
        f"Streams of rows of {sql['row_bytes']:,} bytes into PostgreSQL on the same processors: "
        "by `apply_changes` into a `SqlTarget`, and appended by Spark's own JDBC, which replaces "
        "no rows and keeps no positions. Memory: the highest resident set of the driver's "
        "processes with `SqlTarget`; tasks run in that of Java:"
    )
    yield ""
    yield "| batch | `SqlTarget`, rows/s | JDBC append, rows/s | ratio | Python | Java |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for size in sql["sizes"]:
        mine, peer = size["target"], size["jdbc"]
        megabytes = size["batch_rows"] * sql["row_bytes"] / 1e6
        ratio = mine["rows_per_s"] / peer["rows_per_s"]
        yield (
            f"| {megabytes:.0f} MB | {mine['rows_per_s']:,.0f} | "
            f"{peer['rows_per_s']:,.0f} | {ratio:.2f} | {mine['python_mb']:,.0f} MB | "
            f"{mine['java_mb']:,.0f} MB |"
        )
    yield ""


def _views(views: Figures) -> Iterator[str]:
    yield f"A view of {views['documents']:,} documents (the flights as they end), kept by Spark:"
    yield ""
    yield "| what | |"
    yield "| --- | --- |"
    yield f"| first build, everything cold | {views['first_documents_per_s']:,.0f} documents/s |"
    yield f"| warm, best of three | {views['best_documents_per_s']:,.0f} documents/s |"
    yield (
        "| a write, until a query that waits for it has answered | "
        f"p50 {views['visible_s_p50']:.2f} s, p90 {views['visible_s_p90']:.2f} s |"
    )
    yield ""
