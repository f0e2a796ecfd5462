"""Each type that CREATE knows can be made and shown."""

from __future__ import annotations

import pytest

from millstream.coordination.core.namespace.commands.kinds import KINDS
from support.coordination.namespace_machine import Tree


@pytest.mark.parametrize("name", KINDS)
def test_every_type_is_made_empty_and_shown(name: bytes) -> None:
    tree = Tree()
    tree.do("CREATENAMESPACE", "/ns")
    assert tree.do("CREATE", name, "/ns/a") == b"+OK"
    assert not tree.read("GET", "/ns/a").startswith(b"-")
    assert KINDS[name].type.text == name
    tree.again()
