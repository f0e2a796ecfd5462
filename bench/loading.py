"""Loading more documents than memory holds, quiet requests, and pages beside kv writers.

The same documents are loaded twice: into a quota that holds all of them, and into one that holds a
third. Memory is what is private to the node's processes: pages of files are the system's cache.

Elsewhere: the generator (loadgen.c), by whom it is run (run.py).
"""

import http.client
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from servers import BUILD, LOAD_CPUS, Node, figures_of, on_cpus, start_program

Figures = dict[str, Any]
PARTITIONS = 64
VALUE_BYTES = 300
DOCUMENT_BYTES = 640
"""About what one takes in memory."""
MIB = 1024 * 1024
QUOTA_MIB = 1024
TIMES = 3
"""How much more is loaded than memory holds."""
CONNECTIONS = 10
DEPTH = 100
LOOK_S = 0.1
RATE_FLOOR = 0.8
"""Of the rate with all documents in memory."""
PAUSE_S_MAX = 1.0
BEYOND_QUOTA_BYTES_MAX = 512 * MIB
"""By which the processes may be larger than the quota: see docs/concepts/memory.md."""
QUIET_KEYS = 500_000
WRITERS = 100
WRITER_DEPTH = 300
WRITER_KEYS = 100_000
PAGES_S = 8
PAGE_PAUSE_S = 0.05
PAGE_PATH = "/default/_all_docs?limit=20"
PAGE_S_MAX = 0.3
"""Of 99 small pages in 100, while kv clients write as fast as they can."""


