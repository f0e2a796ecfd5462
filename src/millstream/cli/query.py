"""`millstream query BUCKET SELECTOR`: the documents that a selector describes, as JSON lines.

Elsewhere: what selectors mean (docs/reference/find.md).
"""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated, Any, Final

import typer

from millstream.cli.connect import (
    BucketArgument,
    NodeOptions,
    at_node,
)
from millstream.cli.node_http import node_http, path_of
from millstream.errors import UsageError

__all__ = ["command"]

PAGE_ROWS: Final = 200
"""Documents asked for at once."""

SelectorArgument = Annotated[
    str,
    typer.Argument(metavar="SELECTOR", help='JSON, as in {"year": {"$gt": 2010}}; {} for all.'),
]
FieldOption = Annotated[
    list[str] | None,
    typer.Option("--field", metavar="NAME", help="Print this field only; repeatable."),
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="At most N documents; all.")
]


@at_node
def command(
    bucket: BucketArgument,
    selector: SelectorArgument,
    field: FieldOption = None,
    limit: LimitOption = None,
    *,
    at: NodeOptions,
) -> None:
    """Print the documents that a selector describes, one JSON object a line."""
    asked: dict[str, Any] = {"selector": _selector_of(selector)}
    if field:
        asked["fields"] = field
    http = node_http(**at.options)
    left, is_warned = limit, False
    while left is None or left > 0:
        asked["limit"] = PAGE_ROWS if left is None else min(PAGE_ROWS, left)
        found = http.request("POST", path_of(bucket, "_find"), asked)
        if (warning := found.get("warning")) and not is_warned:
            print(f"millstream: {' '.join(warning.split())}", file=sys.stderr)
            is_warned = True
        documents = found["docs"]
        for document in documents:
            print(json_module.dumps(document, ensure_ascii=False))
        if len(documents) < asked["limit"]:
            return
        asked["bookmark"] = found["bookmark"]
        left = None if left is None else left - len(documents)


def _selector_of(text: str) -> dict[str, Any]:
    try:
        selector = json_module.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the selector is not JSON: {error}", code="not_json") from error
    if not isinstance(selector, dict):
        raise UsageError("a selector is a JSON object", code="bad_selector")
    return selector
