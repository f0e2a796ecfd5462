"""Mistakes, one for each run that asks for one, which the simulator has to find."""

from __future__ import annotations

from typing import NamedTuple

from coordination_plants import PLANTS as IN_REPLICAS
from millstream.coordination.core.replica import Replica

__all__ = ["PLANTS", "Plant"]


class Plant(NamedTuple):
    """One mistake."""

    what: str
    replica: type[Replica]


PLANTS: dict[str, Plant] = {
    name: Plant((mistake.__doc__ or "").strip(), mistake)
    for name, mistake in IN_REPLICAS.items()
    if name != "torn_install"
}
"""Name -> mistake."""
