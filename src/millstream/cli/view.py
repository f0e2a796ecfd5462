"""`millstream view BUCKET DDOC/VIEW`: query a view; a table, JSON, CSV or a plot.

Invariants:
1. Options are named as the parameters of the HTTP query; keys are written as JSON.

Elsewhere: the rules of queries (`views.core.query`), where rows come from
(`pipelines.view_reading`).
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from millstream.cli.connect import (
    CONNECT_DEFAULT,
    BucketArgument,
    ConnectOption,
    JsonOption,
    PasswordFileOption,
    TlsCaOption,
    UserOption,
    tls_of,
    who_of,
)
from millstream.errors import UsageError
from millstream.pipelines.bucket_changes import Endpoint
from millstream.pipelines.view_reading import read_view
from millstream.pipelines.view_setup import load_modules
from millstream.views.core.query import parse_query

__all__ = ["command"]

PLOT_BARS_MAX = 60
PLOT_WIDTH = 50


def _key_option(name: str, help_text: str) -> Any:
    return typer.Option(f"--{name}", metavar="JSON", help=help_text)


ViewArgument = Annotated[str, typer.Argument(metavar="DDOC/VIEW", help="Which view.")]
KeyOption = Annotated[str | None, _key_option("key", "Only rows of this key.")]
KeysOption = Annotated[str | None, _key_option("keys", "Only these keys, in this order.")]
StartOption = Annotated[str | None, _key_option("startkey", "First key of the range.")]
EndOption = Annotated[str | None, _key_option("endkey", "Last key of the range.")]
StartIdOption = Annotated[str | None, typer.Option("--startkey-docid", metavar="ID")]
EndIdOption = Annotated[str | None, typer.Option("--endkey-docid", metavar="ID")]
InclusiveOption = Annotated[bool, typer.Option("--inclusive-end/--no-inclusive-end")]
DescendingOption = Annotated[
    bool, typer.Option("--descending", help="From the high end; startkey is then the higher one.")
]
SkipOption = Annotated[int, typer.Option("--skip", min=0)]
LimitOption = Annotated[int | None, typer.Option("--limit", min=0)]
ReduceOption = Annotated[
    bool | None, typer.Option("--reduce/--no-reduce", help="Default: if the view has one.")
]
GroupOption = Annotated[bool | None, typer.Option("--group/--no-group", help="By exact key.")]
LevelOption = Annotated[
    int | None,
    typer.Option("--group-level", min=0, help="By the first so many elements of array keys."),
]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
PlotOption = Annotated[
    str | None,
    typer.Option(
        "--plot",
        metavar="FILE|-",
        help="Draw bars: into a picture file, or - for the terminal.",
    ),
]
ModuleOption = Annotated[
    list[str] | None,
    typer.Option("--python-module", metavar="MODULE", help="Registers Python reduce functions."),
]


def command(
    bucket: BucketArgument,
    view: ViewArgument,
    key: KeyOption = None,
    keys: KeysOption = None,
    startkey: StartOption = None,
    endkey: EndOption = None,
    startkey_docid: StartIdOption = None,
    endkey_docid: EndIdOption = None,
    inclusive_end: InclusiveOption = True,
    descending: DescendingOption = False,
    skip: SkipOption = 0,
    limit: LimitOption = None,
    reduce: ReduceOption = None,
    group: GroupOption = None,
    group_level: LevelOption = None,
    json: JsonOption = False,
    as_csv: CsvOption = False,
    plot: PlotOption = None,
    python_module: ModuleOption = None,
    address: ConnectOption = CONNECT_DEFAULT,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    tls_ca: TlsCaOption = None,
) -> None:
    """Query a view that a pipeline keeps."""
    ddoc, slash, name = view.removeprefix("_design/").partition("/")
    if not slash or not ddoc or not name:
        raise UsageError(f"{view!r}: write DDOC/VIEW", code="bad_arguments")
    if json + as_csv + (plot is not None) > 1:
        raise UsageError("choose one of --json, --csv and --plot", code="bad_arguments")
    given = {
        "key": _decoded("key", key), "keys": _decoded("keys", keys),
        "startkey": _decoded("startkey", startkey), "endkey": _decoded("endkey", endkey),
    }  # fmt: skip
    plain = {
        "startkey_docid": startkey_docid, "endkey_docid": endkey_docid, "limit": limit,
        "reduce": reduce, "group": group, "group_level": group_level,
    }  # fmt: skip
    options = {member: value[0] for member, value in given.items() if value}
    options |= {member: value for member, value in plain.items() if value is not None}
    options |= {"inclusive_end": inclusive_end, "descending": descending, "skip": skip}
    query = parse_query(options)
    load_modules(tuple(python_module or ()))
    who = who_of(user, password_file)
    endpoint = Endpoint(address, who.user, who.password, tls_of(tls_ca))
    answer = read_view(endpoint, bucket, ddoc, name).answer(query)
    if json:
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    elif as_csv:
        _print_csv(answer["rows"])
    elif plot is not None:
        _plot(answer["rows"], plot, title=f"{bucket} {view}")
    else:
        _print_table(answer)


def _decoded(name: str, text: str | None) -> list[Any]:
    """Return the decoded value in a list, an empty list if the option was not given."""
    if text is None:
        return []
    try:
        return [msgspec.json.decode(text)]
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(
            f"--{name} {text}: not JSON ({error}); write strings with quotes: '\"text\"'",
            code="bad_arguments",
        ) from error


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
        cells = [[row[name] for name in names] + list(row["value"].values()) for row in rows]
        return [*names, *first], cells
    return [*names, "value"], [[row[name] for name in [*names, "value"]] for row in rows]


def _print_csv(rows: list[dict[str, Any]]) -> None:
    names, cells = _columns(rows)
    writer = csv.writer(sys.stdout)
    writer.writerow(names)
    writer.writerows([["" if cell is None else _shown(cell) for cell in row] for row in cells])


def _print_table(answer: dict[str, Any]) -> None:
    names, cells = _columns(answer["rows"])
    table = Table(*names)
    for row in cells:
        table.add_row(*(_shown(cell) for cell in row))
    console = Console()
    console.print(table)
    if "total_rows" in answer:
        console.print(f"offset {answer['offset']:,} of {answer['total_rows']:,} rows")


def _number_of(value: Any) -> float:
    """Return what a bar shows of a value: itself, or the mean of statistics."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, dict) and value.get("count"):
        return float(value.get("sum", 0)) / float(value["count"])
    return 0.0


def _plot(rows: list[dict[str, Any]], target: str, title: str) -> None:
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
