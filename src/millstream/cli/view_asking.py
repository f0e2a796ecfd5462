"""Asking a node's views for `millstream view`, with a progress bar while an index is built.

Invariants:
1. The bar is on stderr and only on a terminal; it comes after `PATIENCE_S` and goes when the first
   row is there.

Elsewhere: the command (`cli.view`), the page (docs/reference/http.md).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final
from urllib.parse import quote

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from millstream.cli.connect import awaited
from millstream.client.databases import Database
from millstream.client.http import HttpClient, http_of
from millstream.errors import ConditionError, MillstreamError, UsageError
from millstream.pipelines.change_stream.bucket_changes import Endpoint
from millstream.views.core.query.parameters import QUERY_TIMEOUT_MS_MAX

__all__ = ["ask_node"]

PATIENCE_S: Final = 0.5
POLL_S: Final = 0.5
ANSWER_S: Final = 60.0
"""How long anything of an answer may take beyond the wait for the index."""
_ABSENT: Final = (": missing", ": deleted")


def ask_node(
    endpoint: Endpoint, bucket: str, ddoc: str, view: str, options: dict[str, Any]
) -> Iterator[bytes]:
    """Return the answer in pieces.

    Without `timeout` among the options an index may take as long as a node lets it.

    Raises:
        ConditionError: `missing`: there is no such design document.
        UsageError: `missing_named_view`.
        MillstreamError: what else the node answers.
    """
    with awaited(endpoint.address, lambda: endpoint.client(bucket)) as client:
        http = http_of(
            client, user=endpoint.user, password=endpoint.password, tls=endpoint.tls,
            timeout_s=ANSWER_S,
        )  # fmt: skip
    path = f"{Database(http, bucket).design_path(ddoc)}/_view/{quote(view, safe='')}"
    asked = {"timeout": QUERY_TIMEOUT_MS_MAX} | options
    wait_s = ANSWER_S + int(asked["timeout"]) / 1000
    pieces = http.pieces("POST", path, msgspec.json.encode(asked), timeout_s=wait_s)
    try:
        with _Bar(http, bucket, ddoc):
            first = next(pieces, b"")
    except ConditionError as error:
        if error.code == "not_found" and str(error).endswith(_ABSENT):
            raise ConditionError(
                f"bucket {bucket!r} has no design document {ddoc!r}: put it with `millstream put "
                f"{bucket} _design/{ddoc} FILE`",
                code="missing",
            ) from error
        if str(error).endswith(": missing_named_view"):
            raise UsageError(
                f"design document {ddoc!r} has no view {view!r}", code="missing_named_view"
            ) from error
        raise
    return chain((first,), pieces)


class _Bar:
    """Shows how far an index is, while it is within `with`."""

    def __init__(self, http: HttpClient, bucket: str, ddoc: str) -> None:
        self._http = http
        self._bucket = bucket
        self._design = f"_design/{ddoc}"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> None:
        if sys.stderr.isatty():
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _show(self) -> None:
        if self._ended.wait(PATIENCE_S):
            return
        columns = (
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(),
            TimeElapsedColumn(),
        )  # fmt: skip
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            shown = bar.add_task("waiting for the index", total=None)
            while not self._ended.wait(POLL_S):
                try:
                    done = self._progress()
                except MillstreamError:
                    continue  # the query will say it
                if done is not None:
                    bar.update(shown, description="building the index", completed=done, total=100)

    def _progress(self) -> float | None:
        """Return the percentage of the index that is built, None if it is not being built."""
        tasks = msgspec.json.decode(b"".join(self._http.pieces("GET", "/_active_tasks")))
        for task in tasks:
            names = task.get("design_documents") or [task.get("design_document")]
            is_it = task.get("database") == self._bucket and self._design in names
            if is_it and task.get("type") == "indexer":
                progress = task.get("progress")
                return float(progress) if isinstance(progress, int | float) else None
        return None
