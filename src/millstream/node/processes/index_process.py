"""The index process from its node's side: the link to it, or why there is none.

Invariants:
1. `link` leads to a process that has reported that it is ready; None while there is none.

Elsewhere: keeping it running (`node.processes.child_process`), the process itself
(`node.processes.index_child`), what it is told (`node.indexes`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from millstream.node.processes.child_process import ChildProcess
from millstream.node.processes.orders import IndexOrder
from millstream.views.aio.serving.index_link import IndexLink, unavailable

__all__ = ["IndexProcess"]

COMMAND: Final = (sys.executable, "-m", "millstream.node.processes.index_child")


class IndexProcess(ChildProcess):
    """The index process of one node.

    Args:
        order: what the process is told.
        on_change: called with the link to a process that has become ready, and with None when it
            has ended.
        command: starts it.
    """

    def __init__(
        self,
        order: IndexOrder,
        on_change: Callable[[IndexLink | None], None],
        *,
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        super().__init__("index", order, command)
        self._socket = Path(order.socket)
        self._on_change = on_change
        self.link: IndexLink | None = None
        """To the ready process; None while there is none."""

    def there(self) -> IndexLink:
        """Return the link to the process.

        Raises:
            UnavailableError: `index_unavailable`.
        """
        if self.link is None:
            raise unavailable(self._why)
        return self.link

    def is_ready(self) -> None:
        """Connect to it."""
        self.link = IndexLink(self._socket)
        self._on_change(self.link)

    def is_gone(self) -> None:
        """End the open requests to it."""
        if self.link is not None:
            self.link.close()
            self.link = None
            self._on_change(None)
