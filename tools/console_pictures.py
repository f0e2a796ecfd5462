"""Pictures of each page of the console, light and dark: `make screenshots`.

A node gets some days of flights, an index, a replication, a conflict, an attachment; a cluster of
three nodes has a page of its own. Look at each picture: what a designer would not ship is mended,
not shown.

Invariants:
1. A picture is a PNG of less than 150 kB in docs/console/, NAME-THEME.png.
2. A page with an error of a script makes no picture: the program fails.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from playwright.sync_api import sync_playwright

from millstream.demo.flights import find_flights, read_flights
from support.console.console import BROWSER_ARGUMENTS, THEMES, Console
from support.http.http_calls import done
from support.node.node_process import FREE, NodeProcess
from support.node.waiting import until

_OUT: Final = Path(__file__).parents[1] / "docs/console"
_BYTES_MAX: Final = 150_000
_FLIGHTS: Final = 9_000
_PER_S: Final = 60
"""Documents written in a second, on average: the pictures show two minutes."""
_COORDINATION: Final = ("--coord", FREE, "--peer", FREE)
_DESIGN: Final = {
    "views": {
        "by_carrier": {
            "map": "function (doc) {\n  if (doc.dep_delay !== undefined) {\n"
            "    emit([doc.carrier, doc.origin], doc.dep_delay);\n  }\n}",
            "reduce": "_stats",
        }
    }
}
_PAGES: Final = {
    "overview": "overview",
    "documents": "documents/flights",
    "document": "documents/flights/doc/conflict",
    "import": "documents/flights/import",
    "query": "query/views?bucket=flights&view=delays/by_carrier&group=1&as=bars",
    "streams": "streams/readers?bucket=flights",
    "pipelines": "pipelines",
    "sites": "sites",
    "coordination": "coordination",
    "security": "security",
    "logs": "logs",
    "support": "support",
}


def _fill(node: NodeProcess) -> None:
    """Write what the pictures show."""
    documents = dict(read_flights(find_flights(), _FLIGHTS).changes(0, 3 * _FLIGHTS))
    docs = [{"_id": key, **_decoded(body)} for key, body in documents.items() if body is not None]
    done(node, "PUT", "/flights/_design/delays", _DESIGN)
    at = 0
    while at < len(docs):  # as a source does: more in some seconds than in others
        rate = int(_PER_S * (1.2 + math.sin(at / 900)) * random.uniform(0.8, 1.2))
        done(node, "POST", "/flights/_bulk_docs", {"docs": docs[at : at + rate]})
        at += rate
        time.sleep(1)
    done(node, "GET", "/flights/_design/delays/_view/by_carrier?group_level=1")
    done(node, "PUT", "/archive?q=4")
    copied = {"source": "flights", "target": "archive", "continuous": True}
    done(node, "POST", "/_replicator", {"_id": "copy-of-flights", **copied})
    _conflict(node, {key: value for key, value in docs[0].items() if key != "_id"})


def _decoded(body: bytes) -> dict[str, object]:
    found: dict[str, object] = msgspec.json.decode(body)
    return found


def _conflict(node: NodeProcess, flight: dict[str, object]) -> None:
    """A document that two sites changed apart, with an attachment."""
    note = {"content_type": "text/plain", "data": "aGVsZCBmb3IgY3Jldw=="}
    first = done(node, "PUT", "/flights/conflict", {**flight, "_attachments": {"note.txt": note}})
    trunk = [first["rev"].split("-")[1]]
    branches = [(2, ["b" * 32]), (3, ["d" * 32, "c" * 32]), (3, ["f" * 32, "c" * 32])]
    docs: list[dict[str, object]] = [
        {
            **flight, "_id": "conflict", "dep_delay": 10 * start, "_rev": f"{start}-{ids[0]}",
            "_revisions": {"start": start, "ids": [*ids, *trunk]},
        }
        for start, ids in branches
    ]  # fmt: skip
    docs[2] = {name: docs[2][name] for name in ("_id", "_rev", "_revisions")} | {"_deleted": True}
    done(node, "POST", "/flights/_bulk_docs", {"new_edits": False, "docs": docs})


@contextmanager
def _cluster(folder: Path) -> Iterator[NodeProcess]:
    """Three nodes with a bucket of which each partition has two copies."""
    names = ("m1", "m2", "m3")
    nodes = [NodeProcess(folder / name, "--bucket", "default:1", *_COORDINATION) for name in names]
    try:
        for node in nodes:
            node.start()
        done(nodes[0], "POST", "/_millstream/cluster/init", {"name": "flights"})
        address = nodes[0].http.removeprefix("http://")
        for number, node in enumerate(nodes[1:]):
            zone = {"address": address, "zone": f"room {number + 2}"}
            done(node, "POST", "/_millstream/cluster/join", zone)
        wanted = {"partitions": 256, "replicas": 1}
        done(nodes[0], "PUT", "/_millstream/buckets/airports", wanted)
        until(lambda: done(nodes[0], "GET", "/_millstream/cluster")["buckets"][0]["whole"])
        yield nodes[0]
    finally:
        for node in nodes:
            node.kill()


def _take(console: Console, name: str, theme: str, address: str) -> None:
    page = console.open(address)
    if name == "import":
        rows = "carrier,flight,delay\nUA,1545,2\nAA,1141,-4\nB6,725,-1\n"
        table = {"name": "more-flights.csv", "mimeType": "text/csv", "buffer": rows.encode()}
        page.get_by_label("File to import").set_input_files(table)  # type: ignore[arg-type]
        page.get_by_label("Id of each document").fill("{carrier}-{flight}")
    file = _OUT / f"{name}-{theme}.png"
    page.screenshot(path=file)
    console.check()
    assert file.stat().st_size < _BYTES_MAX, f"{file} has {file.stat().st_size} bytes"
    print(f"{file.name}: {file.stat().st_size // 1024} KiB", flush=True)


def main() -> int:
    """Make the pictures that are asked for; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", help="names of pages; all without any")
    wanted = parser.parse_args().pages or [*_PAGES, "cluster"]
    _OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = Path(temporary)
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=list(BROWSER_ARGUMENTS)
        )
        if set(wanted) != {"cluster"}:
            with NodeProcess(folder / "node", "--bucket", "flights:16", *_COORDINATION) as node:
                _fill(node)
                for theme in THEMES:
                    with Console(browser, node.http, theme=theme, height=1_000) as console:
                        for name, address in _PAGES.items():
                            if name in wanted:
                                _take(console, name, theme, address)
        if "cluster" in wanted:
            with _cluster(folder) as node:
                for theme in THEMES:
                    with Console(browser, node.http, theme=theme) as console:
                        _take(console, "cluster", theme, "cluster")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
