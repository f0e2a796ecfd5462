"""The delay of kv requests while five consoles are open.

How it measures:
1. A console is one stream of events and the pages that the browser reads beside it, as often as
   its pages do: the console's Overview, Streams, Cluster, Query and Logs, one each.
2. Rounds alternate: with the consoles and without, the same generator and requests. Which of them
   is first alternates, too. The node has one processor, generator and consoles the other.
3. The means of the p99 of all rounds of a kind are compared: the generator tells a p99 in steps of
   6 %, which a median would keep.

Elsewhere: the generator (loadgen.c), by whom it is run (run.py).
"""

import http.client
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from servers import Node, run_program

Figures = dict[str, Any]
PARTITIONS: Final = 64
KEYS: Final = 100_000
VALUE_BYTES: Final = 256
LOADS: Final = {"get": ("get", 50, 1), "set": ("set", 50, 1)}
"""Name: operation, connections, requests per batch."""
ROUNDS: Final = 12
SECONDS: Final = 3.0
ANSWER_S_MAX: Final = 30.0
P99_MAX: Final = 1.05
"""Of the p99 without consoles."""
BUCKET: Final = "/_millstream/buckets/default"
PAGES: Final = (
    (("/_millstream/health", 5), ("/_millstream/samples?span=300", 30),
     ("/_millstream/buckets", 5), ("/_millstream/node", 30)),
    (("/_millstream/health", 5), ("/_millstream/buckets", 10), (f"{BUCKET}/readers", 2)),
    (("/_millstream/health", 5), (f"{BUCKET}/partitions/0", 3), (f"{BUCKET}/readers", 3)),
    (("/_millstream/health", 5), ("/_millstream/buckets", 10),
     ("/default/_design_docs?include_docs=true", 3), ("/_active_tasks", 3)),
    (("/_millstream/health", 5), ("/_millstream/logs", 30)),
)  # fmt: skip
"""What each console reads, and every how many seconds."""


def measure_consoles(directory: Path) -> Figures:
    """Return the p99 of each round in microseconds, by load and by whether consoles are open."""
    found: Figures = {name: {"without": [], "with": []} for name in LOADS}
    with Node(directory, "--bucket", f"default:{PARTITIONS}") as node:
        where = ["-k", KEYS, "-v", VALUE_BYTES, "-b", "default", "-p", PARTITIONS,
                 "127.0.0.1", node.kv_port]  # fmt: skip
        run_program("loadgen", "-o", "fill", "-P", 100, *where)
        for number in range(ROUNDS):
            for load, (operation, connections, depth) in LOADS.items():
                how = ["-o", operation, "-c", connections, "-P", depth, "-s", SECONDS]
                for kind in ("without", "with")[:: 1 if number % 2 else -1]:
                    node.settle()
                    if kind == "without":
                        figures = run_program("loadgen", *how, *where)
                    else:
                        with _consoles(node.http_port) as answers:
                            figures = run_program("loadgen", *how, *where)
                        found["answers"] = found.get("answers", 0) + answers[0]
                    found[load][kind].append(figures["p99_us"])
    return found


@contextmanager
def _consoles(port: int) -> Iterator[list[int]]:
    """Have five consoles open; afterwards the list has how many answers and events came."""
    is_over, answers = threading.Event(), [0]
    opened = threading.Barrier(len(PAGES) + 1)
    with ThreadPoolExecutor(len(PAGES)) as pool:
        consoles = [
            pool.submit(_console, port, pages, is_over, opened, answers) for pages in PAGES
        ]
        try:
            with suppress(threading.BrokenBarrierError):  # a console failed, and says why
                opened.wait(ANSWER_S_MAX)
            yield answers
        finally:
            is_over.set()
        for console in consoles:
            console.result()


def _console(
    port: int,
    pages: tuple[tuple[str, int], ...],
    is_over: threading.Event,
    opened: threading.Barrier,
    answers: list[int],
) -> None:
    """Follow events and read pages until it is over; the first reads are before `opened`."""
    with (
        closing(http.client.HTTPConnection("127.0.0.1", port, ANSWER_S_MAX)) as following,
        closing(http.client.HTTPConnection("127.0.0.1", port, ANSWER_S_MAX)) as reading,
    ):
        following.request("GET", "/_millstream/events?topics=samples")
        events = following.getresponse()
        due_s = dict.fromkeys((path for path, _ in pages), 0.0)
        is_open = False
        while not is_over.is_set():
            for path, every_s in pages:
                if time.monotonic() >= due_s[path]:
                    due_s[path] = time.monotonic() + every_s
                    reading.request("GET", path)
                    answer = reading.getresponse()
                    if not answer.read() or answer.status != 200:
                        raise RuntimeError(f"{path}: {answer.status}")
                    answers[0] += 1
            if not is_open:
                is_open = True
                opened.wait(ANSWER_S_MAX)
            while not is_over.is_set() and events.readline().strip():  # an event: each second
                pass
            answers[0] += 1


def ratio(found: Figures, load: str) -> float:
    """Return the mean p99 with consoles, of that without."""
    runs = found[load]
    return statistics.fmean(runs["with"]) / statistics.fmean(runs["without"])


def rows(found: Figures) -> list[tuple[str, float, float, bool]]:
    """Return what is promised: name, figure, bound, whether it is a ceiling."""
    return [
        (f"p99 of {load} with five consoles, of that without", ratio(found, load), P99_MAX, True)
        for load in LOADS
    ]


def lines(found: Figures) -> Iterator[str]:
    """Yield the section of docs/benchmarks.md."""
    yield (
        f"Five consoles beside kv: each follows the events and reads pages as often as a browser "
        f"does. p99 of single requests over 50 connections, in rounds that alternate "
        f"({len(found['get']['with'])} of each, {SECONDS:g} s), {found['answers']:,} answers and "
        f"events of consoles in all:"
    )
    yield ""
    yield "| load | without, p99 us: mean (min to max) | with five consoles | with, of without |"
    yield "| --- | --- | --- | --- |"
    for load in LOADS:
        cells = [
            f"{statistics.fmean(runs):,.0f} ({min(runs):,.0f} to {max(runs):,.0f})"
            for runs in (found[load]["without"], found[load]["with"])
        ]
        yield f"| {load} | {' | '.join(cells)} | {ratio(found, load):.3f} |"
    yield ""
