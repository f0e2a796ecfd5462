"""What a node does in a second: two readings of its figures, and what lies between them.

Invariants:
1. Pure: figures and seconds in, numbers out. What is not known is None, never 0: no figure, or a
   counter that began anew.

Elsewhere: asking the node (`cli.serving.node_figures`), showing it (`cli.serving.top`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

__all__ = ["BucketRates", "bucket_rates", "processor_share", "rate"]

Figures = Mapping[str, Any]
_DISK_READS: Final = ("reading_back_in_loop_total", "reading_back_by_threads_total")


class BucketRates(NamedTuple):
    """One bucket; rates are per second, None is not known.

    `views_behind`: changes that indexes have still to take. `lag`: changes that the reader
    farthest behind has still to be sent.
    """

    name: str
    state: str
    writes: float | None
    unflushed: int | None
    disk_reads: float | None
    streams: int | None
    sent_bytes: float | None
    lag: int | None
    indexes: int | None
    views_behind: int | None
    memory_bytes: int | None
    memory_quota_bytes: int | None


def rate(before: Figures, now: Figures, seconds: float, *names: str) -> float | None:
    """Return by how much counters have grown in a second, all together."""
    if seconds <= 0 or any(name not in before or name not in now for name in names):
        return None
    grown = [now[name] - before[name] for name in names]
    return None if min(grown) < 0 else sum(grown) / seconds


def processor_share(before: Figures, now: Figures, seconds: float) -> float | None:
    """Return how many processors the engine used, 0 to 1 for one."""
    return rate(before, now, seconds, "processor_seconds_total")


def bucket_rates(before: Figures, now: Figures, seconds: float) -> Iterator[BucketRates]:
    """Yield what each bucket does.

    Args:
        before: an earlier reading of `NodeFigures`; empty: there is none.
        now: the present one.
        seconds: between the two.
    """
    former = {bucket["uuid"]: bucket.get("figures", {}) for bucket in before.get("buckets", ())}
    for bucket in now["buckets"]:
        figures: Figures = bucket.get("figures", {})
        old: Figures = former.get(bucket["uuid"], {})
        yield BucketRates(
            bucket["name"],
            bucket["state"],
            rate(old, figures, seconds, "changes_high"),
            figures.get("changes_unflushed"),
            rate(old, figures, seconds, *_DISK_READS),
            figures.get("readers_streams"),
            rate(old, figures, seconds, "readers_sent_bytes_total"),
            figures.get("readers_lag"),
            figures.get("index_indexes"),
            figures.get("index_pending"),
            figures.get("memory_used_bytes"),
            figures.get("memory_quota_bytes"),
        )
