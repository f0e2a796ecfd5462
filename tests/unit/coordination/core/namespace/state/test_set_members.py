"""Members of one set are not those of another, whatever bytes they are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.core.namespace.state.set_members import Size
from support.coordination.namespace_machine import Tree

found = st.lists(st.binary(max_size=3), max_size=8)


@given(found, found)
def test_each_set_has_its_own(one: list[bytes], other: list[bytes]) -> None:
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns")
    tree.do("CREATE", "SET", "/ns/a", *one)
    tree.do("CREATE", "SET", "/ns/b", *other)
    state = tree.machine.state
    first, second = (state.elements.at((b"ns", name)) for name in (b"a", b"b"))
    assert list(state.sets.members(first)) == sorted(set(one))
    assert list(state.sets.members(second)) == sorted(set(other))
    for member in one:
        behind = [other for other in sorted(set(one)) if other > member]
        assert list(state.sets.members(first, member)) == behind
    assert state.sets.size(first) == Size(len(set(one)), sum(map(len, set(one))))
    assert state.sets.new(first, [b"long", *one, b"long"]) == [b"long"]
