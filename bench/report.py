"""Writes docs/benchmarks.md from the figures of the last run, kept in bench/latest.json.

The hand-written part is `_INTRODUCTION`; everything below it comes from the figures.

Elsewhere: sections of Spark (report_spark.py), of coordination (report_coordination.py).
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cluster_costs
import clusters
import consoles
import fail_overs
import loading
import report_coordination
import report_documents
import report_spark

Figures = dict[str, Any]


class Verdict(NamedTuple):
    """One floor, or ceiling, and what was measured."""

    name: str
    figure: float
    wanted: float
    is_ceiling: bool = False

    @property
    def is_reached(self) -> bool:
        """Whether the figure is on the right side."""
        return self.figure <= self.wanted if self.is_ceiling else self.figure >= self.wanted


ROOT = Path(__file__).resolve().parent.parent
LATEST = ROOT / "bench" / "latest.json"
PAGE = ROOT / "docs" / "benchmarks.md"

_INTRODUCTION = """\
# Benchmarks

`make bench` measures a node beside other servers on the same machine and writes this page.
Machines differ, and shared ones are noisy. So compare the ratios, not the absolute times.

A node does more for a write than memcached: it gives the change a sequence number, keeps it in the
stream, and writes it to a log on disk. The floors are the project's own goals. `make bench` fails
when one is not reached.

| section | what is measured | beside |
| --- | --- | --- |
| requests | the server's processor time per operation | memcached |
| streams | items/s, cost of one more reader, delay until a reader has a write | Redis streams |
| Spark | a batch read of a whole bucket | Parquet, PostgreSQL |
| streams into Spark | micro-batches, from the trigger to the commit, also into sinks | |
| views on Spark | building an index, then keeping it | |
| engine | its parts alone; opening; single durable writes | least cost of the bytes; Redis |
| views | building an index, and queries | PouchDB |
| coordination | writes, reads and fail-over of a group of three | etcd |
| locks, elements of sessions, watches, idle sessions | the same | etcd, ZooKeeper |
| documents | writes, reads, changes and replication over HTTP | PouchDB Server |
| loading | three times what the quota holds; quiet SETs; pages | a quota that holds all; SETs |
| consoles | delay of kv requests while five consoles are open | the same without |
| clusters | fail-over, moves, idle cost of three nodes | the same writer without moves |
| fail_overs | fail-over of others, beside that of clusters | etcd, Redis Sentinel |
| redundancy | a lost node's copies of 1 GB, made anew | a file through a socket |
| gathering | view queries over 1, 3 and 6 nodes with parts of the index | one node |
| manager | an idle cluster of three nodes, and computed of 100 | three single nodes |
| yardstick | a fixed loop of pure Python, before and after | |

How it is measured:

- **Requests**: a compiled load generator (`bench/loadgen.c`) in a closed loop. Requests are built
  before the clock starts, and replies are checked.
  - The cost is user and system time of all processes of the server, threads that write the log
    included, until the node is idle again after the last reply.
  - Node and memcached take turns on one processor under the same load. memcached runs with
    `-t 1 -R 200`: one worker, and no yielding after 20 requests, which would favour the node.
  - A ratio is memcached's cost divided by the node's: **1 means equal, more means cheaper than
    memcached**.
  - There is one round for every order of the servers, and the means of all rounds are compared,
    because compaction falls into some rounds only. The smallest and largest ratio of a round
    follow in brackets.
  - A run that other programs disturbed is repeated, because they cost a server with more data in
    its caches more.
- **Streams**: compiled sinks (`bench/sink.c`), one connection each, read every partition from 0 to
  its present end, check the order, and acknowledge for flow control.
  - From memory: the node has just taken as many writes as it keeps in memory for later readers.
    From the log: more writes, after a restart.
  - The cost of one more sink is the server's processor time per item with 16 sinks less that with
    one.
  - The canonical profile is that of our own readers. The other one is that of clients such as
    gocbcore (opaques of their own, no delete times).
  - Node and Redis take turns; a pipelined reader reads Redis from its start. They also take turns
    when writes at a fixed rate are timed from sending to arrival at a reader.
  - One row alone: `make bench ARGS="--rows latency"` (sinks, log, python, redis, latency,
    stalled).
