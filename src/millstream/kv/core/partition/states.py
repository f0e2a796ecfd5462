"""The states of a partition's copy: legal moves, and what each state answers.

Invariants:
1. Documents are read and written on an active copy only.
2. An active copy is never made pending or absent directly: it is stopped first.
3. Only a dead copy is deleted.

Elsewhere: the effect of a move (`partition`, `replica`), making it durable (`kv.aio.copies`).

Source: the released protocol's partition states; docs/reference/wire/partitions.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, Literal

from millstream.model.partitions import PartitionState
from millstream.wire.mcbp import Status

__all__ = [
    "FOLLOWING", "MOVES", "SERVING", "STREAMED", "Move", "Unserved", "move_between", "refusal_in",
]  # fmt: skip

_ABSENT: Final = PartitionState.ABSENT
_ACTIVE: Final = PartitionState.ACTIVE
_REPLICA: Final = PartitionState.REPLICA
_PENDING: Final = PartitionState.PENDING
_DEAD: Final = PartitionState.DEAD


class Move(Enum):
    """What a change of state requires."""

    NONE = auto()
    """It already has that state."""
    STAND_DOWN = auto()
    """It writes its changes and then follows another copy, or none."""
    RENAME = auto()
    """It continues from its position, in another state."""
    ACTIVATE = auto()
    """A new history begins at its newest complete end."""
    REMOVE = auto()
    """All its data is dropped."""


MOVES: Final[Mapping[PartitionState, Mapping[PartitionState, Move]]] = {
    _ABSENT: {
        _ABSENT: Move.NONE,
        _ACTIVE: Move.ACTIVATE,
        _REPLICA: Move.RENAME,
        _PENDING: Move.RENAME,
    },
    _ACTIVE: {
        _ACTIVE: Move.NONE,
        _REPLICA: Move.STAND_DOWN,
        _DEAD: Move.STAND_DOWN,
    },
    _REPLICA: {
        _REPLICA: Move.NONE,
        _ACTIVE: Move.ACTIVATE,
        _PENDING: Move.RENAME,
        _DEAD: Move.RENAME,
    },
    _PENDING: {
        _PENDING: Move.NONE,
        _ACTIVE: Move.ACTIVATE,
        _REPLICA: Move.RENAME,
        _DEAD: Move.RENAME,
    },
    _DEAD: {
        _DEAD: Move.NONE,
        _ACTIVE: Move.ACTIVATE,
        _REPLICA: Move.RENAME,
        _PENDING: Move.RENAME,
        _ABSENT: Move.REMOVE,
    },
}
"""From -> to; other moves are illegal."""

STREAMED: Final = frozenset({_ACTIVE, _REPLICA})
"""States that streams and leases read from."""
FOLLOWING: Final = frozenset({_REPLICA, _PENDING})
"""States that accept changes from a source."""
SERVING: Final = frozenset({_ACTIVE, _PENDING})
"""States that a copy leaves when it promises a branch: it serves, or is about to."""
Unserved = Literal["", "writes", "all"]
"""What an active copy refuses because it may not serve now (`kv.core.serving`)."""
_REFUSALS: Final[Mapping[PartitionState, Status]] = {
    _ABSENT: Status.NOT_MY_VBUCKET,
    _REPLICA: Status.NOT_MY_VBUCKET,
    _PENDING: Status.ETMPFAIL,
    _DEAD: Status.NOT_MY_VBUCKET,
}


def move_between(before: PartitionState, after: PartitionState) -> Move | None:
    """Return what a move requires; None if it is illegal."""
    return MOVES[before].get(after)


def refusal_in(state: PartitionState) -> Status | None:
    """Return the status with which document commands are refused; None if they are served."""
    return _REFUSALS.get(state)
