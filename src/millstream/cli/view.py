"""`millstream view BUCKET DDOC/VIEW`: query a view; a table, JSON, CSV or a plot.

Invariants:
1. Options are named as the parameters of the HTTP query; keys are written as JSON.
2. The node answers, whoever keeps the index.

Elsewhere: the rules of queries (`views.core.query.parameters`), asking the node
(`cli.view_asking`), how answers look (`cli.view_output`).
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer

from millstream.cli.connect import (
    BucketArgument,
    JsonOption,
    NodeOptions,
    at_node,
)
from millstream.cli.view_asking import ask_node
from millstream.cli.view_output import plot as plot_rows
from millstream.cli.view_output import print_csv, print_table
from millstream.errors import UsageError
from millstream.pipelines.change_stream.bucket_changes import Endpoint
from millstream.views.core.query.parameters import parse_query

__all__ = ["command"]


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
DocsOption = Annotated[
    bool, typer.Option("--include-docs", help="With the document beside each row.")
]
ConflictsOption = Annotated[bool, typer.Option("--conflicts", help="With --include-docs.")]
UpdateOption = Annotated[
    str | None,
    typer.Option(
        "--update",
        metavar="true|false|lazy",
        help="Whether the index is brought up to date first (default), not at all, or afterwards.",
    ),
]
StaleOption = Annotated[
    str | None, typer.Option("--stale", metavar="ok|update_after", help="Older names of --update.")
]
StableOption = Annotated[bool, typer.Option("--stable", help="Always ask the same copies.")]
SortedOption = Annotated[bool, typer.Option("--sorted/--no-sorted")]
SeqOption = Annotated[
    bool, typer.Option("--update-seq", help="With the position that the rows reflect.")
]
AtOption = Annotated[
    str | None,
    _key_option("at", "Wait until the index has reached this position: read your own writes."),
]
TimeoutOption = Annotated[
    int | None,
    typer.Option("--timeout", min=0, metavar="MS", help="How long to wait for the index."),
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


@at_node
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
    include_docs: DocsOption = False,
    conflicts: ConflictsOption = False,
    update: UpdateOption = None,
    stale: StaleOption = None,
    stable: StableOption = False,
    is_sorted: SortedOption = True,
    update_seq: SeqOption = False,
    at_position: AtOption = None,
    timeout: TimeoutOption = None,
    json: JsonOption = False,
    as_csv: CsvOption = False,
    plot: PlotOption = None,
    *,
    at: NodeOptions,
) -> None:
    """Query a view."""
    ddoc, slash, name = view.removeprefix("_design/").partition("/")
    if not slash or not ddoc or not name:
        raise UsageError(f"{view!r}: write DDOC/VIEW", code="bad_arguments")
    if json + as_csv + (plot is not None) > 1:
        raise UsageError("choose one of --json, --csv and --plot", code="bad_arguments")
    keyed = {"key": key, "keys": keys, "startkey": startkey, "endkey": endkey}
    options = {n: _decoded(n, text) for n, text in keyed.items() if text is not None}
    if at_position is not None:  # a vector, or the update_seq of an answer
        is_vector = at_position.startswith("{")
        options["at"] = _decoded("at", at_position) if is_vector else at_position
    plain = {
        "startkey_docid": startkey_docid, "endkey_docid": endkey_docid, "limit": limit,
        "reduce": reduce, "group": group, "group_level": group_level, "update": update,
        "stale": stale, "timeout": timeout,
    }  # fmt: skip
    options |= {n: value for n, value in plain.items() if value is not None}
    flags = {
        "descending": descending, "include_docs": include_docs, "conflicts": conflicts,
        "stable": stable, "update_seq": update_seq, "skip": skip,
    }  # fmt: skip
    options |= {n: value for n, value in flags.items() if value}
    options |= {} if inclusive_end else {"inclusive_end": False}
    options |= {} if is_sorted else {"sorted": False}
    parse_query(options)
    who = at.who
    endpoint = Endpoint(at.address, who.user, who.password, at.tls)
    pieces = ask_node(endpoint, bucket, ddoc, name, options)
    if json:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return
    answer = msgspec.json.decode(b"".join(pieces))
    if as_csv:
        print_csv(answer["rows"])
    elif plot is not None:
        plot_rows(answer["rows"], plot, title=f"{bucket} {view}")
    else:
        print_table(answer)


def _decoded(name: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(
            f"--{name} {text}: not JSON ({error}); write strings with quotes: '\"text\"'",
            code="bad_arguments",
        ) from error
