"""`millstream top`: what a node does, each second.

Invariants:
1. A terminal shows one frame in the place of the one before; a pipe gets one after the other.
2. At a terminal a node that is away is waited for; elsewhere, and with --once, that is an error.

Elsewhere: asking the node (`cli.serving.node_figures`), rates (`cli.rates`), the same at one
moment (`cli.serving.status`).

Source: docs/reference/top.md.
"""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Callable
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millstream.cli.connect import (
    JsonOption,
    NodeOptions,
    at_node,
    tls_of,
    who_of,
)
from millstream.cli.rates import BucketRates, bucket_rates, processor_share
from millstream.cli.serving.health import node_line, shown_bytes, warnings_of
from millstream.cli.serving.node_figures import NodeFigures
from millstream.errors import UnavailableError

__all__ = ["command", "frame_of"]

INTERVAL_S: Final = 1.0
_UNKNOWN: Final = "-"
_COLUMNS: Final = (
    "writes/s", "disk/s", "streams", "sent/s", "lag", "views", "behind", "memory"
)  # fmt: skip

OnceOption = Annotated[bool, typer.Option("--once", help="Print one frame and end.")]
IntervalOption = Annotated[
    float, typer.Option("--interval", min=0.1, max=3600.0, metavar="S", help="Between two frames.")
]


@at_node
def command(
    once: OnceOption = False,
    interval: IntervalOption = INTERVAL_S,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    """Show what a node and its buckets do, each second, until Ctrl-C.

    With --json each frame is a line.
    """
    who, tls = who_of(at.user, at.password_file), tls_of(at.tls_ca)
    console = Console(highlight=False)
    with NodeFigures(at.address, who, tls) as node:
        top = _Top(node, interval)
        try:
            if json or once or not console.is_terminal:
                _print_frames(top, console, is_one=once, as_json=json)
            else:
                _show_live(top, console)
        except KeyboardInterrupt:
            return  # the usual way to end


class _Top:
    """Reads figures, again and again."""

    def __init__(self, node: NodeFigures, interval_s: float) -> None:
        self._node, self._interval_s = node, interval_s
        self._now: dict[str, Any] = {}
        self._read_at = 0.0

    def next(self) -> tuple[dict[str, Any], dict[str, Any], float]:
        """Return the figures before, those of now, and the seconds between.

        Raises:
            MillstreamError: the node does not answer.
        """
        if not self._now:
            self._read()
        before, before_at = self._now, self._read_at
        time.sleep(self._interval_s)
        self._read()
        return before, self._now, self._read_at - before_at

    def _read(self) -> None:
        self._now = self._node.read()
        self._read_at = time.monotonic()


def _print_frames(top: _Top, console: Console, *, is_one: bool, as_json: bool) -> None:
    while True:
        before, now, seconds = top.next()
        if as_json:
            print(json_module.dumps(_members(before, now, seconds)), flush=True)
        else:
            console.print(frame_of(before, now, seconds))
        if is_one:
            return
        if not as_json:
            console.print()


def _show_live(top: _Top, console: Console) -> None:
    with Live(console=console, auto_refresh=False) as live:
        while True:
            try:
                live.update(frame_of(*top.next()), refresh=True)
            except UnavailableError as error:
                live.update(Text(f"{error}; trying again", style="yellow"), refresh=True)


def _members(before: dict[str, Any], now: dict[str, Any], seconds: float) -> dict[str, Any]:
    return {
        "time": now["time"],
        "seconds": round(seconds, 6),
        "processors": processor_share(before, now, seconds),
        "resident_bytes": now.get("resident_bytes"),
        "connections": now["curr_connections"],
        "buckets": [rates._asdict() for rates in bucket_rates(before, now, seconds)],
        "warnings": list(warnings_of(now, now["buckets"])),
    }


def frame_of(before: dict[str, Any], now: dict[str, Any], seconds: float) -> RenderableType:
    """Return a frame: the node, a row for each bucket, and warnings."""
    share = processor_share(before, now, seconds)
    used = "" if share is None else f", processor {share:.0%}"
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("bucket", overflow="ellipsis", no_wrap=True, min_width=6)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for rates in bucket_rates(before, now, seconds):
        table.add_row(*_cells(rates))
    return Group(
        Text(f"node {now.get('uuid', '')} at {now['connect']}", style="bold"),
        Text(node_line(now) + used),
        table,
        *(Text(f"! {warning}", style="yellow") for warning in warnings_of(now, now["buckets"])),
    )


def _cells(rates: BucketRates) -> list[str]:
    if rates.state != "ready":
        return [rates.name, rates.state]
    memory = _shown(rates.memory_bytes, shown_bytes)
    if rates.memory_bytes is not None and rates.memory_quota_bytes:
        memory += f" {rates.memory_bytes / rates.memory_quota_bytes:.0%}"
    return [
        rates.name,
        _shown(rates.writes, _count),
        _shown(rates.disk_reads, _count),
        _shown(rates.streams, _count),
        _shown(rates.sent_bytes, shown_bytes),
        _shown(rates.lag, _count),
        _shown(rates.indexes, _count),
        _shown(rates.views_behind, _count),
        memory,
    ]


def _shown(value: float | None, form: Callable[[float], str]) -> str:
    return _UNKNOWN if value is None else form(value)


def _count(value: float) -> str:
    return f"{value:,.0f}"
