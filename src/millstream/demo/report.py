"""What remains of a demonstration: pictures, a page that needs nothing else, and the figures.

Invariants:
1. The page is one file: pictures are inside it, nothing is loaded from anywhere.
2. Everything shown comes from the views that were checked, not from the truth.
"""

from __future__ import annotations

import base64
import io
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich.table import Table

if TYPE_CHECKING:
    from pathlib import Path

    from millstream.demo.run import Outcome
    from millstream.demo.timeline import Timeline

__all__ = ["figures_of", "summary_of", "table_of", "write_report"]

_ROUTES_SHOWN: Final = 20
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun",
                  "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")  # fmt: skip
_STYLE: Final = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .75rem;text-align:left}
tr+tr{border-top:1px solid #ddd}td.n{text-align:right;font-variant-numeric:tabular-nums}
img{max-width:100%}.right{color:#176b2c}.wrong{color:#b00020;font-weight:bold}
"""


def table_of(outcome: Outcome) -> Table:
    """Return the checks as a table for the terminal."""
    table = Table("check", "expected", "found", "differences", "")
    for check in outcome.checks:
        verdict = "[green]right[/]" if check.is_right else "[bold red]WRONG[/]"
        table.add_row(
            check.name, check.expected, check.found, f"{check.differences:,}", verdict
        )  # fmt: skip
    return table


def summary_of(outcome: Outcome) -> str:
    """Return what was written and streamed, in a sentence or two."""
    text = f"{outcome.written:,} changes written, {outcome.streamed:,} rows streamed"
    if (timeline := outcome.timeline) is not None:
        rollbacks = timeline.moments[-1].rollbacks if timeline.moments else 0
        return f"{text}, {rollbacks:,} rollbacks, {timeline.errors.total():,} errors of clients"
    return (
        f"{text} (fewer: the stream de-duplicates), {outcome.updates:,} updates and "
        f"{outcome.deletes:,} deletes of rows already applied"
    )


def figures_of(outcome: Outcome) -> bytes:
    """Return the figures of a run as JSON."""
    figures = {
        "is_right": outcome.is_right,
        "changes_written": outcome.written,
        "rows_streamed": outcome.streamed,
        "updates_of_applied_rows": outcome.updates,
        "deletes_of_applied_rows": outcome.deletes,
        "steps": [
            {"name": name, "seconds": round(seconds, 1), "text": text}
            for name, seconds, text in outcome.steps
        ],
        "checks": outcome.checks,
    }
    if (timeline := outcome.timeline) is not None:
        figures["timeline"] = {
            "moments": timeline.moments,
            "marks": timeline.marks,
            "errors": [
                {"who": who, "code": code, "count": count, "first": timeline.texts[who, code]}
                for (who, code), count in sorted(timeline.errors.items())
            ],
        }
    return msgspec.json.format(msgspec.json.encode(figures))


def write_report(outcome: Outcome, work_dir: Path, *, with_plots: bool = True) -> Path:
    """Write `report.html`, `figures.json` and, with plots, PNG files; return the page's path."""
    pictures = _pictures(outcome) if with_plots else {}
    for name, data in pictures.items():
        (work_dir / f"{name}.png").write_bytes(data)
    (work_dir / "figures.json").write_bytes(figures_of(outcome))
    page = work_dir / "report.html"
    page.write_text(_page(outcome, pictures), encoding="utf-8")
    return page


# -- page ------------------------------------------------------------------------------------


def _page(outcome: Outcome, pictures: dict[str, bytes]) -> str:
    verdict = "right" if outcome.is_right else "wrong"
    said = "Every view row equals the truth." if outcome.is_right else "Differences were found."
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Millstream demo</title>"
        f"<style>{_STYLE}</style><h1>Millstream: the flights of New York 2013</h1>"
        f"<p class={verdict}>{said}</p>"
        f"<p>{summary_of(outcome)}.</p>",
        "<h2>Checks</h2>",
        _html_table(
            ("check", "expected", "found", "differences", "verdict"),
            [
                (c.name, c.expected, c.found, c.differences, "right" if c.is_right else "WRONG")
                for c in outcome.checks
            ],
        ),
        *(f"<p class=wrong>{escape(text)}</p>" for c in outcome.checks for text in c.samples),
        "<h2>Steps</h2>",
        _html_table(
            ("step", "seconds", "what"),
            [(name, f"{seconds:.1f}", text) for name, seconds, text in outcome.steps],
        ),
        *_errors(outcome),
        *(_picture(name, data) for name, data in pictures.items()),
        "<h2>Delay by carrier</h2>",
        _html_table(("carrier", "flights", "mean delay, minutes", "least", "most"), [
            (row["key"], f"{row['value']['count']:,}", f"{_mean(row['value']):.2f}",
             row["value"]["min"], row["value"]["max"])
            for row in outcome.rows["flights/delay_by_carrier"]
        ]),
        "</html>",
    ]  # fmt: skip
    return "\n".join(parts)


def _errors(outcome: Outcome) -> list[str]:
    if (timeline := outcome.timeline) is None:
        return []
    return [
        "<h2>Errors that clients had</h2>",
        _html_table(
            ("who", "code", "how often", "the first"),
            [
                (who, code, count, timeline.texts[who, code])
                for (who, code), count in sorted(timeline.errors.items())
            ],
        ),
    ]


def _picture(name: str, data: bytes) -> str:
    text = base64.b64encode(data).decode()
    title = name.replace("_", " ")
    return (
        f'<h2>{escape(title.capitalize())}</h2><img alt="{escape(title)}" '
        f'src="data:image/png;base64,{text}">'
    )


def _html_table(names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: Any) -> str:
    text = f"{value:,}" if isinstance(value, int) else str(value)
    is_number = text.replace(",", "").replace(".", "").lstrip("-").isdigit()
    return f"<td class=n>{text}</td>" if is_number else f"<td>{escape(text)}</td>"


def _mean(stats: dict[str, Any]) -> float:
    return float(stats["sum"]) / float(stats["count"])


# -- pictures --------------------------------------------------------------------------------


def _pictures(outcome: Outcome) -> dict[str, bytes]:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    drawn: dict[str, bytes] = {}
    if outcome.timeline is not None:
        figure = pyplot.figure(figsize=(9, 9))
        _draw_timeline(figure, outcome.timeline)
        drawn["timeline"] = _png(pyplot, figure)
    for name, draw, size in (
        ("changes_and_rows", _draw_run, (9, 4)),
        ("mean_delay_by_carrier", _draw_carriers, (9, 4)),
        ("flights_by_hour", _draw_hours, (9, 4)),
        ("mean_delay_by_month_and_route", _draw_routes, (9, 6)),
    ):
        if draw is _draw_run and outcome.timeline is not None:
            continue  # the timeline shows it
        figure, axes = pyplot.subplots(figsize=size)
        draw(axes, outcome)
        drawn[name] = _png(pyplot, figure)
    return drawn


def _png(pyplot: Any, figure: Any) -> bytes:
    figure.tight_layout()
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=100)
    pyplot.close(figure)
    return data.getvalue()


