"""Named figures of streaming queries that read buckets: lag, rates, what is waited for.

    monitor(spark, lambda figures: print(figures.name, figures.lag_changes, figures.lag_s))

Spark's progress has the offsets of this source, but no figures: PySpark's interface of a data
source (4.2, 4.3) has no member for metrics. So they are computed from the offsets of each report.

Invariants:
1. A lag that a report does not show is None, never 0.
2. A lag in seconds is a lower bound: the time since the first report that showed a change which
   is not read yet. What was there before the first report is as old as that report, at least.
3. At most `QUERIES_MAX` runs are remembered, and `SEEN_MAX` reports of each partition.

Elsewhere: the offsets (`change_stream.offsets`), pipelines of the command line (`runs`).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from millstream.errors import MillstreamError
from millstream.pipelines.change_stream.offsets import lag_between, offset_from_json

__all__ = ["Figures", "LagClock", "figures_of", "monitor"]

QUERIES_MAX: Final = 1_000
SEEN_MAX: Final = 64


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one report of a query says of one bucket it reads."""

    query_id: str
    run_id: str
    name: str
    """Of the query; empty if it has none."""
    bucket: str
    batch_id: int
    rows_per_s: float
    """Rows processed a second in this batch, of this bucket."""
    batch_s: float
    """How long the batch took."""
    lag_by_partition: Mapping[int, int] | None
    """Changes that were there and not read, overwritten versions included; None: not known."""
    lag_s_by_partition: Mapping[int, float] | None
    """For how many seconds, at least, the oldest of them has been there (invariant 2)."""
    waiting_for: str
    """What of the nodes is waited for; empty if nothing. The lag is then the last one known."""
    waits: int
    """How often this query has been waiting so far without a break, about every five seconds."""

    @property
    def lag_changes(self) -> int | None:
        """Return the lag of all partitions together."""
        return None if self.lag_by_partition is None else sum(self.lag_by_partition.values())

    @property
    def lag_s(self) -> float | None:
        """Return the longest lag of a partition, in seconds."""
        lags = self.lag_s_by_partition
        return None if lags is None else max(lags.values(), default=0.0)


class LagClock:
    """Since when the partitions of one query have had changes that are not read."""

    def __init__(self) -> None:
        self._seen: dict[int, list[tuple[float, int]]] = {}

    def look(
        self, latest: Mapping[int, int], lag: Mapping[int, int], now_s: float
    ) -> dict[int, float]:
        """Return the lag in seconds by partition.

        Args:
            latest: seqno at which each partition ends.
            lag: how far below that each was read.
            now_s: monotonic time.
        """
        found: dict[int, float] = {}
        for p, behind in lag.items():
            read = latest[p] - behind
            seen = [one for one in self._seen.get(p, ()) if behind and one[1] > read]
            if behind and (not seen or seen[-1][1] < latest[p]):
                seen.append((now_s, latest[p]))
            if len(seen) > SEEN_MAX:
                # Between two reports the later one counts: a lag may be told too short.
                seen = [*seen[1:-1:2], seen[-1]]
            self._seen[p] = seen
            found[p] = now_s - seen[0][0] if seen else 0.0
        return found


def figures_of(
    report: Mapping[str, Any], clock_of: Callable[[str, str], LagClock], now_s: float
) -> Iterator[Figures]:
    """Yield the figures of each bucket that a query's progress has.

    Args:
        report: `query.lastProgress`, or `event.progress` of a listener.
        clock_of: returns the clock of a run and a source of it.
        now_s: monotonic time of the report.
    """
    for number, source in enumerate(report["sources"]):
        end, latest = _json(source["endOffset"]), _json(source["latestOffset"])
        try:
            read = offset_from_json(end)
        except MillstreamError:
            continue  # of another format
        lag = lag_s = None
        with suppress(MillstreamError):
            present = offset_from_json(latest)
            lag = lag_between(read, present)
            seqnos = {p: entry.seqno for p, entry in present.entries.items()}
            lag_s = clock_of(str(report["runId"]), str(number)).look(seqnos, lag, now_s)
        yield Figures(
            query_id=str(report["id"]),
            run_id=str(report["runId"]),
            name=report["name"] or "",
            bucket=read.bucket,
            batch_id=int(report["batchId"]),
            rows_per_s=float(source["processedRowsPerSecond"] or 0.0),
            batch_s=report["batchDuration"] / 1000,
            lag_by_partition=lag,
            lag_s_by_partition=lag_s,
            waiting_for=str(latest.get("waiting", "")) if isinstance(latest, dict) else "",
            waits=int(end.get("waits", 0)),
        )


def monitor(spark: SparkSession, tell: Callable[[Figures], None]) -> StreamingQueryListener:
    """Call a function with the figures of each report of each query that reads a bucket.

    Args:
        spark: the session; all of its streaming queries are listened to.
        tell: called in a thread of PySpark's; it should not take long. What it raises is written
            to the error output, and ends no query.

    Returns:
        The listener, for `spark.streams.removeListener`.
    """
    listener = _Listener(tell)
    spark.streams.addListener(listener)
    return listener


class _Listener(StreamingQueryListener):
    def __init__(self, tell: Callable[[Figures], None]) -> None:
        self._tell = tell
        self._clocks: dict[tuple[str, str], LagClock] = {}

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        try:
            for figures in figures_of(event.progress, self._clock, time.monotonic()):
                self._tell(figures)
        except Exception as error:  # noqa: BLE001 - a listener ends no query
            sys.stderr.write(f"millstream monitor: {error!r}\n")

    def onQueryTerminated(self, event: Any) -> None:
        for key in [key for key in self._clocks if key[0] == str(event.runId)]:
            del self._clocks[key]

    def _clock(self, run_id: str, source: str) -> LagClock:
        if len(self._clocks) >= QUERIES_MAX and (run_id, source) not in self._clocks:
            del self._clocks[next(iter(self._clocks))]
        return self._clocks.setdefault((run_id, source), LagClock())


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return None
