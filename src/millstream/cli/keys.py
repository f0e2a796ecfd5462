r"""`millstream keys BUCKET`: the keys of documents in the order of their bytes, one a line.

Invariants:
1. A key stands on one line, in a form that `get` and `delete` take: one with control characters is
   `\x` and hex digits, as one that begins with `\x`.
2. A page of keys is held at a time.

Elsewhere: the order (`_all_docs`, docs/reference/http.md).
"""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Iterator
from typing import Annotated, Final
from urllib.parse import urlencode

import typer

from millstream.cli.connect import (
    CONNECT_DEFAULT,
    BucketArgument,
    ConnectOption,
    JsonOption,
    PasswordFileOption,
    TlsCaOption,
    UserOption,
)
from millstream.cli.node_http import node_http, path_of
from millstream.client.http import HttpClient
from millstream.errors import UsageError
from millstream.model.partitions import text_of_key

__all__ = ["command"]

PAGE_ROWS: Final = 1000
"""Keys asked for at once."""

PrefixOption = Annotated[
    str, typer.Option("--prefix", metavar="TEXT", help="Only keys that begin so.")
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="At most N keys; all.")
]


def command(
    bucket: BucketArgument,
    prefix: PrefixOption = "",
    limit: LimitOption = None,
    address: ConnectOption = CONNECT_DEFAULT,
    user: UserOption = None,
    password_file: PasswordFileOption = None,
    tls_ca: TlsCaOption = None,
    json: JsonOption = False,
) -> None:
    """Print the keys of a bucket in their order, one a line.

    With --json each is a JSON string.
    """
    try:
        prefix.encode()
    except UnicodeEncodeError as error:
        raise UsageError("--prefix is no UTF-8", code="bad_key") from error
    http = node_http(address, user=user, password_file=password_file, tls_ca=tls_ca)
    shown = json_module.dumps if json else _line_of
    for key in _keys(http, path_of(bucket, "_all_docs"), prefix, limit):
        sys.stdout.write(f"{shown(key)}\n")


def _keys(http: HttpClient, path: str, prefix: str, limit: int | None) -> Iterator[str]:
    """Yield keys, page by page; each page begins behind the last key of the one before."""
    last: str | None = None
    left = limit
    while left is None or left > 0:
        size = PAGE_ROWS if left is None else min(PAGE_ROWS, left)
        asked = {"limit": size + (last is not None)}
        begin = prefix if last is None else last
        query = urlencode({**asked, **({"startkey": json_module.dumps(begin)} if begin else {})})
        rows = [row["id"] for row in http.request("GET", f"{path}?{query}")["rows"]]
        is_last_page = len(rows) < asked["limit"]
        if last is not None and rows[:1] == [last]:
            del rows[0]
        for key in rows[:size]:
            if not key.startswith(prefix):
                return
            yield key
        if is_last_page or not rows:
            return
        last = rows[:size][-1]
        left = None if left is None else left - len(rows[:size])


def _line_of(key: str) -> str:
    data = key.encode()
    if key.isprintable():
        return text_of_key(data)
    return rf"\x{data.hex()}"
