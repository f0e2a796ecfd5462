"""What a run leaves at its node, so that the console shows it: one document that stays there.

    /BUCKET/_local/pipeline:NAME@MACHINE
    {"name": "backup-flights", "kind": "backup", "subject": "/backups/flights", "machine": "host",
     "started_s": 1764350000, "updated_s": 1764350060, "is_over": true, "batch_count": 3,
     "row_count": 120, "rows_per_s": 40.0, "lag": {"0": 0}, "error": "",
     "batches": [[2, 120, 0.5]], "figures": {"chain": [{"id": 1, "parent": null, ...}]}}

Invariants:
1. A run never fails or waits long for it: what cannot be told is left out, and a node that did not
   take it is not asked again for `AGAIN_S`.
2. It is written when a run begins and ends, and at most every `EVERY_S` meanwhile. There is one
   document for each pipeline of a machine; the next run replaces it.

Elsewhere: progress (`pipelines.runs`), the page that shows it (`console/static/pages/pipelines`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.client.http import HttpClient
    from millstream.pipelines.runs import RunProgress, RunRecord

__all__ = ["REQUEST_S", "NodeTeller"]

_LOG = logging.getLogger(__name__)
EVERY_S: Final = 5.0
AGAIN_S: Final = 60.0
REQUEST_S: Final = 2.0
"""Longest wait for an answer of the node."""


class NodeTeller:
    """Tells the node of one run what it does; call it with the progress.

    Args:
        record: of the run.
        machine: name of this machine.
        open_http: connects to the HTTP port of the node.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        record: RunRecord,
        machine: str,
        open_http: Callable[[], HttpClient],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._record, self._machine, self._clock = record, machine, clock
        self._open = open_http
        self._http: HttpClient | None = None
        self._not_before_s = 0.0
        doc_id = quote(f"pipeline:{record.name}@{machine}", safe="")
        self._path = f"/{quote(record.bucket, safe='')}/_local/{doc_id}"

    def __call__(self, progress: RunProgress) -> None:
        """Tell it, if it is time to."""
        now_s = self._clock()
        if now_s < self._not_before_s and not progress.is_over:
            return
        self._not_before_s = now_s + EVERY_S
        try:
            self._http = self._http or self._open()
            self._http.request("PUT", self._path, msgspec.json.encode(self._content(progress)))
        except (MillstreamError, OSError) as error:
            self._http, self._not_before_s = None, now_s + AGAIN_S
            _LOG.info("the node is not told of %s: %s", self._record.name, error)

    def _content(self, progress: RunProgress) -> dict[str, object]:
        told = msgspec.structs.asdict(progress)
        return {
            "name": self._record.name, "kind": self._record.kind,
            "subject": self._record.subject, "ddoc": self._record.ddoc,
            "machine": self._machine, "started_s": self._record.started,
            "updated_s": told.pop("updated"), "rows_per_s": round(progress.rows_per_s, 1), **told,
        }  # fmt: skip
