"""Ids of roots and names are kept as they are, and written as they are read."""

from __future__ import annotations

from millstream.coordination.core.namespace.names import Answer, Name, NameStatus
from millstream.vsr.core.versions import Version
from support.coordination.namespace_machine import Tree


def test_a_root_has_the_version_it_was_created_with_as_its_id() -> None:
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns")
    tree.do("CREATE", "BINARY", "/ns/a")
    registry = tree.machine.state.registry
    assert registry.id_of(1) == Version(1, 2, 1)
    assert registry.id_of(2) is None
    tree.do("DELETENAMESPACE", "/ns", "FORCE")
    assert registry.id_of(1) is None


def test_stored_records_are_read_as_written() -> None:
    tree = Tree()
    registry = tree.machine.state.registry
    names = {
        b"a": Name(3, Version(1, 2, 3), NameStatus.RESERVED),
        b"b": Name(0, Version(1, 2, 4), NameStatus.CONFIRMED, Version(1, 2, 5)),
        b"c": Name(2**63 - 1, Version(1, 2, 6), NameStatus.DELETING, Version(1, 2, 7), True),
    }
    for root, name in names.items():
        registry.names.put(root, name)
    registry.refuse(Version(9, 9, 9), Answer.NOTEMPTY)
    tree.again()
    registry = tree.machine.state.registry
    assert {root: registry.names.get(root) for root in names} == names
    assert [root for root, _ in registry.unfinished()] == [b"a", b"c"]
    assert registry.refusal_of(Version(9, 9, 9)) is Answer.NOTEMPTY
    assert registry.refusal_of(Version(9, 9, 8)) is None
