"""Documents over HTTP and their replication, beside PouchDB's own server.

How it measures:
1. Both servers run at once, pinned to one processor, and take turns under the same client, which
   has the other: rounds in changing order, medians of them. PouchDB keeps its documents in memory
   and nowhere else; a node answers a change once it is on the disk.
2. Requests are made beforehand; answers are read whole and looked at for errors. Rows are counted
   where they arrive.
3. Replications run inside the server that is asked, between two of its databases: a node asks
   itself over HTTP, PouchDB, which would not reach its memory that way, by calls.

Elsewhere: servers (servers.py), what is printed (report_documents.py).
"""

import asyncio
import json
import shutil
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp

from report import Verdict
from servers import Node, Server

Figures = dict[str, Any]
NPM = Path(__file__).resolve().parent.parent / "tests" / "npm"
CONNECTIONS = 16
BATCH_DOCUMENTS = 1_000
BATCHES_AT_ONCE = 4
READ_DOCUMENTS = 1_000
ROUNDS = 3
IDLE_S = 2.0
"""Before a connection is given up, which is before node.js closes it while a request is sent."""
FLOORS = {
    "bulk": ("documents/s in _bulk_docs", 17_000),
    "put": ("documents/s put one by one, 16 connections", 360),
    "get": ("documents/s read one by one, 16 connections", 950),
    "changes": ("rows/s of _changes", 26_000),
    "replicate": ("documents/s replicated", 1_540),
}
"""What CouchDB 3.4.3 did on such a machine."""
CEILINGS = {
    "nothing": ("seconds of a replication with nothing to do", 0.2),
    "one": ("seconds of a replication of one document", 0.2),
    "transitive": ("seconds of A to C after A to B to C", 0.5),
}


class PouchServer(Server):
    """PouchDB's server, in memory."""

    has_ready_line = True

    def __init__(self, directory: Path) -> None:
        super().__init__(["node", str(NPM / "pouchdb-server.js")], directory / "pouchdb.log")
        self.http_port = 0

    @staticmethod
    def is_installed() -> bool:
        """Whether there is one to compare with."""
        return shutil.which("node") is not None and (NPM / "node_modules").is_dir()

    def start(self) -> None:
        super().start()
        self.http_port = int(self.ready_line())


class Load:
    """One server under load."""

    def __init__(self, server: Server, http: aiohttp.ClientSession, base: str) -> None:
        self.server, self.http, self.base = server, http, base

    async def ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send a request, return the answer's body."""
        headers = {"Content-Type": "application/json"} if body is not None else None
        async with self.http.request(
            method, f"{self.base}{path}", data=body, headers=headers
        ) as answer:
            data = await answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path}: {answer.status} {data[:500]!r}")
            return data

    async def make(self, name: str) -> None:
        """Make a database."""
        await self.ask("PUT", f"/{name}")

    async def fill(self, name: str, count: int) -> None:
        """Write documents in batches, some at a time."""
        bodies = [
            json.dumps(
                {"docs": [document(n) for n in range(at, min(at + BATCH_DOCUMENTS, count))]}
            )
            for at in range(0, count, BATCH_DOCUMENTS)
        ]
        jobs = [(self.ask, "POST", f"/{name}/_bulk_docs", body.encode()) for body in bodies]
        for answer in await in_parallel(jobs, BATCHES_AT_ONCE):
            if b'"error"' in answer:
                raise RuntimeError(f"_bulk_docs: {answer[:500]!r}")


def document(number: int) -> Figures:
    """Return a document of some 200 bytes."""
    return {
        "_id": f"order-{number:08}", "number": number, "city": f"city {number % 97}",
        "total": number * 1.25, "items": [number % 7, number % 11], "text": "x" * 80,
    }  # fmt: skip


Job = tuple[Callable[..., Awaitable[bytes]], str, str, bytes | None]


async def in_parallel(jobs: list[Job], width: int) -> list[bytes]:
    """Do jobs, so many at a time; return their answers."""
    waiting, answers = iter(jobs), list[bytes]()

    async def work() -> None:
        for ask, method, path, body in waiting:
            answers.append(await ask(method, path, body))

    await asyncio.gather(*(work() for _ in range(width)))
    return answers


async def timed(count: int, work: Awaitable[object]) -> float:
    """Return how many a second were done."""
    started = time.perf_counter()
    await work
    return count / (time.perf_counter() - started)