- **Spark**: a batch read of a whole bucket through `format("millstream")` into Spark's `noop`
  sink, all columns, node and Spark on the same processors.
  - The first read, in which Python workers and the JVM start, is shown apart. Then one warm-up,
    and the best of three.
  - The same rows are read as Parquet, which is about the least that Spark can spend on them, and
    from Debian's PostgreSQL through Spark's own JDBC source: by ranges of the partition number
    with an index and in its order on disk, columns in binary, 10,000 rows a fetch.
  - All data is in the page cache.
- **Streams into Spark**: batches as Spark's progress reports them, from the trigger to the commit.
  The shortest batch is that of a query with one task while one document is written each 10 ms, so
  that no trigger waits. Then single documents at random times, until their row is in the driver.
- **Views on Spark**: from a design document to the first commit of its index, as `pipeline run
  views --once` does it. Then single documents are written and queried while Spark keeps the index.
- **Engine**: parts of the engine alone in a process of their own, beside the least that the same
  bytes cost any program. Opening a directory after a kill or a clean stop. Single writes that are
  answered once they are on disk, in turns with Debian's Redis with `appendfsync always`.
- **Views**: one view of small documents with `_sum`, by a Python map and by a JavaScript one.
  - From the design document to the first answer that is up to date, in processor time of the index
    process and its sandbox.
  - Queries use one kept HTTP connection.
  - PouchDB's mapreduce runs in memory with a hundredth of the documents, where npm has it
    (`make test-tools`).
- **Coordination**: a group of three nodes and Debian's etcd with three members, both with their
  defaults, run at once and take turns under one compiled generator for both protocols
  (`bench/coordgen.c`).
  - Connections in a closed loop send one request at a time, all to the primary. Members and load
    share the processors.
  - The result is wall time; the processor time is that of all members.
  - After a kill of the primary, a write is tried at the remaining members, again each 10 ms.
- **Locks, elements of sessions, watches, idle sessions**: the same with Debian's ZooKeeper as a
  third group and a generator of its own (`bench/primgen.c`, which defines one operation).
  Sessions are at the primary, watchers at all members.
- **Clusters**: all nodes share the processors of this machine.
  - Fail-over of others: the primary is killed with -9, that of Redis with the Sentinel beside it.
    A write is tried at those that are left, again each 10 ms. etcd's write is on a majority of
    disks. That of Redis is in the memory of one server, and a later fail-over may lose it.
  - A lost node's copies: of two nodes with two copies one is killed and removed for good. A third,
    empty member takes its place. Beside it the same bytes go from a file through a socket into a
    file.
  - The idle cost of 100 nodes is computed. The functions of an orchestrator and of a node are
    timed on the state of such a cluster, and the bytes of their messages are counted. What carries
    the messages, and what a node does to compile its report, is not in it.
- **Yardstick**: a fixed loop of pure Python, before and after. If the two differ much, the machine
  changed its speed during the benchmark.
