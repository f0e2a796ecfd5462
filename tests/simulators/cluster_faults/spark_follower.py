"""A Spark query that keeps a table of the bucket all through a run.

Elsewhere: the query (`millstream.demo.followers`).
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from millstream.demo.followers import TableFollower
from millstream.pipelines import local_session
from simulators.coordination_faults.nodes import LOGIN
from support.cluster.managed_nodes import BUCKET
from support.node.waiting import until

__all__ = ["SparkFollower"]

BEGUN_S_MAX = 180.0
"""Until the first batch: a busy machine starts Python for Spark slowly."""


class SparkFollower:
    """Started once; it must not end."""

    def __init__(self, stack: ExitStack, kvs: list[str], folder: Path) -> None:
        os.environ["MILLSTREAM_USER"], os.environ["MILLSTREAM_PASSWORD"] = LOGIN
        session = local_session("cluster-faults", work_dir=folder / "spark")
        stack.callback(session.stop)
        self._table = TableFollower(session, ",".join(kvs), BUCKET, folder / "spark")
        stack.callback(self.stop)
        until(self._has_begun, wait_s=BEGUN_S_MAX)

    def _has_begun(self) -> bool:
        self.check()
        return self._table.applied["puts"] > 0

    def check(self) -> None:
        """Fail if it ended."""
        assert self._table.query.isActive, f"the query ended: {self._table.query.exception()}"

    def stop(self) -> None:
        """End it, while there are nodes: without any it waits for them before it ends."""
        self._table.query.stop()

    def state(self) -> dict[str, Any]:
        """Return key -> document."""
        return {key: msgspec.json.decode(value) for key, value in self._table.rows().items()}