async def measure_requests(load: Load, name: str, count: int) -> Figures:
    """Measure one round of writing, reading and listing on a database that is made for it."""
    await load.make(name)
    found: Figures = {"bulk": await timed(count, load.fill(name, count))}
    load.server.settle()
    puts: list[Job] = [
        (load.ask, "PUT", f"/{name}/single-{n}", json.dumps({"n": n}).encode())
        for n in range(READ_DOCUMENTS)
    ]
    found["put"] = await timed(len(puts), in_parallel(puts, CONNECTIONS))
    gets: list[Job] = [
        (load.ask, "GET", f"/{name}/order-{n % count:08}", None) for n in range(READ_DOCUMENTS)
    ]
    found["get"] = await timed(len(gets), in_parallel(gets, CONNECTIONS))
    load.server.settle()
    started = time.perf_counter()
    rows = (await load.ask("GET", f"/{name}/_changes")).count(b'"changes"')
    found["changes"] = rows / (time.perf_counter() - started)
    if rows < count + len(puts):
        raise RuntimeError(f"_changes of {name}: {rows} rows")
    return found


async def replicate(load: Load, source: str, target: str) -> float:
    """Replicate between two databases of the server; return the seconds."""
    prefix = "" if isinstance(load.server, PouchServer) else f"{load.base}/"
    wanted = {"source": f"{prefix}{source}", "target": f"{prefix}{target}"}
    started = time.perf_counter()
    answer = json.loads(await load.ask("POST", "/_replicate", json.dumps(wanted).encode()))
    if not answer.get("ok"):
        raise RuntimeError(f"_replicate: {answer}")
    return time.perf_counter() - started


async def measure_replication(load: Load, count: int) -> Figures:
    """Measure replications of a database that is filled for it."""
    for name in ("rep-a", "rep-b", "rep-c"):
        await load.make(name)
    await load.fill("rep-a", count)
    load.server.settle()
    found: Figures = {"replicate": count / await replicate(load, "rep-a", "rep-b")}
    found["nothing"] = await replicate(load, "rep-a", "rep-b")
    await load.ask("PUT", "/rep-a/one-more", b"{}")
    found["one"] = await replicate(load, "rep-a", "rep-b")
    await replicate(load, "rep-b", "rep-c")
    found["transitive"] = await replicate(load, "rep-a", "rep-c")
    return found


async def _measure(servers: dict[str, Any], count: int, replicated: int) -> Figures:
    rounds: dict[str, list[Figures]] = {name: [] for name in servers}
    limits = aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=IDLE_S)
    whole = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=limits, timeout=whole) as http:
        loads = {
            name: Load(server, http, f"http://127.0.0.1:{server.http_port}")
            for name, server in servers.items()
        }
        for number in range(ROUNDS):
            order = list(loads) if number % 2 == 0 else list(reversed(loads))
            for name in order:
                rounds[name].append(await measure_requests(loads[name], f"round-{number}", count))
        replications = {
            name: await measure_replication(load, replicated) for name, load in loads.items()
        }
    middle = {
        name: {key: statistics.median(one[key] for one in many) for key in many[0]}
        for name, many in rounds.items()
    }
    return {
        "documents": count,
        "replicated": replicated,
        "rows": {name: middle[name] | replications[name] for name in servers},
    }


def measure_documents(directory: Path, count: int = 20_000, replicated: int = 100_000) -> Figures:
    """Measure a node, and PouchDB's server where it is installed."""
    with ExitStack() as stack:
        servers: dict[str, Server] = {"node": stack.enter_context(Node(directory))}
        if PouchServer.is_installed():
            servers["PouchDB Server"] = stack.enter_context(PouchServer(directory))
        return asyncio.run(_measure(servers, count, replicated))


def verdicts(found: Figures) -> list[Verdict]:
    """Return the floors and what was measured."""
    ours = found["rows"]["node"]
    judged = [Verdict(words, ours[key], floor) for key, (words, floor) in FLOORS.items()]
    judged += [
        Verdict(words, ours[key], most, is_ceiling=True) for key, (words, most) in CEILINGS.items()
    ]
    peer = found["rows"].get("PouchDB Server")
    if peer is not None:
        judged += [
            Verdict(f"{words}, of PouchDB Server", ours[key] / peer[key], 1.0)
            for key, (words, _) in FLOORS.items()
        ]
    return judged
