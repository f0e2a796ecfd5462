"""`coordination.core.pool.state`: saying, keeping, asking."""

from __future__ import annotations

from millstream.coordination.core.pool.effects import HangUp, Say
from millstream.coordination.core.pool.messages import Address, Deleted, NodeInfo
from millstream.coordination.core.pool.state import PoolState

OTHER = NodeInfo(b"o" * 16, 1, 0, Address("h", 1), Address("h", 2))
WORD = Deleted(b"g" * 16, is_answer=False)


def test_nodes_are_spoken_to_where_they_said_they_are() -> None:
    state = PoolState(lambda: 0.0)
    state.say(OTHER.node_id, WORD)
    assert state.effects == []
    state.record_node(OTHER)
    assert state.is_changed
    state.say(OTHER.node_id, WORD)
    (said,) = state.effects
    assert isinstance(said, Say)
    assert (said.receiver, said.address) == (OTHER.node_id, OTHER.peer)


def test_a_connection_to_where_a_node_is_no_more_is_closed() -> None:
    state = PoolState(lambda: 0.0)
    state.record_node(OTHER)
    state.record_node(OTHER._replace(incarnation=2))
    assert state.effects == []
    state.record_node(OTHER._replace(incarnation=3, peer=Address("h", 9)))
    state.record_node(OTHER._replace(incarnation=4, peer=Address("h", 9), is_gone=True))
    assert state.effects == [HangUp(OTHER.node_id), HangUp(OTHER.node_id)]
