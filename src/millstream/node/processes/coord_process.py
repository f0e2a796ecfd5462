"""The coordination process from its node's side: start, statistics, end.

Invariants:
1. If coordination cannot start, the node does not start either.
2. If the process ends because its disk failed, the node ends. In any other case it is restarted on
   the same sockets, which the engine's process holds.

Elsewhere: keeping it running (`node.processes.child_process`), the process itself
(`node.processes.coord_child`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from millstream.access.failed_logins import FailedLogin
from millstream.errors import CorruptionError, UnavailableError
from millstream.kv.core.statistics import NODE_FIGURES
from millstream.node.processes.child_process import RESTARTS_MAX, START_S_MAX, ChildProcess
from millstream.node.processes.orders import CoordOrder
from millstream.node.processes.supervisor import EXIT_DISK_FAILED

__all__ = ["NO_FIGURES", "CoordProcess"]

COMMAND: Final = (sys.executable, "-m", "millstream.node.processes.coord_child")
NO_FIGURES: Final[Mapping[str, float]] = {
    name: 0.0 for name in NODE_FIGURES if name.startswith("coord_")
}
"""Statistics of a node that takes no part in coordination."""


class CoordProcess(ChildProcess):
    """The coordination process of one node.

    Args:
        order: what the process is told.
        descriptors: the listening sockets that it serves.
        on_fatal: called when its disk failed: the node has to stop.
        command: starts it.
    """

    def __init__(
        self,
        order: CoordOrder,
        descriptors: Sequence[int],
        on_fatal: Callable[[Exception], None],
        *,
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        super().__init__("coordination", order, command, descriptors)
        self._on_fatal = on_fatal
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._said: Mapping[str, float] = {}
        self.token_settings: Mapping[str, str] = {}
        """As last reported; kept during a restart, so that no user is locked out."""
        self.failed_logins: Sequence[FailedLogin] = ()
        """Of its clients and of other nodes, as last reported."""
        self._is_up = self._goes_on = False

    async def until_ready(self) -> None:
        """Return once it serves for the first time.

        Raises:
            CorruptionError: `cannot_start`: its files are damaged.
            UnavailableError: it could not start, or the disk failed.
        """
        while not self._first.done():
            self._goes_on = False
            await asyncio.wait([self._first], timeout=2 * START_S_MAX)
            if not self._first.done() and not self._goes_on:
                raise UnavailableError("coordination does not start", code="cannot_start")
        self._first.result()

    def goes_on(self) -> None:
        """It reads its files."""
        self._goes_on = True

    def is_ready(self) -> None:
        """It serves."""
        self._is_up = True
        if not self._first.done():
            self._first.set_result(None)

    def says(self, event: dict[str, Any]) -> None:
        """Store its statistics and the token settings that apply to all nodes."""
        if event.get("event") == "figures":
            self._said = event["figures"]
            self.token_settings = event["token_settings"]
            self.failed_logins = [FailedLogin(*one) for one in event["failed_logins"]]

    def is_gone(self) -> None:
        """Reset its statistics."""
        self._is_up, self._said, self.failed_logins = False, {}, ()

    def has_ended(self, code: int, event: dict[str, Any]) -> None:
        """Report the end to the waiting start, or to the node if the disk failed."""
        if not self._first.done() and event.get("event") == "error":
            self._first.set_exception(_as_error(event))
        elif code == EXIT_DISK_FAILED:
            self._on_fatal(UnavailableError("the disk of coordination failed", code="disk_failed"))
        elif not self._first.done() and self.restarts_total >= RESTARTS_MAX:
            self._first.set_exception(
                UnavailableError(
                    f"coordination ended {RESTARTS_MAX + 1} times before it served; "
                    "the log says why",
                    code="cannot_start",
                )
            )

    def figures(self) -> dict[str, float]:
        """Return its statistics, and those of the process, as last reported."""
        return {
            **NO_FIGURES,
            **self._said,
            "coord_process_up": float(self._is_up),
            "coord_process_restarts_total": self.restarts_total,
        }


def _as_error(event: dict[str, Any]) -> Exception:
    message = f"coordination: {event['message']}"
    if event.get("is_final"):
        return CorruptionError(message, code="cannot_start")
    return UnavailableError(message, code="cannot_start")
