"""What the system group tells all nodes: the group of each namespace, and global settings.

Members of the system group post it. It spreads by gossip, the newest first.

Invariants:
1. Of two boards of one group, that of the higher LSN counts, whichever node passes it on: its
   content was committed.
2. It may be late, is not wrong for long, and decides nothing: a group that no longer has a
   namespace says so.

Elsewhere: the names and settings (`namespace.state.registry`, `namespace.state.configuration`),
posting (`aio.namespaces`), readers (`aio.client_requests`, `discovery`).

Source: V2R2, "Nomenclature" (VDS).
"""

from __future__ import annotations

from millstream.coordination.core.pool.effects import FIRST_GROUP, Posted
from millstream.coordination.core.pool.messages import Board, PoolEnvelope
from millstream.coordination.core.pool.state import PoolState

__all__ = ["SystemBoard"]


class SystemBoard:
    """The newest board that this node knows."""

    def __init__(self, state: PoolState) -> None:
        self.state = state
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
    def lsn(self) -> int:
        """The LSN of the system group that the board is of; 0: there is no board."""
        return self.board.lsn if self.board is not None else 0

    def post(self, posted: Posted) -> bool:
        """Take what members here have; return whether it is news."""
        self.state.elements = posted.elements
        board, known = posted.board, self.board
        if board is None or (known is not None and known._replace(lsn=board.lsn) == board):
            return False
        return self._take(board)

    def forget(self) -> None:
        """Forget a system group."""
        self.board, self._groups, self._settings = None, {}, {}

    def on_board(self, _: PoolEnvelope, board: Board) -> None:
        """Take what another node has."""
        self._take(board)

    def _take(self, board: Board) -> bool:
        known = self.board
        if board.group_id not in self.state.tables.numbered(FIRST_GROUP):
            return False
        if known is not None and known.group_id in self.state.tables.foundings:
            is_newer = known.group_id == board.group_id and known.lsn < board.lsn
            if not is_newer:
                return False
        self.board = board
        self._groups, self._settings = dict(board.names), dict(board.settings)
        return True

    def check_invariants(self) -> None:
        """Assert what is true after every event."""
        names, settings = ((), ()) if self.board is None else self.board[2:]
        assert self._groups == dict(names), "names that are not those of the board"
        assert self._settings == dict(settings), "settings that are not those of the board"
