"""The status of a member changes by the moves of one table."""

import pytest

from millstream.coordination.core.group_state import GroupState
from millstream.vsr.core.replica.member import MOVES, ReplicaState, Status


@pytest.mark.parametrize("before", Status)
@pytest.mark.parametrize("after", Status)
def test_a_status_follows_only_those_that_the_table_names(before: Status, after: Status) -> None:
    state = ReplicaState(GroupState(), lambda: 0.5)
    state.status = before
    if after in MOVES[before] or after is before:
        state.become(after)
        assert state.status is after
    else:
        with pytest.raises(AssertionError, match=f"{before.name} -> {after.name}"):
            state.become(after)


def test_members_without_a_log_do_not_vote() -> None:
    assert Status.VIEWCHANGE not in MOVES[Status.LOST]
    assert MOVES[Status.RETIRED] == {Status.GAP}
