r"""`millstream keys BUCKET`: the keys of documents in the order of their bytes, one a line.

Invariants:
1. No key is left out, whatever its bytes.
2. A key stands on one line, in a form that `get`, `put` and `delete` take: one that is not UTF-8,
   has control characters or begins with `\x` is `\x` and hex digits.
3. A page of keys is held at a time.

Elsewhere: the page (`gateway.aio.databases.bucket_pages`), the form (`model.partitions`).
"""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import typer

from millstream.cli.connect import (
    BucketArgument,
    JsonOption,
    NodeOptions,
    at_node,
    key_of,
)
from millstream.cli.node_http import node_http, path_of
from millstream.client.http import HttpClient
from millstream.model.partitions import key_from_text, text_of_key

__all__ = ["command"]

PAGE_ROWS: Final = 1000
"""Keys asked for at once."""

PrefixOption = Annotated[
    str, typer.Option("--prefix", metavar="TEXT", help="Only keys that begin so.")
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="At most N keys; all.")
]


@at_node
def command(
    bucket: BucketArgument,
    prefix: PrefixOption = "",
    limit: LimitOption = None,
    *,
    at: NodeOptions,
    json: JsonOption = False,
) -> None:
    r"""Print the keys of a bucket in the order of their bytes, one a line.

    A key that is no printable UTF-8, or begins with \x, stands there as \x and the hex digits of
    its bytes; get, put and delete take that form, and so does --prefix. With --json each is a
    JSON string, in the same form but for control characters, which JSON escapes.
    """
    http = node_http(**at.options)
    shown = json_module.dumps if json else _line_of
    prefix = text_of_key(key_of(prefix))
    path = path_of("_millstream", "buckets", bucket, "keys")
    for key in _keys(http, path, prefix, limit):
        sys.stdout.write(f"{shown(key)}\n")


def _keys(http: HttpClient, path: str, prefix: str, limit: int | None) -> Iterator[str]:
    """Yield keys, page by page; each page begins behind the last key of the one before."""
    asked: dict[str, Any] = {"prefix": prefix}
    left = limit
    while left is None or left > 0:
        asked["limit"] = PAGE_ROWS if left is None else min(PAGE_ROWS, left)
        found = http.request("GET", f"{path}?{urlencode(asked)}")["keys"]
        yield from found
        if len(found) < asked["limit"]:
            return
        asked["after"] = found[-1]
        left = None if left is None else left - len(found)


def _line_of(key: str) -> str:
    return key if key.isprintable() else rf"\x{key_from_text(key).hex()}"
