"""Has Spark build and keep a view of the flights' final documents; prints one JSON line.

Builds are of one map under different signatures, from the call to the commit, node and Spark on
the same processors; the first two warm up Java, workers and caches, the best of the other three
counts. Then single documents are written and each is asked for with `update=true`, while the
streaming query keeps the view.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path

import millstream
from millstream.client.databases import Database
from millstream.client.http import http_of
from millstream.demo.flights import find_flights, read_flights
from millstream.pipelines import local_session
from millstream.pipelines.change_stream.options import parse_options
from millstream.pipelines.index.on_spark import CycleReport, IndexPipeline
from millstream.pipelines.index.setup import find_specs

BUILDS = 5
WARM_UPS = 2
WRITES = 60
MAP = "function (doc) { emit([doc.carrier, doc.origin], doc.distance); }"
STEP = 5000


def main() -> None:
    """Build five times, then write and ask."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pid", type=int, help="of the node")
    parser.add_argument("--flights", type=int)
    options = parser.parse_args()
    address = f"127.0.0.1:{options.port}"
    source = parse_options({"hosts": address, "bucket": "default"})
    spark = local_session("millstream-bench")
    with (
        millstream.connect(address, bucket="default") as client,
        tempfile.TemporaryDirectory() as folder,
    ):
        count = fill(client, options.flights)
        http = http_of(client, user=None, password="", tls=None, timeout_s=120.0)
        database = Database(http, "default")

        def pipeline(name: str, reports: list[CycleReport]) -> IndexPipeline:
            views = {"v": {"map": f"{MAP} /* {name} */", "reduce": "_stats"}}
            database.put(name, {"engine": "spark", "views": views})
            (spec,) = find_specs(source, [name])
            return IndexPipeline(spec, Path(folder) / name, on_cycle=reports.append)

        seconds = []
        for n in range(BUILDS):
            reports: list[CycleReport] = []
            began = time.perf_counter()
            pipeline(f"b{n}", reports).run(spark, once=True)
            seconds.append(time.perf_counter() - began)
            assert reports[0].is_first
            assert reports[0].rows == [count], (reports[0].rows, count)
        kept = pipeline(f"b{BUILDS - 1}", [])
        thread = threading.Thread(target=kept.run, args=(spark,))
        thread.start()
        path = f"{database.design_path(f'b{BUILDS - 1}')}/_view/v?timeout=60000&group=true&key="

        def write_and_ask(n: int) -> float:
            began = time.perf_counter()
            client.upsert(f"bench-{n}", {"carrier": "??", "origin": n, "distance": n})
            rows = http.request("GET", f"{path}%5B%22%3F%3F%22,{n}%5D")["rows"]
            assert rows[0]["value"]["sum"] == n
            return time.perf_counter() - began

        for n in range(5):
            write_and_ask(n)
        times = [write_and_ask(n) for n in range(5, 5 + WRITES)]
        kept.is_stopping = True
        thread.join()
    spark.stop()
    best_s = min(seconds[WARM_UPS:])
    print(
        json.dumps(
            {
                "documents": count,
                "seconds": seconds,
                "first_documents_per_s": count / seconds[0],
                "best_documents_per_s": count / best_s,
                "visible_s_p50": statistics.median(times),
                "visible_s_p90": sorted(times)[len(times) * 9 // 10],
            }
        )
    )


def fill(client: millstream.Client, flights: int | None) -> int:
    """Write the final documents of the flights; return how many there are."""
    replay = read_flights(find_flights(), flights)
    final = dict(replay.changes(0, len(replay)))
    documents = [(key, value) for key, value in final.items() if value is not None]
    for at in range(0, len(documents), STEP):
        client.apply_many(documents[at : at + STEP]).raise_first()
    client.wait_persisted(60.0)
    return len(documents)


if __name__ == "__main__":
    main()
