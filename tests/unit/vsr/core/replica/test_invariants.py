"""A replica that breaks its invariants is found at once."""

from collections.abc import Callable

import pytest

from millstream.vsr.core.configuration import Configuration
from millstream.vsr.core.effects import Request
from millstream.vsr.core.entries import Body
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.replica.replica import Replica
from support.coordination.coordination_group import Group


def more_is_committed(replica: Replica) -> None:
    replica.state.commit_lsn = replica.log.op_lsn + 1


def another_epoch(replica: Replica) -> None:
    replica.state.configuration = Configuration(7, replica.members)


def a_later_log(replica: Replica) -> None:
    replica.state.last_normal = (replica.epoch, replica.view + 1)


def leads_in_a_gap(replica: Replica) -> None:
    replica.state.status = Status.GAP


def never_sent(replica: Replica) -> None:
    replica.state.flushed_lsn = 0


def retired_unknown(replica: Replica) -> None:
    replica.state.leading = False
    replica.state.status = Status.RETIRED


def no_state(replica: Replica) -> None:
    replica.state.has_state = False


def fetched_for_nothing(replica: Replica) -> None:
    replica.parts.repairs.fetch(9, b"", lambda: None)
    replica.parts.repairs.then = None


def suspended_backup(replica: Replica) -> None:
    replica.state.leading, replica.state.suspended = False, True


def clients_of_nobody(replica: Replica) -> None:
    replica.state.leading = False
    replica.state.waiting = {9: [1]}


def late_event(replica: Replica) -> None:
    replica._defer(Request(1, Body()))


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (more_is_committed, "more is committed than there is"),
        (another_epoch, "not that of the configuration"),
        (a_later_log, "a view that is not reached"),
        (leads_in_a_gap, "not in normal operation"),
        (never_sent, "never sent"),
        (retired_unknown, "retired, and in no epoch"),
        (no_state, "does not come"),
        (fetched_for_nothing, "fetched for nothing"),
        (suspended_backup, "does not lead is suspended"),
        (clients_of_nobody, "one that does not lead"),
        (late_event, "no disk operation runs"),
    ],
)
def test_what_cannot_be_is_found(fault: Callable[[Replica], None], what: str) -> None:
    replica = (group := Group(3)).replicas[group.leader]
    replica.check_invariants()
    fault(replica)
    with pytest.raises(AssertionError, match=what):
        replica.check_invariants()
