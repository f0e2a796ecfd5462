"""What people watch of a node: its health, figures of the last day, and lines of its logs.

    GET /_millstream/health                 why the node is not healthy, and what to do
    GET /_millstream/samples?span=SECONDS   figures of the last 5 minutes, hour or day
    GET /_millstream/logs                   the last lines of each process
    GET /_millstream/events?topics=..       the same as they come, as server-sent events

Invariants:
1. The node is sampled once a second, whoever looks. Buckets are read one after the other, in
   steps, and more seldom the more partitions there are: `PARTITIONS_A_SECOND`.
2. A reader of events who is slow misses samples; nothing is queued for him.
3. Only administrators are answered; the health of the buckets that a user may see is for that
   user, too.

Elsewhere: rings (`gateway.core.samples`), reasons (`gateway.core.health`), lines
(`runtime.logs`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final, NotRequired, TypedDict

import msgspec
from aiohttp import web

from millstream.access.users import Right
from millstream.errors import AccessError, MillstreamError, UnavailableError, UsageError
from millstream.gateway.aio.answers import NODE_API, STILL, USER, answer, read_metrics, require
from millstream.gateway.aio.describing import gives, takes
from millstream.gateway.aio.node.security_pages import certificates
from millstream.gateway.aio.streaming import send_events, stream
from millstream.gateway.core.api.node import CommonNodeApi, NodeMetrics
from millstream.gateway.core.health import Reason, health_of, state_of
from millstream.gateway.core.samples import LEVELS, Key, Samples, Window, rates
from millstream.kv.core.statistics import Figures
from millstream.runtime.logs import LEVELS as LOG_LEVELS
from millstream.runtime.logs import RECENT, KeptLine
from millstream.runtime.pace import Turns
from millstream.runtime.tasks import Tasks

__all__ = ["EVENT_READERS_MAX", "LOG_LINES_MAX", "OBSERVER", "Observer", "routes"]

_LOG = logging.getLogger(__name__)
EVENT_READERS_MAX: Final = 100
"""Open streams of events."""
LOG_LINES_MAX: Final = 1_000
"""Lines in one answer."""
SPANS: Final = tuple(level.interval_s * level.size for level in LEVELS)
BEAT_S: Final = 10.0
"""A stream of events with nothing to tell sends a comment so often."""
CLUSTER_EVERY_S: Final = 1.0
CLUSTER_WAIT_S: Final = 5.0
"""How long the status of the cluster may take for the health of a node."""
PARTITIONS_A_SECOND: Final = 256
"""Partitions whose figures are read in a second: some 0.6 ms. Until its bucket is read again, a
sample repeats a figure."""
WALK_EVERY_S_MAX: Final = 60
CERTIFICATES_EVERY_S: Final = 3_600.0
CERTIFICATES_AGAIN_S: Final = 60.0
"""Pause before a listener is asked again that did not show its certificate."""
TOPICS: Final = ("samples", "health", "cluster", "logs")
_NODE: Final = {
    "loop_lag_worst_ms": "loop_lag_ms",
    "resident_bytes": "memory_bytes",
    "kv_connections": "connections",
}
"""Figure of the node -> its name as a sample."""
_BUCKET: Final = {
    "documents_in_memory": "documents_in_memory",
    "memory_used_bytes": "memory_bytes",
    "memory_quota_bytes": "memory_quota_bytes",
    "readers_lag": "stream_lag",
    "changes_unflushed": "unflushed",
    "index_pending": "index_lag",
}
_TOTALS: Final = {
    "changes_high": "writes_per_s",
    "clients_reads_total": "reads_per_s",
    "clients_received_bytes_total": "bytes_in_per_s",
    "clients_sent_bytes_total": "bytes_out_per_s",
    "flusher_bytes_total": "log_bytes_per_s",
    "readers_sent_bytes_total": "sent_bytes_per_s",
}
"""Total of a bucket -> name of its growth per second."""
_RIGHTS: Final[tuple[Right, ...]] = ("read", "write", "stream", "design")


class ReasonTold(TypedDict):
    """Why a node is not healthy; of which bucket, or about which other node."""

    severity: str
    code: str
    what: str
    do: str
    bucket: NotRequired[str]
    node: NotRequired[str]


class HealthTold(TypedDict):
    """`state` is ok, warning or failed; `at_ms` is Unix time."""

    state: str
    reasons: list[ReasonTold]
    at_ms: int


class SamplesTold(TypedDict):
    """By name of a figure as many numbers as times; null where nothing is known."""

    interval_s: int
    times_s: list[int]
    node: dict[str, list[float | None]]
    buckets: dict[str, dict[str, list[float | None]]]


class LineTold(TypedDict):
    """One line of a log; `n` counts the lines of all processes, `at_ms` is Unix time."""

    n: int
    at_ms: int
    process: str
    level: str
    logger: str
    text: str


class LogsTold(TypedDict):
    """`next` is what `after` is given to get the lines that follow."""

    processes: list[str]
    lines: list[LineTold]
    next: int


class Observer:
    """Samples a node while its pages are served."""

    def __init__(self, api: CommonNodeApi) -> None:
        self._api = api
        self._tasks = Tasks()
        self._totals: dict[Key, float] = {}
        self._totals_s = 0.0
        self._walked: dict[Key, float] = {}
        """Figures of the buckets, as of the last walk over them."""
        self._turn = asyncio.Lock()
        self._ends: dict[str, int | None] = {}
        self._certificates_until_s = 0.0
        self.is_over = False
        self.samples = Samples()
        self.last: dict[str, Any] = {}
        """The last sample, as an event tells it."""
        self.metrics = NodeMetrics({}, {})
        """The node's figures as of the last sample, its buckets' as of the last walk."""
        self.readers = 0
        """Open streams of events."""
        self.sampled = asyncio.Condition()
        """Told after each sample."""
        self._cluster: tuple[float, Mapping[str, Any] | None, str] = (-1e9, None, "")

    def start(self) -> None:
        """Begin to sample."""
        self._tasks.start(self._run(), name="samples")

    async def stop(self) -> None:
        """End it, and the streams of events."""
        self.is_over = True
        await self._tasks.stop()
        async with self.sampled:
            self.sampled.notify_all()

    async def _run(self) -> None:
        walk_at = 0.0
        while True:
            try:
                if time.monotonic() >= walk_at:
                    walk_at = time.monotonic() + await self._walk() - 0.5
                self._take(time.time_ns() // 10**9)
            except OSError as error:  # figures of a disk: the next ones may be there
                _LOG.debug("no sample: %s", error)
            async with self.sampled:
                self.sampled.notify_all()
            await asyncio.sleep(1.0 - time.time_ns() % 10**9 / 1e9)

    async def _walk(self) -> int:
        """Read the figures of all buckets in steps; return in how many seconds to do it again."""
        self.metrics = await read_metrics(self._api)
        partitions = sum(status.partitions for status in self._api.bucket_statuses())
        self._walked, totals = {}, dict[Key, float]()
        for bucket, figures in self.metrics.buckets.items():
            for name, shown in _BUCKET.items():
                if (value := _number(figures, name)) is not None:
                    self._walked[bucket, shown] = value
            if (disk := _disk_bytes(figures)) is not None:
                self._walked[bucket, "disk_bytes"] = disk
            for name, shown in _TOTALS.items():
                if (value := _number(figures, name)) is not None:
                    totals[bucket, shown] = value
        now_s = time.monotonic()
        self._walked |= rates(self._totals, totals, now_s - self._totals_s, _TOTALS.values())
        self._totals, self._totals_s = totals, now_s
        return max(1, min(WALK_EVERY_S_MAX, -(-partitions // PARTITIONS_A_SECOND)))

    def _take(self, second: int) -> None:
        """Sample the node now, and its buckets as last read."""
        figures = self._api.metrics(()).node
        self.metrics = NodeMetrics(figures, self.metrics.buckets)
        node = {shown: figures[name] for name, shown in _NODE.items() if name in figures}
        buckets = self.metrics.buckets
        free = [_number(one, "disk_free_bytes") for one in buckets.values()]
        if known := [one for one in free if one is not None]:
            node["disk_free_bytes"] = min(known)
        self.samples.add(second, {("", name): one for name, one in node.items()} | self._walked)
        told: dict[str, dict[str, float]] = {name: {} for name in buckets}
        for (bucket, name), value in self._walked.items():
            told[bucket][name] = value
        self.last = {"at_s": second, "node": node, "buckets": told}

    async def cluster(self) -> tuple[Mapping[str, Any] | None, str]:
        """Return the status of the cluster, at most a second old, and why it is not known."""
        async with self._turn:
            asked_s, status, error = self._cluster
            if time.monotonic() - asked_s < CLUSTER_EVERY_S:
                return status, error
            cluster, status, error = self._api.cluster, None, ""
            if cluster is not None and cluster.is_managed:
                try:
                    async with asyncio.timeout(CLUSTER_WAIT_S):
                        status = await cluster.status()
                except MillstreamError as failure:
                    error = str(failure)
                except TimeoutError:
                    error = f"it was not told within {CLUSTER_WAIT_S:g} s"
            self._cluster = (time.monotonic(), status, error)
            return status, error

    async def health(self) -> list[Reason]:
        """Return why the node is not healthy."""
        status, error = await self.cluster()
        if not self.metrics.node:
            await self._walk()
        return health_of(
            self._api.bucket_statuses(), self.metrics, status, error,
            certificates=await self._certificates(), now_ms=time.time_ns() // 10**6,
        )  # fmt: skip

    async def _certificates(self) -> Mapping[str, int | None]:
        """Return when the certificate of each listener ends, as last looked at."""
        async with self._turn:
            if time.monotonic() >= self._certificates_until_s:
                self._ends = {
                    one["listener"]: one["ends_ms"] for one in await certificates(self._api)
                }
                is_known = None not in self._ends.values()
                every_s = CERTIFICATES_EVERY_S if is_known else CERTIFICATES_AGAIN_S
                self._certificates_until_s = time.monotonic() + every_s
            return self._ends


OBSERVER: Final = web.AppKey("observer", Observer)


def _number(figures: Figures, name: str) -> float | None:
    value = figures.get(name)
    return float(value) if isinstance(value, int | float) else None


def _disk_bytes(figures: Figures) -> float | None:
    """Return what a bucket has on disk, without the segment that is written."""
    names = (
        "compaction_live_bytes", "compaction_dead_bytes", "attachments_bytes", "index_file_bytes",
    )  # fmt: skip
    found = [value for name in names if (value := _number(figures, name)) is not None]
    return sum(found) if found else None


def _may_see(request: web.Request, reason: Reason) -> bool:
    user = request[USER]
    if request.app[NODE_API].users.is_empty or (user is not None and user.may("admin", "")):
        return True
    assert user is not None, "who is not logged in was refused"
    return bool(reason.bucket) and any(user.may(right, reason.bucket) for right in _RIGHTS)


def _shown_health(reasons: list[Reason]) -> dict[str, Any]:
    return {
        "state": state_of(reasons),
        "reasons": [one.shown() for one in reasons],
        "at_ms": time.time_ns() // 10**6,
    }


@gives(HealthTold)
async def _health(request: web.Request) -> web.Response:
    """Tell why the node is not healthy.

    Right: any user.
    """
    if not request.app[NODE_API].users.is_empty and request[USER] is None:
        raise AccessError("log in first", code="unauthorized")
    reasons = await request.app[OBSERVER].health()
    return answer(_shown_health([one for one in reasons if _may_see(request, one)]))


@gives(SamplesTold)
@takes(span="Seconds: 300, 3600 or 86400. Default 300.")
async def _samples(request: web.Request) -> web.StreamResponse:
    """Tell the figures of the last time.

    Right: admin.
    """
    require(request, "admin")
    text = request.query.get("span", str(SPANS[0]))
    if not text.isdecimal() or int(text) not in SPANS:
        shown = ", ".join(map(str, SPANS))
        raise UsageError(f"span is one of {shown} (seconds)", code="query_parse_error")
    samples = request.app[OBSERVER].samples
    return await stream(request, _samples_text(samples, samples.window(int(text))), {})


async def _samples_text(samples: Samples, window: Window) -> AsyncIterator[bytes]:
    """Yield the pieces of the answer; others have turns between series."""
    encode, turns = msgspec.json.encode, Turns()
    yield b'{"interval_s":%d,"times_s":%b,"node":{' % (window.interval_s, encode(window.times_s))
    last = ""
    is_first = True
    for bucket, name in samples.keys():  # noqa: SIM118 - it is no mapping
        await turns.give()
        if bucket != last:
            yield b'},"buckets":{%b:{' % encode(bucket) if not last else b"},%b:{" % encode(bucket)
            last, is_first = bucket, True
        series = encode(samples.series(window, (bucket, name)))
        yield b"%b%b:%b" % (b"" if is_first else b",", encode(name), series)
        is_first = False
    yield b"}}}\n" if last else b'},"buckets":{}}\n'


def _chosen(request: web.Request, name: str, valid: tuple[str, ...]) -> list[str]:
    """Return the members of a list in the query, by default all.

    Raises:
        UsageError: `query_parse_error`.
    """
    text = request.query.get(name, "")
    found = [one for one in text.split(",") if one] or list(valid)
    if unknown := [one for one in found if one not in valid]:
        raise UsageError(
            f"{name}={unknown[0]!r} is not one of {', '.join(valid)}", code="query_parse_error"
        )
    return found


def _whole(request: web.Request, name: str, default: int, most: int) -> int:
    text = request.query.get(name, str(default))
    if not text.isdecimal() or int(text) > most:
        raise UsageError(f"{name} is a number from 0 to {most}", code="query_parse_error")
    return int(text)


@gives(LogsTold)
@takes(
    process="Of one process.",
    level="The lowest level: debug, info, warning or error. Default info.",
    text="Part of the line or of its logger, in any case.",
    limit="Most lines, from the end. Default 1000, which is the most.",
    after="Lines above this number: `next` of the answer before.",
)
async def _logs(request: web.Request) -> web.Response:
    """Tell the last lines of each process.

    Right: admin.
    """
    require(request, "admin")
    limit = _whole(request, "limit", LOG_LINES_MAX, LOG_LINES_MAX)
    after = _whole(request, "after", 0, 2**53)
    level = request.query.get("level", LOG_LEVELS[1])
    if level not in LOG_LEVELS:
        raise UsageError(f"level is one of {', '.join(LOG_LEVELS)}", code="query_parse_error")
    levels = LOG_LEVELS[LOG_LEVELS.index(level) :]
    process, text = request.query.get("process", ""), request.query.get("text", "").lower()
    if after > RECENT.total:  # a number of the process before this one
        after = 0
    lines, found, turns = RECENT.after(after), list[KeptLine](), Turns()
    for line in lines:
        await turns.give()
        if (
            (not process or line.process == process)
            and (line.level in levels or line.level == "critical")
            and (not text or text in line.text.lower() or text in line.logger.lower())
        ):
            found.append(line)
    return answer(
        {
            "processes": RECENT.processes(),
            "lines": [_shown_line(line) for line in found[-limit:]] if limit else [],
            "next": lines[-1].number if lines else after,
        }
    )


def _shown_line(line: KeptLine) -> LineTold:
    n, at_ms, process, level, logger, text = line
    return {
        "n": n, "at_ms": at_ms, "process": process, "level": level, "logger": logger, "text": text,
    }  # fmt: skip


@takes(topics="Of samples, health, cluster, logs; with commas. Default: all.")
async def _events(request: web.Request) -> web.StreamResponse:
    """Tell what happens, as server-sent events.

    Right: admin.
    """
    require(request, "admin")
    topics = _chosen(request, "topics", TOPICS)
    observer = request.app[OBSERVER]
    if observer.readers >= EVENT_READERS_MAX:
        raise UnavailableError(
            f"{EVENT_READERS_MAX} streams of events are open already", code="too_many_readers"
        )
    observer.readers += 1
    try:
        return await send_events(request, _event_texts(request, topics))
    finally:
        observer.readers -= 1


async def _event_texts(request: web.Request, topics: list[str]) -> AsyncIterator[bytes]:
    """Yield events until the reader's rights end."""
    observer, is_still = request.app[OBSERVER], request[STILL]
    number, told, beat_s = RECENT.total, dict[str, Any](), time.monotonic()
    yield b": begins\n\n"
    while is_still() and not observer.is_over:
        found = list[bytes]()
        if "samples" in topics and observer.last:
            found.append(_event("sample", observer.last))
        if "health" in topics:
            shown = _shown_health(await observer.health())
            found += _if_new(told, "health", shown, {**shown, "at_ms": 0})
        if "cluster" in topics and (status := (await observer.cluster())[0]) is not None:
            found += _if_new(told, "cluster", status, status)
        if "logs" in topics and (lines := RECENT.after(number)):
            found += [_event("log", _shown_line(line)) for line in lines[-LOG_LINES_MAX:]]
            number = lines[-1].number
        if found:
            yield b"".join(found)
            beat_s = time.monotonic()
        elif time.monotonic() - beat_s > BEAT_S:
            yield b": still here\n\n"
            beat_s = time.monotonic()
        async with observer.sampled:
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await observer.sampled.wait()


def _if_new(told: dict[str, Any], name: str, content: Any, compared: Any) -> list[bytes]:
    """Return an event if its content is another one than last time."""
    if told.get(name) == compared:
        return []
    told[name] = compared
    return [_event(name, content)]


def _event(name: str, content: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(content))


def routes() -> list[web.RouteDef]:
    """Return the pages of this module."""
    return [
        web.get("/_millstream/health", _health),
        web.get("/_millstream/samples", _samples),
        web.get("/_millstream/logs", _logs),
        web.get("/_millstream/events", _events),
    ]
