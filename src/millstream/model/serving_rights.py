"""What an active copy may do: serve plain requests, acknowledge, hand its partition over.

A copy serves plain requests by a *lease*, while its node is in step and admitted, or by *contact*
with a majority of every row in force. The lease survives the loss of replicas, contact the loss of
the coordination service.

Invariants:
1. Majority writes need no right: a copy that may not serve gets no acknowledgements.
2. A lease ends before the coordination service can end the session, by the node's own monotonic
   clock.
3. Contact counts from when the message was sent that a follower answered, and only of followers
   that have promised nothing above the branch served.
4. A copy acknowledges to no source whose record is older than its own.
5. Whoever may not serve hands nothing over.

Times are milliseconds of a monotonic clock of the node.

Elsewhere: the orders (`cluster.core.admission`), durations (`cluster.core.settings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from millstream.model.cluster_maps import DataRecord
from millstream.model.rows import Row, majority

__all__ = [
    "CONTACT_WINDOW_MS",
    "LEASE_MARGIN_MS",
    "NOOP_INTERVAL_MS",
    "Contact",
    "Isolation",
    "Right",
    "contact_until_ms",
    "lease_until_ms",
    "may_acknowledge",
    "may_hand_over",
    "may_serve",
    "what_is_served",
]


CONTACT_WINDOW_MS: Final = 500
"""An active copy serves so long after its last contact with a majority of every row."""
NOOP_INTERVAL_MS: Final = 100
"""Longest silence of a stream between copies."""
LEASE_MARGIN_MS: Final = 200
"""A node gives its lease up so long before its session can end."""
Isolation = Literal["stop", "read_only", "serve"]
"""What a copy does that has neither a lease nor contact: nothing, reads, everything."""


class Contact(NamedTuple):
    """The newest answer of a follower to its source."""

    sent_ms: int
    """When the source sent what was answered."""
    last_branch: int
    """The largest branch that the follower has promised."""


class Right(NamedTuple):
    """Why a copy may serve plain requests."""

    by_lease: bool
    by_contact: bool

    @property
    def is_given(self) -> bool:
        """Return whether it may."""
        return self.by_lease or self.by_contact


def lease_until_ms(pinged_ms: int, ttl_ms: int) -> int:
    """Return when the lease ends: `pinged_ms` is when the last answered PING was sent."""
    return pinged_ms + ttl_ms - LEASE_MARGIN_MS


def contact_until_ms(
    node: str,
    branch: int,
    rows: tuple[Row, ...],
    contacts: Mapping[str, Contact],
    window_ms: int,
) -> int | None:
    """Return until when an active copy serves by contact; None: it has none.

    Args:
        node: of the copy, which counts as its own follower.
        branch: that it serves.
        rows: in force, by the newest record that the node has adopted.
        contacts: by follower.
        window_ms: the contact window.
    """
    until: int | None = None
    for row in rows:
        able = [contacts[name] for name in row if name is not None and name in contacts]
        times = sorted((one.sent_ms for one in able if one.last_branch <= branch), reverse=True)
        needed = majority(row) - (node in row)
        if needed > len(times):
            return None
        if needed:
            end = times[needed - 1] + window_ms
            until = end if until is None else min(until, end)
    return _FOR_EVER if until is None else until


_FOR_EVER = 2**63 - 1
"""A copy that is a majority by itself is always in contact."""


def may_serve(
    *,
    now_ms: int,
    is_active: bool,
    lease_ms: int | None,
    is_admitted: bool,
    contact_ms: int | None,
) -> Right:
    """Return the right of a copy to serve plain requests now.

    Args:
        now_ms: monotonic.
        is_active: the state of the copy.
        lease_ms: when the lease ends; None: the node is out of step.
        is_admitted: by an orchestrator, in this session.
        contact_ms: as `contact_until_ms` returns it.
    """
    return Right(
        is_active and is_admitted and lease_ms is not None and now_ms < lease_ms,
        is_active and contact_ms is not None and now_ms < contact_ms,
    )


def what_is_served(right: Right, isolation: Isolation, *, is_active: bool) -> tuple[bool, bool]:
    """Return whether plain reads, and plain writes, are served."""
    if right.is_given or not is_active:
        return right.is_given, right.is_given
    return isolation != "stop", isolation == "serve"


def may_acknowledge(own: DataRecord | None, source: DataRecord | None) -> bool:
    """Return whether a follower may acknowledge to a source with this record."""
    if own is None or source is None:
        return own is None
    return source.at >= own.at


def may_hand_over(record: DataRecord, reader: str, right: Right) -> bool:
    """Return whether an active copy gives its partition to a reader that asks for it.

    Args:
        record: the newest that the source knows, that of the reader included.
        reader: the node that asks.
        right: of the source, now.
    """
    return right.is_given and record.row[0] == reader