def _draw_run(axes: Any, outcome: Outcome) -> None:
    seconds = [sample.seconds for sample in outcome.samples]
    written = [sample.written for sample in outcome.samples]
    streamed = [sample.streamed for sample in outcome.samples]
    axes.plot(seconds, written, label="changes written")
    axes.step(seconds, streamed, where="post", label="rows streamed into the views")
    axes.set_xlabel("seconds since the start")
    axes.legend()


def _draw_timeline(figure: Any, timeline: Timeline) -> None:
    moments = timeline.moments
    seconds = [one.seconds for one in moments]
    speed, told, served = figure.subplots(3, sharex=True)
    for label in ("written", "streamed"):
        speed.plot(seconds[1:], _rates(seconds, [getattr(m, label) for m in moments]), label=label)
    speed.set_ylabel("changes a second")
    for label in ("errors", "rollbacks"):
        told.step(seconds, [getattr(m, label) for m in moments], where="post", label=label)
    told.set_ylabel("so far")
    names = sorted({name for one in moments for name in one.active})
    shares = [[one.active.get(name, 0) for one in moments] for name in names]
    if names:
        served.stackplot(seconds, *shares, labels=names)
    served.set_ylabel("partitions active")
    served.set_xlabel("seconds since the start")
    for axes in (speed, told, served):
        for at, _ in timeline.marks:
            axes.axvline(at, color="#888", linewidth=0.5)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="upper left")
    for at, text in timeline.marks:
        speed.text(at, speed.get_ylim()[1], text, rotation=60, fontsize=7)


def _rates(seconds: list[float], counts: list[int]) -> list[float]:
    steps = pairwise(zip(seconds, counts, strict=True))
    return [(after - before) / max(end - start, 1e-9) for (start, before), (end, after) in steps]


def _draw_carriers(axes: Any, outcome: Outcome) -> None:
    rows = sorted(outcome.rows["flights/delay_by_carrier"], key=lambda row: _mean(row["value"]))
    axes.bar([row["key"] for row in rows], [_mean(row["value"]) for row in rows])
    axes.set_ylabel("mean arrival delay, minutes")


def _draw_hours(axes: Any, outcome: Outcome) -> None:
    by_origin: dict[str, dict[int, int]] = {}
    for row in outcome.rows["flights/flights_by_hour"]:
        origin, hour = row["key"]
        by_origin.setdefault(origin, {})[hour] = row["value"]
    for origin, hours in sorted(by_origin.items()):
        axes.plot(sorted(hours), [hours[hour] for hour in sorted(hours)], "o-", label=origin)
    axes.set_xlabel("scheduled hour of departure, local")
    axes.set_ylabel("flights")
    axes.legend()


def _draw_routes(axes: Any, outcome: Outcome) -> None:
    means: dict[str, dict[int, float]] = {}
    counts: dict[str, int] = {}
    for row in outcome.rows["routes/delay_by_route"]:
        month, origin, dest = row["key"]
        route = f"{origin}-{dest}"
        means.setdefault(route, {})[month] = _mean(row["value"])
        counts[route] = counts.get(route, 0) + row["value"]["count"]
    routes = sorted(counts, key=lambda route: -counts[route])[:_ROUTES_SHOWN]
    missing = float("nan")
    grid = [[means[route].get(month, missing) for month in range(1, 13)] for route in routes]
    if not grid:
        return
    image = axes.imshow(grid, aspect="auto", cmap="coolwarm", vmin=-40, vmax=40)
    axes.set_xticks(range(12), _MONTHS)
    axes.set_yticks(range(len(routes)), routes)
    axes.figure.colorbar(image, label="mean arrival delay, minutes")
