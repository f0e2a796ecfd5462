"""The views of a node, as its pages ask for them: calls go to the index process.

Invariants:
1. While the index process is not there, a call ends with `index_unavailable` at once.

Elsewhere: the process (`node.index_process`), what it does (`views.aio.index_host`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.node.index_child import IndexOrder
from millstream.node.index_process import IndexProcess
from millstream.views.aio.index_link import IndexLink, StreamedAnswer

__all__ = ["Indexes"]


class Indexes:
    """Has the shape of `gateway.core.host.IndexHost`.

    Args:
        order: what the index process is told at its start.
    """

    def __init__(self, order: IndexOrder) -> None:
        self.process = IndexProcess(order, self._ready)

    async def stop(self) -> None:
        """End the index process."""
        await self.process.stop()

    def _ready(self, link: IndexLink) -> None:
        """A new index process knows nothing yet."""

    async def query(
        self, bucket: str, design: str, view: str, options: Mapping[str, object]
    ) -> StreamedAnswer:
        """Ask a view."""
        return await self.process.there().call(
            "query", bucket=bucket, design=design, view=view, options=options
        )

    async def info(self, bucket: str, design: str) -> dict[str, Any]:
        """Return what `_info` shows as `view_index`."""
        return await self.process.there().ask("info", bucket=bucket, design=design)

    async def compact(self, bucket: str, design: str) -> None:
        """Have an index written anew, densely; returns once it has begun."""
        await self.process.there().ask("compact", bucket=bucket, design=design)

    async def cleanup(self, bucket: str) -> None:
        """Remove the files of indexes that no design document has any more."""
        await self.process.there().ask("cleanup", bucket=bucket)

    async def tasks(self) -> list[dict[str, Any]]:
        """Return what is being built and compacted."""
        if self.process.link is None:
            return []
        found: list[dict[str, Any]] = (await self.process.link.ask("tasks"))["tasks"]
        return found
