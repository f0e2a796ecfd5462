"""What the system group tells every node: which group has which namespace, and global settings.

Members of the system group post what they have; it goes around with the gossip, the newest first.

Invariants:
1. Of two boards of one group that of the higher LSN counts, whoever passes it on: what is on it
   was committed.
2. It is late, never wrong for long, and decides nothing: a group that does not have a namespace
   any more says so.

Elsewhere: the names and settings themselves (`namespace.registry`, `namespace.configuration`), who
posts (`aio.namespaces`), who asks (`aio.client_requests`, `pool_asking`).

Source: V2R2, "Nomenclature" (VDS).
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.coordination.core.pool.effects import FIRST_GROUP, Posted
from millstream.coordination.core.pool.hosting import Hosting
from millstream.coordination.core.pool.messages import Board, PoolEnvelope

__all__ = ["Boards"]


class Boards(Hosting):
    """Board, and what is posted here."""

    def __init__(self, chance: Callable[[], float]) -> None:
        super().__init__(chance)
        self.board: Board | None = None
        self._groups: dict[bytes, int] = {}
        self._settings: dict[bytes, bytes] = {}

    def group_with(self, root: bytes) -> int | None:
        """Return the number of the group that has a namespace, as far as this node knows."""
        return self._groups.get(root)

    @property
    def namespaces(self) -> dict[bytes, int]:
        """All of them, by name."""
        return self._groups

    def setting(self, name: bytes) -> bytes | None:
        """Return what is set for all groups under a key, in the form it is kept in; or None."""
        return self._settings.get(name)

    @property
    def board_lsn(self) -> int:
        """As of which LSN of the system group this node knows it; 0: it knows nothing."""
        return self.board.lsn if self.board is not None else 0

    def post(self, posted: Posted) -> bool:
        """Take what members here have; return whether it is news."""
        self.elements = posted.elements
        board, known = posted.board, self.board
        if board is None or (known is not None and known._replace(lsn=board.lsn) == board):
            return False
        return self._take_board(board)

    def forget_board(self) -> None:
        """Know nothing of a system group any more."""
        self.board, self._groups, self._settings = None, {}, {}

    def on_board(self, _: PoolEnvelope, board: Board) -> None:
        """Take what another node has."""
        self._take_board(board)

    def _take_board(self, board: Board) -> bool:
        known = self.board
        if board.group_id not in self.tables.numbered(FIRST_GROUP):
            return False
        is_known = known is not None and known.group_id in self.tables.foundings
        if (
            known is not None
            and is_known
            and (known.group_id != board.group_id or known.lsn >= board.lsn)
        ):
            return False
        self.board = board
        self._groups, self._settings = dict(board.names), dict(board.settings)
        return True
