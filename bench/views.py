"""Views of a node, over HTTP, beside PouchDB's mapreduce in memory.

How it measures:
1. One bucket of small JSON documents; one view that emits one row for each, by a Python map and
   by a JavaScript one, with a `_sum`. A build is timed from the design document to the first
   answer that is up to date; what it costs is the processor time of the index process and its
   sandbox: stream, map, sort, load and commit.
2. Queries go over one kept HTTP connection, `update=false`, ranges drawn by chance; medians of
   wall time.
3. A write is visible when an `update=true` query that began after it has answered with it.
4. kv reads are timed one after the other over a connection of their own: at rest, while an index
   is built, and while a map loops for ever.
5. Commits and reduces over some of the partitions are measured in the index alone
   (index_commits.py), in processor time; where a key changes, a row goes and a row comes. Sets of
   partitions are asked for the first time, but of an index that was prepared for any of them, as
   the index process does in the background; what that takes stands beside.

Elsewhere: the tree alone (trees.py).
"""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import index_commits
import millstream
from millstream.views.core.reduce.reductions import ViewReducer
from report import Verdict
from servers import HERE, TICKS_PER_S, Node

Figures = dict[str, Any]
PARTITIONS = 64
GROUPS = 1000
QUERIES = 300
PAGES = 60
VISIBLE = 200
READ_S = 3.0
PEER_DOCUMENTS = 5_000
FILL_BATCH = 5000
BUILD_TIMEOUT_MS = 600_000
PEERS = HERE.parent / "tests" / "npm"
JAVASCRIPT = "function (doc) { emit([doc.group, doc.n], doc.n); }"
ENDLESS = "function (doc) { while (true) {} }"
FLOORS = {"python": 60_000, "javascript": 40_000, "commits": 12_000}
CEILINGS = {"reduce_ms": 1.0, "page_ms": 5.0, "partitions_ms": 50.0, "rollback_ms": 10.0}
_PEER = """
const PouchDB = require('pouchdb-core');
PouchDB.plugin(require('pouchdb-adapter-memory')).plugin(require('pouchdb-mapreduce'));
const COUNT = %d, GROUPS = %d;
const middle = times => times.sort((a, b) => a - b)[times.length >> 1];
(async () => {
  const db = new PouchDB('bench', {adapter: 'memory'});
  for (let at = 0; at < COUNT; at += 1000) {
    const docs = [];
    for (let n = at; n < at + 1000; n++)
      docs.push({_id: 'order-' + n, type: 'order', group: n %% GROUPS, n, paid: true});
    await db.bulkDocs(docs);
  }
  const map = "function (doc) { emit([doc.group, doc.n], doc.n); }";
  await db.put({_id: '_design/d', views: {by: {map, reduce: '_sum'}}});
  const began = process.cpuUsage(), clock = Date.now();
  await db.query('d/by', {reduce: false, limit: 1});
  const spent = process.cpuUsage(began), seconds = (Date.now() - clock) / 1000;
  const times = {reduce: [], page: []};
  for (let n = 0; n < 5; n++) {
    const from = n * 100;
    let start = performance.now();
    await db.query('d/by', {startkey: [from], endkey: [from + 100]});
    times.reduce.push(performance.now() - start);
    start = performance.now();
    await db.query('d/by', {reduce: false, startkey: [from], limit: 1000});
    times.page.push(performance.now() - start);
  }
  console.log(JSON.stringify({
    documents_per_s: COUNT / seconds,
    documents_per_cpu_s: COUNT / ((spent.user + spent.system) / 1e6),
    reduce_ms: middle(times.reduce), page_ms: middle(times.page),
  }));
})();
"""


