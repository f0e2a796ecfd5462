"""Mistakes, one for each run that asks for one, which the simulator has to find.

Invariants:
1. A mistake is found when what follows from it is seen: one of its `signs`, in a run that finds
   nothing without it. Whatever else goes wrong, its own code's errors first, does not count.
2. Each is searched for in short runs of the faults that it needs, so that a search is short.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple
from unittest.mock import patch

from millstream.vsr.core.disk.journal import Journal
from millstream.vsr.core.replica import requested_changes as changing
from millstream.vsr.core.replica.replica import Replica
from simulators.coordination_plants import PLANTS as IN_REPLICAS
from simulators.coordination_sim.namespace_mistakes import CONDITIONS, MISTAKES

__all__ = ["OUT_OF_REACH", "PLANTS", "Plant"]

LOST = (
    "committed twice", "begins without committed entry", "is committed, durable on",
    "shorter than what is committed", "lacks what is committed",
)  # fmt: skip
"""A committed entry is gone, or was never safe; members look, too, before they lose one."""
STALE = ("stale read", "a read of", "the history of the clients")
"""Somebody has read what was no longer so."""
OTHER_STATE = (
    "takes back what it committed", ", entry ", "is answered", "a read of", "two states at",
    "its state was right",
)  # fmt: skip
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
    fixed: tuple[tuple[str, float], ...] = ()
    """Conditions that are not drawn."""
    patch: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Makes the mistake while it is entered, if it is none of the replica."""


def _plant(name: str, signs: tuple[str, ...], *faults: str, **fixed: float) -> Plant:
    replica = IN_REPLICAS[name]
    what = (replica.__doc__ or "").strip()
    return Plant(what, replica, signs, frozenset(faults), tuple(fixed.items()))


def _short_lag() -> AbstractContextManager[Any]:
    """Have members be far behind sooner than in logs of short runs."""
    return patch.object(changing, "LAG_MAX", 10)


_INSTALL = Journal.install


def _install(journal: Journal, keep_lsn: int, suffix: Any, hard_state: Any) -> None:
    if not journal._is_lost:
        journal.write_hard_state(hard_state)
    _INSTALL(journal, keep_lsn, suffix, hard_state)


def _torn_install() -> AbstractContextManager[Any]:
    return patch.object(Journal, "install", _install)


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
        "bare_snapshot", LOST, "isolate_primary", "reconfigure",
        snapshot=10, retain=0, rate_per_s=20,
    ),
    "lost_is_gap": _plant("lost_is_gap", LOST, "lost_log", "isolate_primary", "slow_node", "loss"),
    "noop_any_epoch": _plant("noop_any_epoch", ("stuck after healing",), *CHANGES, "crash"),
    "no_check": _plant("no_check", STALE, *CUTS),
    "ends_here": _plant(
        "ends_here", ("lives, and its client is told", *OTHER_STATE),
        "short_sessions", "client_silence", "slow_disk", "isolate_primary",
    ),
    "faulty_is_missing": _plant(
        "faulty_is_missing",
        ("has committed more than it has", *LOST),
        *CRASHES, "damage", "rolling_restart",
    ),
    "done_early": _plant("done_early", ("says too early that it has a snapshot",), "slow_disk"),
    "cut_first": _plant(
        "cut_first", ("cuts its log before the new one is here", *LOST), "isolate_primary",
        "restart_storm", "loss", "reorder", loss=0.3, duration_ms=10_000,
    ),
    "longest": _plant(
        "longest", LOST, "isolate_primary", "restart_storm", rate_per_s=10, window=40
    ),
    "lead_blind": _plant("lead_blind", (*OTHER_STATE, *STALE), *CRASHES, "damage"),
    "one_is_enough": _plant(
        "one_is_enough", (*LOST, *OTHER_STATE), "wrong_state", "snapshot_storm", "slow_node"
    ),
    "teach_all": _plant("teach_all", LOST, *CHANGES, *CUTS, "crash"),
    "late_start_view": _plant(
        "late_start_view",
        ("cuts its log before the new one is here", *LOST),
        *CUTS, "late", "duplicate", "reorder",
    ),
    "loyal": _plant("loyal", ("stuck after healing",), *CUTS),
    "nonce_again": _plant(
        "nonce_again", STALE, "isolate_primary", "late", "reorder", late=0.2, rate_per_s=50
    ),
    "own_clock": _plant("own_clock", ("the time of one wrong clock",), "jump"),
    "no_grace": _plant(
        "no_grace", ("of silence, it may be",), "short_sessions", "isolate_primary", "move_primary"
    ),
    "pause_is_silence": _plant(
        "pause_is_silence", ("of silence, it may be",), "short_sessions", "pause"
    ),
    "blind_to_divergence": _plant(
        "blind_to_divergence", ("goes on with another state", "gives no alarm"), "wrong_state"
    ),
    "forgetful": _plant("forgetful", LOST, "no_journal", *CUTS, *CRASHES, "rolling_restart"),
    "raise_early": _plant(
        "raise_early", ("does not understand entry", "the group is at state format"), "upgrade",
        "crash", "rolling_restart",
    ),
    "counted_early": _plant(
        "counted_early", ("begins an epoch without the log",), "reconfigure", "slow_node", "pause",
        "partition", rate_per_s=50,
    )._replace(patch=_short_lag),
    "deaf_to_forks": _plant(
        "deaf_to_forks", ("goes on in a group that was given up",), "forced", "crash", "partition"
    ),
    "torn_install": Plant(
        "The hard state of a new view is durable before its log.", Replica,
        ("are no prefixes", *LOST),
        frozenset(("isolate_primary", "crash_in_write", "loss", "reorder", "slow_disk")),
        (("rate_per_s", 10), ("window", 40)), _torn_install,
    ),
    "read_before_noop": _plant(
        "read_before_noop", STALE, "isolate_primary", "slow_disk", "loss", "reorder",
        rate_per_s=50,
    ),
}  # fmt: skip
PLANTS.update({
    name: Plant(what, Replica, signs, frozenset(("namespaces", *faults)), CONDITIONS, patch)
    for name, (what, patch, signs, faults) in MISTAKES.items()
})  # fmt: skip
"""Name -> mistake; those found soonest come first, then those in namespaces."""
OUT_OF_REACH = {
    "read_leaving": "reads are refused already once the epoch has ended, and until then what a "
    "quorum says of the view makes them true: the second lock keeps nothing shut any more",
    "ns_told_twice": "a member that was behind told again what was heard elsewhere; by now it "
    "refuses a position that it has not reached, so no subscription begins ahead of its member",
}
"""Mistakes that are not searched for, and why."""