"""

PARTITIONS = 64
_LOADS = {
    "get": "GET, 50 connections, one request at a time",
    "set": "SET, 50 connections, one request at a time",
    "get_x100": "GET, 10 connections, batches of 100",
    "set_x100": "SET, 10 connections, batches of 100",
}
_PORTS = ("memcached", "memcached port", "kv port")


def load() -> Figures:
    """Return the figures of the last run; empty if there was none."""
    return dict(json.loads(LATEST.read_text())) if LATEST.exists() else {}


def save(results: Figures, judged: Sequence[Verdict]) -> None:
    """Keep the figures and write the page."""
    LATEST.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text("\n".join([_INTRODUCTION, *_page(results, judged)]) + "\n")


def _page(results: Figures, judged: Sequence[Verdict]) -> Iterator[str]:
    machine = results["machine"]
    before, after = results["yardstick_s"]
    yield "## Last run"
    yield ""
    yield (
        f"`{results['command']}`, {results['date']}, {machine['processors']} processors "
        f"({machine['processor']}), {machine['memory_gib']} GiB, {machine['system']}, "
        f"Python {machine['python']}, hot functions {machine.get('hot_functions', 'python')}. "
        f"Yardstick {before * 1000:.0f} ms before, "
        f"{after * 1000:.0f} ms after."
    )
    yield ""
    last = f"`{results['command']}`, {results['date']}"
    for case, how in results.get("measured", {}).items():
        if how != last:
            yield f"- What is here of {case} is of another run: {how}."
    yield ""
    yield from _floors(judged)
    if "kv" in results:
        yield from _requests(results["kv"])
    if "streams" in results:
        yield from _streams(results["streams"])
    yield from report_spark.lines(results)
    if "engine" in results:
        yield from _engine(results["engine"])
    if "views" in results:
        yield from _views(results["views"])
    if "coordination" in results:
        yield from report_coordination.lines(results["coordination"])
    if "primitives" in results:
        yield from report_coordination.of_primitives(results["primitives"])
    if "documents" in results:
        yield from report_documents.lines(results["documents"])
    if "loading" in results:
        yield from loading.lines(results["loading"])
    if "consoles" in results:
        yield from consoles.lines(results["consoles"])
    yield from _clusters(results)


def _clusters(results: Figures) -> Iterator[str]:
    if "clusters" in results:
        yield from clusters.lines(results["clusters"])
    if "fail_overs" in results:
        ours = results.get("clusters", {}).get("fail_over_s", [])
        yield from fail_overs.lines(results["fail_overs"], sorted(ours))
    for case, lines in (
        ("redundancy", cluster_costs.redundancy_lines),
        ("gathering", cluster_costs.gathering_lines),
        ("manager", cluster_costs.manager_lines),
    ):
        if case in results:
            yield from lines(results[case])


def _floors(judged: Sequence[Verdict]) -> Iterator[str]:
    yield "| floor | wanted | measured | |"
    yield "| --- | --- | --- | --- |"
    for one in judged:
        verdict = "reached" if one.is_reached else "**not reached**"
        wanted = f"at {'most' if one.is_ceiling else 'least'} {_number(one.wanted)}"
        yield f"| {one.name} | {wanted} | {_number(one.figure)} | {verdict} |"
    yield ""


def _requests(kv: Figures) -> Iterator[str]:
    others = max(row["others_busy"] for ports in kv.values() for row in ports.values())
    yield (
        f"Values of 256 bytes, 100,000 keys, random. Everything else on the machine kept up to "
        f"{others:.2f} processors busy meanwhile"
        + ("." if others < 0.1 else ": the caches were not ours alone.")
    )
    yield ""
    yield "| load | server | ratio (min to max) | processor us/op | op/s | p50 us | p99 us |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for load_name, title in _LOADS.items():
        for port in _PORTS:
            if port not in kv.get(load_name, {}):
                continue
            row = kv[load_name][port]
            ratio = (
                f"{row['ratio']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})"
                if "ratio" in row
                else ""
            )
            server = port if port == "memcached" else f"node, {port}"
            yield (
                f"| {title} | {server} | {ratio} | {row['us']:.2f} | "
                f"{row['operations_per_s']:,.0f} | {row['p50_us']:.0f} | {row['p99_us']:.0f} |"
            )
    yield ""
    yield "Latencies of batches are those of the whole batch."
    yield ""


def _streams(streams: Figures) -> Iterator[str]:
    if "sinks" in streams:
        yield from _sinks(streams["sinks"])
    if "log" in streams:
        row = streams["log"]
        yield (
            f"A backlog of {row['items']:,} changes, read from the log after a restart: "
            f"{row['items_per_s']:,.0f} items/s, {row['us_per_item']:.2f} us of the server each."
        )
        yield ""
    if "python" in streams:
        row = streams["python"]
        yield (
            f"Readers in Python, from memory: {row['bulk']:,.0f} items/s in bulk (`client.bulk`), "
            f"{row['core']:,.0f} items/s cut and checked one by one (`ConsumerCore`)."
        )
        yield ""
    if "ratio" in streams.get("redis", {}) or "latency" in streams:
        yield from _stream_peers(streams.get("redis", {}), streams.get("latency", {}))
    if "stalled" in streams:
        row = streams["stalled"]
        yield (
            f"A reader that stands still while {row['stalled']['written_mib']:,.0f} MiB of values "
            f"are written: a node with a quota of {row['quota_mib']} MiB grows by "
            f"{row['stalled']['growth_mib']:.0f} MiB, without that reader by "
            f"{row['alone']['growth_mib']:.0f} MiB."
        )
        yield ""


def _sinks(sinks: Figures) -> Iterator[str]:
    yield (
        f"Streams of {sinks['items']:,} documents from memory, {PARTITIONS} partitions, one "
        "connection per sink; items/s of all sinks together:"
    )
    yield ""
    yield "| profile | sinks | items/s | MB/s | server us/item and sink | one more sink |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for profile, rows in sinks.items():
        if profile == "items":
            continue
        for count, row in rows.items():
            if count == "more_us":
                continue
            more = f"{rows['more_us']:.2f} us" if count == list(rows)[-2] else ""
            yield (
                f"| {profile} | {count} | {row['items_per_s']:,.0f} | "
                f"{row['bytes_per_s'] / 1e6:,.0f} | {row['us_per_item']:.2f} | {more} |"
            )
    yield ""


def _stream_peers(redis: Figures, latency: Figures) -> Iterator[str]:
    """Yield the node beside Redis."""
    yield "Beside a Redis stream (`appendfsync everysec`) of the same values:"
    yield ""
    yield "| server | items/s from the start | us/item | seen after, p50 us | p99 us | us/write |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for server in ("node", "redis"):
        read, seen = redis.get(server, {}), latency.get(server, {})
        cells = [
            f"{read['items_per_s']:,.0f}" if read else "",
            f"{read['us_per_item']:.2f}" if read else "",
            *(f"{seen[key]:,.0f}" if seen else "" for key in ("p50_us", "p99_us")),
            f"{seen['us_per_write']:.1f}" if seen else "",
        ]
        yield f"| {server} | {' | '.join(cells)} |"
    yield ""
    if latency:
        rows = [latency[server] for server in ("node", "redis") if server in latency]
        yield (
            f"Seen after: at {latency['writes_per_s']:,} writes/s, each sent when it is due, the "
            "time from its sending to its arrival at a reader on another connection; the writer "
            f"was {max(row['writer_late_s'] for row in rows) * 1000:.0f} ms late in the end."
        )
        yield ""


def _engine(engine: Figures) -> Iterator[str]:
    ingest, opening, memory = engine["ingest"], engine["opening"], engine["memory"]
    yield (
        "The engine in one process, in processor time; the limit is what the same bytes cost at "
        f"least. Other programs kept {engine['others_busy']:.2f} processors busy just before:"
    )
    yield ""
    yield "| work | per second | us | limit per second |"
    yield "| --- | --- | --- | --- |"
    rows = {
        "append with de-duplication, 1,000 random keys": engine["append"]["few"],
        "append with de-duplication, 100,000 random keys": engine["append"]["many"],
        "ingest of new documents, commits of 5,000": ingest["docs"],
        "ingest of updates, commits of 5,000": ingest["updates"],
        "evicted value read back": engine["find"],
        "backfill of 64 partitions from the log": engine["backfill"],
    }
    for name, row in rows.items():
        yield (
            f"| {name} | {row['per_s']:,.0f} | {1e6 / row['per_s']:.2f} | "
            f"{row['limit_per_s']:,.0f} |"
        )
    yield ""
    steps = ", ".join(
        f"{step.replace('_', '-')} {us:.2f}" for step, us in ingest["updates"]["us"].items()
    )
    yield (
        f"An update's {1e6 / ingest['updates']['per_s']:.2f} us are: {steps}. In wall time "
        f"updates came to {ingest['updates']['wall_per_s']:,.0f}/s on this disk, which takes the "
        f"same bytes by themselves at {ingest['updates']['limit_wall_per_s']:,.0f}/s."
    )
    yield ""
    yield (
        f"A frame of 272 bytes takes {memory['limit']:.0f} bytes of memory by itself, "
        f"{memory['queued']:.0f} in the queue, {memory['document']:.0f} with all that is kept of "
        "the document."
    )
    yield ""
    yield (
        f"Opening a node took {opening['killed_s']:.2f} s after a kill that left "
        f"{opening['tail']:,} changes to read, whose by-id map was up to date "
        f"{opening['by_id_s']:.1f} s later, and {opening['stopped_s']:.2f} s after a clean stop."
    )
    yield ""
    if "evicted" in engine:
        yield from _evicted(engine["evicted"])
    yield from _persisted(engine["persisted"])


def _evicted(evicted: Figures) -> Iterator[str]:
    yield (
        "GET of random documents over the kv port, a fifth of them in memory "
        f"({evicted['resident_bytes'] / 1e6:,.0f} MB of processes in the end):"
    )
    yield ""
    yield "| batches of | op/s | processor us/op | of evicted documents | of these by a thread |"
    yield "| --- | --- | --- | --- | --- |"
    for depth in ("1", "100"):
        row = evicted[depth]
        yield (
            f"| {depth} | {row['operations_per_s']:,.0f} | {row['us']:.2f} | "
            f"{row['evicted_share']:.0%} | {row['thread_share']:.2%} |"
        )
    yield ""


def _persisted(persisted: Figures) -> Iterator[str]:
    yield (
        "Single persisted writes, one request at a time per connection. One record written and "
        f"synced alone took this disk {persisted['sync_us']:.0f} us just before. The floors are "
        "parts of Redis's figure; where it is not installed, writes per second, if that was at "
        "most 200:"
    )
    yield ""
    yield "| clients | server | writes/s | of Redis | processor us/op | p50 us | p99 us |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for clients, rows in persisted.items():
        if clients == "sync_us":
            continue
        for server in ("node", "redis"):
            if server in rows:
                row = rows[server]
                ratio = f"{rows['ratio']:.2f}" if server == "node" and "ratio" in rows else ""
                yield (
                    f"| {clients} | {server} | {row['operations_per_s']:,.0f} | {ratio} | "
                    f"{row['us']:.1f} | {row['p50_us']:.0f} | {row['p99_us']:.0f} |"
                )
    yield ""


def _views(views: Figures) -> Iterator[str]:
    peer, index, visible = views["peer"], views["index"], views["visible_ms"]
    yield f"Views of {views['documents']:,} documents with one row each:"
    yield ""
    yield "| first build | documents/s | documents/s of a core |"
    yield "| --- | --- | --- |"
    builds = {**views["build"], **({"PouchDB": peer} if peer else {})}
    for name, figures in builds.items():
        yield (
            f"| {name} | {figures['documents_per_s']:,.0f} | "
            f"{figures['documents_per_cpu_s']:,.0f} |"
        )
    yield ""
    yield "| query | ms | PouchDB, ms |"
    yield "| --- | --- | --- |"
    names = {"reduce_ms": "reduce of half the rows", "page_ms": "page of 1,000 rows"}
    for key, name in names.items():
        theirs = f"{peer[key]:.1f}" if peer else ""
        yield f"| {name} | {views[key]:.2f} | {theirs} |"
    yield ""
    yield (
        f"A write is visible to a query that waits for it after {visible['p50']:.1f} ms "
        f"(99 of 100: {visible['p99']:.1f}). In the index alone, commits of 1,000 "
        f"documents come to {index['values_per_s']:,.0f} rows/s where values change and to "
        f"{index['keys_per_s']:,.0f} where keys do (a row goes, a row comes); a rollback to a "
        f"kept root takes {index['rollback_ms']:.1f} ms."
    )
    yield ""
    if "prepared_ms" in index:  # not in figures of older runs
        yield (
            "What any set of partitions needs is read in the background, in "
            f"{index['prepared_ms']:.0f} ms; who asks before that waits as long."
        )
        yield ""
    masked = index["partitions_ms"]
    times = list(next(iter(masked.values())))
    yield f"| reduce of all rows of some of the partitions, processor ms | {' | '.join(times)} |"
    yield f"| --- {'| --- ' * len(times)}|"
    for name, figures in masked.items():
        yield f"| {name} | {' | '.join(f'{ms:.2f}' for ms in figures.values())} |"
    yield ""
    yield "| kv reads, one after the other | median us | 99 of 100, us |"
    yield "| --- | --- | --- |"
    for name, figures in views["reads_us"].items():
        yield f"| {name} | {figures['p50']:,.0f} | {figures['p99']:,.0f} |"
    yield ""


def _number(figure: float) -> str:
    return f"{figure:,.2f}" if figure < 100 else f"{figure:,.0f}"
