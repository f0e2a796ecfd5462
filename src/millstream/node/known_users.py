"""Shares changes of users between the processes of a node.

Invariants:
1. A change is seen at most `USERS_S` after it was written. A changed user has to log in again.

Elsewhere: the users' file and its changes (`access.users`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from millstream.access.users import UserStore
from millstream.errors import CorruptionError

__all__ = ["USERS_S", "keep_users"]

_LOG = logging.getLogger(__name__)
USERS_S: Final = 1.0
"""How long a change of a user may go unnoticed in another process of the node."""


async def keep_users(users: UserStore, drop: Callable[[str], None]) -> None:
    """Poll the file; `drop` closes the connections of a user who changed."""
    while True:
        await asyncio.sleep(USERS_S)
        try:
            for name in await asyncio.to_thread(users.refresh):
                drop(name)
        except (CorruptionError, OSError) as error:
            _LOG.error("the users' file cannot be read: %s", error)
