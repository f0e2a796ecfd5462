"""Changes over HTTP that have to reach a majority of the copies wait until enough of them follow.

While partitions move, copies change whom they follow. A change that finds too few of them waits a
little. Where copies are missing for longer it is refused at once.

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

__all__ = ["FOLLOW_SECONDS_MAX", "until_possible"]

FOLLOW_SECONDS_MAX: Final = 2.0
"""How long a change waits for copies that may be on their way."""
FOLLOW_PAUSE_S: Final = 0.02


async def until_possible(partition: Partition, now_ns: Callable[[], int]) -> None:
    """Return once so many copies follow that a majority may take a change.

    Also if the copy here is not active (any more): then whoever makes the change is told that.

    Raises:
        UnavailableError: `majority_awaited`, after `FOLLOW_SECONDS_MAX`; `majority_impossible`.
    """
    loop = asyncio.get_running_loop()
    end_s = loop.time() + FOLLOW_SECONDS_MAX
    while partition.state is PartitionState.ACTIVE:
        try:
            partition.check_majority(now_ns())
        except UnavailableError as error:
            if error.code != MAJORITY_AWAITED or loop.time() >= end_s:
                raise
            await asyncio.sleep(FOLLOW_PAUSE_S)
        else:
            return
