"""Changes over HTTP that have to reach a majority of the copies wait until enough of them follow.

While partitions move, copies change whom they follow. A change that finds too few of them waits a
little. Where copies are missing for longer, changes are refused at once.

Elsewhere: who follows, and for how long others count as on their way
(`kv.core.partition.acknowledgement`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from millstream.errors import UnavailableError
from millstream.kv.core.partition.partition import Partition
from millstream.kv.core.partition.read_copy import MAJORITY_AWAITED
from millstream.model.partitions import PartitionState

__all__ = ["FOLLOW_SECONDS_MAX", "MajorityWait"]

FOLLOW_SECONDS_MAX: Final = 1.0
"""How long changes wait for copies that may be on their way."""
FOLLOW_PAUSE_S: Final = 0.02


class MajorityWait:
    """What changes of one bucket wait for; all that wait in vain do so together, once.

    Args:
        now_ns: Unix time.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._since_s: float | None = None
        """Since when no change has found its majority; None: the last one has."""

    async def until_possible(self, partition: Partition) -> None:
        """Return once so many copies follow that a majority may take a change.

        Also if the copy here is not active (any more): then whoever makes the change is told that.

        Raises:
            UnavailableError: `majority_awaited`, if nothing has come for `FOLLOW_SECONDS_MAX`;
                `majority_impossible`.
        """
        loop = asyncio.get_running_loop()
        while partition.state is PartitionState.ACTIVE:
            try:
                partition.check_majority(self._now_ns())
            except UnavailableError as error:
                now_s = loop.time()
                self._since_s = now_s if self._since_s is None else self._since_s
                is_over = now_s >= self._since_s + FOLLOW_SECONDS_MAX
                if error.code != MAJORITY_AWAITED or is_over:
                    raise
                await asyncio.sleep(FOLLOW_PAUSE_S)
            else:
                self._since_s = None
                return
