"""How long others take to fail over: Debian's etcd, and Debian's Redis with Sentinel.

How it measures:
1. Three members on this machine, as of Millstream (clusters.py). A kill -9 of the primary, of
   Redis together with the Sentinel of its machine. A write is tried at those that are left, again
   each 10 ms, until it is answered.
2. etcd has its defaults, which is an election time-out of 1 s. Sentinel has
   `down-after-milliseconds` 1000, which is about our time-out of sessions, and then its default of
   30 s. Between two kills all members are back, with all that the others have.
3. etcd's write is on a majority of disks. That of Redis is in memory of one server, and may be
   lost in the next fail-over: Redis copies later.

Elsewhere: our own fail-over (clusters.py), groups (groups.py), the runner (run.py).
"""

import shutil
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from groups import SIZE, Etcd, fail_over_s, until
from servers import Server, free_port, run_program

Figures = dict[str, Any]
FAIL_OVERS = 30
FAIL_OVERS_DEFAULT = 3
"""With the defaults of Sentinel each lasts half a minute."""
DOWN_AFTER_MS = 1000
DOWN_AFTER_DEFAULT_MS = 30_000
ANSWER_S, RETRY_S, GIVE_UP_S = 0.25, 0.01, 120.0
_MASTER = "bench"


class Sentinels:
    """Three machines, each with a Redis and a Sentinel; the first one's Redis takes writes."""

    def __init__(self, directory: Path, down_after_ms: int) -> None:
        self._directory = directory
        directory.mkdir()
        self.redis_ports = [free_port() for _ in range(SIZE)]
        self.sentinel_ports = [free_port() for _ in range(SIZE)]
        self._stack = ExitStack()
        self.redis = [self._redis(number) for number in range(SIZE)]
        self.sentinels = [self._sentinel(number, down_after_ms) for number in range(SIZE)]

    @staticmethod
    def is_installed() -> bool:
        """Whether there is a Redis; its server is Sentinel, too."""
        return shutil.which("redis-server") is not None

    def _redis(self, number: int) -> Server:
        data = self._directory / f"redis-{number}"
        data.mkdir()
        words = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.redis_ports[number]),
                 "--dir", str(data), "--save", "", "--appendonly", "yes"]  # fmt: skip
        if number:
            words += ["--replicaof", "127.0.0.1", str(self.redis_ports[0])]
        return Server(words, data.with_suffix(".log"), pinned=False)

    def _sentinel(self, number: int, down_after_ms: int) -> Server:
        settings = self._directory / f"sentinel-{number}.conf"
        settings.write_text(
            f"port {self.sentinel_ports[number]}\nbind 127.0.0.1\n"
            f"sentinel monitor {_MASTER} 127.0.0.1 {self.redis_ports[0]} 2\n"
            f"sentinel down-after-milliseconds {_MASTER} {down_after_ms}\n"
        )
        words = ["redis-server", str(settings), "--sentinel"]
        return Server(words, settings.with_suffix(".log"), pinned=False)

    def __enter__(self) -> Self:
        try:
            for server in (*self.redis, *self.sentinels):
                self._stack.enter_context(server)
            self.until_whole()
        except BaseException:  # also when interrupted: no server is left behind
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def primary(self) -> int:
        """Return whose Redis takes writes, as a Sentinel says that runs."""
        for server, port in zip(self.sentinels, self.sentinel_ports, strict=True):
            if server.process is not None:
                with suppress(OSError, ValueError):
                    return self.redis_ports.index(_primary_port(port))
        raise OSError("no Sentinel answers")

    def until_whole(self) -> None:
        """Wait until the primary has two copies, and each Sentinel knows all there is."""

        def is_whole() -> bool:
            port = self.redis_ports[self.primary()]
            copies = str(_ask(port, "INFO", "replication")).count("state=online")
            return copies == SIZE - 1 and all(
                _ask(one, "SENTINEL", "CKQUORUM", _MASTER).startswith(f"OK {SIZE} usable")
                and _fields(_ask(one, "SENTINEL", "MASTER", _MASTER))["num-slaves"]
                == str(SIZE - 1)
                and _primary_port(one) == port
                for one in self.sentinel_ports
            )

        until(is_whole, "Redis and its Sentinels do not come together")

    def fail_over_s(self) -> float:
        """Kill the machine of the primary; return for how long nothing was written."""
        number = self.primary()
        left = [port for at, port in enumerate(self.sentinel_ports) if at != number]
        began = time.monotonic()
        self.redis[number].kill()
        self.sentinels[number].kill()
        lasted = self._next_write(began, left)
        self.redis[number].start()
        self.sentinels[number].start()
        self.until_whole()
        return lasted

    def _next_write(self, began: float, sentinels: list[int]) -> float:
        tries = 0
        while time.monotonic() < began + GIVE_UP_S:
            tries += 1
            with suppress(OSError, ValueError):
                port = _primary_port(sentinels[tries % len(sentinels)])
                if _ask(port, "SET", "k", f"{began}") == "OK":
                    return time.monotonic() - began
            time.sleep(RETRY_S)
        raise RuntimeError("no Redis takes a write")


