"""What elements hold goes with them."""

from __future__ import annotations

from support.coordination.namespace_machine import Tree


def test_nothing_is_left_of_what_was_deleted() -> None:
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns")
    tree.do("CREATE", "BINARY", "/ns/a", "data")
    tree.do("PUT", "/ns/a", "ATTR", "u.x", "1")
    data = tree.machine.state.data
    assert (len(data._bytes), len(data._attributes)) == (1, 1)
    tree.do("DELETE", "/ns/a")
    assert (len(data._bytes), len(data._attributes)) == (0, 0)


def test_empty_data_takes_no_room() -> None:
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns")
    tree.do("CREATE", "BINARY", "/ns/a", "data")
    tree.do("PUT", "/ns/a", "")
    assert len(tree.machine.state.data._bytes) == 0
    assert tree.read("GET", "/ns/a") == b"="
