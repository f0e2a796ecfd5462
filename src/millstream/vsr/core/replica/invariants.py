"""Invariants of one replica after each step, whatever happened. Simulators check them.

A replica that breaks one of these has a fault in its own code. The simulators check what several
members do together.

Elsewhere: asserts within a step (the parts), moves of the status (`member`).
"""

from __future__ import annotations

from millstream.vsr.core.client_table import SESSIONS_MAX
from millstream.vsr.core.replica.member import ReplicaState, Status
from millstream.vsr.core.replica.parts import Parts

__all__ = ["check_invariants"]

_OF_MEMBERS = (Status.NORMAL, Status.VIEWCHANGE, Status.GAP)


def check_invariants(parts: Parts) -> None:
    """Assert all invariants.

    Raises:
        AssertionError: one does not hold.
    """
    state = parts.state
    if not state.incarnation:
        return  # it has not been started
    _check_log(state)
    _check_promises(state)
    _check_primary(state)
    if not parts.storage.is_persisting:
        _check_status(state)
    _check_snapshots(parts)
    _check_fetching(parts)
    _check_waiting(parts)


def _check_log(state: ReplicaState) -> None:
    """What is committed is whole, and is in the log or in the snapshot below it."""
    log = state.log
    assert log.base.lsn <= state.commit_lsn, "the log begins behind what is applied"
    assert state.commit_lsn <= log.op_lsn, "more is committed than there is"
    assert state.commit_lsn <= log.whole_lsn, "a hole in what is committed"
    assert state.durable_lsn >= 0, "less than nothing is durable"


def _check_promises(state: ReplicaState) -> None:
    """The hard state is of one epoch, and views only grow."""
    configuration = state.configuration
    where = configuration.epoch, configuration.members
    assert (state.epoch, state.members) == where, "the epoch is not that of the configuration"
    assert state.last_normal <= (state.epoch, state.view), "a log of a view that is not reached"
    assert state.state_format <= state.machine.format_max, "a state that is not understood"


def _check_primary(state: ReplicaState) -> None:
    """A primary is in the view that it leads, with its log."""
    assert state.leading or not state.suspended, "who does not lead is suspended"
    assert state.suspended or not state.deposed, "who is deposed goes on"
    if not state.leading:
        return
    assert state.status is Status.NORMAL, "a primary that is not in normal operation"
    assert state.current, "a primary with the log of another view"
    assert state.primary == state.id, "another one's view is led"
    assert state.commit_lsn <= state.flushed_lsn <= state.log.op_lsn, "committed, and never sent"
    assert state.noop_lsn <= state.log.op_lsn + 1, "a view begins behind the end of its log"


def _check_status(state: ReplicaState) -> None:
    """The status agrees with the epoch and the log."""
    status = state.status
    assert (status is Status.RETIRED) == (state.retired is not None), "retired, and in no epoch"
    assert status not in _OF_MEMBERS or state.id in state.members, "it is no member"
    assert status is not Status.INITIALIZATION or not state.members, "a member is not started"
    assert status is not Status.NORMAL or state.current, "it follows with an older log"
    assert status is not Status.VIEWCHANGE or not state.current, "the view has begun already"


def _check_snapshots(parts: Parts) -> None:
    """The stable snapshot is the named one, and a missing state is being fetched."""
    state, stable, named = parts.state, parts.state.stable, parts.state.stable_id
    assert stable is None or stable.id == named, "another snapshot than the stable one is given"
    if named is not None:
        assert named.number == parts.snapshots.snapshot_number, "the stable snapshot has no number"
        assert named.lsn <= state.commit_lsn or not state.has_state, "a snapshot of what may come"
    is_coming = parts.transfer.is_restoring or parts.transfer.missing_snapshot > 0
    assert state.has_state != is_coming, "a state is missing, and does not come"


def _check_fetching(parts: Parts) -> None:
    """A log is fetched for a purpose, and a later epoch is entered by fetching its log."""
    state, repairs, epochs = parts.state, parts.repairs, parts.reconfiguration
    assert (repairs.repair is None) == (repairs.then is None), "a log is fetched for nothing"
    later, entered = epochs.next_known, epochs.next_epoch
    assert later is None or later.epoch > state.epoch or state.retired, "the next epoch is over"
    if entered is not None:
        assert entered.epoch > state.epoch, "an epoch that is over is entered"
        assert repairs.repair is not None, "an epoch is entered whose log is not fetched"


def _check_waiting(parts: Parts) -> None:
    """What waits is bounded, and waits for a primary that can answer."""
    state, normal = parts.state, parts.normal
    assert len(state.table) <= SESSIONS_MAX, "too many sessions"
    assert not state.waiting or state.leading, "clients wait for one that does not lead"
    assert not state.in_flight or state.leading, "requests are in flight, and nobody leads"
    assert parts.execution.uncommitted_bytes >= 0, "less than nothing is uncommitted"
    assert normal.unwritten_bytes >= 0, "less than nothing is unwritten"
    assert normal.writing or normal.unwritten_bytes == 0, (
        "nothing is written, and not all is there"
    )
