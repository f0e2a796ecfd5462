"""`coordination.core.pool.replies`: answers as values."""

from __future__ import annotations

from millstream.coordination.core.pool.directory import GroupStatus
from millstream.coordination.core.pool.messages import Address, Founding, NodeInfo
from millstream.coordination.core.pool.replies import coord_of, group_entry, value_of
from millstream.coordination.core.pool.tables import PoolTables
from millstream.vsr.core.replica.member import Status
from millstream.vsr.core.values import NULL, array, bulk, integer, mapping, truth

A, B = b"a" * 16, b"b" * 16


def test_things_become_values() -> None:
    assert value_of(None) == NULL
    assert value_of(True) == truth(True)
    assert value_of(7.9) == integer(7)
    assert value_of("text") == bulk(b"text")
    assert value_of(A) == bulk(A.hex().encode())
    assert value_of(Status.GAP) == bulk(b"RECOVERY/GAP")
    assert value_of([1, "x"]) == array([integer(1), bulk(b"x")])
    assert value_of({"n": 1}) == mapping([(b"n", integer(1))])
    assert value_of(Address("h", 1)) == value_of({"host": "h", "port": 1})


def test_a_group_has_the_addresses_of_its_members_as_far_as_they_are_known() -> None:
    me = NodeInfo(A, 1, 0, Address("a", 1), Address("a", 2))
    tables = PoolTables(me)
    founding = Founding(4, (A, B), True, 0)
    unseen = group_entry(tables, founding, None, 50)
    assert (unseen["primary"], unseen["freshness_ms"]) == (None, None)
    entry = group_entry(tables, founding, GroupStatus(0, 2, (A, B), 20), 50)
    assert (entry["primary"], entry["members"], entry["freshness_ms"]) == ("a:2", ["a:2", "?"], 30)
    assert coord_of(tables, B) is None
