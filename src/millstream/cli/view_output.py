"""Answers of views as people and programs want them: tables, CSV, bars.

Invariants:
1. Values that are all objects of one shape are spread over columns.

Elsewhere: asking (`cli.view`).
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

__all__ = ["PLOT_BARS_MAX", "PLOT_WIDTH", "plot", "print_csv", "print_table"]

PLOT_BARS_MAX = 60
PLOT_WIDTH = 50


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _columns(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return column names and cells; values that are all objects of one shape are spread out."""
    names = [name for name in ("id", "key") if rows and name in rows[0]]
    values = [row["value"] for row in rows]
    first = values[0] if values else None
    if isinstance(first, dict) and all(
        isinstance(value, dict) and value.keys() == first.keys() for value in values
    ):
        columns, values = list(first), [list(value.values()) for value in values]
    else:
        columns, values = ["value"], [[value] for value in values]
    docs = ["doc"] if rows and "doc" in rows[0] else []
    cells = [
        [*(row[name] for name in names), *spread, *(row[name] for name in docs)]
        for row, spread in zip(rows, values, strict=True)
    ]
    return [*names, *columns, *docs], cells


def print_csv(rows: list[dict[str, Any]]) -> None:
    """Print rows as CSV."""
    names, cells = _columns(rows)
    writer = csv.writer(sys.stdout)
    writer.writerow(names)
    writer.writerows([["" if cell is None else _shown(cell) for cell in row] for row in cells])


def print_table(answer: dict[str, Any]) -> None:
    """Print rows as a table, with what is known of the rest."""
    names, cells = _columns(answer["rows"])
    table = Table(*names)
    for row in cells:
        table.add_row(*(_shown(cell) for cell in row))
    console = Console()
    console.print(table)
    if "total_rows" in answer:
        console.print(f"offset {answer['offset']:,} of {answer['total_rows']:,} rows")
    if "update_seq" in answer:
        console.print(f"update_seq {_shown(answer['update_seq'])}")


def _number_of(value: Any) -> float:
    """Return what a bar shows of a value: itself, or the mean of statistics."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, dict) and value.get("count"):
        return float(value.get("sum", 0)) / float(value["count"])
    return 0.0


def plot(rows: list[dict[str, Any]], target: str, title: str) -> None:
    """Draw bars into a picture file, or - for the terminal."""
    bars = [(_shown(row["key"]), _number_of(row["value"])) for row in rows]
    if target == "-":
        _plot_in_terminal(bars[:PLOT_BARS_MAX])
        return
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, max(2.0, 0.25 * len(bars))))
    axes.barh([label for label, _ in bars], [number for _, number in bars])
    axes.invert_yaxis()
    axes.set_title(title)
    figure.tight_layout()
    figure.savefig(Path(target))
    pyplot.close(figure)


def _plot_in_terminal(bars: list[tuple[str, float]]) -> None:
    largest = max((abs(number) for _, number in bars), default=0.0) or 1.0
    width = max((len(label) for label, _ in bars), default=0)
    for label, number in bars:
        bar = "█" * round(abs(number) / largest * PLOT_WIDTH)
        sign = "-" if number < 0 else ""
        print(f"{label:>{width}} {sign}{bar} {number:,.6g}")
