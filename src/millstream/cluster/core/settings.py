"""Settings of a managed cluster, with their defaults and ranges.

Invariants:
1. Every setting has a default here, so an empty settings element is valid.
2. A setting out of range is refused with its name, range and value.

Elsewhere: the element that has them (`cluster.core.elements`).
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from millstream.errors import UsageError
from millstream.model.serving_rights import CONTACT_WINDOW_MS, Isolation

__all__ = [
    "ACTIVATE_MS_MAX",
    "BRANCH_TRY_DOUBLINGS_MAX",
    "BRANCH_TRY_MS",
    "CONTACT_WINDOW_MS",
    "COORDINATORS",
    "FAILED_MS_MIN",
    "FREEZE_WITHIN_SEQNOS",
    "HAND_OVER_MS",
    "ORDER_MS_MAX",
    "PART_STOPPED_MS_MAX",
    "REPORT_INTERVAL_MS",
    "SESSION_BEAT_MS",
    "SESSION_MS_MAX",
    "SESSION_TTL_MS",
    "STALLED_AFTER_MS",
    "STARTING_MS",
    "TAKE_OVERS_MAX",
    "UNREACHED_MS_MAX",
    "Settings",
    "settings_from_json",
    "settings_to_json",
]

SESSION_TTL_MS: Final = 1200
"""Time without a beat after which the coordination service ends the session of a node."""
SESSION_MS_MAX: Final = 10_000
"""The coordination service gives no session more time. If `session_ttl_ms` is larger, sessions
and leases last so long, and the orchestrator waits for the rest before it fails a node over."""
SESSION_BEAT_MS: Final = 300
REPORT_INTERVAL_MS: Final = 500
ORDER_MS_MAX: Final = 2000
"""Longest wait for the reply to an order, unless another limit is named."""
ACTIVATE_MS_MAX: Final = 60_000
"""Longest wait for promises and activations: they wait for the disk."""
BRANCH_TRY_MS: Final = 2000
"""A promotion that has not advanced for so long is repeated in another branch."""
BRANCH_TRY_DOUBLINGS_MAX: Final = 3
"""Each further try of it waits twice as long, so often: a slow disk must be able to promise."""
STARTING_MS: Final = 10_000
"""So long after its own start a node, as the orchestrator, fails no other one over by itself that
it has not heard since then."""
FAILED_MS_MIN: Final = 10_000
"""A failed node that returns is no member for so long, if nobody else can serve its partitions."""
UNREACHED_MS_MAX: Final = 5000
"""A node with a session that a promotion or a move needs and cannot reach for so long loses its
session."""
FREEZE_WITHIN_SEQNOS: Final = 1000
"""An index part that is handed over stops indexing when the new one is so near."""
PART_STOPPED_MS_MAX: Final = 2000
"""If a new index part has not caught up for so long, the old one goes on."""
OUTSIDE_MS_MAX: Final = 90_000
"""If no pipeline that keeps indexes on Spark was heard for so long, an index part is handed over
without waiting for these indexes. They answer once a pipeline has brought them on."""
OUTSIDE_TOLD_MS: Final = 5000
"""A hand-over that waits so long for such indexes says so."""
HAND_OVER_MS: Final = 2000
"""A partition that is being taken over is served by nobody for a moment. It is promoted only if
that lasts so long."""
TAKE_OVERS_MAX: Final = 4
"""Number of partitions that one node takes over concurrently."""
STALLED_AFTER_MS: Final = 600_000
"""A move without progress for so long is shown as stalled."""
Coordinators = Literal[1, 3, 5, 7]
COORDINATORS: Final[tuple[Coordinators, ...]] = (1, 3, 5, 7)
"""How many nodes can coordinate together."""
TTL_RANGE_MS: Final = (600, 600_000)

_RANGES: Final[dict[str, tuple[int, int]]] = {
    "session_ttl_ms": TTL_RANGE_MS,
    "contact_window_ms": (100, 60_000),
    "auto_failover_max": (1, 100),
    "replace_after_s": (0, 365 * 86_400),
    "moves": (1, 32),
    "disk_reserve_percent": (0, 50),
}


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an administrator may set."""

    session_ttl_ms: int = SESSION_TTL_MS
    contact_window_ms: int = CONTACT_WINDOW_MS
    auto_failover: bool = True
    auto_failover_max: int = 1
    """Automatic fail-overs of nodes until the count is reset."""
    auto_failover_zones: bool = False
    """A zone of which all nodes fail together counts as one node."""
    auto_failover_allow_loss: bool = False
    """Whether to fail over even if writes without a majority's acknowledgement may be lost."""
    isolation: Isolation = "stop"
    """What a copy does that has neither a lease nor contact with a majority."""
    rejoin: Literal["auto", "manual"] = "auto"
    """Whether a failed node that returns is a member again by itself."""
    replace_after_s: int = 600
    """Copies of a failed node are made anew after so long; 0: never."""
    moves: int = 2
    """Copies that a rebalance builds at a time, per node, in and out."""
    disk_reserve_percent: int = 5
    coordinators: Coordinators = 3
    """Nodes that coordinate, once so many members can."""

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}; {least} to {most} is wanted")


def settings_from_json(content: bytes | dict[str, Any]) -> Settings:
    """Return the settings; what is missing has its default.

    Raises:
        UsageError: `bad_cluster_setting`: an unknown setting, or a value that it cannot have.
    """
    try:
        if isinstance(content, dict):
            return msgspec.convert(content, Settings)
        return msgspec.json.decode(content, type=Settings)
    except msgspec.MsgspecError as error:
        message = f"settings of the cluster: {error}"
        raise UsageError(message, code="bad_cluster_setting") from error


def settings_to_json(settings: Settings) -> bytes:
    """Reverse `settings_from_json`."""
    return msgspec.json.encode(settings)
