"""What a node's figures say to people: lines about its buckets, and what to look at.

Invariants:
1. Pure: figures in, words out. A figure that a node does not send leaves its place empty.
2. A warning says what is wrong and what to do about it.

Elsewhere: asking the node (`cli.serving.status`), what the figures mean
(docs/reference/statistics.md).
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

__all__ = ["bucket_lines", "figure_of", "node_line", "shown_bytes", "warnings_of"]

LOOP_LAG_MS_MAX: Final = 100.0
"""The event loop may be late by as much before that is worth a warning."""
DISK_FREE_BYTES_MIN: Final = 1024**3
"""Less free space than this is worth a warning."""
READERS_LAG_MAX: Final = 1_000_000
"""A reader may be as many changes behind before that is worth a warning."""
WIDTH: Final = 80
"""Columns of a terminal that the lines of a bucket keep to."""
_INDENT: Final = "  "
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
Figures = Mapping[str, Any]


def figure_of(text: str) -> float | int | str:
    """Return the number that STAT shows as text, or the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def shown_bytes(count: float) -> str:
    """Return a size for people, with three digits.

    >>> shown_bytes(0), shown_bytes(1536), shown_bytes(5 * 1024**3)
    ('0 B', '1.5 KiB', '5 GiB')
    """
    for unit in _UNITS:
        if count < 1000 or unit == _UNITS[-1]:
            break
        count /= 1024
    return f"{count:.3g} {unit}"


def shown_seconds(seconds: float) -> str:
    """Return a time for people.

    >>> shown_seconds(59), shown_seconds(7260), shown_seconds(3 * 86400 + 3600)
    ('59 s', '2 h 1 min', '3 d 1 h')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def node_line(node: Figures) -> str:
    """Return one line about the node as a whole."""
    parts = [
        f"version {node['version']}",
        f"up {shown_seconds(node['uptime'])}",
        f"{node['curr_connections']:,} connections",
    ]
    if "resident_bytes" in node:
        parts.append(f"{shown_bytes(node['resident_bytes'])} of memory")
    if "loop_lag_worst_ms" in node:
        parts.append(f"loop late by up to {node['loop_lag_worst_ms']:.1f} ms")
    if groups := node.get("coord_groups"):
        parts.append(
            f"coordination groups: {groups:g}, of which it leads {node['coord_groups_leading']:g}"
        )
    return ", ".join(parts)


def bucket_lines(bucket: Figures) -> list[str]:
    """Return lines about one bucket, as it is listed over HTTP, with its figures if known."""
    figures: Figures = bucket.get("figures", {})
    state = f"bucket {bucket['name']}: {bucket['state']}, {bucket['partitions']} partitions"
    if copies := _copies(figures):
        state += f", here {copies}"
    waiting = max(0, bucket["high_seqno"] - bucket["persisted_seqno"])
    parts = [f"{bucket['high_seqno']:,} changes, {waiting:,} not durable"]
    parts += [
        f"{name} {text}"
        for name, text in (
            ("documents in memory", _documents(figures)),
            ("memory", _memory(figures)),
            ("log", _log(figures)),
            ("readers", _readers(figures)),
            ("reason:", bucket.get("reason", "")),
        )
        if text
    ]
    wrapped = [
        textwrap.wrap(text, WIDTH, initial_indent=start, subsequent_indent=2 * _INDENT)
        for text, start in ((state, ""), ("; ".join(parts), _INDENT))
    ]
    return [line for lines in wrapped for line in lines]


def _copies(figures: Figures) -> str:
    """Return how many of its copies are active and replica, and others if there are any."""
    return ", ".join(
        f"{figures[name]:,} {name.removeprefix('copies_')}"
        for name in ("copies_active", "copies_replica", "copies_pending", "copies_dead")
        if name in figures and (figures[name] or name in ("copies_active", "copies_replica"))
    )


def _readers(figures: Figures) -> str:
    if "readers_connections" not in figures:
        return ""
    return f"{figures['readers_connections']:,}, {figures.get('readers_lag', 0):,} changes behind"


def _documents(figures: Figures) -> str:
    if "documents_in_memory" not in figures:
        return ""
    share = figures.get("memory_resident_share", 1.0)
    text = f"{figures['documents_in_memory']:,}"
    return text if share >= 1 else f"{text}, {share:.0%}"


def _memory(figures: Figures) -> str:
    if "memory_used_bytes" not in figures:
        return shown_bytes(figures["queue_bytes"]) if "queue_bytes" in figures else ""
    used = shown_bytes(figures["memory_used_bytes"])
    return f"{used} of {shown_bytes(figures['memory_quota_bytes'])}"


def _log(figures: Figures) -> str:
    if "compaction_live_bytes" not in figures:
        return ""
    live, dead = figures["compaction_live_bytes"], figures["compaction_dead_bytes"]
    return f"{shown_bytes(live + dead)}, {dead / max(1, live + dead):.0%} dead"


def warnings_of(node: Figures, buckets: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what somebody should look at, the worst first."""
    for bucket in buckets:
        if bucket["state"] != "ready":
            yield f"bucket {bucket['name']} is not served: {bucket.get('reason', '')}"
    count = node.get("buckets_ready", 0) + node.get("buckets_failed", 0)
    if count and not node.get("http_port"):
        failed = node.get("buckets_failed", 0)
        yield (
            f"{count:g} buckets are not shown, {failed:g} of them are not served: the node has no "
            "HTTP listener, which knows them"
        )
    yield from _coordination_warnings(node)
    for bucket in buckets:
        yield from _bucket_warnings(bucket["name"], bucket.get("figures", {}))
    free = [b["figures"]["disk_free_bytes"] for b in buckets if "figures" in b]
    if free and min(free) < DISK_FREE_BYTES_MIN:
        yield (
            f"{shown_bytes(min(free))} of disk is left: make room; writes wait when it is full, "
            "and then the node stops"
        )
    late_ms = node.get("loop_lag_worst_ms", 0)
    if late_ms > LOOP_LAG_MS_MAX:
        yield (
            f"the event loop was late by {late_ms:.0f} ms: everybody waits as long; give the node "
            "more processor time, or fewer clients"
        )


