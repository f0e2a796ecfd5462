"""Commands of administrators, and the part of the pool that executes each.

Invariants:
1. At most `ADMIN_MAX` commands are in progress. An unknown command changes nothing.

Elsewhere: the commands (`pool_commands`, `group_commands`, `replica_commands`), who may send them
(the RESP session).

Source: V2R2, "Administration".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millstream.coordination.core.pool.admin_arguments import RefusedError, Words, shown
from millstream.coordination.core.pool.admin_requests import AdminRequests
from millstream.coordination.core.pool.continuations import Continuations
from millstream.coordination.core.pool.effects import Admin
from millstream.coordination.core.pool.group_commands import GroupCommands
from millstream.coordination.core.pool.incarnations import IDLE, MEND, Incarnations
from millstream.coordination.core.pool.pool_commands import PoolCommands
from millstream.coordination.core.pool.replica_commands import ReplicaCommands

__all__ = ["ADMIN_MAX", "READS", "AdminCommands"]

READS: Final = (b"NODES", b"STATUS")
"""Commands that change nothing: they need no disk, and a node that is refused answers them."""
ADMIN_MAX: Final = 64
"""Commands of administrators that may be under way; further ones are refused."""


class AdminCommands:
    """Finds a command by its name."""

    def __init__(
        self,
        continuations: Continuations,
        incarnations: Incarnations,
        requests: AdminRequests,
        pool: PoolCommands,
        group: GroupCommands,
        replica: ReplicaCommands,
    ) -> None:
        self._continuations = continuations
        self._incarnations = incarnations
        self._requests = requests
        self._commands: Final[dict[bytes, Callable[[int, Words], bytes | None]]] = {
            b"JOIN": pool.join, b"LEAVE": pool.leave, b"NODES": pool.nodes,
            b"STATUS": replica.status, b"SNAPSHOT": replica.snapshot, b"BACKUP": replica.backup,
            b"RESTORE": group.restore, b"LOG": replica.log, b"GROUP CREATE": group.create,
            b"GROUP RECONFIG": group.reconfig, b"GROUP REPLACE": group.replace,
            b"GROUP ADD": group.add, b"GROUP REMOVE": group.remove,
            b"GROUP MOVE-PRIMARY": group.move_primary, b"GROUP DELETE": group.delete_group,
            b"GROUP FORCE": group.force,
        }  # fmt: skip

    def on_admin(self, asked: Admin) -> None:
        """Do what is asked for, or say why not."""
        words = 2 if asked.argv[:1] and asked.argv[0].upper() == b"GROUP" else 1
        name = b" ".join(word.upper() for word in asked.argv[:words])
        command = self._commands.get(name)
        try:
            if command is None:
                raise RefusedError("BADARG", f"there is no ADMIN {shown(name)}")
            if self._incarnations.own_refusal and name not in READS:
                raise RefusedError("CONFLICT", f"{IDLE}: {self._incarnations.own_refusal}; {MEND}")
            if len(self._requests.pending) + self._continuations.questions >= ADMIN_MAX:
                raise RefusedError("BUSY", f"{ADMIN_MAX} commands are under way")
            value = command(asked.ticket, asked.argv[words:])
        except RefusedError as refused:
            value = refused.value
        if value is not None:
            self._requests.answer(asked.ticket, value)
