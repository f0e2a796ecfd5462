"""Mistakes that need several groups, which runs of whole nodes have to find, and others for these.

Elsewhere: mistakes of a group alone (`plants`, `namespace_mistakes`), of a pool (`pool_plants`).
"""

from __future__ import annotations

from typing import Any, Final

from millstream.coordination.core.namespace import settling
from millstream.coordination.core.namespace.names import NameKeeper
from millstream.vsr.core.replica.reconfiguration import Reconfiguration
from millstream.vsr.core.replica.replica import Replica
from simulators.coordination_sim.namespace_mistakes import CONDITIONS, MISTAKES, Patch, instead
from simulators.coordination_sim.plants import PLANTS, Plant

__all__ = ["IN_WHOLE", "WHOLE_PLANTS"]

FAULTS = ("isolate_primary", "move_primary", "crash", "client_loss")


def _of_names(what: str, patch: Patch, *signs: str) -> Plant:
    return Plant(what, Replica, signs, frozenset(("namespaces", *FAULTS)), CONDITIONS, patch)


def _whoever_asks_is_told(_chain: Any, _wanted: Any) -> bytes:
    return b"+OK"


def _nobody_goes_on(*_: Any) -> list[Any]:
    return []


def _only_asks(part: Any, heard: Any) -> None:
    for member in heard.members:
        if member != part.state.id and heard.epoch > part.newest.epoch:
            part.ask_epoch(member)


OF_FORKS: Final = {
    "deaf_to_hearsay": Plant(
        "Who hears from others that its group was forced to go on asks the new members alone.",
        Replica, ("goes on in a group that was given up",), frozenset(("forced", "crash")), (),
        instead(Reconfiguration, "on_superseded", _only_asks),
    ),
}  # fmt: skip
OF_NAMES: Final = {
    "names_early": _of_names(
        "Who has a namespace made or deleted is told that it was, whatever its group says.",
        instead(settling, "_value_of", _whoever_asks_is_told), "and it is there", "is not so",
    ),
    "names_forgotten": _of_names(
        "A new primary of the system group does not go on with names that are unfinished.",
        instead(NameKeeper, "tick", _nobody_goes_on), " is RESERVED", " is DELETING",
    ),
}  # fmt: skip
IN_WHOLE: Final = (
    "ack_early", "own_ack_early", "ns_ephemeral", "ns_locks_stay", "ns_items_stay", "ns_not_done",
    "ns_resume", "ns_twice", "ns_quiet", "ns_notices", "ns_no_fence", "ns_undone",
)  # fmt: skip
"""Those of a group alone that are searched for in runs of whole nodes, too."""
assert set(IN_WHOLE[2:]) <= set(MISTAKES)
WHOLE_PLANTS: Final = {**OF_FORKS, **OF_NAMES, **{name: PLANTS[name] for name in IN_WHOLE}}