def _coordination_warnings(node: Figures) -> Iterator[str]:
    if (node.get("listeners") or {}).get("coord") and not node.get("coord_process_up", True):
        yield "the coordination process is not there: the log says why; it is started again"
    if node.get("coord_groups_diverged"):
        yield (
            "a coordination group's state here was not that of the others and is fetched anew: a "
            "fault of memory, disk or program; keep the log"
        )
    if node.get("coord_nodes_refused"):
        yield (
            "a node's directory was set back to an older copy, or copied, and is refused: the log "
            "and ADMIN NODES say which"
        )
    if node.get("coord_disk_full"):
        yield "coordination waits for space on the disk: make room"
    if stuck := node.get("coord_groups_stuck"):
        yield (
            f"{stuck:g} coordination groups have not worked here for 10 seconds: the log and "
            "`millstream coord pool status` say why"
        )
    elif impaired := node.get("coord_groups_impaired"):
        yield (
            f"{impaired:g} coordination groups have no quorum or hear no primary: are the other "
            "nodes there? `millstream coord pool status` knows"
        )


def _bucket_warnings(name: str, figures: Figures) -> Iterator[str]:
    if figures.get("memory_is_refusing"):
        yield f"bucket {name} takes no writes: its memory quota is exhausted; raise it"
    if figures.get("flusher_disk_full_total"):
        yield f"bucket {name} has had to wait for space on the disk"
    waiting = figures.get("map_not_active", 0)
    if waiting:
        yield (
            f"{waiting:,} partitions of bucket {name} should be active here and are not: after a "
            f"kill, `millstream cluster promote {name}` makes one copy of each active"
        )
    if figures.get("serving_isolated_partitions"):
        yield (
            f"{figures['serving_isolated_partitions']:,} partitions of bucket {name} are active "
            "here and may not serve: this node reaches neither the coordination service nor a "
            "majority of their copies"
        )
    if figures.get("map_not_first"):
        yield (
            f"{figures['map_not_first']:,} partitions of bucket {name} are active here, by its "
            f"map elsewhere: `millstream cluster promote {name}` has one copy stand down"
        )
    if figures.get("map_left_over"):
        yield (
            f"{figures['map_left_over']:,} copies of bucket {name} have no place here any more: "
            "delete them once others have what they hold"
        )
    lag = figures.get("readers_lag", 0)
    if lag > READERS_LAG_MAX:
        yield f"a reader of bucket {name} is {lag:,} changes behind: is it still at work?"