def measure_loading(directory: Path) -> Figures:
    """Load with and without enough memory; tell how that went."""
    found: Figures = {"quota_mib": QUOTA_MIB, "times": TIMES}
    for name, quota_mib in (("in_memory", QUOTA_MIB * (TIMES + 1)), ("beyond", QUOTA_MIB)):
        place = directory / name
        place.mkdir()
        found[name] = _load(place, quota_mib, QUOTA_MIB * TIMES * MIB // DOCUMENT_BYTES)
    place = directory / "quiet"
    place.mkdir()
    found["quiet"] = _quiet(place)
    place = directory / "pages"
    place.mkdir()
    found["pages"] = measure_pages(place)
    return found


def _load(directory: Path, quota_mib: int, documents: int) -> Figures:
    options = ["--bucket", f"default:{PARTITIONS}", "--memory-quota", f"{quota_mib}MiB"]
    with Node(directory, *options) as node:
        idle = most = _private_bytes(node)
        is_over = threading.Event()

        def look() -> None:
            nonlocal most
            while not is_over.wait(LOOK_S):
                most = max(most, _private_bytes(node))

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            figures = _fill(node, documents)
        finally:
            is_over.set()
            watcher.join()
    # Documents beyond the quota: from when as many were loaded as it holds.
    beyond, loaded = [], 0
    for count in figures["each_second"][:-1]:
        if loaded > quota_mib * MIB // DOCUMENT_BYTES:
            beyond.append(count)
        loaded += count
    return {
        "documents": documents,
        "per_s": figures["operations_per_s"],
        "beyond_per_s": sum(beyond) / len(beyond) if beyond else None,
        "slowest_second": min(beyond, default=None),
        "longest_s": figures["longest_s"],
        "refused": figures["errors"],
        "idle_bytes": idle,
        "most_bytes": most,
    }


def _fill(node: Node, keys: int, *options: object) -> Figures:
    """Load documents; refusals are no error."""
    program = [str(BUILD / "loadgen"), "-o", "fill", "-c", CONNECTIONS, "-P", DEPTH, "-k", keys,
               "-v", VALUE_BYTES, "-b", "default", "-p", PARTITIONS, *options, "127.0.0.1",
               node.kv_port]  # fmt: skip
    command = on_cpus(LOAD_CPUS, [str(word) for word in program])
    figures: Figures = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return figures


def _quiet(directory: Path) -> Figures:
    """Return the processor time of a SET and of a quiet one until the last reply, in us."""
    found: Figures = {}
    with Node(directory, "--bucket", f"default:{PARTITIONS}") as node:
        _fill(node, QUIET_KEYS)
        for name, options in (("set", ()), ("setq", ("-q",)), ("set", ()), ("setq", ("-q",))):
            node.settle()
            before = node.cpu_s()
            _fill(node, QUIET_KEYS, *options)
            cost = (node.cpu_s() - before) / QUIET_KEYS * 1e6
            found[name] = min(cost, found.get(name, cost))
    return found


def measure_pages(directory: Path) -> Figures:
    """Poll a small page beside many kv writers; return seconds, and writes with and without."""
    found: Figures = {}
    with Node(directory, "--bucket", f"default:{PARTITIONS}") as node:
        _fill(node, WRITER_KEYS)
        for name in ("alone", "beside"):
            node.settle()
            before = node.cpu_s()
            writers = start_program(
                "loadgen", "-o", "set", "-c", WRITERS, "-P", WRITER_DEPTH, "-k", WRITER_KEYS,
                "-v", VALUE_BYTES, "-b", "default", "-p", PARTITIONS, "-s", PAGES_S, "127.0.0.1",
                node.kv_port,
            )  # fmt: skip
            if name == "beside":
                time.sleep(1)
                found["seconds"] = _poll(node.http_port, PAGES_S - 2)
            written = figures_of(writers)["operations"]
            found[name] = written / (node.cpu_s() - before)
    return found


def _poll(port: int, seconds: float) -> list[float]:
    """Return how long each page took, in order of that."""
    took, end_s = list[float](), time.monotonic() + seconds
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as client:
        while time.monotonic() < end_s:
            began_s = time.monotonic()
            client.request("GET", PAGE_PATH)
            answer = client.getresponse()
            if not answer.read() or answer.status != 200:
                raise RuntimeError(f"{PAGE_PATH}: {answer.status}")
            took.append(time.monotonic() - began_s)
            time.sleep(PAGE_PAUSE_S)
    return sorted(took)


def _part(found: Figures, share: float) -> float:
    """Return within how many seconds this share of the pages came."""
    seconds = found["seconds"]
    return float(seconds[min(len(seconds) - 1, int(share * len(seconds)))])


def _private_bytes(node: Node) -> int:
    """Return the memory of a node's processes that is no page of a file."""
    total = 0
    for pid in node.pids():
        with suppress(OSError):  # it has ended
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    total += int(line.split()[1]) * 1024
    return total


def rows(found: Figures) -> list[tuple[str, float, float, bool]]:
    """Return what is promised: name, figure, bound, whether it is a ceiling."""
    beyond, quota_bytes = found["beyond"], found["quota_mib"] * MIB
    share = beyond["beyond_per_s"] / found["in_memory"]["per_s"]
    quiet = found["quiet"]
    pages = found.get("pages")  # older figures have none
    return [
        *([("99 of 100 small pages beside kv writers, s", _part(pages, 0.99), PAGE_S_MAX, True)]
          if pages else []),
        ("rate of loading beyond the quota, of that in memory", share, RATE_FLOOR, False),
        ("longest wait for a batch while loading, s", beyond["longest_s"], PAUSE_S_MAX, True),
        ("writes refused while loading", beyond["refused"], 0, True),
        ("bytes above the quota while loading", beyond["most_bytes"] - quota_bytes,
         BEYOND_QUOTA_BYTES_MAX, True),
        ("cost of a quiet SET, of a SET", quiet["setq"] / quiet["set"], 1.2, True),
    ]  # fmt: skip


def lines(found: Figures) -> Iterator[str]:
    """Yield the section of docs/benchmarks.md."""
    quota_mib, documents = found["quota_mib"], found["beyond"]["documents"]
    yield (
        f"Loading {documents:,} documents of {VALUE_BYTES} bytes over the kv port, "
        f"{CONNECTIONS} connections, batches of {DEPTH}:"
    )
    yield ""
    yield "| quota | documents/s | beyond it | longest batch, s | refused | private memory |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, quota in (("in_memory", quota_mib * (found["times"] + 1)), ("beyond", quota_mib)):
        row = found[name]
        beyond = "" if row["beyond_per_s"] is None else f"{row['beyond_per_s']:,.0f}"
        yield (
            f"| {quota:,} MiB | {row['per_s']:,.0f} | {beyond} | {row['longest_s']:.2f} | "
            f"{row['refused']:,} | {row['most_bytes'] / MIB:,.0f} MiB |"
        )
    quiet = found["quiet"]
    yield ""
    yield (
        f"Processor time until the last reply: a SET {quiet['set']:.2f} us, a quiet one (SETQ) "
        f"{quiet['setq']:.2f} us."
    )
    yield ""
    if "pages" in found:
        yield from _pages_lines(found["pages"])


def _pages_lines(found: Figures) -> Iterator[str]:
    p50, p99 = (_part(found, share) * 1000 for share in (0.5, 0.99))
    lost = 1 - found["beside"] / found["alone"]
    yield (
        f"`GET {PAGE_PATH}` every {PAGE_PAUSE_S * 1000:.0f} ms beside {WRITERS} kv writers that "
        f"send {WRITER_DEPTH} SETs at a time: {p50:.0f} ms (99 of 100: {p99:.0f}). Writes per "
        f"second of processor: {found['alone']:,.0f} without pages, {lost:.0%} fewer with them."
    )
    yield ""
