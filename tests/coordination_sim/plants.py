"""Mistakes, one for each run that asks for one, which the simulator has to find.

Invariants:
1. A mistake is found when what follows from it is seen: one of its `signs`, in a run that finds
   nothing without it. Whatever else goes wrong, its own code's errors first, does not count.
2. Each is searched for in short runs of the faults that it needs, so that a search is short.
"""

from __future__ import annotations

from typing import NamedTuple

from coordination_plants import PLANTS as IN_REPLICAS
from millstream.coordination.core.replica import Replica

__all__ = ["OUT_OF_REACH", "PLANTS", "Plant"]

LOST = ("committed twice", "begins without committed entry", "is committed, durable on")
"""A committed entry is gone, or was never safe."""
STALE = ("stale read", "a read of", "the history of the clients")
"""Somebody has read what was no longer so."""
OTHER_STATE = ("takes back what it committed", ", entry ", "is answered", "a read of")
"""A state is not what the entries make of it; members that see that of theirs begin anew."""
CHANGES = ("reconfigure", "death_in_reconfigure")
CUTS = ("isolate_primary", "partition", "one_way", "pause")
CRASHES = ("crash", "crash_in_step", "crash_in_write", "power")


class Plant(NamedTuple):
    """One mistake; `signs`: parts of what is said of a run that found it."""

    what: str
    replica: type[Replica]
    signs: tuple[str, ...]
    faults: frozenset[str]


def _plant(name: str, signs: tuple[str, ...], *faults: str) -> Plant:
    replica = IN_REPLICAS[name]
    return Plant((replica.__doc__ or "").strip(), replica, signs, frozenset(faults))


PLANTS: dict[str, Plant] = {
    "ack_early": _plant("ack_early", ("acknowledges what is not durable",)),
    "weak_quorum": _plant("weak_quorum", LOST, "slow_disk"),
    "volatile_view": _plant("volatile_view", (" speaks of ", " said "), *CUTS),
    "lead_after_restart": _plant(
        "lead_after_restart", ("is led by",), *CHANGES, "crash", "rolling_restart"
    ),
    "table_on_receipt": _plant("table_on_receipt", OTHER_STATE),
    "behind_the_end": _plant(
        "behind_the_end", ("an entry behind the end of its epoch", *LOST), *CHANGES
    ),
    "own_ack_early": _plant("own_ack_early", LOST, "slow_disk"),
    "forgetful_snapshot": _plant("forgetful_snapshot", OTHER_STATE, *CRASHES),
    "old_snapshot_state": _plant("old_snapshot_state", OTHER_STATE, *CHANGES, *CUTS, "crash"),
    "cut_all": _plant("cut_all", ("above the snapshot",), *CUTS),
    "old_normal": _plant(
        "old_normal", ("acknowledges with an older log", "are no prefixes"), *CUTS, *CHANGES
    ),
    "late_freeze": _plant("late_freeze", OTHER_STATE, *CRASHES),
    "bare_snapshot": _plant(
        "bare_snapshot", ("shorter than what is committed", *LOST), *CHANGES, *CUTS
    ),
    "lost_is_gap": _plant("lost_is_gap", LOST, "lost_log", "crash", *CUTS),
    "noop_any_epoch": _plant("noop_any_epoch", ("stuck after healing",), *CHANGES, "crash"),
    "no_check": _plant("no_check", STALE, *CUTS),
    "ends_here": _plant("ends_here", OTHER_STATE, "client_silence", "client_restart", *CUTS),
    "faulty_is_missing": _plant(
        "faulty_is_missing",
        ("has committed more than it has", "shorter than what is committed", *LOST),
        *CRASHES, "damage", "rolling_restart",
    ),
    "done_early": _plant("done_early", (*LOST, *OTHER_STATE), *CRASHES, "slow_disk"),
    "cut_first": _plant("cut_first", LOST, *CUTS, "crash"),
    "longest": _plant("longest", LOST, *CUTS, "crash"),
    "lead_blind": _plant("lead_blind", (*OTHER_STATE, *STALE), *CRASHES, "damage"),
    "one_is_enough": _plant("one_is_enough", (*LOST, "stuck after healing"), *CUTS, "damage"),
    "teach_all": _plant("teach_all", LOST, *CHANGES, *CUTS, "crash"),
    "late_start_view": _plant("late_start_view", LOST, *CUTS, "late", "duplicate", "reorder"),
    "loyal": _plant("loyal", ("stuck after healing",), *CUTS),
    "nonce_again": _plant("nonce_again", STALE, *CUTS, "duplicate", "late", "reorder"),
    "read_leaving": _plant("read_leaving", STALE, *CUTS, *CHANGES),
    "read_before_noop": _plant("read_before_noop", STALE, *CUTS, "crash"),
}  # fmt: skip
"""Name -> mistake; those found soonest come first."""
OUT_OF_REACH = {
    "own_clock": "the times that entries show are not looked at here yet",
    "no_grace": "how long a client was silent before its session ended is not looked at here yet",
    "pause_is_silence": "the same",
    "blind_to_divergence": "nothing goes wrong in memory here yet",
    "forgetful": "no groups without a journal here yet",
    "torn_install": "it is the disk's, and made only by `tests/coordination_world.py`",
}
"""Mistakes that are not searched for, and why."""