def _ask(port: int, *words: str) -> Any:
    """Ask a Redis or a Sentinel.

    Raises:
        ValueError: it refuses.
    """
    request = f"*{len(words)}\r\n" + "".join(f"${len(one)}\r\n{one}\r\n" for one in words)
    with socket.create_connection(("127.0.0.1", port), ANSWER_S) as connection:
        connection.sendall(request.encode())
        with connection.makefile("rb") as lines:
            return _reply(lines)


def _reply(lines: Any) -> Any:
    line = lines.readline().decode().rstrip("\r\n")
    kind, rest = line[:1], line[1:]
    if kind == "*":
        return [_reply(lines) for _ in range(int(rest))]
    if kind == "$":
        return lines.read(int(rest) + 2)[:-2].decode() if int(rest) >= 0 else None
    if kind not in ("+", ":"):
        raise ValueError(line)
    return rest


def _fields(row: list[str]) -> dict[str, str]:
    return dict(zip(row[::2], row[1::2], strict=True))


def _primary_port(sentinel: int) -> int:
    return int(_ask(sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", _MASTER)[1])


def measure_fail_overs(directory: Path) -> Figures:
    """Measure those that are installed."""
    found: dict[str, list[float]] = {}
    if Etcd.is_installed():
        with Etcd(directory) as etcd:
            number = etcd.primary()
            assert number is not None
            run_program("coordgen", *etcd.options, "-o", "fill", "-k", 1, etcd.address(number))
            found["etcd"] = fail_over_s(etcd, FAIL_OVERS)
    for name, down_after_ms, times in (
        ("sentinel", DOWN_AFTER_MS, FAIL_OVERS),
        ("sentinel_default", DOWN_AFTER_DEFAULT_MS, FAIL_OVERS_DEFAULT),
    ):
        if Sentinels.is_installed():
            with Sentinels(directory / name, down_after_ms) as redis:
                found[name] = sorted(redis.fail_over_s() for _ in range(times))
    return {"fail_over_s": found}


def lines(found: Figures, ours: list[float]) -> Iterator[str]:
    """Yield the table of docs/benchmarks.md; `ours`: seconds of our fail-overs, sorted."""
    rows = {
        "Millstream, defaults, write on a majority": ours,
        "etcd, defaults, write on a majority of disks": found["fail_over_s"].get("etcd", []),
        "Redis Sentinel, `down-after-milliseconds` 1000, write on one server":
            found["fail_over_s"].get("sentinel", []),
        "Redis Sentinel, its default of 30 s, write on one server":
            found["fail_over_s"].get("sentinel_default", []),
    }  # fmt: skip
    yield ""
    yield "Fail-over of others on this machine, three members each: kill -9 to the next write."
    yield ""
    yield "| | times | shortest | p50 | longest |"
    yield "| --- | --- | --- | --- | --- |"
    for name, times in rows.items():
        if times:
            low, middle, high = times[0], statistics.median(times), times[-1]
            yield f"| {name} | {len(times)} | {low:.2f} s | {middle:.2f} s | {high:.2f} s |"
