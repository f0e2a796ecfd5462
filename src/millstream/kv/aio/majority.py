"""Lets changes over HTTP wait until enough copies follow for a majority.

While partitions move, copies change their sources. A change that finds too few followers waits a
little. If copies are missing for longer, changes are refused at once.

Elsewhere: which copies follow, and how long others count as about to connect
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
"""How long changes wait for copies that may be about to connect."""
FOLLOW_PAUSE_S: Final = 0.02


class MajorityWait:
    """The wait of one bucket's changes; all changes that time out do so together, once.

    Args:
        now_ns: Unix time.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._since_s: float | None = None
        """Time of the first change that had to wait since the last one that found its majority;
        None: there is none."""

    async def until_possible(self, partition: Partition) -> None:
        """Return once enough copies follow that a majority may take a change.

        Returns also if the copy here is not (or no longer) active: then the change itself gets the
        error.

        Raises:
            UnavailableError: `majority_awaited`, if no copies came for `FOLLOW_SECONDS_MAX`;
                `majority_impossible`.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while partition.state is PartitionState.ACTIVE:
            try:
                partition.check_majority(self._now_ns())
            except UnavailableError as error:
                if error.code != MAJORITY_AWAITED:
                    raise
                now_s = loop.time()
                self._since_s = now_s if self._since_s is None else self._since_s
                if now_s >= min(began_s, self._since_s) + FOLLOW_SECONDS_MAX:
                    raise
                await asyncio.sleep(FOLLOW_PAUSE_S)
            else:
                self._since_s = None
                return
