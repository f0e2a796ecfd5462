"""How one node's copy of a partition stands: what a promotion compares.

Invariants:
1. A standing is told after everything it tells is so: of a promise, once that is durable.
2. `complete_end` and `branch_at_end` are of the last complete snapshot; of an active copy, of all
   it has.

Elsewhere: what follows from several of them (`cluster.core.promotion`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from millstream.model.partitions import PartitionState

__all__ = ["Standing", "standing_from_json", "standing_to_json"]


class Standing(NamedTuple):
    """One copy of one partition; see the module for when it is true."""

    partition: int
    state: PartitionState
    last_branch: int
    """The largest branch it has heard of: it follows no source of a lower one."""
    branch: int
    """The branch of its newest history."""
    complete_end: int
    persisted_end: int
    """The newest complete end that a stop of the machine cannot take away."""
    branch_at_end: int
    """The branch of the history in which `complete_end` lies."""
    is_intact: bool
    """It has everything it ever acknowledged, at whatever level."""
    is_whole: bool
    """It has everything it ever acknowledged as persisted."""


def standing_to_json(standing: Standing) -> dict[str, Any]:
    """Return its members; the state in small letters."""
    return standing._asdict() | {"state": standing.state.name.lower()}


def standing_from_json(content: Mapping[str, object]) -> Standing:
    """Reverse `standing_to_json`; other members are ignored.

    Raises:
        ValueError: a member is missing, or none that a standing can have.
    """
    values: list[Any] = []
    for name, kind in _KINDS.items():
        value = content.get(name)
        if kind is PartitionState:
            value = _STATES.get(str(value))
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise ValueError(f"not a standing: {name} is {content.get(name)!r}")
        values.append(value)
    return Standing(*values)


_STATES = {state.name.lower(): state for state in PartitionState}
_KINDS: dict[str, type] = {
    name: PartitionState if name == "state" else bool if name.startswith("is_") else int
    for name in Standing._fields
}