class Web:
    """One kept connection to a node's HTTP port."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=700)

    def ask(self, method: str, path: str, content: object = None) -> Any:
        """Return the answer of a page of the bucket."""
        body = None if content is None else json.dumps(content).encode()
        headers = {"Content-Type": "application/json"} if body else {}
        self._connection.request(method, f"/default{path}", body, headers)
        response = self._connection.getresponse()
        text = response.read()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status} {text[:500]!r}")
        return json.loads(text)

    def view(self, design: str, **parameters: object) -> Any:
        """Query a view."""
        words = "&".join(
            f"{name}={json.dumps(value, separators=(',', ':'))}"
            for name, value in parameters.items()
        )
        return self.ask("GET", f"/_design/{design}/_view/by?{words}")


def measure_views(directory: Path, documents: int) -> Figures:
    """Measure everything; the page of the results is made by report.py."""
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    found: Figures = {"documents": documents}
    options = ("--bucket", f"default:{PARTITIONS}", "--python-module", "view_maps")
    with Node(directory, *options, pinned=False) as node, _client_of(node) as client:
        say(f"{documents:,} documents")
        _fill(client, documents)
        node.settle()
        web = Web(node.http_port)
        found["reads_us"] = {"at rest": _reads(node, lambda: time.sleep(READ_S))}
        found["build"] = _builds(node, web, found["reads_us"])
        node.settle()
        found |= _queries(web, documents)
        found["visible_ms"] = _visible(web, client, documents)
        found["reads_us"]["while a map loops"] = _reads(node, lambda: _attack(web))
    found["index"] = _index(directory, documents)
    found["peer"] = _peer()
    return found


def _client_of(node: Node) -> millstream.Client:
    return millstream.connect(f"127.0.0.1:{node.kv_port}", bucket="default")


def _fill(client: millstream.Client, documents: int) -> None:
    for at in range(0, documents, FILL_BATCH):
        batch: dict[str, object] = {
            f"order-{n}": {"type": "order", "group": n % GROUPS, "n": n, "paid": True}
            for n in range(at, min(documents, at + FILL_BATCH))
        }
        client.upsert_many(batch).raise_first()


def _builds(node: Node, web: Web, reads: Figures) -> Figures:
    designs = {
        "python": {"language": "python", "views": {
            "by": {"map": "registered:bench.by_group", "reduce": "_sum"}}},
        "javascript": {"views": {"by": {"map": JAVASCRIPT, "reduce": "_sum"}}},
    }  # fmt: skip
    found: Figures = {}
    for language, design in designs.items():
        say(f"a first build, {language}")
        took: Figures = {}

        def build(language: str = language, design: object = design, took: Figures = took) -> None:
            began, before = time.perf_counter(), _index_cpu_s(node)
            web.ask("PUT", f"/_design/{language}", design)
            took["rows"] = _up_to_date(web, language)
            took["seconds"] = time.perf_counter() - began
            took["cpu_s"] = _index_cpu_s(node) - before

        reads[f"while an index is built, {language}"] = _reads(node, build)
        found[language] = {
            "documents_per_s": took["rows"] / took["seconds"],
            "documents_per_cpu_s": took["rows"] / took["cpu_s"],
        }
    return found


def _up_to_date(web: Web, design: str) -> int:
    rows = web.view(design, reduce=False, limit=0, timeout=BUILD_TIMEOUT_MS)["total_rows"]
    assert isinstance(rows, int)
    return rows


def _index_cpu_s(node: Node) -> float:
    """Return the processor time of the index process and its children, none if there is none."""
    ticks = 0
    pids = [
        pid for pid in node.pids()
        if b"millstream.node.processes.index_child" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]  # fmt: skip
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            pids += [int(word) for word in path.read_text().split()]
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        ticks += sum(map(int, fields[11:15]))  # with children that have ended
    return ticks / TICKS_PER_S


def _queries(web: Web, documents: int) -> Figures:
    say("queries")
    dice = random.Random(1)

    def reduce_range() -> None:
        low = dice.randrange(GROUPS // 2)
        web.view("python", startkey=[low], endkey=[low + GROUPS // 2, {}], update=False)

    def page() -> None:
        rows = web.view(
            "python", startkey=[dice.randrange(GROUPS // 2)], reduce=False, limit=1000,
            update=False,
        )["rows"]  # fmt: skip
        assert len(rows) == min(1000, documents)

    return {
        "reduce_ms": _median_ms(reduce_range, QUERIES),
        "page_ms": _median_ms(page, PAGES),
    }


def _median_ms(work: Callable[[], None], times: int) -> float:
    work()
    return statistics.median(_times_ms(work, times))


def _times_ms(work: Callable[[], None], times: int) -> list[float]:
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) * 1000)
    return found


def _visible(web: Web, client: millstream.Client, documents: int) -> Figures:
    say("how soon a write is visible")
    numbers = iter(range(documents, documents + VISIBLE))
    # The other index does not take its share of the processors then.
    web.ask("DELETE", f"/_design/javascript?rev={web.ask('GET', '/_design/javascript')['_rev']}")
    _up_to_date(web, "python")

    def write_and_read() -> None:
        n = next(numbers)
        client.upsert(f"order-{n}", {"type": "order", "group": GROUPS + n, "n": n})
        assert web.view("python", key=[GROUPS + n, n])["rows"][0]["value"] == n

    times = sorted(_times_ms(write_and_read, VISIBLE))
    return {"p50": times[len(times) // 2], "p99": times[len(times) * 99 // 100]}


def _attack(web: Web) -> None:
    """A map that loops for ever has to be stopped for every document again."""
    web.ask("PUT", "/_design/endless", {"views": {"by": {"map": ENDLESS}}})
    time.sleep(READ_S * 2)
    web.ask("DELETE", f"/_design/endless?rev={web.ask('GET', '/_design/endless')['_rev']}")


def _reads(node: Node, meanwhile: Callable[[], None]) -> Figures:
    """Time single reads while something else goes on."""
    with _reading(node) as times:
        meanwhile()
    times.sort()
    return {"p50": times[len(times) // 2], "p99": times[len(times) * 99 // 100]}


@contextmanager
def _reading(node: Node) -> Iterator[list[float]]:
    times: list[float] = []
    is_over = threading.Event()

    def read() -> None:
        with _client_of(node) as client:
            while not is_over.is_set():
                began = time.perf_counter()
                client.get("order-1")
                times.append((time.perf_counter() - began) * 1e6)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield times
    finally:
        is_over.set()
        thread.join()


def _index(directory: Path, documents: int) -> Figures:
    say("commits of an index")
    bench = index_commits.Bench(directory / "index", documents)
    bench.load()
    found: Figures = {
        "values_per_s": max(bench.changes(is_key_new=False) for _ in range(3)),
        # A row goes and a row comes.
        "keys_per_s": 2 * max(bench.changes(is_key_new=True) for _ in range(3)),
        "rollback_ms": statistics.median(bench.rollback_ms() for _ in range(5)),
    }
    masks = {
        "half": sum(1 << p for p in range(0, PARTITIONS, 2)),
        "one": 1,
        "all but one": (1 << PARTITIONS) - 2,
    }
    found["prepared_ms"] = _prepared(bench)
    found["partitions_ms"] = {name: _masked(bench, mask) for name, mask in masks.items()}
    bench.store.close()
    return found


def _prepared(bench: index_commits.Bench) -> float:
    """What the index process does in the background where a node answers for a part only."""
    with bench.index.snapshot(bench.now_ms) as snapshot:
        tree = snapshot.tree(0, _asked_reducer(), 1)
        return index_commits.timed(tree.prepare) * 1000


def _asked_reducer() -> ViewReducer:
    reducer = index_commits.SHAPE.reducers[0]
    assert isinstance(reducer, ViewReducer)
    return reducer.only(1)


def _masked(bench: index_commits.Bench, mask: int) -> Figures:
    """Reduce all rows of some partitions: for the first time, after a commit, and again."""
    figures: Figures = {}
    for name in ("first", "again", "after a commit of 1,000"):
        if name == "after a commit of 1,000":
            parts = bench.parts(is_key_new=False)
            bench.index.publish(bench.fence, parts, index_commits.JUDGED, bench.now_ms)
        with bench.index.snapshot(bench.now_ms) as snapshot:
            tree = snapshot.tree(0, _asked_reducer(), 1)
            spent = index_commits.timed(lambda: tree.reduce(None, None, mask))  # noqa: B023
        figures[name] = spent * 1000
    return figures


def _peer() -> Figures:
    node = shutil.which("node")
    if node is None or not (PEERS / "node_modules").is_dir():
        return {}
    say("PouchDB")
    source = _PEER % (PEER_DOCUMENTS, GROUPS)
    done = subprocess.run([node, "-e", source], cwd=PEERS, check=True, stdout=subprocess.PIPE)
    figures: Figures = json.loads(done.stdout)
    return figures


def verdicts(found: Figures) -> list[Verdict]:
    """Return the floors and ceilings, and what was measured."""
    index = found["index"]
    judged = [
        Verdict(f"documents/s a core builds, {language}",
                found["build"][language]["documents_per_cpu_s"], FLOORS[language])
        for language in ("python", "javascript")
    ]  # fmt: skip
    judged += [
        Verdict(
            f"rows/s in commits of 1,000, {what} change", index[f"{what}_per_s"], FLOORS["commits"]
        )
        for what in ("values", "keys")
    ]
    ceilings = {
        "ms of a range reduce over HTTP": (found["reduce_ms"], "reduce_ms"),
        "ms of a page of 1,000 rows": (found["page_ms"], "page_ms"),
        "ms of a reduce of some partitions, a set that is new to a prepared index": (
            max(masked["first"] for masked in index["partitions_ms"].values()), "partitions_ms",
        ),
        "ms of a reduce of some partitions, asked for before": (
            max(max(masked["again"], masked["after a commit of 1,000"])
                for masked in index["partitions_ms"].values()),
            "partitions_ms",
        ),
        "ms of a rollback to a kept root": (index["rollback_ms"], "rollback_ms"),
    }  # fmt: skip
    judged += [
        Verdict(name, figure, CEILINGS[limit], is_ceiling=True)
        for name, (figure, limit) in ceilings.items()
    ]
    return judged


def say(text: str) -> None:
    """Tell what is being measured."""
    print(f"-- views: {text}", file=sys.stderr, flush=True)
