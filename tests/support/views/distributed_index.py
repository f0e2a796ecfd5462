"""A bucket on two real nodes, and a pipeline that keeps its view, with Spark or without."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import millstream
from millstream.model.partitions import partition_of
from millstream.pipelines.change_stream.options import SourceOptions, parse_options
from millstream.pipelines.index.on_spark import CycleReport, IndexPipeline
from millstream.pipelines.index.setup import find_specs
from support.kv.bucket_nodes import BUCKET, BucketNodes
from support.node.node_process import NodeProcess
from support.node.waiting import until

__all__ = ["ROWS", "IndexedNodes"]

ROWS = [["a", "b"], ["b", "a"], ["a", "b"], ["b", "a"]]
MAP = "function (doc) { emit(doc.kind, doc.n); }"
DESIGN = {"_id": "_design/d", "views": {"v": {"map": MAP, "reduce": "_sum"}}}
FRESH = "update=true&timeout=30000"


class IndexedNodes:
    """A bucket on two nodes, what was written to it, and a pipeline for its view."""

    def __init__(self, make_node: Callable[..., NodeProcess], folder: Path) -> None:
        made = [make_node("--no-memcached", name=name) for name in "ab"]
        self.nodes = BucketNodes(made, ROWS)
        self.nodes.promote("a")
        self.folder = folder
        self.documents: dict[str, dict[str, Any]] = {}
        self.reports: list[CycleReport] = []
        self.failures: list[BaseException] = []

    def write(self, numbers: range, kind: str = "k") -> None:
        self.put({f"doc-{n}": {"kind": kind, "n": n} for n in numbers})

    def put(self, documents: dict[str, dict[str, Any]]) -> None:
        hosts = ",".join(str(node.ready["kv"]) for node in self.nodes.nodes.values())
        with millstream.connect(hosts, bucket=BUCKET) as client:
            client.apply_many(documents.items()).raise_first()
        self.documents.update(documents)

    def at(self, name: str, numbers: range) -> dict[str, dict[str, Any]]:
        """Return documents whose partitions a node has by `ROWS`."""
        keys = {n: f"at-{n}" for n in numbers}
        return {
            key: {"kind": "at", "n": n}
            for n, key in keys.items()
            if ROWS[partition_of(key.encode(), len(ROWS))][0] == name
        }

    def rows(self, node: NodeProcess, options: str = FRESH) -> Any:
        """Return the rows of the view, or the error that came."""
        url = f"{node.http}/{BUCKET}/_design/d/_view/v?reduce=false&{options}"
        try:
            with urllib.request.urlopen(url) as answer:
                found = json.load(answer)["rows"]
        except urllib.error.HTTPError as error:
            with error:
                return json.load(error)["error"]
        return sorted((row["id"], row["key"], row["value"]) for row in found)

    @property
    def right(self) -> Any:
        return sorted((key, each["kind"], each["n"]) for key, each in self.documents.items())

    def check(self, *names: str) -> None:
        for name in names:
            until(
                lambda name=name: self.rows(self.nodes.nodes[name]) == self.right,
                lambda: repr(self.failures),
            )

    def source(self, name: str) -> SourceOptions:
        hosts = str(self.nodes.nodes[name].ready["kv"])
        return parse_options({"hosts": hosts, "bucket": BUCKET})

    def pipeline(self, **more: Any) -> IndexPipeline:
        path = self.folder / "d.json"
        path.write_text(json.dumps(DESIGN))
        (spec,) = find_specs(self.source("a"), [str(path)])
        return IndexPipeline(spec, self.folder, on_cycle=self.reports.append, **more)

    @contextmanager
    def running(self, spark: Any = None, **more: Any) -> Iterator[None]:
        """Run it meanwhile."""
        pipeline = self.pipeline(**more)

        def run() -> None:
            try:
                pipeline.run(spark)
            except BaseException as error:  # noqa: BLE001 - shown below
                self.failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            pipeline.is_stopping = True
            thread.join()
        assert self.failures == []
